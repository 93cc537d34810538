"""What is said for a process that says nothing any more."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys
from packer_service.runtime.last_words import last_words
try:
    with last_words("gone"):
        {end}
except KeyError:
    sys.exit(3)
"""


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("os._exit(1)", 1, "gone\n"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "gone\n"),
        ("pass", 0, ""),
        ("raise KeyError", 3, ""),
        ("sys.exit(2)", 2, ""),
    ],
)
def test_only_a_process_that_is_cut_short_has_last_words(end: str, status: int, said: str) -> None:
    """Fails when Ray ends a driver without a line, or when a job that ended by itself is said to be gone."""
    command = [sys.executable, "-c", PROGRAM.format(end=end)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (status, said)
