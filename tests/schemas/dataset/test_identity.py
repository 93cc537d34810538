"""Ingredients of a dataset's id: configuration, tokenizer and every column of the plan."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pyarrow as pa
import pytest

from preshard.schemas.config import parse_config
from preshard.schemas.dataset.identity import dataset_id
from preshard.schemas.manifest import TokenizerEntry
from preshard.schemas.tables import DOCUMENTS

TOKENIZER = TokenizerEntry(
    name="t", sha256="0", vocab_size=9, bos_id=None, eos_id=1, pad_id=2, image_id=3, chat_template_sha256=None
)
ROWS = [
    {
        "doc_id": "a",
        "piece": 0,
        "copy_number": 0,
        "epoch": 2,
        "source": "s",
        "pack_id": 0,
        "start": 0,
        "length": 5,
        "aligned_length": 16,
    },
    {
        "doc_id": "é",
        "piece": 1,
        "copy_number": 1,
        "epoch": 0,
        "source": "s",
        "pack_id": 1,
        "start": 16,
        "length": 7,
        "aligned_length": 16,
    },
]
COLUMNS = ("piece", "copy_number", "epoch", "pack_id", "start", "length", "aligned_length")


def table(**changed: object) -> pa.Table:
    rows = [{**row, "n_units": 0, "n_images": 0, "n_patches": 0, "load": 0, "truncated_tokens": 0} for row in ROWS]
    return pa.Table.from_pylist([rows[0], {**rows[1], **changed}], schema=DOCUMENTS)


def test_the_id_is_the_hash_that_the_format_describes() -> None:
    """Fails when another writer of the format, who follows docs/format.md, gets another id."""
    config = parse_config({"tokenizer": "/some/where.json"})
    kept = config.model_dump(mode="json")
    for path in ("tokenizer", "model", "chat_template"):
        del kept[path]
    head = json.dumps(
        {"config": kept, "tokenizer": TOKENIZER.model_dump(mode="json"), "model": None}, sort_keys=True
    ).encode()
    ids = b"".join(row["doc_id"].encode() + b"\0" for row in ROWS)  # type: ignore[attr-defined]
    columns = [np.array([row[name] for row in ROWS], "<i8").tobytes() for name in COLUMNS]
    digests = b"".join(hashlib.sha256(column).digest() for column in (ids, *columns))
    wanted = hashlib.sha256(head + digests).hexdigest()
    assert dataset_id(config, TOKENIZER, None, [table()]) == wanted
    parts = [table().slice(0, 1), table().slice(0, 0), table().slice(1)]
    assert dataset_id(config, TOKENIZER, None, parts) == wanted, "a plan in parts has another id"


@pytest.mark.parametrize("change", [{"doc_id": "b"}, *({name: 99} for name in COLUMNS)])
def test_every_column_of_the_plan_counts(change: dict[str, object]) -> None:
    """Fails when two different plans have one id."""
    config = parse_config({})
    assert dataset_id(config, TOKENIZER, None, [table(**change)]) != dataset_id(config, TOKENIZER, None, [table()])


def test_the_tokenizers_path_and_the_sources_do_not_count() -> None:
    """Fails when the same job on another machine has another id."""
    here, there = (
        dataset_id(parse_config({"tokenizer": path}), TOKENIZER, None, [table()]) for path in ("a.json", "b.json")
    )
    assert here == there == dataset_id(parse_config({}), TOKENIZER, None, [table(source="other")])
