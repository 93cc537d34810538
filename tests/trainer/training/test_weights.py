"""Turns that count a fraction: the loss of their packs is the weighted mean that ``transformers`` gives by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from packed_models import SETTINGS, VOCABULARY, load_original

from preshard.packer_service.config import load_config
from preshard.packer_service.demo.model import write_model_folder
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.verify.dataset import verify_dataset
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.models.load import load_model
from preshard.trainer.models.packed import PackedModel

WEIGHTS = [(0.5, 1.0), (0.0, 2.5), (0.3, 0.7), (1.0, None), (1e-3, 40.0)]


def rows() -> list[dict[str, Any]]:
    found = []
    for number, weights in enumerate(WEIGHTS):
        turns: list[dict[str, Any]] = []
        for turn, weight in enumerate(weights):
            turns.append({"role": "user", "content": f"{number} and {turn}? " * (3 + number)})
            turns.append({"role": "assistant", "content": "It is said again. " * (5 + 3 * turn + number)})
            turns[-1] |= {} if weight is None else {"weight": weight}
        found.append({"id": f"row-{number}", "messages": turns})
    return found


def by_hand(folder: Path) -> float:
    """The mean over all rows of each token's cross entropy, counted by its turn's weight."""
    import transformers

    model, tokenizer = load_original(folder, "qwen3"), transformers.AutoTokenizer.from_pretrained(folder / "model")
    total = counted = 0.0
    for row, weights in zip(rows(), WEIGHTS, strict=True):
        made = tokenizer.apply_chat_template(
            row["messages"], return_dict=True, return_assistant_tokens_mask=True, return_tensors="pt"
        )
        ids, mask = made["input_ids"], torch.as_tensor(made["assistant_masks"]).reshape(-1).bool()
        turn = torch.cumsum(mask & ~torch.cat([mask[:1] & False, mask[:-1]]), 0) - 1
        assert int(turn.max()) == len(weights) - 1
        weight = torch.tensor([1.0 if w is None else w for w in weights]).double()[turn.clamp(min=0)] * mask
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0].double()
        losses = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:], reduction="none")
        total += float((losses * weight[1:]).sum())
        counted += float(weight[1:].sum())
    return total / counted


def _documents(dataset: Path) -> list[dict[str, Any]]:
    return pq.read_table(dataset / "documents.parquet").to_pylist()


@pytest.mark.parametrize("settings", [[], ["seq_len=256", "cp_sizes=[1]", "ring_degrees=[1]", "oversize=split"]])
def test_the_loss_is_the_weighted_mean(tmp_path: Path, progress: Any, settings: list[str]) -> None:
    """Fails when a turn's weight is lost on the way through packs, pieces or packing again, or when the loss is divided
    by the number of tokens.
    """
    write_model_folder(tmp_path / "model", "qwen3", vocabulary=VOCABULARY)
    load_model(tmp_path / "model", from_scratch=True, seed=1).save_pretrained(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows())), encoding="utf-8")
    expected, packed = by_hand(tmp_path), PackedModel(load_model(tmp_path / "model", dtype=torch.float64))
    source = tmp_path / "rows.jsonl"
    first = [f"model={tmp_path / 'model'}", *SETTINGS, *settings]
    for name, own in (("first", first), ("again", ["order.seed=1", "seq_len=2048"])):
        config = load_config(None, own, [str(source)])
        pack([str(source)], str(tmp_path / name), config, PlainExecutor(), progress)
        assert verify_dataset(str(tmp_path / name), processes=1, progress=progress).sound
        if settings and name == "first":  # the labels at its cuts come back when the pieces are joined
            assert any("piece" in row and row["piece"] for row in _documents(tmp_path / name))
            source = tmp_path / name
            continue
        losses, weights = 0.0, 0.0
        for batch in PackedDataset(tmp_path / name):
            with torch.no_grad():
                losses += float(packed(batch, ContextParallel()))
            weights += float(batch.loss_weights.double().sum())
            assert len(set(batch.loss_weights.tolist())) > 2
        assert losses / weights == pytest.approx(expected, rel=1e-8)
        source = tmp_path / name
