"""Containers of rows: each row once, each again by its place, and what is damaged is a reject and no crash."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import ipc

from preshard.packer_service.ingest.source.containers import arrow_batches, compressed, json_array, tar_samples
from preshard.packer_service.ingest.source.containers.compressed import keep_copy, spooled
from preshard.packer_service.ingest.source.containers.json_lines import parse_json
from preshard.packer_service.ingest.source.file import Fragment, SourceFile
from preshard.packer_service.ingest.source.files import WHOLE, list_fragments, read_fragment, read_row
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.schemas.errors import ConfigError, DocumentError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def rows_of(file: SourceFile) -> list[Any]:
    """Every row, each of which is the same when it is read again."""
    rows = []
    for fragment in list_fragments([file]):
        for _, reference, row in read_fragment(fragment).rows:
            rows.append(row)
            if not isinstance(row, DocumentError):
                assert read_row(file, reference) == row
    return rows


def one(path: Path) -> SourceFile:
    [file] = list_sources([str(path)]).files
    return file


@given(
    rows=st.lists(JSON, max_size=6),
    indent=st.sampled_from([None, 0, 3]),
    ascii_only=st.booleans(),
    step=st.integers(1, 60),
)
def test_every_element_of_an_array_is_read_once(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], indent: int | None, ascii_only: bool, step: int
) -> None:
    """Fails when an element at a fragment's edge is read twice or never, or its bytes are counted wrongly."""
    data = json.dumps(rows, indent=indent, ensure_ascii=ascii_only).encode()
    path = tmp_path_factory.mktemp("array") / "f.json"
    path.write_bytes(data)
    file = SourceFile(label="f", uri=str(path), kind="json", size=len(data), mtime_ns=0)
    fragments = [Fragment(file=file, start=at, end=min(at + step, len(data))) for at in range(0, len(data), step)]
    found = [found for fragment in fragments for found in read_fragment(fragment).rows]
    assert [row for _, _, row in found] == rows
    assert [read_row(file, reference) for _, reference, _ in found] == rows


def test_an_array_is_read_in_small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a whole array is held, or a character or number at the edge of a piece is broken."""
    monkeypatch.setattr(json_array, "READ_BYTES", 7)
    rows = [{"text": "二" * 10}, {"text": "a" * 40, "n": [123456789] * 3}, {"text": "é"}]
    (tmp_path / "f.json").write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    assert rows_of(one(tmp_path / "f.json")) == rows


@pytest.mark.parametrize(
    ("text", "whole", "reason"),
    [
        (b'[{"text": "a"}, {"text": ', 1, "from byte 16 on"),
        (b'[{"text": "a"} {"text": "b"}]', 1, "',' is missing"),
        (b'[{"text": "a"}, nul, {"text": "b"}]', 1, "from byte 16 on"),
        (b'[{"text": "a"}', 1, "',' is missing"),
        (b'[{"text": "a"}, ' + b"[" * 100_000, 1, "nested too deeply"),
        (b"[", 0, "Expecting value"),
        (b'[{"text": "a"}] and more', 1, "'[' is missing"),
        (b'[{"text": "a"}]\n{"text": "b"}', 1, "'[' is missing"),
        (b'[{"text": "a"},\n]', 1, "a comma before ]; remove it"),
        (b'[{"text": "a"},\n {"text": "b"  // later\n}]', 1, "a comment, which JSON does not have; remove it"),
        (b"[{'text': 'b'}]", 0, "a value as Python prints it; write it by json.dumps"),
    ],
)
def test_what_follows_a_fault_in_an_array_is_one_reject(tmp_path: Path, text: bytes, whole: int, reason: str) -> None:
    """Fails when rows behind a fault are lost without a reject, or the fault ends the job."""
    (tmp_path / "f.json").write_bytes(text)
    *rows, last = rows_of(one(tmp_path / "f.json"))
    assert rows == [{"text": "a"}] * whole
    assert isinstance(last, DocumentError)
    assert reason in str(last)
    assert len(str(last)) < 200


@pytest.mark.parametrize("between", ["", "\n", "\n[]\n", "[ ]"])
def test_arrays_that_follow_one_another_are_all_read(tmp_path: Path, between: str) -> None:
    """Fails when what ``cat`` joined is lost behind the first array."""
    text = f'[{{"text": "a"}}, {{"text": "b"}}]{between}[{{"text": "c"}}]'
    (tmp_path / "f.json").write_text(text, encoding="utf-8")
    assert rows_of(one(tmp_path / "f.json")) == [{"text": each} for each in "abc"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "a"},', "a comma behind the row"),
        (b'{"text": "a"} {"text": "b"}', "another value on the same line; write each on its own, as jq -c . does"),
        (b'{"text": "a",}', "column 14: a comma before }; remove it"),
        (b"{'text': 'a'}", "a value as Python prints it; write it by json.dumps"),
        (b'{"text": None}', "a value as Python prints it; write it by json.dumps"),
        (b'{"text": tru}', "column 10: Expecting value"),
    ],
)
def test_a_line_that_is_not_json_says_what_it_is(line: bytes, reason: str) -> None:
    """Fails when a reject repeats a parser's words where those who wrote the file need a remedy."""
    assert reason in str(parse_json(line))


