"""Rows of tokens and columns of tokens from a source to shards, read back by tarfile and NumPy alone."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stored
from indexed_files import write_indexed
from repacked import Listener, packed, rejects, shards, write_rows
from stored import Arrays

from preshard.packer_service.demo.model import write_model_folder
from preshard.packer_service.verify import verify_dataset
from preshard.schemas.errors import ConfigError
from preshard.trainer.data.dataset import PackedDataset

SETTINGS = ["seq_len=128", "block_size=16", "cp_sizes=[1,2]", "ring_degrees=[1,2]", "max_images=null"]
COLUMNS = ["token_columns={logprobs: float32, teacher: float32 x 2 or 0, seen: bool or 0, turn: int32 or 0}"]
Row = dict[str, Any]


def documents(dataset: Path) -> dict[str, list[Arrays]]:
    """The arrays of every document, piece by piece."""
    found: dict[str, list[Arrays]] = {}
    for span, arrays in sorted(stored.documents(dataset), key=lambda each: each[0]["piece"]):
        found.setdefault(span["doc_id"], []).append(arrays)
    return found


def made(folder: Path, rows: list[Row], settings: list[str]) -> Path:
    source = folder / "source"
    source.mkdir(parents=True)
    write_rows(source, rows)
    out = packed(source, folder / "out", [*SETTINGS, *settings])
    assert not verify_dataset(str(out), processes=1, progress=Listener()).broken
    return out


def token_row(n: int, seed: int = 0, **others: Any) -> Row:
    draw = np.random.default_rng(seed)
    ids = draw.integers(100, 30000, n).tolist()
    return {"id": f"r{n}", "input_ids": ids, "logprobs": [None, *draw.uniform(-5, 0, n - 1).tolist()], **others}


def test_tokens_are_packed_as_they_are(tmp_path: Path) -> None:
    """Fails when a token is added or lost, a label is not the next token under loss, or a mask is misread."""
    ids = [60, 61, 62, 63, 64]
    rows: list[Row] = [
        {"id": "all", "input_ids": ids},
        {"id": "labels", "input_ids": ids, "labels": [-100, -100, 62, 63, -100]},
        {"id": "weights", "input_ids": ids, "loss_mask": [1, 1, 0, 0.5, 2], "document_weight": 2},
        {"id": "trl", "input_ids": ids, "completion_mask": [0, 0, 1, 1, 1], "assistant_masks": [0, 1, 0, 1, 1]},
        {"id": "padded", "input_ids": [0, *ids, 0], "attention_mask": [0, *[1] * 5, 0], "labels": [-100, *ids, -100]},
        {"id": "positions", "input_ids": ids, "position_ids": [0, 1, 2, 3, 4]},
    ]  # fmt: skip
    found = {doc_id: piece for doc_id, [piece] in documents(made(tmp_path, rows, [])).items()}
    assert all(piece["tokens"].tolist() == ids for piece in found.values())
    assert all(piece["position_ids"].tolist() == [[0, 1, 2, 3, 4]] for piece in found.values())
    every = [61, 62, 63, 64, -100]
    labels = {name: found[name]["labels"].tolist() for name in found}
    assert labels == {
        "all": every,
        "labels": [-100, 62, 63, -100, -100],
        "weights": [61, -100, 63, 64, -100],
        "trl": [-100, -100, 63, 64, -100],
        "padded": every,
        "positions": every,
    }
    assert found["weights"]["loss_weights"].tolist() == [2, 0, 1, 4, 0]


def test_documents_in_a_row_see_only_themselves(tmp_path: Path) -> None:
    """Fails when lengths or positions do not part the documents of a row, in the mask, the positions or the labels."""
    ids = [60, 61, 62, 70, 71, 80]
    rows: list[Row] = [
        {"id": "lengths", "input_ids": ids, "seq_lengths": [3, 2, 1]},
        {"id": "positions", "input_ids": ids, "position_ids": [0, 1, 2, 0, 1, 0]},
        {"id": "both", "input_ids": ids, "position_ids": [0, 1, 2, 0, 1, 0], "document_lengths": [3, 2, 1]},
    ]
    found = documents(made(tmp_path, rows, []))
    assert found.keys() == {"lengths", "positions", "both"}
    for [piece] in found.values():
        assert piece["branch_ids"].tolist() == [1, 1, 1, 2, 2, 3]
        assert piece["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0]]
        assert piece["labels"].tolist() == [61, 62, -100, 71, -100, -100]


WRONG: list[tuple[Row, str]] = [
    ({"input_ids": [5, 2**31]}, "input_ids[1] is 2147483648; the tokenizer has the ids 0 to "),
    ({"input_ids": [5, -1]}, "input_ids[1] is -1; the tokenizer has"),
    ({"input_ids": [5, 10, 6]}, "input_ids[1] is 10, a token reserved for images"),
    ({"input_ids": [5, 6.5]}, "input_ids[1] is 6.5, not a whole number"),
    ({"input_ids": [5, 6], "labels": [5]}, "labels has 1 entries, and input_ids has 2"),
    ({"input_ids": [5, 6], "labels": [5, 7]}, "labels[1] is 7, and input_ids[1] is 6; legal are"),
    ({"input_ids": [5, 6, 7], "labels": [6, 7, -100]}, "labels[0] is 6, and input_ids[0] is 5: labels are shifted"),
    ({"input_ids": [5, 6], "loss_mask": [1, -1]}, "loss_mask[1] is -1; legal are 0 and numbers"),
    ({"input_ids": [5, 6], "position_ids": [0, 2]}, "position_ids[1] is 2; positions must count up by one"),
    ({"input_ids": [5, 6], "position_ids": [1, 2]}, "position_ids[0] is 1; positions must count up by one"),
    ({"input_ids": [5, 6], "seq_lengths": [1]}, "seq_lengths is [1]; legal are numbers from 1 that add up to 2"),
    ({"input_ids": [5, 6], "seq_lengths": [1, 1], "position_ids": [0, 1]}, "seq_lengths gives 2 documents and"),
    ({"input_ids": [5, 6, 7], "attention_mask": [1, 0, 1]}, "attention_mask is not 1 on one range"),
    ({"input_ids": [5]}, "no token after the first of a document carries loss"),
    ({"input_ids": [5, 6], "labels": [-100, -100]}, "no token after the first of a document carries loss"),
]
"""Rows of tokens, and how their rejects begin."""


def test_a_row_of_tokens_that_is_wrong_is_rejected(tmp_path: Path) -> None:
    """Fails when tokens that no model could be trained on reach a pack, or the reject does not say why."""
    wrong = [{"id": f"bad-{number}", **row} for number, (row, _) in enumerate(WRONG)]
    out = made(tmp_path, [{"id": "good", "input_ids": [1000, 1001]}, *wrong], [])
    assert list(documents(out)) == ["good"]
    said = rejects(out)
    reasons = {f"bad-{number}": reason for number, (_, reason) in enumerate(WRONG)}
    assert {id_: said[id_][: len(reason)] for id_, reason in reasons.items()} == reasons


def test_tokens_of_media_that_packs_do_not_hold_are_rejected(tmp_path: Path) -> None:
    """Fails when a token that a model puts something else in place of, Gemma 4's for audio, is packed as text."""
    model = tmp_path / "model"
    write_model_folder(model, "gemma4", vocabulary=400)
    audio = json.loads((model / "config.json").read_text(encoding="utf-8"))["audio_token_id"]
    rows = [{"id": "good", "input_ids": [20, 21, 22]}, {"id": "bad", "input_ids": [20, audio, 22]}]
    out = made(tmp_path, rows, [f"model={model}"])
    assert list(documents(out)) == ["good"]
    assert rejects(out)["bad"].startswith(f"input_ids[1] is {audio}, a token reserved for images, videos or audio")


