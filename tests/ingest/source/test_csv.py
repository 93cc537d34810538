"""CSV and TSV as DuckDB reads them, strictly: each row of a file is a document or a reject, and no file is nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pandas
import pytest

from preshard.packer_service.ingest.source.files import list_fragments, read_fragment, read_row
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.schemas.errors import DocumentError


def rows_of(path: Path) -> list[Any]:
    """Every row, or the code of its reject; each row is the same when it is read again."""
    found = []
    for fragment in list_fragments(list_sources([str(path)]).files):
        for _, reference, row in read_fragment(fragment).rows:
            assert isinstance(row, DocumentError) or read_row(fragment.file, reference) == row
            found.append(row.code if isinstance(row, DocumentError) else row)
    return found


def duckdb_rows(path: Path) -> tuple[list[dict[str, str]], int]:
    """The rows that DuckDB accepts, and how many records it rejects."""
    with duckdb.connect() as connection:
        asked = (
            "header=true, delim=',', quote='\"', escape='\"', strict_mode=true, auto_detect=false, store_rejects=true"
        )
        read = f"read_csv('{path}', {asked}, columns={{'id': 'VARCHAR', 'text': 'VARCHAR'}})"
        rows = connection.execute(f"SELECT id, text FROM {read}").fetchall()
        [(rejects,)] = connection.execute("SELECT count(DISTINCT line) FROM reject_errors").fetchall()
    return [{"id": name, "text": text} for name, text in rows], rejects


@pytest.mark.parametrize(
    ("data", "lost"),
    [
        (b'id,text\n1,a "word" b\n2,c\n', 0),
        (b'id,text\n1,"x"y\n2,c\n', 0),
        (b'id,text\n1,"x\ny, z"\n2,"a ""word"""\n', 0),
        (b'id,text\n1,"x\n2,c\n3,"d"\n4,e\n', 1),
        (b'id,text\n1,a\n2,"x\n3,c\n4,d\n', 1),
        (b"id,text\n1\n2,c,d\n3,e\n\n4,\xff\n", 0),
        (b"id,text\r1,a\r2,b\r", 0),
        (b'id,text\r1,"a, b"\r2,"c\rd"', 0),
        (b"id,text\r\n1,a\r\n2,b\r\n", 0),
    ],
)
def test_records_are_those_of_duckdb(tmp_path: Path, data: bytes, lost: int) -> None:
    """Fails when malformed quotes change a row, or the rows that they take with them count as one."""
    (tmp_path / "f.csv").write_bytes(data)
    found = rows_of(tmp_path / "f.csv")
    rows, rejects = duckdb_rows(tmp_path / "f.csv")
    assert [row for row in found if isinstance(row, dict)] == rows
    assert len(found) - len(rows) == rejects
    assert found.count("lost_rows") == lost


TSV = 'caption\tfile_name\n"Stop" sign\tr.jpg\nA sign\tb.jpg\n"Go, said he\tr.jpg\nA 5" pipe\tb.jpg\nThe "end"\tr.jpg\n'


def test_quotes_of_a_tsv_that_do_not_balance_are_characters(tmp_path: Path) -> None:
    """Fails when a caption loses its quotes, or two rows become one beside the wrong picture."""
    (tmp_path / "f.tsv").write_text(TSV)
    names, *lines = (line.split("\t") for line in TSV.splitlines())
    assert rows_of(tmp_path / "f.tsv") == [dict(zip(names, line, strict=True)) for line in lines]


def test_quotes_of_a_tsv_that_balance_are_quotes(tmp_path: Path) -> None:
    """Fails when what pandas writes is read with the quotes that it adds."""
    (tmp_path / "f.tsv").write_text('id\ttext\n1\t"a\tb"\n2\t"c\nd ""e"""\n')
    assert rows_of(tmp_path / "f.tsv") == [{"id": "1", "text": "a\tb"}, {"id": "2", "text": 'c\nd "e"'}]
    (tmp_path / "f.tsv").write_text('id\ttext\nx\t"y\nz"\tw\n')  # three fields over two lines, each of two
    assert rows_of(tmp_path / "f.tsv") == [{"id": "x", "text": '"y'}, {"id": 'z"', "text": "w"}]


def test_of_columns_of_one_name_the_first_keeps_it(tmp_path: Path) -> None:
    """Fails when one of two texts is packed without a word about the other."""
    (tmp_path / "f.csv").write_text("id,text,text,text\n1,a,b,c\n")
    assert rows_of(tmp_path / "f.csv") == [{"id": "1", "text": "a", "text_1": "b", "text_2": "c"}]
    with duckdb.connect() as connection:
        assert connection.execute(f"FROM '{tmp_path}/f.csv'").fetchall() == [(1, "a", "b", "c")]
        described = connection.execute(f"DESCRIBE FROM '{tmp_path}/f.csv'").fetchall()
    assert [name for name, *_ in described] == ["id", "text", "text_1", "text_2"]


def test_a_space_before_a_quote_belongs_to_the_field(tmp_path: Path) -> None:
    """Fails when text that begins with a space loses it: pandas keeps it, and what it makes of the quotes."""
    (tmp_path / "f.csv").write_text('id,text\n1, "a"\n2,  "b"\n3," ""c"""\n4, d\n')
    found = [row["text"] for row in rows_of(tmp_path / "f.csv")]
    assert found == pandas.read_csv(tmp_path / "f.csv")["text"].tolist() == [' "a"', '  "b"', ' "c"', " d"]


@pytest.mark.parametrize("data", [b"", b"id,text\n", b"id,text", b'id,"text\n', b"\xff\xfe\x00"])
def test_a_file_of_which_nothing_is_read_is_a_reject(tmp_path: Path, data: bytes) -> None:
    """Fails when such a file beside others is gone without a trace."""
    (tmp_path / "a.csv").write_text("id,text\n1,a\n")
    (tmp_path / "b.csv").write_bytes(data)
    first, *others = rows_of(tmp_path)
    assert first == {"id": "1", "text": "a"}
    assert others
    assert not any(isinstance(row, dict) for row in others)


def test_a_file_of_short_lines_that_end_in_a_return_is_read_at_once(tmp_path: Path) -> None:
    """Fails when each line costs as much as what was read ahead."""
    lines = [f"{i},word {i}" for i in range(50_000)]
    (tmp_path / "f.csv").write_text("\r".join(["id,text", *lines]))
    assert [row["text"] for row in rows_of(tmp_path / "f.csv")[:3]] == ["word 0", "word 1", "word 2"]
    assert len(rows_of(tmp_path / "f.csv")) == 50_000
