"""The model on a whole pack, against a plain one that takes documents one by one and knows nothing about packs.

A label, position, feature or mask that packing misplaces changes the sum of the losses. Each is misplaced on purpose to
prove that.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from schemas.sequence import MaskArrays, dense_mask
from trainer.data.batch import RankBatch
from trainer.data.dataset import PackedDataset
from trainer.distributed.mesh import ContextParallel
from trainer.models.config import ModelConfig
from trainer.models.features import FeatureExchange, bind_features
from trainer.models.model import VisionLanguageModel, build_model


def _small_vocab(batch: RankBatch) -> RankBatch:
    """The batch with ids folded into a vocabulary whose logits cost little."""
    labels = torch.where(batch.labels >= 0, batch.labels % 257, batch.labels)
    return dataclasses.replace(batch, tokens=batch.tokens % 257, labels=labels)


def _attend(batch: RankBatch) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    arrays = MaskArrays(**{name: getattr(batch, name).numpy() for name in ("doc_ids", "branch_ids", "group_ids")})
    return _dense(torch.from_numpy(dense_mask(arrays)))


def _dense(mask: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Attention under a matrix; a row that sees nothing gives zeros."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shared = len(q) // len(k)
        scores = q @ k.repeat_interleave(shared, 0).transpose(1, 2) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return weights.nan_to_num() @ v.repeat_interleave(shared, 0)

    return attend


@pytest.fixture(scope="module")
def batches(tiny_dataset: Path) -> dict[int, RankBatch]:
    return {batch.pack_id: batch for batch in PackedDataset(tiny_dataset)}


def _packed_loss(model: VisionLanguageModel, batch: RankBatch, **changes: Any) -> Tensor:
    """The loss of a pack; ``attend`` and ``exchange`` may be replaced by name."""
    attend = changes.get("attend", _attend(batch))
    exchange = changes.get("exchange", bind_features(batch, ContextParallel()))
    loss: Tensor = model(batch, attend, exchange)
    return loss


@pytest.fixture(scope="module")
def chosen(tiny_whole: list[Any]) -> dict[str, int]:
    """A pack of each hard kind."""
    several = [s for s in tiny_whole if len({image["doc_id"] for image in s.head["images"]}) > 1]
    return {
        "annotations": next(s.head["pack_id"] for s in tiny_whole if s.arrays["branch_ids"].max() > 1),
        "images of several documents": several[-1].head["pack_id"],
        "text alone": next(s.head["pack_id"] for s in tiny_whole if not s.images),
    }


def _gradients(model: VisionLanguageModel, loss: Tensor) -> dict[str, Tensor]:
    """Gradients by name; zeros for a parameter that the loss does not depend on."""
    named = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(named, found, strict=True))


@pytest.mark.parametrize("kind", ["annotations", "images of several documents", "text alone"])
def test_a_packs_loss_is_the_sum_of_its_documents(
    kind: str,
    chosen: dict[str, int],
    batches: dict[int, RankBatch],
    tiny_whole: list[Any],
    model: VisionLanguageModel,
    document_losses: Callable[[VisionLanguageModel, Any], list[Tensor]],
) -> None:
    """Fails when a document's loss or gradient depends on what it was packed with, or where."""
    batch, sample = _small_vocab(batches[chosen[kind]]), tiny_whole[chosen[kind]]
    alone = document_losses(model, sample)
    assert len(alone) > 1
    expected = torch.stack(alone).sum()
    loss = _packed_loss(model, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-11, atol=0)
    ours, plain = _gradients(model, loss), _gradients(model, expected)
    for name, gradient in ours.items():
        named = functools.partial("{}: {}".format, name)
        torch.testing.assert_close(gradient, plain[name], rtol=1e-8, atol=1e-9, msg=named)
    seen = {name for name, gradient in ours.items() if gradient.any()}
    unseen = {name for name, _ in model.named_parameters()} - seen
    assert all(name.startswith(("vision", "connector")) == (kind == "text alone") for name in unseen - BLIND), unseen


BLIND = {"connector.k_proj.bias"}
"""Parameters without effect: the same number is added to all scores of a window."""


def _without_groups(batch: RankBatch) -> RankBatch:
    return dataclasses.replace(batch, group_ids=torch.full_like(batch.group_ids, -1))


def _without_branches(batch: RankBatch) -> RankBatch:
    return dataclasses.replace(batch, branch_ids=torch.zeros_like(batch.branch_ids))


def _swapped(exchange: FeatureExchange, sizes: tuple[int, int], features: Tensor) -> Tensor:
    """Two ranks' features in each other's place, as with boundaries out of order."""
    first, second = features.split(sizes)
    return exchange(torch.cat([second, first]))


OF_IMAGES = ("features", "pooled rows", "tokens of images")


@pytest.mark.parametrize(
    "planted", ["labels", "positions", "features", "pooled rows", "tokens of images", "annotations", "documents"]
)
def test_planted_errors_show(
    planted: str, chosen: dict[str, int], batches: dict[int, RankBatch], model: VisionLanguageModel
) -> None:
    """Tests the comparison itself: it fails for each error that packing can make, planted by hand."""
    kind = "images of several documents" if planted in OF_IMAGES else "annotations"
    batch = _small_vocab(batches[chosen[kind]])
    right = bind_features(batch, ContextParallel())
    rows = int(batch.pool_edges[-1])
    changes: dict[str, dict[str, Any]] = {
        "labels": {"batch": dataclasses.replace(batch, labels=torch.where(batch.labels >= 0, batch.tokens, -100))},
        "positions": {"batch": dataclasses.replace(batch, position_ids=batch.positions[None])},
        "features": {"exchange": _Replaced(right, functools.partial(_swapped, right, (rows // 2, rows - rows // 2)))},
        "pooled rows": {"exchange": _Replaced(right, lambda features: right(_transposed_crops(features)))},
        "tokens of images": {"attend": _attend(_without_groups(batch))},
        "annotations": {"attend": _attend(_without_branches(batch))},
        "documents": {"attend": _dense(torch.ones(batch.seq_len, batch.seq_len).tril().bool())},
    }
    change = {"batch": batch, **changes[planted]}
    sound, broken = _packed_loss(model, batch), _packed_loss(model, **change)
    assert abs(broken / sound - 1).item() > 1e-9, "would not show at the tolerance of the comparison"


def _transposed_crops(features: Tensor) -> Tensor:
    """Pooled rows of each crop column by column."""
    return features.unflatten(0, (-1, 2, 2)).transpose(1, 2).flatten(0, 2)


class _Replaced:
    """An exchange that does something else with the features."""

    def __init__(self, exchange: FeatureExchange, call: Callable[[Tensor], Tensor]) -> None:
        self.slots, self._call = exchange.slots, call

    def __call__(self, features: Tensor) -> Tensor:
        return self._call(features)


def test_recomputing_layers_changes_nothing(
    chosen: dict[str, int], batches: dict[int, RankBatch], model: VisionLanguageModel, small_config: ModelConfig
) -> None:
    """Fails when the second run of a layer sees other positions, another mask or another pack."""
    batch = _small_vocab(batches[chosen["annotations"]])
    again = build_model(small_config, seed=1, dtype=torch.float64, recompute=True)
    again.load_state_dict(model.state_dict())
    losses = [_packed_loss(one, batch) for one in (model, again)]
    assert losses[0].item() == losses[1].item()
    expected = _gradients(model, losses[0])
    for name, gradient in _gradients(again, losses[1]).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-12, atol=1e-14, msg=name)