def test_columns_follow_their_tokens(tmp_path: Path) -> None:
    """Fails when a value is not beside the label of its own token, is cast wrongly, or padding is not 0."""
    rows: list[Row] = [
        token_row(5, teacher=[None, [1, 2], [3, 4], None, [5.5, 6]], seen=[True, False, True, False, True],
                  labels=[-100, *token_row(5)["input_ids"][1:3], -100, -100]),
        token_row(4, document_lengths=[2, 2], turn=[1, 2, 3, 4]),
    ]  # fmt: skip
    out = made(tmp_path, rows, COLUMNS)
    first, second = (found for [found] in (documents(out)["r5"], documents(out)["r4"]))
    given = [rows[0]["logprobs"], rows[1]["logprobs"]]
    assert np.array_equal(first["columns.logprobs"], np.float32([*given[0][1:], 0]))
    assert first["columns.teacher"].tolist() == [[1, 2], [3, 4], [0, 0], [5.5, 6], [0, 0]]
    assert first["columns.seen"].tolist() == [False, True, False, True, False]
    assert np.array_equal(second["columns.logprobs"], np.float32([given[1][1], 0, given[1][3], 0]))
    assert second["columns.turn"].tolist() == [2, 0, 4, 0]
    [(_, arrays)] = stored.samples(out)
    padding = arrays["doc_ids"] < 0
    assert padding.any()
    assert not any(arrays[name][padding].any() for name in arrays if name.startswith("columns."))
    dtypes = {name: str(arrays[name].dtype) for name in arrays if name.startswith("columns.")}
    assert list(dtypes) == ["columns.logprobs", "columns.seen", "columns.teacher", "columns.turn"]
    assert list(dtypes.values()) == ["float32", "bool", "float32", "int32"]


