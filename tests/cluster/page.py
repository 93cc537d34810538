"""The commands that docs/cluster.md shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from ray_nodes import Machine, Node

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
PROGRAMS = ("curl", "docker", "kubectl", "preshard", "ray", "torchrun")

UPLOADING = "ray job submit --address http://HEAD:8265 --working-dir"
INSTALLED = "ray job submit --address http://HEAD:8265 -- preshard"

PackOn: TypeAlias = Callable[[Machine, Node, Path], list[str]]
"""``pack_on(machine, head, out)``: the command for packing from a process of one's own."""


def commands(program: str) -> list[str]:
    """Commands of one program, each on one line, without the variables that are set before it."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    shown = [re.sub(r"^(?:[A-Z_]+=\S+ )+", "", line) for line in lines]
    return [" ".join(line.split()) for line in shown if line.startswith(f"{program} ")]


def command(beginning: str, **places: str) -> list[str]:
    """The words of the one command that begins so, with SOURCE, DATASET and other places filled in."""
    program = beginning.partition(" ")[0]
    [found] = {line for line in commands(program) if line.startswith(beginning)}
    for name, place in places.items():
        found = found.replace(name, place)
    return found.split()


def submitted(beginning: str, source: Path, out: Path, options: list[str]) -> list[str]:
    """The command that submits a pack job, with what the page leaves to the reader."""
    return [*command(beginning, SOURCE=str(source), DATASET=str(out)), *options]
