"""Work of a step on the host: nothing that waits for a device, and nothing that a worker has worked out."""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxOutput
from torch.optim import AdamW
from torch.utils._python_dispatch import TorchDispatchMode

from preshard.trainer.attention.bind import bind
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.kernels.flash_cpu import FlashCPU
from preshard.trainer.attention.kernels.flex import Flex
from preshard.trainer.attention.listed import NO_GROUP, TileLister
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.core.step import LocalTotals, apply_gradients, join_totals
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.data.loader import make_loader, prepare
from preshard.trainer.extra.work import StepWork
from preshard.trainer.models.features import bind_features
from preshard.trainer.models.load import load_model, load_sharded
from preshard.trainer.models.packed import PackedModel

pytestmark = pytest.mark.process  # the packs are made by a job

Folders = Callable[[str], Path]

WAITING = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "unique_dim",
    "_unique2",
    "unique_consecutive",
    "is_nonzero",
}
"""Operators whose result's value or size the host must know before it can go on."""


class NoWaiting(TorchDispatchMode):
    """Refuses operators for which the host would wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = [x for x in (args[1] if name in ("index", "index_put", "index_put_") else ()) if x is not None]
        assert name not in WAITING, f"{name} makes the host wait"
        assert not any(mask.dtype == torch.bool for mask in masks), "a mask as an index makes the host wait"
        self.seen += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def packed(folder_of: Folders) -> PackedModel:
    return PackedModel(load_model(folder_of("qwen3") / "model", dtype=torch.float64))


def lister(kind: str = "gather") -> TileLister:
    return TileLister.of(kind, ContextParallel(), exchange="needed", device_type="cpu")


def first_batch(folder_of: Folders, **given: Any) -> RankBatch:
    dataset = PackedDataset(folder_of("qwen3") / "dataset")
    return next(iter(make_loader(dataset, workers=0, device="cpu", **given)))


@pytest.mark.parametrize("kind", ["gather", "ring", "ulysses"])
def test_a_step_makes_no_host_wait(folder_of: Folders, packed: PackedModel, alone: None, kind: str) -> None:
    """Fails when the loss, the attention, the totals, clipping or the optimizer reads a value of a tensor: on an
    accelerator the host would stop until all that was started has ended, in every layer.
    """
    batch = first_batch(folder_of, list_tiles=lister(kind))
    local = LocalTotals.zero(torch.device("cpu"))
    with NoWaiting() as mode:
        loss = packed(batch, ContextParallel(), attention=kind)
        loss.backward()
        local.add(batch, loss)
        parameters = list(packed.parameters())
        totals = join_totals(local, parameters, replica=[0], cp_size=1, stop=False)
        apply_gradients(AdamW(parameters, fused=True), parameters, totals, lr=0.0, clip=1e-3)
    assert mode.seen > 100
    assert totals.loss_weight > 0


@pytest.fixture(scope="module")
def on_meta(folder_of: Folders) -> Callable[[str], PackedModel]:
    """``on_meta(family)``: a model whose tensors have no values, so that nothing can be read of them."""

    def make(family: str) -> PackedModel:
        return load_sharded(folder_of(family) / "model", PackedModel, weights="none", device="meta")

    return make


SELDOM = {"qwen2_5_vl", "exaone4_5", "mistral3"}


def _often(*families: str) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in SELDOM)) for name in families]


@pytest.mark.parametrize("family", _often("qwen3_vl", "qwen2_5_vl", "exaone4_5", "internvl", "molmo2", "mistral3"))
def test_nothing_of_images_makes_the_host_wait(
    folder_of: Folders, on_meta: Callable[[str], PackedModel], family: str
) -> None:
    """Fails when something looks for the tokens of images, reads a grid on the device, indexes by a mask, or gives a
    tensor of the host to the device's operators: for tensors without values, each of these is an error.

    The projector of Molmo2 in ``transformers`` does index by a mask, so its encoder is left out.
    """
    packed, kinds = on_meta(family), set()
    if family == "molmo2":
        packed.family = replace(packed.family, encode=features_alone)
    for batch in PackedDataset(folder_of(family) / "dataset"):
        loss = packed(batch, ContextParallel(), attention="reference")
        loss.backward()
        assert loss.is_meta
        kinds |= {unit.kind for unit in batch.units}
    assert len(kinds) > (family != "mistral3"), "no image, or no video where the model takes any"
    assert all(each.grad is not None for each in packed.parameters()) or family == "molmo2"


class Copies(TorchDispatchMode):
    """Counts copies from the host to tensors without values, which stand in for a device's here."""

    def __init__(self) -> None:
        super().__init__()
        self.sound = self.bytes = 0
        self.wrong: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        source = args[1] if name == "copy_" else args[0] if name == "_to_copy" else None
        target = args[0].device if name == "copy_" else torch.device(kwargs.get("device") or "cpu")
        if source is not None and source.device.type == "cpu" and target.type == "meta":
            waits = not (args[2:] and args[2] if name == "copy_" else kwargs.get("non_blocking"))
            faults = ["blocks"] * waits + ["pageable"] * (not hasattr(source, "page_locked"))
            where = [
                frame.filename + f":{frame.lineno}" for frame in traceback.extract_stack() if OURS in frame.filename
            ]
            self.wrong += [f"{', '.join(faults)}: {where[-1]}"] if faults else []
            self.sound += not faults
            self.bytes += source.nbytes
        return func(*args, **kwargs)


