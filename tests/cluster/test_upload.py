"""What ``ray job submit`` uploads of a checkout, as docs/cluster.md shows it, is all that packing needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dashboard import dashboard
from page import UPLOADING, submitted
from ray_nodes import Machine

MOST_BYTES = 3_000_000
"""Of the upload, which docs/cluster.md says is 2 MB."""

PACK = """
import sys
import packer_service.__main__
from packer_service.config import load_config
from packer_service.job.pack import pack
from packer_service.runtime.executors import PlainExecutor
from packer_service.runtime.progress import ConsoleProgress
source, out, *settings = sys.argv[1:]
pack([source], out, load_config(None, settings), PlainExecutor(), ConsoleProgress())
"""
"""What the command does, with a plain loop in Ray's place."""


def test_what_is_uploaded_packs_the_same_bytes(
    machine: Machine,
    tiny_source: Path,
    tiny_settings: list[str],
    options: list[str],
    same_bytes: Callable[[Path], bool],
    tmp_path: Path,
) -> None:
    """Fails when Ray does not take the page's command, or what is uploaded misses a file or is megabytes of what
    packing does not need. That a head runs it, and that its workers find what was uploaded, is what test_submit.py
    tries.
    """
    assert machine.run([machine.python, "-P", "-c", "import packer_service"]).returncode, "not from the upload"
    out = tmp_path / "uploaded"
    words = submitted(UPLOADING, tiny_source, out, options)
    with dashboard() as (address, taken):
        status, said = machine.submit(address, words)
    assert status == 0, said
    assert taken.command == words[words.index("--") + 1 :]
    assert len(taken.package) < MOST_BYTES
    done = machine.run(
        [machine.python, "-c", PACK, str(tiny_source), str(out), *tiny_settings], taken.unpack(tmp_path / "checkout")
    )
    assert done.returncode == 0, done.stderr
    assert same_bytes(out)
