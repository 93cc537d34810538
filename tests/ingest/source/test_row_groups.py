"""Rows of Parquet row groups: a value that cannot be read is its own row's fault, and little is kept in memory."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preshard.packer_service.ingest.fetch import recent_values
from preshard.packer_service.ingest.source.containers import row_groups
from preshard.packer_service.ingest.source.file import RowReference, SourceFile
from preshard.packer_service.ingest.source.files import list_fragments, read_fragment, read_row
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError


def test_a_string_that_is_not_utf8_is_a_reject(tmp_path: Path) -> None:
    """Fails when one row's bytes stop the job, or take the rest of their row group with them."""
    raw = pa.array([b"good", b"\xff\xfe", b"fine"], pa.binary())
    pq.write_table(pa.table({"text": pa.Array.from_buffers(pa.string(), 3, raw.buffers())}), tmp_path / "f.parquet")
    [fragment] = list_fragments(list_sources([str(tmp_path)]).files)
    first, second, third = (row for _, _, row in read_fragment(fragment).rows)
    assert (first, third) == ({"text": "good"}, {"text": "fine"})
    assert isinstance(second, DocumentError)
    assert second.code == "bad_row"


def test_columns_of_the_users_own_are_not_read(tmp_path: Path) -> None:
    """Fails when a column that no document needs stops the job: here a time that Python cannot represent."""
    far = pa.array([2**62], pa.timestamp("us"))
    pq.write_table(pa.table({"id": ["a"], "text": ["x"], "when": far}), tmp_path / "f.parquet")
    [fragment] = list_fragments(list_sources([str(tmp_path)]).files)
    assert [row for _, _, row in read_fragment(fragment).rows] == [{"id": "a", "text": "x"}]


def test_rows_without_any_field_are_still_rows(tmp_path: Path) -> None:
    """Fails when a file of the wrong columns loses its rows instead of having each rejected."""
    pq.write_table(pa.table({"prompt": ["a", "b"]}), tmp_path / "f.parquet")
    [fragment] = list_fragments(list_sources([str(tmp_path)], PackConfig(form="messages")).files)
    assert [row for _, _, row in read_fragment(fragment).rows] == [{}, {}]


@pytest.mark.parametrize("now", [b"no Parquet", None])
def test_a_file_written_anew_is_no_crash(tmp_path: Path, now: bytes | None) -> None:
    """Fails when a source that changes under a job stops it, instead of losing the documents that are gone."""
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"text": ["a", "b"]}), path, row_group_size=1)
    last = list_fragments(list_sources([str(path)]).files)[-1]
    if now is None:
        pq.write_table(pa.table({"text": ["a"]}), path)
    else:
        path.write_bytes(now)
    assert isinstance(read_row(last.file, RowReference(offset=1, size=0)), DocumentError)


def parquet(path: Path) -> SourceFile:
    return SourceFile(label="f", uri=str(path), kind="parquet", size=0, mtime_ns=0)


def four_groups() -> bytes:
    out = io.BytesIO()
    table = pa.table({"text": [f"word {i} " * 50 for i in range(8)]})
    pq.write_table(table, out, row_group_size=2, use_dictionary=False, store_schema=False)
    return out.getvalue()


def outcomes(path: Path, data: bytes) -> list[list[str]]:
    """Outcomes of each row group's rows."""
    path.write_bytes(data)
    row_groups.RECENT.clear()
    fragments = list_fragments(list_sources([str(path)]).files)
    rows = [[row for _, _, row in read_fragment(fragment).rows] for fragment in fragments]
    return [[row.code if isinstance(row, DocumentError) else row["text"][:6] for row in group] for group in rows]


def test_each_row_of_a_damaged_row_group_is_a_reject(tmp_path: Path) -> None:
    """Fails when damaged pages stop the job, take the other row groups of their file with them, or count as one row."""
    data = four_groups()
    page = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(1).column(0).data_page_offset
    damaged = data[:page] + b"\xff" * 30 + data[page + 30 :]
    expected = [["word 0", "word 1"], ["bad_row", "bad_row"], ["word 4", "word 5"], ["word 6", "word 7"]]
    assert outcomes(tmp_path / "f.parquet", damaged) == expected


def test_a_row_group_that_arrow_reads_in_batches_alone_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when whole rows of lists of images above 2 GiB are rejected as damaged."""
    data = four_groups()
    asked = []

    def refuse(*_: Any, **given: Any) -> None:
        asked.append(given)
        raise pa.ArrowNotImplementedError("Nested data conversions not implemented for chunked array outputs")

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", refuse)
    monkeypatch.setattr(row_groups, "BATCH_BYTES", 1)
    assert outcomes(tmp_path / "f.parquet", data) == [[f"word {i}", f"word {i + 1}"] for i in (0, 2, 4, 6)]
    assert asked


def varint(value: int) -> bytes:
    """A signed number as Thrift's compact protocol encodes it."""
    rest, out = ((value << 1) ^ (value >> 63)) & (2**64 - 1), b""
    while rest > 127:
        out, rest = out + bytes([rest & 127 | 128]), rest >> 7
    return out + bytes([rest])


@pytest.mark.parametrize("place", [-1, -(2**63), 2**63 - 1, 2**40, 0, 5])
def test_a_column_that_lies_nowhere_loses_its_row_group(tmp_path: Path, place: int) -> None:
    """Fails when a footer that sends the reader out of the file is taken for a failing disk, which stops the job."""
    data = four_groups()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    first = data.index(b"\x26\x08", footer)  # where the first column's data lie: field 9 behind field 7, byte 4
    changed = data[footer : first + 1] + varint(place) + data[first + 2 : -8]
    moved = data[:footer] + changed + len(changed).to_bytes(4, "little") + b"PAR1"
    assert outcomes(tmp_path / "f.parquet", moved)[:2] == [["bad_row", "bad_row"], ["word 2", "word 3"]]


class FailingDisk(io.BytesIO):
    """Returns the footer, and raises an error for what lies before it."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() < len(self.getvalue()) // 2:
            raise OSError(errno.EIO, "the disk is gone")
        return super().read(size)


def test_an_outage_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when documents are rejected because a disk or a network failed while they were read."""

    disk = SimpleNamespace(open_input_file=lambda _: FailingDisk(four_groups()))
    monkeypatch.setattr(row_groups, "locate", lambda uri: (disk, uri))
    with pytest.raises(OSError, match="the disk is gone"):
        row_groups.group(parquet(Path("f")), 0)


def test_documents_from_all_over_read_each_row_group_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when every pack reads the whole source again: packs take their documents from many row groups."""
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"text": [str(i) for i in range(12)]}), path, row_group_size=3)
    reads: list[int] = []
    read = row_groups._read

    def counted(uri: str, group: int, columns: object) -> pa.Table:
        reads.append(group)
        return read(uri, group, columns)

    monkeypatch.setattr(row_groups, "_read", counted)
    taken = [row_groups.group(parquet(path), i % 4).row(i // 4)["text"] for i in range(12)]
    assert sorted(map(int, taken)) == list(range(12))
    assert sorted(reads) == [0, 1, 2, 3]


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when row groups full of inline videos pile up in a process, or one above the limit cannot be read."""
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"text": ["x" * 1000 for _ in range(6)]}), path, row_group_size=2)
    for limit, kept in ((5000, 2), (1, 1)):
        monkeypatch.setattr(row_groups, "RECENT", recent_values(limit, lambda table: int(table.nbytes)))
        assert [len(row_groups.group(parquet(path), group)) for group in range(3)] == [2, 2, 2]
        assert len(row_groups.RECENT) == kept