OURS = "/trainer/"


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    """Takes note of copies to the device, for which ``meta`` stands, with its kernel and page-locked memory."""

    def pin(tensor: Tensor) -> Tensor:
        if not hasattr(tensor, "page_locked"):
            tensor = tensor.clone()
            tensor.page_locked = True  # type: ignore[attr-defined]
        return tensor

    monkeypatch.setattr(Tensor, "pin_memory", pin)
    monkeypatch.setattr("preshard.trainer.device.PAGE_LOCKED", ("meta",))
    for file in ("attention.bind", "models.packed"):
        module = sys.modules[f"preshard.trainer.{file}"]
        monkeypatch.setattr(module, "kernel_for", lambda *_: Flex(attention=some_attention))
    return Copies()


def some_attention(q: Tensor, k: Tensor, v: Tensor, *, return_aux: Any = None, **_: Any) -> Any:
    """Stand-in for FlexAttention on tensors without values: it has its results' shapes, and gradients."""
    out = q * k.mean() * v.mean()
    return (out, AuxOutput(lse=out.float().sum(-1))) if return_aux is not None else out


@pytest.mark.parametrize(
    "family", _often("qwen3", "qwen3_vl", "qwen2_5_vl", "internvl", "molmo2", "mistral3", "gemma3")
)
def test_no_copy_to_the_device_waits(
    folder_of: Folders, on_meta: Callable[[str], PackedModel], copies: Copies, family: str
) -> None:
    """Fails when a step copies from pageable memory or blocks, with a loader's batches or with those of one's own loop.
    Also when pixels travel in another form than levels of 8 bits.

    The encoder of Gemma 4 in ``transformers`` looks at values of its mask, so it is left out.
    """
    packed = on_meta(family)
    if family == "molmo2":
        packed.family = replace(packed.family, encode=features_alone)
    wanted = TileLister.of(
        "gather",
        ContextParallel(),
        exchange="needed",
        device_type="meta",
        windows=packed.windows,
        groups=packed.groups,
    )
    numbers = n_levels = 0
    for number, batch in enumerate(PackedDataset(folder_of(family) / "dataset")):
        levels = batch.with_levels().levels or {}
        n_levels += sum(tensor.nbytes for tensor in levels.values() if tensor.dtype == torch.uint8)
        numbers += sum(x.nbytes for x in batch.model_inputs().values() if x.is_floating_point()) if levels else 0
        given = batch if number % 2 else prepare(batch, wanted).pin_memory()
        with copies:
            loss = packed(given, ContextParallel(), attention="gather")
            loss.backward()
            local = LocalTotals.zero(torch.device("meta"))
            local.add(batch, loss)
    assert not copies.wrong
    assert number > 0
    assert copies.sound > 20
    assert numbers / 8 <= n_levels <= numbers / 4
    assert n_levels < copies.bytes
    assert bool(n_levels) == (family != "qwen3")


@pytest.mark.parametrize("kind", ["gather", "ring", "ulysses", "hybrid"])
@pytest.mark.parametrize("way", ["route", "gather"])
def test_no_plan_waits(folder_of: Folders, copies: Copies, kind: str, way: str) -> None:
    """Fails when one rank of four copies its plan from pageable memory or waits for it: what is sent to whom, the
    tiles, the places of a window, and which features go where.
    """
    given = {"ulysses_degree": 2, "ring_degree": 2, "cp_rank": 3}
    cp = ContextParallel(ulysses_degree=2, ring_degree=2, ulysses_rank=1, ring_rank=1, ring_group=NO_GROUP)
    [batch, *_] = PackedDataset(folder_of("qwen3_vl") / "dataset", **given)
    with copies:
        moved = batch.to("meta", non_blocking=True)
        mask = MaskTensors.of(batch, moved)
        before = copies.sound
        for window in (None, 64):
            bind(kind, batch.layout, mask.within(window), cp)
        in_plan = copies.sound - before
        bind_features(moved, cp, way)
    assert not copies.wrong
    assert in_plan >= 10
    assert copies.sound - before - in_plan == 3


