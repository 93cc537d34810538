"""A few of the drawn files: those of every generator are read as other people's software reads them."""

from __future__ import annotations

from pathlib import Path

import files
import pytest

SEEDS = 4
"""Cases of each generator; ``tests/hostile/files.py`` draws thousands."""


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
@pytest.mark.parametrize("name", files.generators())
def test_a_drawn_file_is_read_as_others_read_it(tmp_path: Path, name: str, seed: int) -> None:
    """Fails when a type, a form of quotes or what is around a file changes a row or loses it."""
    case, wrong = files.differences(name, seed, tmp_path)
    assert not wrong
    assert case is not None
    assert case.files