def test_bytes_of_an_array_that_are_no_text_are_their_own_rows_fault(tmp_path: Path) -> None:
    """Fails when one row that is not UTF-8 moves the places of the rows behind it."""
    (tmp_path / "f.json").write_bytes(b'[{"text": "\xff\xfe"}, {"text": "b"}]')
    file = one(tmp_path / "f.json")
    found = [found for fragment in list_fragments([file]) for found in read_fragment(fragment).rows]
    assert isinstance(read_row(file, found[0][1]), DocumentError)
    assert read_row(file, found[1][1]) == {"text": "b"}


@given(
    rows=st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), min_size=1, max_size=6),
    separator=st.sampled_from([",", "\t"]),
    step=st.integers(5, 80),
)
def test_every_record_is_read_once(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], separator: str, step: int
) -> None:
    """Fails when a field with a line break, a quotation mark or a separator ends its record."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=separator, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerows([("text", "other"), *rows])
    data = text.getvalue().encode("utf-8", "replace")
    kind = "csv" if separator == "," else "tsv"
    path = tmp_path_factory.mktemp("table") / f"f.{kind}"
    path.write_bytes(data)
    file = SourceFile(label="f", uri=str(path), kind=kind, size=len(data), mtime_ns=0)
    fragments = [Fragment(file=file, start=at, end=min(at + step, len(data))) for at in range(0, len(data), step)]
    found = [found for fragment in fragments for found in read_fragment(fragment).rows]
    clean = [[field.encode("utf-8", "replace").decode() for field in row] for row in rows]
    expected = [{name: field for name, field in zip(("text", "other"), row, strict=True) if field} for row in clean]
    assert [row for _, _, row in found] == expected
    assert [read_row(file, reference) for _, reference, _ in found] == expected


def test_a_damaged_record_is_a_reject(tmp_path: Path) -> None:
    """Fails when a record of other fields than the header is packed, or bytes that are no text end the job."""
    (tmp_path / "f.csv").write_bytes(b"\xef\xbb\xbfid,text\r\n1,a\r\n2\r\n3,b,c\r\n4,\xff\r\n\r\n5,e\r\n")
    rows = rows_of(one(tmp_path / "f.csv"))
    assert [row for row in rows if isinstance(row, dict)] == [{"id": "1", "text": "a"}, {"id": "5", "text": "e"}]
    assert [str(row)[:40] for row in rows if isinstance(row, DocumentError)] == [
        "the record has 1 fields, and the header ",
        "the record has 3 fields, and the header ",
        "the record cannot be read (it is not UTF",
    ]


def tar_of(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_members_of_one_key_are_one_row(tmp_path: Path) -> None:
    """Fails when members of two samples are mixed, a member is lost, or images are in the order of their names."""
    long = "x" * 200  # takes a header of its own
    members = [
        ("a/1.json", b'{"text": "one", "image": null}'),
        ("a/1.10.jpg", b"ten"),
        ("a/1.2.jpg", b"two"),
        ("a/1.cls", b"7"),
        ("b/1.txt", b"zwei \xe4\xba\x8c"),
        ("b/1.mp4", b"video"),
        (f"{long}/2.json", b'{"id": 5, "image": "2.png", "text": "c"}'),
        (f"{long}/2.png", b"picture"),
        ("__meta__/1.json", b"{}"),
        ("._a.jpg", b"of macOS"),
        ("README", b"no extension"),
    ]
    first, second, third, fourth = rows_of(one(tar_of(tmp_path / "f.tar", members)))
    assert first == {"text": "one", "images": [b"two", b"ten"], "cls": b"7", "id": "f.tar/a/1"}
    assert second == {"txt": "zwei 二", "video": b"video", "id": "f.tar/b/1"}
    assert third == {"id": 5, "image": [b"picture"], "text": "c"}
    assert isinstance(fourth, DocumentError)
    assert "'README' has no extension" in str(fourth)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("1.json", b"{"), ("1.jpg", b"x")], "the member json is not JSON"),
        ([("1.txt", b"\xff")], "the member txt is not UTF-8"),
        ([("1.json", b'{"image": "other.jpg"}'), ("1.jpg", b"x")], "image stands in json"),
        ([("1.txt", b"a"), ("1.TXT", b"b")], "the sample has two members 'txt'; leave one of them out"),
        ([("caf\udce9.txt", b"a")], r"the member 'caf\udce9.txt' has a name that is not UTF-8; write the tar again"),
    ],
)
def test_a_wrong_sample_is_a_reject(tmp_path: Path, members: list[tuple[str, bytes]], reason: str) -> None:
    """Fails when a sample that cannot be read as a whole is packed without a part of it."""
    [row] = rows_of(one(tar_of(tmp_path / "f.tar", members)))
    assert isinstance(row, DocumentError)
    assert reason in str(row)


def written(path: Path, members: list[tuple[str, bytes | str | int]]) -> Path:
    """A tar of files, by their bytes, and of symbolic and hard links, by what they stand for (``=name`` is a hard one).

    A number is a sparse file of three blocks and so many zeros between each of them.
    """
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in members:
            info, data = tarfile.TarInfo(name), b""
            if isinstance(content, str):
                hard = content.startswith("=")
                info.type, info.linkname = tarfile.LNKTYPE if hard else tarfile.SYMTYPE, content.removeprefix("=")
            elif isinstance(content, int):
                at = [number * (512 + content) for number in range(3)]
                map_of = "\n".join(["3", *(f"{place}\n512" for place in at), ""]).encode()
                data = map_of.ljust(512, b"\0") + b"".join(bytes([65 + number]) * 512 for number in range(3))
                size = str(at[-1] + 512)
                info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": size,
                                    "GNU.sparse.name": name}  # fmt: skip
            else:
                data = content
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


LINKED: list[tuple[str, bytes | str | int]] = [
    ("a/0.jpg", b"first"),
    ("a/0.txt", b"zero"),
    ("a/1.jpg", "=a/0.jpg"),
    ("a/1.txt", b"one"),
    ("a/2.jpg", "0.jpg"),
    ("a/2.txt", "../b/3.txt"),
    ("a/3.jpg", "2.jpg"),
    ("a/3.txt", b"three"),
    ("a/4.bmp", 1000),
    ("a/4.txt", b"four"),
    ("a/5.bmp", "4.bmp"),
    ("a/5.txt", b"five"),
    ("b/3.txt", b"another three"),
    (".store/ab12", b"blob"),
    ("c/6.jpg", "../.store/ab12"),
    ("c/6.txt", b"six"),
]


@pytest.mark.parametrize("name", ["f.tar", "f.tgz"])
def test_links_and_sparse_members_are_read_as_tarfile_reads_them(tmp_path: Path, name: str) -> None:
    """Fails when a sample lacks what is a link, a sparse member is bytes of its neighbour, or a row is another one when
    it is read again, in a process that did not measure it."""
    plain = written(tmp_path / "plain", LINKED)
    path = tmp_path / name
    path.write_bytes(gzip.compress(plain.read_bytes()) if name == "f.tgz" else plain.read_bytes())
    with tarfile.open(plain) as tar:
        expected = {member.name: tar.extractfile(member).read() for member in tar if not member.isdir()}  # type: ignore[union-attr]
    assert expected["a/5.bmp"] == b"A" * 512 + bytes(1000) + b"B" * 512 + bytes(1000) + b"C" * 512
    [fragment] = list_fragments([one(path)])
    found = [(reference, row) for _, reference, row in read_fragment(fragment).rows]
    assert [row["id"].removeprefix(name) for _, row in found] == [
        *(f"/a/{number}" for number in range(6)), "/b/3", "/c/6"
    ]  # fmt: skip
    seen = 0
    for reference, row in found:
        key = row["id"].removeprefix(f"{name}/")
        assert row["txt"].encode() == expected[f"{key}.txt"]
        for suffix in ("jpg", "bmp"):
            if f"{key}.{suffix}" in expected:
                assert row["image"] == expected[f"{key}.{suffix}"]
                seen += 1
        tar_samples._LINKS.clear()
        assert read_row(fragment.file, reference) == row
    assert seen == 7


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("0.jpg", "1.jpg"), ("0.txt", b"a")], "'0.jpg' is a link to '1.jpg', which is no file in the tar; add files"),
        ([("0.jpg", "=1.jpg"), ("0.txt", b"a"), ("1.jpg", b"x")], "which is no file in the tar"),  # it stands behind
        ([("0.jpg", "0.png"), ("0.png", "0.jpg"), ("0.txt", b"a")], "and its links lead in a circle"),
        ([("0.txt", b"a"), ("1.txt", b"b"), ("0.jpg", b"x")], "of '0' stand in 2 places of the tar, with others"),
    ],
)
def test_a_sample_that_is_not_whole_is_a_reject(
    tmp_path: Path, members: list[tuple[str, bytes | str | int]], reason: str
) -> None:
    """Fails when text is packed without the picture that its sample names, or has further on."""
    rows = rows_of(one(written(tmp_path / "f.tar", members)))
    assert reason in str(rows[0])
    assert not [row for row in rows if isinstance(row, dict) and row["id"] == "f.tar/0"]


def test_what_lies_behind_the_end_of_a_tar_is_said(tmp_path: Path) -> None:
    """Fails when the second of two tars that were joined, or what follows a damaged header, vanishes: for tarfile a tar
    ends there."""
    data = tar_of(tmp_path / "f.tar", [(f"{i}.txt", b"a") for i in range(3)]).read_bytes()
    assert data[1024:1025] == b"1", "the second header is not there"
    for whole, kept, reason in (
        (data + data, 3, "from byte 3072 on (it ends there, and another file follows)"),
        (
            data[:1024] + b"\xff" + data[1025:],
            0,
            "from byte 1024 on (no header of a member); the sample before it, '0'",
        ),
    ):
        (tmp_path / "f.tar").write_bytes(whole)
        *rows, last = rows_of(one(tmp_path / "f.tar"))
        assert [row["id"] for row in rows] == [f"f.tar/{i}" for i in range(kept)]
        assert reason in str(last)


def test_a_tar_that_is_cut_short_keeps_what_is_before(tmp_path: Path) -> None:
    """Fails when half a download is packed as if it were whole, or loses its whole samples."""
    members = [(f"{i}.txt", b"words " * 1000) for i in range(4)]
    path = tar_of(tmp_path / "f.tar", members)
    path.write_bytes(path.read_bytes()[:15_000])
    rows = rows_of(one(path))
    assert [row for row in rows if isinstance(row, dict)] == [
        {"txt": "words " * 1000, "id": f"f.tar/{i}"} for i in range(2)
    ]
    assert any(isinstance(row, DocumentError) for row in rows)


LINES = [json.dumps({"text": f"{i} " * (i % 50)}).encode() for i in range(2000)]


@pytest.mark.parametrize("name", ["f.jsonl.gz", "f.jsonl.zst", "f.json.gz", "f.tgz"])
def test_rows_of_a_compressed_file_are_found_again_in_its_copy(tmp_path: Path, name: str, monkeypatch: Any) -> None:
    """Fails when a row is read from the wrong frame of a copy, or across the edge of two."""
    monkeypatch.setattr(compressed, "FRAME_BYTES", 1000)
    path, data = tmp_path / name, b"\n".join(LINES)
    if name == "f.tgz":
        data = tar_of(tmp_path / "f", [(f"{i}.json", line) for i, line in enumerate(LINES[:50])]).read_bytes()
    elif name == "f.json.gz":
        data = b"[" + b",\n".join(LINES) + b"]"
    if name.endswith("zst"):
        with pa.CompressedOutputStream(str(path), "zstd") as out:
            out.write(data[:5000])
            out.write(data[5000:])
    else:
        path.write_bytes(gzip.compress(data[:5000]) + gzip.compress(data[5000:]))  # two members, as pigz writes them
    file = one(path)
    rows = rows_of(file)
    assert [row["text"] for row in rows] == [json.loads(line)["text"] for line in LINES[: len(rows)]]
    assert len(rows) in (50, len(LINES))
    kept = replace(file, copy=str(tmp_path / "copy.zst"))
    with Path(str(kept.copy)).open("wb") as sink:
        keep_copy(spooled(file), sink)
    [fragment] = list_fragments([file])
    path.unlink()
    found = list(read_fragment(fragment).rows)  # from the temporary file that this process has
    assert [read_row(kept, reference) for _, reference, _ in reversed(found)] == rows[::-1]
    assert kept == file


@pytest.mark.parametrize("name", ["f.jsonl.gz", "f.jsonl.zst"])
def test_a_compressed_file_that_is_cut_short_keeps_what_is_before(tmp_path: Path, name: str) -> None:
    """Fails when half a download is packed as if it were whole, or taken for a failing disk, which stops the job."""
    path, rng = tmp_path / name, __import__("random").Random(1)
    lines = [json.dumps({"text": str(rng.random()) * 20}).encode() for _ in range(20_000)]
    with pa.CompressedOutputStream(str(path), "gzip" if name.endswith("gz") else "zstd") as out:
        out.write(b"\n".join(lines))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    rows = rows_of(one(path))
    assert isinstance(rows[-1], DocumentError)
    assert "cannot be decompressed from byte" in str(rows[-1])
    whole = [row for row in rows if isinstance(row, dict)]
    assert whole == [json.loads(line) for line in lines[: len(whole)]]
    assert 5_000 < len(whole) < 15_000


def test_a_compressed_file_that_is_none_is_one_reject(tmp_path: Path) -> None:
    """Fails when a file under a wrong name ends the job with a traceback."""
    (tmp_path / "f.jsonl.gz").write_bytes(b'{"text": "a"}\n')
    [row] = rows_of(one(tmp_path / "f.jsonl.gz"))
    assert isinstance(row, DocumentError)


def test_zero_bytes_behind_members_of_gzip_are_legal(tmp_path: Path) -> None:
    """Fails when padding, as tapes have, loses rows that gzip itself reads."""
    data = b"\n".join(LINES)
    (tmp_path / "f.jsonl.gz").write_bytes(
        gzip.compress(data[:9000]) + bytes(700) + gzip.compress(data[9000:]) + bytes(512)
    )
    assert gzip.decompress((tmp_path / "f.jsonl.gz").read_bytes()) == data
    assert rows_of(one(tmp_path / "f.jsonl.gz")) == [json.loads(line) for line in LINES]


def test_a_window_that_is_not_read_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """Fails when a file of ``zstd --long=28`` is called damaged, or counts as one row."""
    header = bytes.fromhex("28b52ffd") + bytes([0, (28 - 10) << 3]) + bytes.fromhex("010000")
    (tmp_path / "f.jsonl.zst").write_bytes(header)
    [row] = rows_of(one(tmp_path / "f.jsonl.zst"))
    assert row.code == "lost_rows"
    assert "write it again: zstd -d --long=31 --stdout f.jsonl.zst | zstd -o new.f.jsonl.zst" in str(row)


def cut_jsonl_gz(path: Path) -> None:
    data = gzip.compress(b"\n".join(LINES))
    path.write_bytes(data[: len(data) // 2])


def cut_json(path: Path) -> None:
    path.write_bytes((b"[" + b",\n".join(LINES) + b"]")[:-2000])


def cut_tar(path: Path) -> None:
    tar_of(path, [(f"{i}.json", line) for i, line in enumerate(LINES[:50])])
    path.write_bytes(path.read_bytes()[:20_000])


def no_rows_known(path: Path) -> None:
    pq.write_table(pa.table({"text": ["word"] * 4_500_000}), path, row_group_size=4_500_000)
    data = bytearray(path.read_bytes())
    data[4:40] = b"\xff" * 36
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "cut"),
    [("f.jsonl.gz", cut_jsonl_gz), ("f.json", cut_json), ("f.tar", cut_tar), ("f.parquet", no_rows_known)],
)
def test_what_nobody_can_count_has_a_code_of_its_own(tmp_path: Path, name: str, cut: Any) -> None:
    """Fails when thousands of lost rows count as one that was rejected."""
    cut(tmp_path / name)
    lost = [row.code for row in rows_of(one(tmp_path / name)) if isinstance(row, DocumentError)]
    assert lost.count("lost_rows") == 1
    assert len(lost) < 3  # the line that it cuts through


@pytest.mark.parametrize("stream", [True, False])
def test_arrow_is_read_by_groups(tmp_path: Path, stream: bool) -> None:
    """Fails when rows of a later group are lost, or one form of Arrow's two is not read."""
    table = pa.table({"id": list(range(10)), "text": [f"text {i}" for i in range(10)], "own": [1] * 10})
    path = tmp_path / "data-00000-of-00001.arrow"
    with (ipc.new_stream if stream else ipc.new_file)(str(path), table.schema) as out:
        out.write_table(table, max_chunksize=3)
    (tmp_path / "state.json").write_text("{}")
    with ipc.new_stream(str(tmp_path / "cache-1234.arrow"), table.schema) as out:
        out.write_table(table)
    found = list_sources([str(tmp_path)])
    [file] = found.files
    assert found.unused == {"own": 1}
    assert found.unread == {"*.arrow": 1}
    assert rows_of(file) == [{"id": i, "text": f"text {i}"} for i in range(10)]