def test_a_wrong_copy_is_noticed(copies: Copies) -> None:
    """Fails when the count above lets everything pass."""
    with copies:
        torch.ones(3).to("meta")
        torch.ones(3).to("meta", non_blocking=True)
        torch.empty(3, device="meta").copy_(torch.ones(3).pin_memory())
        torch.ones(3).pin_memory().to("meta", non_blocking=True)
    assert [wrong.partition(":")[0] for wrong in copies.wrong] == ["blocks, pageable", "pageable", "blocks"]
    assert copies.sound == 1


def features_alone(core: Any, inputs: Any) -> Tensor:
    """Stand-in for an encoder: as many features as it would give."""
    rows = sum(len(inputs[name]) for name in ("image_token_pooling", "video_token_pooling") if name in inputs)
    return torch.zeros(rows, core.language_model.config.hidden_size, device="meta")


def test_waiting_is_noticed() -> None:
    """Fails when the mode above lets everything pass, or tensors without values do."""
    values = torch.arange(4.0)
    nothing = values.to("meta")
    for reads in (lambda: nothing[nothing > 1], nothing.tolist, lambda: bool(nothing.sum())):
        with pytest.raises((NotImplementedError, RuntimeError)):
            reads()
    with pytest.raises(RuntimeError):
        nothing + values
    for waits in (lambda: values[values > 1], lambda: values.sum().item(), lambda: torch.nonzero(values)):
        with NoWaiting(), pytest.raises(AssertionError, match="makes the host wait"):
            waits()


def test_tiles_that_a_worker_listed_are_those_of_the_step(
    folder_of: Folders, packed: PackedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a step lists again what came with its batch, when lists of another attention are taken, or when the
    lists or the work differ from what the step would have found.
    """
    plain, listed = first_batch(folder_of), pickle.loads(pickle.dumps(first_batch(folder_of, list_tiles=lister())))
    work = StepWork.of(packed.inner)
    assert work.of_rank(listed) == work.of_rank(plain) > 0
    with torch.no_grad():
        right = packed(plain, ContextParallel()).item()
        other = replace(listed, tiles=replace(listed.tiles, lister=lister("ring"), calls=()))
        assert packed(other, ContextParallel()).item() == right

        def never(*args: Any, **kwargs: Any) -> None:
            raise AssertionError("tiles are listed in the step")

        monkeypatch.setattr("preshard.trainer.attention.kernels.flash_cpu.list_tiles", never)
        assert packed(listed, ContextParallel()).item() == right
        with pytest.raises(AssertionError, match="in the step"):
            packed(plain, ContextParallel())


@pytest.mark.parametrize("kind", ["gather", "ring", "ulysses", "hybrid"])
@pytest.mark.parametrize(("ulysses", "ring"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_lists_are_in_the_sizes_of_the_kernel(folder_of: Folders, kind: str, ulysses: int, ring: int) -> None:
    """Fails when a kernel is given tiles of other sizes than its own, or a ring's steps in another number."""
    cp_rank = ulysses * ring - 1
    dataset = PackedDataset(folder_of("qwen3") / "dataset", ulysses_degree=ulysses, ring_degree=ring, cp_rank=cp_rank)
    cp = ContextParallel(
        ulysses_degree=ulysses, ring_degree=ring, ulysses_rank=cp_rank % ulysses, ring_rank=cp_rank // ulysses
    )
    batch = next(iter(dataset))
    found = TileLister.of(kind, cp, exchange="needed", device_type="cpu")(batch)
    assert len(found.calls) == (ring if kind in ("ring", "hybrid") else 1)
    sizes = {(call.q_tile, call.k_tile) for call in found.calls}
    assert sizes == {(FlashCPU().q_tile, FlashCPU().k_tile)}
    queries = batch.seq_len if kind == "ulysses" else batch.seq_len // ring
    assert {len(call.n_full) for call in found.calls} == {-(-queries // FlashCPU().q_tile)}
