"""Same results with less memory, on unmodified models of ``transformers``."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from preshard.schemas.errors import ConfigError
from preshard.trainer.extra import saving as memory
from preshard.trainer.extra.saving import OnHost, save_memory

TOKENS = 600
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def _model() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        vocab_size=97, hidden_size=16, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.Qwen3ForCausalLM._from_config(config, dtype=torch.float64, attn_implementation="sdpa").train()


class _Seen(TorchDispatchMode):
    """Counts calls of attention's forward, and notes the largest tensor as wide as the MLPs."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.widest = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.attention += func is _flash
        if isinstance(out, Tensor) and out.ndim == 3 and out.shape[-1] == 48:
            self.widest = max(self.widest, out.shape[-2])
        return out


def _run(model: Any) -> tuple[Tensor, list[Tensor], _Seen]:
    ids = torch.arange(TOKENS)[None] % 97
    with _Seen() as seen:
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        grads = torch.autograd.grad(loss, list(model.parameters()))
    return loss.detach(), list(grads), seen


@pytest.fixture(scope="module")
def plain() -> tuple[Tensor, list[Tensor], _Seen]:
    return _run(_model())


@pytest.mark.parametrize(
    ("settings", "attention"),
    [
        ({"recompute": "full"}, 4),
        ({"recompute": "selective"}, 2),
        ({"recompute": "full", "offload": "disk"}, 4),
        ({"recompute": "selective", "offload": "disk", "mlp_tiles": 3}, 2),
        ({"mlp_tiles": 4}, 2),
    ],
)
def test_it_computes_the_same(plain: Any, settings: Any, attention: int) -> None:
    """Fails when a gradient changes, when ``selective`` computes attention again or ``full`` does not, or when an MLP
    sees all tokens at once although it is tiled.
    """
    model = _model()
    names = [name for name, _ in model.named_parameters()]
    save_memory(model, **settings)
    assert [name for name, _ in model.named_parameters()] == names
    loss, grads, seen = _run(model)
    torch.testing.assert_close(loss, plain[0], rtol=1e-12, atol=0)
    torch.testing.assert_close(grads, plain[1], rtol=1e-9, atol=1e-12)
    assert (plain[2].attention, seen.attention) == (2, attention)
    assert (plain[2].widest, seen.widest) == (TOKENS, TOKENS // settings.get("mlp_tiles", 1))


def test_only_inputs_of_blocks_wait_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a parameter is written, or what is saved inside a block that is computed again."""
    files: list[Any] = []

    def make() -> Any:
        files.append(tempfile.NamedTemporaryFile())  # noqa: SIM115 (the code under test closes it)
        return files[-1]

    model = _model()
    save_memory(model, recompute="full", offload="disk")
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "TemporaryFile", make)
        _run(model)
    assert [Path(file.name).stat().st_size for file in files] == [TOKENS * 16 * 8] * 2


@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_only_inputs_of_blocks_wait_in_the_hosts_memory(
    plain: Any, monkeypatch: pytest.MonkeyPatch, recompute: str
) -> None:
    """Fails when a gradient changes, when something else than the input of each block is moved, or when a block's input
    is fetched only once it is wanted. There are no streams without a GPU; all else is as on one.
    """
    moved: list[torch.Size] = []
    events: list[str] = []
    fetch, back = OnHost.fetch, OnHost.back

    def room(tensor: Tensor) -> Tensor:
        moved.append(tensor.shape)
        return torch.empty_like(tensor)

    def noted_fetch(stored: OnHost) -> Tensor:
        events.extend(["fetch"] * (stored._fetched is None))
        return fetch(stored)

    def noted_back(stored: OnHost) -> Tensor:
        found = back(stored)
        events.append("back")
        return found

    stream = SimpleNamespace(wait_stream=lambda _: None)
    model = _model()
    save_memory(model, recompute=recompute, offload="host", device_type="cuda")
    with monkeypatch.context() as patched:
        for name, value in {"Stream": lambda: stream, "current_stream": lambda: stream}.items():
            patched.setattr(torch.cuda, name, value)
        patched.setattr(torch.cuda, "stream", lambda _: nullcontext())
        patched.setattr(Tensor, "record_stream", lambda *_: None)
        patched.setattr(memory, "room_on_host", room)
        for name, value in {"_stream": None, "fetch": noted_fetch, "back": noted_back}.items():
            patched.setattr(OnHost, name, value)
        loss, grads, _ = _run(model)
    torch.testing.assert_close(loss, plain[0], rtol=1e-12, atol=0)
    torch.testing.assert_close(grads, plain[1], rtol=1e-9, atol=1e-12)
    assert set(moved) == {torch.Size([1, TOKENS, 16])}
    assert events == ["fetch", "fetch", "back", "back"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"recompute": "some"}, "take one of none, selective, full"),
        ({"recompute": "full", "offload": "tape"}, "take one of none, host, disk, and shard_model"),
        ({"offload": "disk"}, "add --recompute full or selective"),
        ({"recompute": "full", "offload": "host"}, "use disk, or none"),
        ({"recompute": "full", "offload": "state"}, "shard_model"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(settings: Any, said: str) -> None:
    """Fails when an offload without recomputation, or to the memory where tensors lie already, is taken in silence."""
    with pytest.raises(ConfigError, match=said):
        save_memory(_model(), **settings)


def test_a_block_without_a_known_mlp_is_refused() -> None:
    """Fails when tiling an unknown model does nothing."""
    model = _model()
    model.get_decoder().layers[1].mlp = None
    with pytest.raises(ConfigError, match="has no module named mlp or feed_forward"):
        save_memory(model, mlp_tiles=2)