def test_a_value_of_a_turn_is_that_of_its_tokens_under_loss(tmp_path: Path) -> None:
    """Fails when a turn's value reaches tokens of another turn or without loss, or weights of turns are lost to it."""
    said = [("user", "One?"), ("assistant", "First answer."), ("user", "Two?"), ("assistant", "Second, longer answer.")]
    turns = [{"role": role, "content": text} for role, text in said]
    turns[1]["weight"] = 0.25  # type: ignore[assignment]
    rows: list[Row] = [
        {"id": "turns", "messages": turns, "logprobs": [-1.5, -2.5]},
        {"id": "all", "messages": turns, "logprobs": -3},
        {"id": "text", "text": "some words", "logprobs": 7},
        {"id": "none", "text": "some words"},
        {"id": "many", "messages": turns, "logprobs": [1, 2, 3]},
        {"id": "null", "messages": turns, "logprobs": [1, None]},
        {"id": "each", "messages": turns, "logprobs": [[1], [2]]},
        {"id": "word", "text": "some words", "logprobs": "7"},
    ]
    out = made(tmp_path, rows, ["token_columns={logprobs: float32}"])
    of_turns, of_all, of_text = (documents(out)[name][0] for name in ("turns", "all", "text"))
    learnt = of_turns["labels"] != -100
    first = learnt & (of_turns["loss_weights"] == 0.25)
    assert 0 < first.sum() < learnt.sum()
    expected = np.where(first, np.float32(-1.5), np.where(learnt, np.float32(-2.5), 0))
    assert np.array_equal(of_turns["columns.logprobs"], expected)
    assert set(of_turns["loss_weights"][learnt & ~first]) == {1}
    assert np.array_equal(of_all["columns.logprobs"], np.where(learnt, -3, 0))
    assert of_text["columns.logprobs"].tolist() == np.where(of_text["labels"] != -100, 7, 0).tolist()
    assert rejects(out) == {
        "none": "has no logprobs; give it, or let rows lack it by the type 'float32 or 0'",
        "many": "logprobs has 3 entries, not 2: one for each turn of the assistant, or one number",
        "null": "logprobs is null or missing where a token carries loss",
        "each": "logprobs has 1 numbers in each entry, not one number",
        "word": "logprobs is a string, not a number or a list of them",
    }  # fmt: skip


