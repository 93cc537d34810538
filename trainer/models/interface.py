# ruff: noqa: N803, N806 (shape suffixes)
"""What is asked of ``transformers``: attention of packs under a name of its own, its version, its models' blocks.

Shapes: H query heads, K key heads, L local tokens, D head_dim.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from preshard.schemas.errors import ConfigError
from preshard.trainer.attention import Attend

PACKED = "preshard_packed"
"""Name under which models ask for this attention."""

UNFOLLOWED = ("position_bias",)
"""Arguments by which a layer changes its scores in a way that the kernels do not know."""

Windowed = tuple[tuple[int, Attend], ...]
"""The attention of layers with each window shorter than the pack."""


@torch.compiler.disable
def packed_attention(
    module: nn.Module,  # noqa: ARG001 (the interface passes it)
    q_1HLD: Float[Tensor, "1 H L D"],
    k_1KLD: Float[Tensor, "1 K L D"],
    v_1KLD: Float[Tensor, "1 K L D"],
    attention_mask: Tensor | None,  # noqa: ARG001 (None: the mask is the pack's)
    *,
    attend: Attend | None = None,
    in_windows: Windowed = (),
    pack_length: int = 0,
    score_cap: float | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Float[Tensor, "H"] | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "1 L H D"], None]:
    """Attention of one layer over the whole pack. What it needs to know of the pack comes through the model's call.

    Raises:
        ConfigError: the layer is called outside of a ``PackedModel``, or wants what the kernels do not compute.
    """
    if attend is None and not in_windows:
        raise ConfigError(f"attention {PACKED} is called without a pack; wrap the model in PackedModel")
    wanted = [name for name in UNFOLLOWED if kwargs.get(name) is not None]
    if dropout:
        wanted.append(f"dropout {dropout}")
    if sliding_window is not None and (in_windows or sliding_window < pack_length):
        otherwise = attend if sliding_window >= pack_length else None
        attend = dict(in_windows).get(sliding_window, otherwise)
    if softcap != score_cap:
        wanted.append(f"a layer with softcap {softcap} beside attn_logit_softcapping {score_cap} of config.json")
    if attend is None:
        wanted.append(f"a layer with sliding_window {sliding_window}, which config.json does not name")
    if wanted or attend is None:
        raise ConfigError(
            f"the model's attention has {wanted[0]}, which packed attention does not implement; take a model without"
        )
    standard = q_1HLD.shape[-1] ** -0.5
    q_HLD = q_1HLD[0] if scaling in (None, standard) else q_1HLD[0] * (scaling / standard)
    with without_autocast(q_HLD, k_1KLD[0], v_1KLD[0]) as (q_HLD, k_KLD, v_KLD):
        out_HLD = attend(q_HLD, k_KLD, v_KLD, sinks=s_aux)
    return out_HLD.transpose(0, 1)[None].contiguous(), None


@contextmanager
def without_autocast(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tensors in the dtype of ``torch.autocast``, which is off inside: what is ours decides on its own dtypes.

    Autocast would leave keys and values of a layer in different dtypes, and round sums that are kept in float32.
    """
    kind = tensors[0].device.type
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        yield tensors
        return
    dtype = torch.get_autocast_dtype(kind)
    with torch.autocast(kind, enabled=False):
        yield tuple(tensor.to(dtype) for tensor in tensors)


@cache
def register_attention() -> Any:
    """Makes ``transformers`` know the attention of packs, which needs no mask; returns the package.

    Raises:
        ConfigError: it is not installed.
    """
    _hide_broken_torchvision()
    try:
        import transformers
    except ModuleNotFoundError:
        raise ConfigError(
            "training a model folder needs the package transformers, which is not installed: "
            "pip install 'preshard[train]'"
        ) from None
    # No mask is registered under the name: then models make none, and do not look for sequences in position_ids first,
    # for which the host would wait.
    transformers.AttentionInterface.register(PACKED, packed_attention)
    return transformers


def _hide_broken_torchvision() -> None:
    """Lets ``transformers`` go on without a torchvision that cannot be imported, such as one built for another torch.

    No model needs it, but ``transformers`` imports what is installed. A module that is None counts as not installed.
    """
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        pass
    except (ImportError, RuntimeError, OSError):
        sys.modules["torchvision"] = None  # type: ignore[assignment]


def unwrap(model: Any) -> Any:
    """The model itself, without what ``peft`` has put around it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def base_names(model: nn.Module) -> dict[str, str]:
    """A model's own parameters and buffers: the names that they have without adapters, by those beside adapters."""
    adapted = [f"{path}." for path, module in model.named_modules() if hasattr(module, "base_layer")]
    own = {}
    for name, _ in (*model.named_parameters(), *model.named_buffers()):
        inside = next((path for path in adapted if name.startswith(path)), None)
        if inside is None or name.startswith(f"{inside}base_layer."):
            own[name] = name.replace(".base_layer.", ".")
    return own


def block_paths(model: nn.Module, *, within: nn.Module | None = None) -> tuple[str, ...]:
    """Paths of a model's blocks: the outermost modules that it says are not to be split among devices.

    The paths begin at the model, or at a module that it is within. Ask before the model is sharded, which gives classes
    other names.
    """
    names = frozenset(getattr(model, "_no_split_modules", None) or ())
    found: list[str] = []
    for path, module in (within or model).named_modules():
        if type(module).__name__ in names and not any(path.startswith(f"{outer}.") for outer in found):
            found.append(path)
    return tuple(found)
