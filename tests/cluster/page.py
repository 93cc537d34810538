"""The commands that docs/cluster.md shows."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
PROGRAMS = ("curl", "docker", "kubectl", "preshard", "ray", "torchrun")


def commands(program: str) -> list[str]:
    """Those of one program, each on one line, without the variables that are set before it."""
    blocks = re.findall(r"^```\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
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