def test_streams_of_arrow_one_behind_the_other_are_all_read(tmp_path: Path) -> None:
    """Fails when the rows of all streams but the first are lost without a word, which cat put into one file."""
    for name in ("a", "b"):
        with ipc.new_stream(str(tmp_path / name), pa.schema([("text", pa.string())])) as out:
            out.write_table(pa.table({"text": [name]}))
    (tmp_path / "f.arrow").write_bytes((tmp_path / "a").read_bytes() + (tmp_path / "b").read_bytes())
    assert [row["text"] for row in rows_of(one(tmp_path / "f.arrow"))] == ["a", "b"]


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_of_two_columns_of_one_name_the_last_counts(tmp_path: Path, kind: str) -> None:
    """Fails when such a table ends the command in a traceback."""
    table = pa.Table.from_arrays([pa.array(["x", "z"]), pa.array(["y", None])], ["text", "text"])
    path = tmp_path / f"f.{kind}"
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        with ipc.new_file(str(path), table.schema) as out:
            out.write_table(table)
    assert [row["text"] for row in rows_of(one(path))] == ["y", "z"]


def test_damaged_arrow_is_refused_or_rejected(tmp_path: Path) -> None:
    """Fails when places that a file makes up are followed, which ends the process."""
    (tmp_path / "f.arrow").write_bytes(b"no Arrow at all")
    with pytest.raises(ConfigError, match="is not an Arrow file"):
        list_sources([str(tmp_path / "f.arrow")])
    table = pa.table({"text": [f"word {i}" for i in range(100)]})
    with ipc.new_stream(str(tmp_path / "g.arrow"), table.schema) as out:
        out.write_table(table)
    data = bytearray((tmp_path / "g.arrow").read_bytes())
    offsets = data.index((6).to_bytes(4, "little") + (12).to_bytes(4, "little"))
    data[offsets : offsets + 4] = (2**31 - 2).to_bytes(4, "little")
    (tmp_path / "h.arrow").write_bytes(data)
    rows = rows_of(one(tmp_path / "h.arrow"))
    assert [type(row) for row in rows] == [DocumentError] * 100
    row = rows[0]
    assert "is damaged" in str(row)


def test_a_fragment_without_an_end_is_a_whole_file(tmp_path: Path) -> None:
    """Fails when a tar is cut where a task of another container would end."""
    [fragment] = list_fragments([one(tar_of(tmp_path / "f.tar", [("1.txt", b"a")]))])
    assert (fragment.start, fragment.end) == (0, WHOLE)
    assert arrow_batches.FRAGMENT_BYTES > 0
