"""Megatron's indexed datasets: each document once, again by its place, and no wrong index gives a row."""

from __future__ import annotations

import os
import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from indexed_files import CODES, Documents, write_indexed

from preshard.packer_service.ingest.fetch import Range, read_range
from preshard.packer_service.ingest.source.containers import indexed_tokens
from preshard.packer_service.ingest.source.file import SourceFile
from preshard.packer_service.ingest.source.files import list_fragments, read_fragment, read_row
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.packer_service.ingest.stream import MAX_TOKENS
from preshard.schemas.errors import ConfigError, DocumentError

DOCUMENTS: Documents = [[[1, 2, 3], [4]], [[5, 6]], [[7], [8], [9, 10]], [[11]]]
HEADER, LENGTHS, POINTERS, EDGES = 34, 34, 34 + 4 * 7, 34 + 12 * 7
"""Offsets at which the parts of the index of ``DOCUMENTS`` begin: it has seven sequences."""
HAS_MEGATRON = find_spec("megatron") is not None and find_spec("megatron.core") is not None


def file_of(path: Path) -> SourceFile:
    [file] = list_sources([str(path)]).files
    assert file.form == "tokens"
    return file


def rows_of(file: SourceFile) -> list[Any]:
    """Each document's tokens, the same when they are read again by their place, or why it is none."""
    rows = []
    for fragment in list_fragments([file]):
        for _, reference, row in read_fragment(fragment).rows:
            if not isinstance(row, DocumentError):
                assert read_row(file, reference) == row
            rows.append(row if isinstance(row, DocumentError) else row["input_ids"])
    return rows


def joined(documents: Documents) -> list[list[int]]:
    return [[token for sequence in document for token in sequence] for document in documents]


def change(path: Path, at: int, layout: str, value: int) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into(layout, data, at, value)
    path.write_bytes(data)


@given(
    documents=st.lists(st.lists(st.lists(st.integers(0, 120), max_size=5), max_size=4), max_size=12),
    dtype=st.sampled_from(sorted(CODES)),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 4), st.integers(1, 4), st.integers(4, 9)),
)
def test_every_document_is_read_once(
    tmp_path_factory: pytest.TempPathFactory, documents: Documents, dtype: str, sizes: tuple[int, ...]
) -> None:
    """Fails when a document at the edge of a fragment or a read is lost, or joined of the wrong sequences."""
    path = write_indexed(tmp_path_factory.mktemp("indexed") / "f.bin", documents, dtype)
    names = ("FRAGMENT_BYTES", "FRAGMENT_DOCUMENTS", "DOCUMENTS_READ", "SEQUENCES_READ")
    with pytest.MonkeyPatch.context() as patched:
        for name, size in zip(names, sizes, strict=True):
            patched.setattr(indexed_tokens, name, size)
        assert rows_of(file_of(path)) == joined(documents)


