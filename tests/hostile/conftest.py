"""The generators of this folder as fixtures; nothing that they make is kept in the repository."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hostile_corpus import HostileFile, bombs, damaged, lies, row_id, seed_files, write_corpus
from hostile_images import deep_colour_png
from hostile_rows import RowGrammar, broken_lines, drawn_lines
from hostile_tables import damaged_indexes, damaged_parquet, parquet, typed_tables
from hostile_videos import Form, encode


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


@pytest.fixture(scope="session")
def corpus_writer() -> Callable[[Path, Iterator[HostileFile]], list[dict[str, object]]]:
    return write_corpus


@pytest.fixture(scope="session")
def id_of() -> Callable[[HostileFile], str]:
    return row_id


@pytest.fixture(scope="session")
def encode_form() -> Callable[..., bytes]:
    """Encodes pictures as a video: ``encode_form(pictures, name="x.mkv", codec=..., ...)``."""

    def make(pictures: list[Any], **form: Any) -> bytes:
        return encode(Form(**form), pictures)

    return make


@pytest.fixture(scope="session")
def deep_png() -> Callable[[Any], bytes]:
    return deep_colour_png


@pytest.fixture(scope="session")
def hostile_lines() -> list[bytes]:
    """Lines that are not rows, or barely, and rows of which half are wrong somewhere."""
    return [*broken_lines(), *drawn_lines(800, seed=11)]


@pytest.fixture(scope="session")
def row_grammar() -> type[RowGrammar]:
    return RowGrammar


@pytest.fixture(scope="session")
def hostile_tables() -> list[tuple[str, bytes, int, int]]:
    """Parquet files: name, bytes, rows, and how many of them must be packed."""
    return [(name, parquet(table), len(table), whole) for name, table, whole in typed_tables()]


@pytest.fixture(scope="session")
def damaged_tables() -> list[bytes]:
    return list(damaged_parquet(60, seed=2))


@pytest.fixture(scope="session")
def damaged_pairs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[bytes, bytes]]:
    """Indexed datasets of tokens: index and tokens."""
    return list(damaged_indexes(tmp_path_factory.mktemp("indexed"), 300, seed=4))
