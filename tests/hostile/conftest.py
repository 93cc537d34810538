"""The path to the generators of this folder, and files that they make; none is kept in the repository."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hostile_corpus import HostileFile, bombs, damaged, lies, seed_files


@pytest.fixture(scope="session")
def hostile_seeds() -> list[HostileFile]:
    """Strange but whole files: each must be packed."""
    return seed_files()


@pytest.fixture(scope="session")
def hostile_files(hostile_seeds: list[HostileFile]) -> list[HostileFile]:
    """A selection that is quickly made and packed: every strange but whole file, every fifth lie, three bombs, and 60
    damaged files.
    """
    made = [*islice(lies(), 0, None, 5), *bombs(["bomb_bits.png", "bomb_deep.png", "bomb.jp2"])]
    return [*hostile_seeds, *made, *damaged(hostile_seeds, 60, seed=7)]
