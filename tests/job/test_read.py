"""A planned document is read again for writing: it must be the one that was measured, and an outage must lose none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preshard.packer_service.ingest.source.files import list_fragments, read_fragment
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.packer_service.ingest.text.load import load_tokenizer
from preshard.packer_service.job.planning.measure import measure_fragment
from preshard.packer_service.job.writing import read as read_module
from preshard.packer_service.job.writing.read import ShardDocument, read_document
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError


def planned_in(folder: Path, config: PackConfig) -> ShardDocument:
    """The first document of a source, as the plan refers to it."""
    [fragment] = list_fragments(list_sources([str(folder)]).files)
    _, reference, _ = next(iter(read_fragment(fragment).rows))
    measured = measure_fragment(fragment, config)[0].to_pylist()[0]
    row = {
        "offset": reference.offset,
        "size": reference.size,
        "line": 1,
        "doc_id": measured["doc_id"] or "rows.jsonl:1",
        "piece": 0,
        "length": measured["tokens"],
    }
    return ShardDocument(row=row, file=fragment.file, source="default")


def tokens_of(document: ShardDocument, config: PackConfig) -> list[int]:
    """The tokens of a document that is read again; raises why it cannot be."""
    read_document(document, config)
    if document.error is not None:
        raise document.error
    tokens: list[int] = document.arrays.tokens.tolist()
    return tokens


def write_row(folder: Path, **row: str) -> None:
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")


def test_a_row_that_became_another_is_not_packed_under_the_old_id(tmp_path: Path, tiny_config: PackConfig) -> None:
    """Fails when a source rewritten in another order packs a document of the same length under a wrong id."""
    write_row(tmp_path, id="one", text="some words")
    planned = planned_in(tmp_path, tiny_config)
    assert len(tokens_of(planned, tiny_config)) == planned.row["length"]
    write_row(tmp_path, id="two", text="some words")
    with pytest.raises(DocumentError, match="changed since it was measured: its id is now 'two'") as error:
        tokens_of(planned, tiny_config)
    assert error.value.code == "decode_failed"


def test_a_row_without_an_id_is_known_by_its_place(tmp_path: Path, tiny_config: PackConfig) -> None:
    """Fails when the id that the packer gave a row is taken for a changed one."""
    write_row(tmp_path, text="some words")
    planned = planned_in(tmp_path, tiny_config)
    assert len(tokens_of(planned, tiny_config)) == planned.row["length"]


def test_only_a_missing_file_is_the_documents_fault(
    tmp_path: Path, tiny_config: PackConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a network or disk that fails for a moment turns whole documents into rejects for good."""
    write_row(tmp_path, id="one", text="some words")
    planned = planned_in(tmp_path, tiny_config)
    gone = replace(planned, file=replace(planned.file, uri=str(tmp_path / "gone.jsonl")))
    with pytest.raises(DocumentError, match="the source file was removed"):
        tokens_of(gone, tiny_config)

    def outage(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(read_module, "read_row", outage)
    with pytest.raises(OSError, match="Input/output error"):
        tokens_of(planned, tiny_config)


def test_a_split_document_is_rendered_once_for_all_of_its_pieces(
    tmp_path: Path, tiny_config: PackConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when every piece of a long document tokenises the whole again: time grows with the square of its length."""
    config = tiny_config.model_copy(update={"oversize": "split"})
    tokenizer = load_tokenizer(config.tokenizer, config.special_tokens)
    write_row(tmp_path, id="long", text="words " * 3 * config.seq_len)
    first = planned_in(tmp_path, config)
    [fragment] = list_fragments(list_sources([str(tmp_path)]).files)
    lengths = measure_fragment(fragment, config)[0]["tokens"].to_pylist()
    assert len(lengths) > 3
    rendered: list[ShardDocument] = []
    render_row = read_module.render_row

    def counted(*arguments: Any) -> Any:
        rendered.append(first)
        return render_row(*arguments)

    monkeypatch.setattr(read_module, "render_row", counted)
    planned = [
        replace(first, row={**first.row, "piece": piece, "length": length}) for piece, length in enumerate(lengths)
    ]
    parts = [tokens_of(each, config) for each in planned]
    assert len(rendered) == 1
    assert [len(part) for part in parts] == lengths
    whole = [token for part in parts for token in part]
    assert whole == [*tokenizer.bos, *tokenizer.encode("words " * 3 * config.seq_len), tokenizer.entry.eos_id]