def test_pieces_and_packs_made_again_keep_columns(tmp_path: Path) -> None:
    """Fails when a cut loses or moves a value, or another length or packing gives a document other values."""
    rows = [token_row(n, n, loss_mask=[i % 3 > 0 for i in range(n)]) for n in (300, 40, 70)]
    rows.append(token_row(250, 1, document_lengths=[60, 110, 80]))
    split = made(tmp_path / "a", rows, [COLUMNS[0], "oversize=split"])
    whole = made(tmp_path / "b", rows, [COLUMNS[0], "seq_len=512"])
    again = packed(split, tmp_path / "again", ["seq_len=512"])
    assert not verify_dataset(str(again), processes=1, progress=Listener()).broken
    assert shards(again) == shards(whole)
    pieces, [uncut] = documents(split)["r300"], documents(whole)["r300"]
    assert len(pieces) == 3
    assert np.array_equal(np.concatenate([piece["columns.logprobs"] for piece in pieces]), uncut["columns.logprobs"])
    assert uncut["columns.logprobs"][127] != 0, "the place of a cut"
    assert shards(packed(again, tmp_path / "same", ["order.window=4"])) == shards(again)
    with pytest.raises(ConfigError, match=r"token_columns: .* is not possible .* keep the columns"):
        packed(whole, tmp_path / "other", ["token_columns={logprobs: int32}"])


@pytest.mark.parametrize("layout", ["zigzag", "balanced_ring"])
def test_ranks_get_the_values_of_their_tokens(tmp_path: Path, layout: str) -> None:
    """Fails when a rank's columns are not dealt as its labels, or are lost where the batch is moved."""
    out = made(tmp_path, [token_row(100, 1, teacher=[[i, -i] for i in range(100)])], COLUMNS)
    [(_, arrays)] = stored.samples(out)
    for rank in (0, 1):
        [batch] = PackedDataset(out, ring_degree=2, cp_rank=rank, layout=layout)
        assert list(batch.columns) == ["logprobs", "seen", "teacher", "turn"]
        moved = batch.to("cpu")
        for name, values in batch.columns.items():
            whole = arrays[f"columns.{name}"]
            assert np.array_equal(values.numpy(), whole[batch.positions.numpy()])
            assert values.numpy().dtype == whole.dtype
            assert batch.tensors[f"columns.{name}"] is values
            assert moved.columns[name].equal(values)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("{a: float64}", "token_columns: a is 'float64'; legal are float32, int32, bool"),
        ("{a: float32 x 0}", "token_columns: a is 'float32 x 0'"),
        ("{a: float32 x 2000}", "token_columns: a is 'float32 x 2000'"),
        ("{tokens: int32}", "token_columns: 'tokens' is the name of an array in every pack"),
        ("{'a b': int32}", "token_columns: 'a b' is not a legal name"),
        ("[a]", "token_columns: ['a'] is not a mapping"),
    ],
)
def test_columns_that_cannot_be_are_refused(tmp_path: Path, given: str, reason: str) -> None:
    """Fails when a type that is not stored, or a name that hides an array, gets as far as the packs."""
    with pytest.raises(ConfigError) as refused:
        packed(tmp_path, tmp_path / "out", [f"token_columns={given}"])
    assert str(refused.value).startswith(reason)


def test_indexed_datasets_are_packed_as_rows_of_tokens_are(tmp_path: Path) -> None:
    """Fails when documents of Megatron's files get other tokens or labels than as rows, or a wrong id is not named."""
    draw = np.random.default_rng(3)
    given = [[draw.integers(100, 30000, n).tolist() for n in sizes] for sizes in ([5, 3], [40], [1, 1, 30], [60])]
    source = tmp_path / "indexed"
    source.mkdir()
    write_indexed(source / "f.bin", [*given, [[7]], [], [[5, 200_000]]])
    out = packed(source, tmp_path / "out", SETTINGS)
    assert not verify_dataset(str(out), processes=1, progress=Listener()).broken
    rows = [{"id": f"indexed/f.bin:{i}", "input_ids": [*chain(*parts)]} for i, parts in enumerate(given, start=1)]
    found, expected = documents(out), documents(made(tmp_path / "rows", rows, []))
    assert found.keys() == expected.keys() == {row["id"] for row in rows}
    for doc_id, [piece] in found.items():
        for name in ("tokens", "labels", "position_ids", "loss_weights"):
            assert np.array_equal(piece[name], expected[doc_id][0][name]), name
    wrong = rejects(out)
    assert wrong.keys() == {f"indexed/f.bin:{i}" for i in (5, 6, 7)}
    assert "input_ids[1] is 200000; the tokenizer has the ids" in wrong["indexed/f.bin:7"]