@pytest.mark.skipif(not HAS_MEGATRON, reason="megatron-core is not installed (make test-matrix)")
@pytest.mark.parametrize("dtype", sorted(CODES))
def test_megatron_writes_and_reads_the_same(tmp_path: Path, dtype: str) -> None:
    """Fails when Megatron's own files have other bytes than those of these tests, or other documents for its reader."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=getattr(np, dtype))
    for document in DOCUMENTS:
        for sequence in document:
            builder.add_item(torch.tensor(sequence))
        builder.end_document()
    builder.finalize(str(tmp_path / "theirs.idx"))
    ours = write_indexed(tmp_path / "ours.bin", DOCUMENTS, dtype)
    for ending in (".bin", ".idx"):
        assert ours.with_suffix(ending).read_bytes() == (tmp_path / f"theirs{ending}").read_bytes()
    read = IndexedDataset(str(tmp_path / "theirs"))
    ranges = zip(read.document_indices[:-1], read.document_indices[1:], strict=True)
    theirs = [np.concatenate([read[at] for at in range(first, end)]).tolist() for first, end in ranges]
    assert rows_of(file_of(tmp_path / "theirs.bin")) == theirs == joined(DOCUMENTS)


@pytest.mark.parametrize(
    ("at", "layout", "value", "reason"),
    [
        (0, "B", 0, r"is not an index of Megatron; .*; --ignore 'f\.bin' leaves the \.bin out$"),
        (9, "<Q", 2, "has version 2; 1 is read"),
        (17, "B", 7, r"has dtype code 7 \(float32\); tokens are 1 \(uint8\)"),
        (17, "B", 99, r"has dtype code 99 \(unknown\)"),
        (17, "B", 8, "ends at byte 42 of the .bin; that has 44 bytes"),
        (18, "<Q", 2**62, "sequences and 5 edges of documents; its header asks for"),
        (26, "<Q", 0, "0 edges of documents"),
        (EDGES, "<q", 1, "has documents of sequences 1 to 7; it has 7 sequences"),
        (EDGES + 8 * 4, "<q", 6, "has documents of sequences 0 to 6; it has 7 sequences"),
        (LENGTHS + 4 * 6, "<i", 2, "ends at byte 48 of the .bin; that has 44 bytes"),
    ],
)
def test_a_wrong_index_is_refused(tmp_path: Path, at: int, layout: str, value: int, reason: str) -> None:
    """Fails when tokens are read by an index of another format, type or file."""
    path = write_indexed(tmp_path / "f.bin", DOCUMENTS)
    change(path.with_suffix(".idx"), at, layout, value)
    with pytest.raises(ConfigError, match=reason) as refused:
        list_sources([str(tmp_path)])
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(f"SOURCE {path}: f.idx ")


@pytest.mark.parametrize("ending", [".bin", ".idx"])
def test_a_file_that_is_cut_short_is_refused(tmp_path: Path, ending: str) -> None:
    """Fails when half a copy is packed as if it were whole."""
    path = write_indexed(tmp_path / "f.bin", DOCUMENTS).with_suffix(ending)
    whole = path.read_bytes()
    for size in (0, 20, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match=r"f\.idx"):
            list_sources([str(tmp_path / "f.bin")])


@pytest.mark.parametrize(
    ("at", "layout", "value", "lost", "reason"),
    [
        (LENGTHS + 4 * 2, "<i", 3, {1, 2}, "sequence 2 at bytes 16 to 28 of a .bin of 44 bytes"),
        (LENGTHS + 4 * 2, "<i", -2, {1, 2}, "sequence 2 at bytes 16 to 8"),
        (POINTERS + 8 * 2, "<q", 0, {0, 1, 2}, "sequence 2 at bytes 0 to 8"),
        (POINTERS + 8 * 2, "<q", 2**63 - 1, {0, 1, 2}, "sequence 2 at bytes"),
        (POINTERS, "<q", 4, {0}, "sequence 0 at bytes 4 to 16"),
        (EDGES + 8 * 2, "<q", 1, {0, 1, 2}, "that are out of order"),
        (EDGES + 8 * 2, "<q", 7, {1, 2, 3}, "that are out of order"),
    ],
)
@pytest.mark.parametrize("read", [1, 2, 4])
def test_documents_at_wrong_places_are_rejects(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: int,
    layout: str,
    value: int,
    lost: set[int],
    reason: str,
    read: int,
) -> None:
    """Fails when a damaged number gives a document other tokens, or costs those that it does not touch."""
    monkeypatch.setattr(indexed_tokens, "DOCUMENTS_READ", read)
    if at >= EDGES and read > 1:
        lost = {0, 1, 2, 3}  # all that are read together
    path = write_indexed(tmp_path / "f.bin", DOCUMENTS)
    change(path.with_suffix(".idx"), at, layout, value)
    rows = rows_of(file_of(path))
    assert {i for i, row in enumerate(rows) if isinstance(row, DocumentError)} == lost
    assert [row for row in rows if isinstance(row, list)] == [
        row for i, row in enumerate(joined(DOCUMENTS)) if i not in lost
    ]
    assert any(reason in str(row) for row in rows)


def test_tokens_before_the_first_document_are_not_lost(tmp_path: Path) -> None:
    """Fails when the first sequence may begin anywhere, so that tokens of the .bin belong to no document."""
    path = write_indexed(tmp_path / "f.bin", [[[1, 2, 3, 4]]])
    change(path.with_suffix(".idx"), HEADER, "<i", 3)
    change(path.with_suffix(".idx"), HEADER + 4, "<q", 4)
    [row] = rows_of(file_of(path))
    assert "sequence 0 at bytes 4 to 16 of a .bin of 16 bytes" in str(row)


def test_only_sequences_of_text_are_tokens(tmp_path: Path) -> None:
    """Fails when what a multimodal dataset stores of an image is packed as tokens."""
    path = write_indexed(tmp_path / "f.bin", DOCUMENTS, modes=[0, 0, 1, 0, 0, 0, 0])
    first, second, *others = rows_of(file_of(path))
    assert [first, *others] == [row for i, row in enumerate(joined(DOCUMENTS)) if i != 1]
    assert "sequence 2 has mode 1" in str(second)


def test_a_document_that_no_pack_holds_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a document of any size is taken into memory, or one of more sequences than are read at a time."""
    monkeypatch.setattr(indexed_tokens, "SEQUENCES_READ", 2)
    path = write_indexed(tmp_path / "f.bin", [[[0] * (MAX_TOKENS + 1)], [[1], [2]], [[3], [4], [5]]], "uint8")
    large, small, many = rows_of(file_of(path))
    assert small == [1, 2]
    assert (large.code, many.code) == ("too_long", "too_long")
    assert "3 sequences, more than the limit of 2" in str(many)


