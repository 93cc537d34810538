"""Source files to rows and back: every line once, whatever the fragments, and each row again by its reference."""

from __future__ import annotations

import io
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preshard.packer_service.ingest.source.containers import json_lines
from preshard.packer_service.ingest.source.containers.json_lines import Line, read_lines
from preshard.packer_service.ingest.source.file import Fragment, SourceFile
from preshard.packer_service.ingest.source.files import list_fragments, read_fragment, read_row
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.schemas.errors import ConfigError, DocumentError


def rows_of(fragments: list[Fragment]) -> list[tuple[int, Any]]:
    """Line numbers from 1 and rows, over all fragments of one file."""
    rows, before = [], 0
    for fragment in fragments:
        read = read_fragment(fragment)
        rows += [(before + number + 1, row) for number, _, row in read.rows]
        before += read.n_lines
    return rows


@given(
    lines=st.lists(st.sampled_from(["", " ", '{"a":1}', '{"b":"' + "x" * 30 + '"}']), max_size=12),
    ends_with_newline=st.booleans(),
    step=st.integers(1, 50),
)
def test_every_line_is_read_once_whatever_the_fragments(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], ends_with_newline: bool, step: int
) -> None:
    """Fails when a line at a fragment's edge is read twice, or never, or numbered wrongly."""
    data = "\n".join(lines).encode() + (b"\n" if ends_with_newline else b"")
    path = tmp_path_factory.mktemp("lines") / "f.jsonl"
    path.write_bytes(data)
    file = SourceFile(label="f", uri=str(path), kind="jsonl", size=len(data), mtime_ns=0)
    fragments = [Fragment(file=file, start=at, end=min(at + step, len(data))) for at in range(0, len(data), step)]
    expected = [(i, json.loads(line)) for i, line in enumerate(lines, start=1) if line.strip()]
    assert rows_of(fragments) == expected


def test_a_row_is_found_again_by_its_reference(tmp_path: Path) -> None:
    """Fails when the write stage reads another row than the one that was measured."""
    path = tmp_path / "f.jsonl"
    path.write_text('{"text": 1}\n\n{"text": "zwei 二"}\r\n{broken\n', encoding="utf-8")
    [fragment] = list_fragments(list_sources([str(path)]).files)
    rows = [(reference, row) for _, reference, row in read_fragment(fragment).rows]
    assert [row for _, row in rows[:2]] == [{"text": 1}, {"text": "zwei 二"}]
    assert isinstance(rows[2][1], DocumentError)
    assert [read_row(fragment.file, reference) for reference, _ in rows[:2]] == [{"text": 1}, {"text": "zwei 二"}]


@pytest.mark.parametrize("line", [b"\xff\xfe", b"[" * 100_000, b"{", b'{"a": 1'])
def test_a_line_that_is_no_json_is_a_reject(tmp_path: Path, line: bytes) -> None:
    """Fails when one broken line stops the job."""
    path = tmp_path / "f.jsonl"
    path.write_bytes(line + b'\n{"text": 1}\n')
    [fragment] = list_fragments(list_sources([str(path)]).files)
    first, second = (row for _, _, row in read_fragment(fragment).rows)
    assert isinstance(first, DocumentError)
    assert first.code == "bad_row"
    assert second == {"text": 1}


def test_parquet_is_read_by_row_group(tmp_path: Path) -> None:
    """Fails when rows of a second row group are lost or referred to wrongly."""
    pq.write_table(pa.table({"text": ["a", "b", "c"]}), tmp_path / "f.parquet", row_group_size=2)
    fragments = list_fragments(list_sources([str(tmp_path)]).files)
    assert len(fragments) == 2
    assert rows_of(fragments) == [(1, {"text": "a"}), (2, {"text": "b"}), (3, {"text": "c"})]
    _, reference, row = next(iter(read_fragment(fragments[1]).rows))
    assert read_row(fragments[1].file, reference) == row


def test_labels_do_not_depend_on_where_the_source_lies(tmp_path: Path) -> None:
    """Fails when a path of the machine gets into ids, or two sources of the same name get the same label."""
    for name in ("a/data", "b/data"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "x.jsonl").write_text("{}\n")
    [one] = list_sources([str(tmp_path / "a/data")]).files
    assert one.label == "data/deep/x.jsonl"
    both = list_sources([str(tmp_path / "a/data"), f"file://{tmp_path}/b/data/"]).files
    assert [file.label for file in both] == ["data~1/deep/x.jsonl", "data~2/deep/x.jsonl"]
    assert all(rows_of(list_fragments([file])) == [(1, {})] for file in both)


def test_wrong_sources_are_named(tmp_path: Path) -> None:
    """Fails when a mistyped path gives an empty dataset."""
    with pytest.raises(ConfigError, match="no such file or folder"):
        list_sources([str(tmp_path / "nowhere")])
    with pytest.raises(ConfigError, match="holds no file of rows; these end in"):
        list_sources([str(tmp_path)])
    (tmp_path / "x.parquet").write_bytes(b"no")
    with pytest.raises(ConfigError, match="is not a Parquet file"):
        list_fragments(list_sources([str(tmp_path)]).files)


def test_rows_of_a_file_are_read_without_opening_it_again(tmp_path: Path) -> None:
    """Fails when every document costs an open, which in a store is a request, or another state of a file is read."""
    path = tmp_path / "kept.jsonl"
    path.write_text('{"text": 1}\n{"text": 2}\n')
    [fragment] = list_fragments(list_sources([str(path)]).files)
    first, second = [reference for _, reference, _ in read_fragment(fragment).rows]
    assert read_row(fragment.file, first) == {"text": 1}
    path.unlink()
    assert read_row(fragment.file, second) == {"text": 2}
    path.write_text('{"text": 3}\n{"text": 4}\n')
    later = replace(fragment.file, mtime_ns=fragment.file.mtime_ns + 1)
    assert read_row(later, second) == {"text": 4}


@pytest.mark.parametrize("step", [1, 3, 10, 1000])
def test_a_line_that_is_too_long_is_known_by_its_size_alone(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Fails when a long line is cut into rows, or hides the lines around it, whichever fragment it begins in."""
    monkeypatch.setattr(json_lines, "MAX_LINE_BYTES", 1000)
    data = b"first\n" + b"x" * 999 + b"\n" + b"y" * 1000 + b"\n" + b"last"
    file = io.BytesIO(data)
    found = [line for start in range(0, len(data), step) for line in read_lines(file, start, start + step)]
    assert found == [
        Line(0, 6, b"first\n"),
        Line(6, 1000, b"x" * 999 + b"\n"),
        Line(1006, 1001, None),
        Line(2007, 4, b"last"),
    ]


def test_a_file_without_line_breaks_is_not_held() -> None:
    """Fails when a file that is not text is read into memory as one line."""
    file = io.BytesIO(bytes(json_lines.MAX_LINE_BYTES * 3))
    tracemalloc.start()
    [line] = read_lines(file, 0, 2**20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert line == Line(0, json_lines.MAX_LINE_BYTES * 3, None)
    assert peak < 1.3 * json_lines.MAX_LINE_BYTES
