"""Rows that nobody has looked at: each is packed or rejected with a code, and none is lost or counted twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hostile_rows import RowGrammar, broken_lines, drawn_lines
from hostile_tables import damaged_indexes, damaged_parquet, parquet, typed_tables
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from preshard.packer_service.config import load_config
from preshard.packer_service.ingest.source.files import list_fragments, read_fragment
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.packer_service.ingest.source.look import ROWS
from preshard.packer_service.job.pack import pack
from preshard.packer_service.job.planning.measure import measure_fragment
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.verify import verify_dataset
from preshard.schemas.errors import REJECT_CODES, ConfigError, DocumentError

SETTINGS = [
    *("seq_len=1024", "vision.image_size=28", "vision.pool_size=2", "layouts=[contiguous]"),
    *("cp_sizes=[1]", "ring_degrees=[1]", "max_images=16"),
]
PLAIN = [b'{"text": "Of a form."}'] * ROWS
"""The rows that are looked at before the work begins, when media in a column that nobody reads end the command."""


def packed(folder: Path, progress: Any, *settings: str) -> tuple[int, Counter[str]]:
    """Packs ``folder/source``, verifies it, and returns the number of documents and the rejects by code."""
    dataset = folder / "dataset"
    config = load_config(None, [*SETTINGS, *settings])
    pack([str(folder / "source")], str(dataset), config, PlainExecutor(), progress)
    assert verify_dataset(str(dataset), processes=1, progress=progress).sound
    documents = pq.read_table(dataset / "documents.parquet")["doc_id"].to_pylist()
    assert len(set(documents)) == len(documents)
    codes = Counter(pq.read_table(dataset / "rejects.parquet")["code"].to_pylist())
    assert codes.keys() <= set(REJECT_CODES)
    return len(documents), codes


def test_every_line_is_packed_or_rejected(tmp_path: Path, progress: Any) -> None:
    """Fails when a row with any type in any field of any form ends the job, or disappears without a trace."""
    # lines that are not rows, or barely, and rows of which half are wrong somewhere
    source, lines = tmp_path / "source", [*broken_lines(), *PLAIN, *drawn_lines(800, seed=11)]
    source.mkdir()
    Image.new("RGB", (40, 30), "olive").save(source / "0.png")
    (source / "rows.jsonl").write_bytes(b"\n".join(lines))
    documents, codes = packed(tmp_path, progress)
    assert documents + codes.total() == sum(bool(line.strip()) for line in lines)
    assert documents > 200
    assert {"bad_row", "empty", "missing_media", "too_long"} <= codes.keys()


@settings(max_examples=100, deadline=None)
@given(rng=st.randoms(use_true_random=False), trouble=st.sampled_from([0.0, 0.02, 0.1]))
def test_a_row_is_measured_the_same_twice(tmp_path_factory: pytest.TempPathFactory, rng: Any, trouble: float) -> None:
    """Fails when some row raises an unforeseen error; hypothesis then shows the smallest such row."""
    grammar = RowGrammar(rng, trouble)
    rows = [*map(json.loads, PLAIN), *(grammar.row() for _ in range(4))]
    path = tmp_path_factory.mktemp("rows") / "f.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    [fragment] = list_fragments(list_sources([str(path)]).files)
    config = load_config(None, SETTINGS)
    measured, n_lines, *_ = measure_fragment(fragment, config)
    assert n_lines == len(rows) == measured.num_rows
    assert all((row["code"] in REJECT_CODES) != (row["tokens"] is not None) for row in measured.to_pylist())
    assert measured.equals(measure_fragment(fragment, config)[0])


def test_every_type_of_every_column_is_packed_or_rejected(tmp_path: Path, progress: Any) -> None:
    """Fails when a column's type ends the job, loses rows, or a string column of another layout is refused."""
    (tmp_path / "source").mkdir()
    tables = list(typed_tables())
    for name, table, _ in tables:
        (tmp_path / "source" / f"{name}.parquet").write_bytes(parquet(table))
    documents, codes = packed(tmp_path, progress)
    assert documents == sum(whole for *_, whole in tables) > 20
    assert documents + codes.total() == sum(len(table) for _, table, _ in tables)


def test_damaged_parquet_is_rejected_or_refused(tmp_path: Path) -> None:
    """Fails when damage crashes a task: a footer that cannot be read is a ConfigError, all else are rejects."""
    config, outcomes = load_config(None, SETTINGS), Counter[str]()
    for number, data in enumerate(damaged_parquet(60, seed=2)):
        path = tmp_path / f"{number}.parquet"
        path.write_bytes(data)
        try:
            fragments = list_fragments(list_sources([str(path)]).files)
        except ConfigError:
            outcomes["refused"] += 1
            continue
        for fragment in fragments:
            table, *_ = measure_fragment(fragment, config)
            outcomes.update(code or "packed" for code in table["code"].to_pylist())
    assert outcomes.keys() <= {"refused", "packed", *REJECT_CODES}
    assert min(outcomes[what] for what in ("refused", "packed", "bad_row")) > 3


@pytest.mark.parametrize("line", [b"[" * 10_000, b"\xef\xbb\xbf{}", b'{"text": "\xed\xa0\x80"}', b"\x00\x8b\x08"])
def test_no_reason_spells_the_line(tmp_path: Path, line: bytes) -> None:
    """Fails when a message grows with what is wrong: rejects of garbage would be as large as the garbage."""
    (tmp_path / "f.jsonl").write_bytes(line + b"x" * 5000)
    [fragment] = list_fragments(list_sources([str(tmp_path)]).files)
    [(_, _, row)] = read_fragment(fragment).rows
    assert isinstance(row, DocumentError)
    assert len(str(row)) < 200


def test_damaged_indexes_are_rejected_or_refused(tmp_path: Path) -> None:
    """Fails when a wrong index crashes a task, or a document is neither packed nor rejected."""
    config, outcomes = load_config(None, SETTINGS), Counter[str]()
    for number, (index, tokens) in enumerate(damaged_indexes(tmp_path, 300, seed=4)):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(tokens)
        path.with_suffix(".idx").write_bytes(index)
        try:
            fragments = list_fragments(list_sources([str(path)]).files)
        except ConfigError:
            outcomes["refused"] += 1
            continue
        table, n_rows, *_ = measure_fragment(fragments[0], config)
        assert len(fragments) == 1
        assert n_rows == len(table) == 40
        outcomes.update(code or "packed" for code in table["code"].to_pylist())
    assert outcomes.keys() <= {"refused", "packed", *REJECT_CODES}
    assert min(outcomes[what] for what in ("refused", "packed", "bad_row")) > 30