def test_megatrons_prefix_names_the_pair(tmp_path: Path) -> None:
    """Fails when the path that Megatron takes is refused here, or hides a folder of that name."""
    write_indexed(tmp_path / "text.bin", DOCUMENTS)
    named, whole = list_sources([str(tmp_path / "text")]), list_sources([str(tmp_path / "text.bin")])
    assert named == whole
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "rows.jsonl").write_text('{"text": "words"}\n')
    assert [file.label for file in list_sources([str(tmp_path / "text")]).files] == ["text/rows.jsonl"]
    with pytest.raises(ConfigError, match="no such file or folder"):
        list_sources([str(tmp_path / "other")])


def test_half_a_pair_is_named(tmp_path: Path) -> None:
    """Fails when a .bin without its index is read, an index counts as another file, or a model's weights end a job."""
    path = write_indexed(tmp_path / "f.bin", DOCUMENTS)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    found = list_sources([str(tmp_path)])
    assert [file.label for file in found.files] == [f"{tmp_path.name}/f.bin"]
    assert found.unread == {"*.bin": 1}
    with pytest.raises(ConfigError, match=r"f.idx: is an index; give its \.bin$"):
        list_sources([str(path.with_suffix(".idx"))])
    assert len(list_sources([str(tmp_path / "f*.bin")]).files) == 1
    path.with_suffix(".idx").unlink()
    for source in (path, tmp_path / "*.bin"):
        with pytest.raises(ConfigError, match=r"f.idx is not there; a .bin of tokens is read by the .idx beside it$"):
            list_sources([str(source)])


def test_a_task_reads_its_own_part_of_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when each task reads a whole index, which is as large as half the tokens where documents are short."""
    monkeypatch.setattr(indexed_tokens, "FRAGMENT_DOCUMENTS", 100)
    path = write_indexed(tmp_path / "f.bin", [[[i % 100, 1]] for i in range(5000)], "uint16")
    read = list[Range]()
    monkeypatch.setattr(indexed_tokens, "read_range", lambda part: (read.append(part), read_range(part))[1])
    fragments = list_fragments([file_of(path)])
    assert len(fragments) == 50
    read.clear()
    rows = [row["input_ids"] for _, _, row in read_fragment(fragments[30]).rows]
    assert rows == [[i % 100, 1] for i in range(3000, 3100)]
    assert sum(part.end - part.start for part in read) <= 20 * 103
    assert len(read) == 3


def test_a_file_that_changed_gives_no_other_row(tmp_path: Path) -> None:
    """Fails when tokens are read by the place that another index gave, or half a token is a row."""
    path = write_indexed(tmp_path / "f.bin", DOCUMENTS)
    file = file_of(path)
    os.utime(path.with_suffix(".idx"), ns=(file.mtime_ns + 10**9,) * 2)
    assert file_of(path) != file
    [fragment] = list_fragments([file])
    place = next(iter(read_fragment(fragment).rows))[1]
    assert isinstance(indexed_tokens.decode(b"\0" * (place.size - 1), file), DocumentError)
    indexed_tokens._INDEXES.clear()
    change(path.with_suffix(".idx"), 17, "B", 5)
    assert isinstance(indexed_tokens.decode(b"\0" * place.size, file), DocumentError)
