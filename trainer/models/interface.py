# ruff: noqa: N803, N806 (shape suffixes)
"""Interface to ``transformers``: attention of packs under a name of its own, its version, its models' blocks.

Shapes: H query heads, K key heads, L local tokens, D head_dim.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int, Int32, Int64
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.weak import WeakTensorKeyDictionary

from preshard.schemas.errors import ConfigError
from preshard.schemas.layout import TokenLayout
from preshard.schemas.model.families import FAMILIES
from preshard.schemas.sequence import MaskArrays
from preshard.trainer.attention.bind import Attend
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.device import to_device
from preshard.trainer.families.family import ModelFamily, load_family

PACKED = "preshard_packed"
"""Name under which models ask for this attention."""

ENCODER = "preshard_flash_varlen"
"""Name under which encoders ask for attention within images: as it has ``flash`` in it, they say where images begin."""

FLASH_HEADS = 8
"""Divisor of the width of heads in torch's flash attention."""

UNFOLLOWED = ("position_bias",)
"""Arguments by which a layer changes its scores in a way that the kernels do not know."""

Windowed = tuple[tuple[int, Attend], ...]
"""The attention of layers with each window shorter than the pack."""


@torch.compiler.disable
def packed_attention(
    module: Any,
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
    up = module.latents_up(k_1KLD) if hasattr(module, "latents_up") else None
    with without_autocast(q_HLD, k_1KLD[0], v_1KLD[0]) as (q_HLD, k_KLD, v_KLD):
        out_HLD = attend(q_HLD, k_KLD, v_KLD, sinks=s_aux, up=up)
    return out_HLD.transpose(0, 1)[None].contiguous(), None


def encoder_attention(
    module: nn.Module,  # noqa: ARG001 (the interface passes it)
    q_1HLD: Float[Tensor, "1 H L D"],
    k_1KLD: Float[Tensor, "1 K L D"],
    v_1KLD: Float[Tensor, "1 K L D"],
    attention_mask: Tensor | None,  # noqa: ARG001 (None)
    *,
    scaling: float,
    cu_seq_lens_q: Int32[Tensor, "images_plus_1"],
    max_length_q: int | Tensor,
    edges: Int32[Tensor, "images_plus_1"] | None = None,
    **_kwargs: Any,
) -> tuple[Float[Tensor, "1 L H D"], None]:
    """Attention of an encoder's layer over images side by side, whose patches see those of their own image.

    On CUDA in 16 bits that is one call of flash attention, else one for all images of a size.

    Args:
        cu_seq_lens_q: where images begin, and the end.
        max_length_q: patches of the largest image.
        edges: ``cu_seq_lens_q`` on the CPU, where sizes are read; without it the host may wait.
    """
    q_HLD, shared = q_1HLD[0], q_1HLD.shape[1] // k_1KLD.shape[1]
    k_HLD, v_HLD = (x_1KLD[0].repeat_interleave(shared, 0) if shared > 1 else x_1KLD[0] for x_1KLD in (k_1KLD, v_1KLD))
    if q_HLD.is_cuda and q_HLD.dtype.itemsize == 2 and q_HLD.shape[-1] % FLASH_HEADS == 0:
        standard = q_HLD.shape[-1] ** -0.5
        q_HLD = q_HLD if scaling == standard else q_HLD * (scaling / standard)
        q_LHD, k_LHD, v_LHD = (x_HLD.transpose(0, 1) for x_HLD in (q_HLD, k_HLD, v_HLD))
        begins, most = to_device(cu_seq_lens_q, q_HLD.device), int(max_length_q)
        from torch.nn.attention.varlen import varlen_attn  # with it comes torch._dynamo, in 4.5 s

        out_LHD: Any = varlen_attn(q_LHD, k_LHD, v_LHD, begins, begins, most, most)
        return out_LHD[None], None
    given = cu_seq_lens_q if edges is None else edges
    if (order := _ORDERS.get(given)) is None:
        order = _ORDERS[given] = sort_by_size(np.diff(given.cpu().numpy()), q_HLD.device)
    made, begin, moved = [], 0, [x_HLD[:, order.there] for x_HLD in (q_HLD, k_HLD, v_HLD)]
    for size, count in order.sizes:
        end = begin + size * count
        q, k, v = (x_HLD[:, begin:end].unflatten(1, (count, size)).transpose(0, 1) for x_HLD in moved)
        made.append(scaled_dot_product_attention(q, k, v, scale=scaling).transpose(0, 1).flatten(1, 2))
        begin = end
    return torch.cat(made, dim=1)[:, order.back].transpose(0, 1)[None], None


class BySize(NamedTuple):
    """Patches in the order of their images' sizes: where each comes from, and the way back. ``sizes`` are pairs: the
    patches of an image, and how many images have as many.
    """

    there: Int64[Tensor, "L"]
    back: Int64[Tensor, "L"]
    sizes: list[tuple[int, int]]


_ORDERS: MutableMapping[Tensor, BySize] = WeakTensorKeyDictionary()
"""Orders by the edges of a forward pass, of which all its layers get the same tensor."""


def sort_by_size(sizes: Int[np.ndarray, "images"], device: torch.device) -> BySize:
    """The order in which one call of attention takes all images of a size."""
    patches = np.argsort(np.repeat(sizes, sizes), kind="stable")
    there, back = (to_device(torch.from_numpy(each), device) for each in (patches, np.argsort(patches)))
    found = np.unique(sizes[sizes > 0], return_counts=True)
    return BySize(there, back, list(zip(*(each.tolist() for each in found), strict=True)))


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
    transformers.AttentionInterface.register(ENCODER, encoder_attention)
    return transformers


def _hide_broken_torchvision() -> None:
    """Lets ``transformers`` go on without a torchvision that cannot be imported, such as one built for another torch.

    No model needs it, but ``transformers`` imports what is installed. A module that is None counts as not installed.
    """
    try:
        import_module("torchvision")
    except ModuleNotFoundError:
        pass
    except (ImportError, RuntimeError, OSError):
        sys.modules["torchvision"] = None  # type: ignore[assignment]


def unwrap(model: Any) -> Any:
    """The model itself, without what ``peft`` has put around it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def decoder_layers(model: Any) -> nn.ModuleList:
    """The blocks of a model's decoder, which GPT-2 and its kin keep under another name."""
    decoder = model.get_decoder()
    layers: nn.ModuleList = decoder.layers if hasattr(decoder, "layers") else decoder.h
    return layers


def base_names(model: nn.Module) -> dict[str, str]:
    """A model's own parameters and buffers: the names that they have without adapters, by those beside adapters."""
    adapted = [f"{path}." for path, module in model.named_modules() if hasattr(module, "base_layer")]
    own = {}
    for name, _ in (*model.named_parameters(), *model.named_buffers()):
        inside = next((path for path in reversed(adapted) if name.startswith(path)), None)  # experts have two, nested
        if inside is None or name.startswith(f"{inside}base_layer."):
            own[name] = name.replace(".base_layer", "")
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


Content = TypeVar("Content")


class Sealed(Generic[Content]):
    """A plan on its way through compiled blocks, called like what it holds.

    Of a partial or a frozen dataclass torch 2.11 makes every tensor an input of the graphs, which then hold for one
    pack's sizes alone. Of an object of another class they know nothing but the class.
    """

    def __init__(self, content: Content) -> None:
        self.content = content

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        plan: Any = self.content
        return plan(*args, **kwargs)


def language_parameters(base: Any) -> set[int]:
    """Identities of the parameters of a model's language part; all others make features of images."""
    base = unwrap(base)
    language = base.base_model if family_of(base.config) is None else base.base_model.language_model
    return {id(each) for each in (*language.parameters(), *base.get_output_embeddings().parameters())}


def feature_parameters(base: Any) -> list[nn.Parameter]:
    """The parameters that make features of images and train; none of a model of text."""
    if family_of(base.config) is None:
        return []
    own = language_parameters(base)
    return [each for each in unwrap(base).parameters() if id(each) not in own and each.requires_grad]


def encoder_trains(base: Any) -> bool:
    """Whether a parameter that makes features trains."""
    return bool(feature_parameters(base))


def load_states(config: Any) -> Any:
    """The module that makes layers with a state follow packs, imported for a model that has some; None for others."""
    kinds = getattr(config.get_text_config(), "layer_types", None) or ()
    return import_module(f"{__package__}.gated_delta") if "linear_attention" in kinds else None


def bind_states(
    config: Any, layout: TokenLayout, mask: MaskArrays, cp: ContextParallel, device: torch.device
) -> dict[str, Any]:
    """Facts about a pack that these layers need, as an argument of the model's call; empty for a model without.

    Raises:
        ConfigError: their heads do not divide among the ranks.
    """
    states = load_states(config)
    return {} if states is None else states.bind_states(config, layout, mask, cp, device)


def family_of(config: Any) -> ModelFamily | None:
    """The family of a model's configuration; None if it reads only text.

    Raises:
        ConfigError: it reads images, and is of no family.
    """
    if config.model_type in FAMILIES:
        return load_family(config.model_type)
    if config.get_text_config() is config:
        return None
    raise ConfigError(
        f"--model: model_type {config.model_type!r} is not supported; take a causal language model of text, or one of "
        f"{', '.join(FAMILIES)}"
    )
