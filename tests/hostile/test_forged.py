"""Drawn mutations of every file of a dataset, a few of each kind, and faults that more of them find."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from preshard.schemas.errors import PreshardError
from tests.support.scripts import load_script

SCRIPT = Path(__file__).with_name("forged.py")
OPENED = ("report", "open", "read", "source")
"""Entries that open each: in the tests' own process, so that a draw takes a tenth of a second."""

EACH = 2
"""Draws of each kind."""


def test_drawn_mutations_end_in_one_line_or_in_nothing(tiny_dataset: Path, tmp_path: Path) -> None:
    """Fails when a file that is cut, forged, a pipe or elsewhere ends in an error that is not the package's own."""
    forged = load_script(SCRIPT)
    drawn = {mutation: [n for n in range(200) if forged.mutation_of(n) is mutation] for mutation in forged.MUTATIONS}
    assert len(drawn) == 7
    refused = 0
    for number in [number for numbers in drawn.values() for number in numbers[:EACH]]:
        what = forged.make(number, tiny_dataset, tmp_path / "copy")
        for name in OPENED:
            said, status = opened(forged.ENTRIES[name], tmp_path / "copy")
            refused += status not in (0, None)
            assert (status in (0, 1, 2, None), "\n" in said) == (True, False), (number, what, name)
    assert refused > EACH


def opened(entry: Callable[[str, Path], None], dataset: Path) -> tuple[str, int | str | None]:
    """The line and the exit status with which an entry ends; any error that is not the package's own is raised."""
    try:
        entry(str(dataset), dataset.parent)
    except (PreshardError, OSError) as error:
        return str(error), 2
    except SystemExit as end:
        return "", end.code
    return "", 0


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", ["links", "inflated", "pipes"])
def test_a_fault_that_there_was_is_found_again(tiny_dataset: Path, fault: str) -> None:
    """Fails when draws would not find that links are written through, arrays inflate without a limit, or a pipe is
    waited for.
    """
    command = [sys.executable, str(SCRIPT), str(tiny_dataset), "--plant", fault, "--draws", "5000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{fault}: found by draw" in done.stdout
