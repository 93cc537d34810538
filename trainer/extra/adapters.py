"""Adapters of ``peft``: which train on packs as on the documents alone, and how a model with some is exported.

Packs call the modules of a model, and multiply by the weight of its output projection themselves. What an adapter does
to a token inside of a module is done for packs, too. What it does around the model, to the logits, to all tokens of a
sequence together or by chance is not (``tests/trainer/models/adapters.py`` measures it).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from preshard.schemas.errors import ConfigError
from preshard.trainer.core.export import whole_folder, write_folder
from preshard.trainer.extra.parts import Lora
from preshard.trainer.extra.rounded import rounded
from preshard.trainer.models.interface import unwrap
from preshard.trainer.models.load import empty_model
from preshard.trainer.models.packed import LENDS


def wrap(model: Any, stored: dict[str, Any]) -> nn.Module:
    """A model with the adapters that a checkpoint says it was trained with."""
    return Lora(**stored).wrap(model)


def write(
    model: Any,
    weights: dict[str, Any],
    source: Path,
    target: Path,
    *,
    lora: Lora,
    keep_adapters: bool,
    dtype: str | None = None,
) -> None:
    """Writes a model whose adapters are added to its weights, or the adapters alone.

    Args:
        model: of ``peft``.
        weights: its whole weights, or those of its adapters.
        source: the folder that it was loaded from.
        target: the new folder.
        lora: the adapters in it.
        keep_adapters: write these alone.
        dtype: of the numbers in the files; adapters are added in their own.

    Raises:
        ConfigError: it cannot be written; nothing of it is left.
    """
    if keep_adapters:
        write_adapters(model, rounded(weights, dtype), source, target)
        return
    wrapped: Any = lora.wrap(empty_model(source))
    wrapped.load_state_dict(weights, strict=False, assign=True)  # buffers that are not stored stay without values
    unwrap(wrapped).tie_weights()  # or peft unties the output projection, of which no weight of its own is written
    merged = wrapped.merge_and_unload()
    write_folder(merged, merged.state_dict(), source, target, dtype)


def write_adapters(model: Any, adapters: dict[str, Any], source: Path, target: Path) -> None:
    """Writes adapters alone. The folder appears under its name once it is whole.

    Args:
        model: of ``peft``; its own parameters are not looked at.
        adapters: their weights by their names in the model.
        source: the folder of the model that they are for, which they name.
        target: the new folder.

    Raises:
        ConfigError: it cannot be written; nothing of it is left.
    """
    for config in model.peft_config.values():
        config.base_model_name_or_path = str(source)
    with whole_folder(target) as unfinished:
        model.save_pretrained(unfinished, state_dict=adapters, save_embedding_layers=False)


FOLLOWED = frozenset(
    {
        *("BEFT", "BOFT", "C3A", "DEFT", "DELORA", "FOURIERFT", "FROD", "GLORA", "GRALORA", "HIRA", "HRA", "IA3"),
        *("LN_TUNING", "LOHA", "LOKR", "LORA", "MISS", "OFT", "OSF", "PEANUT", "RANDLORA", "ROAD", "SHIRA"),
        *("SUPERTUNING", "TINYLORA", "TRAINABLE_TOKENS", "UNILORA", "VBLORA", "VERA", "WAVEFT"),
    }
)
"""Kinds whose loss and gradients are those of the documents, by their names in ``PeftType``."""

_PROMPT = "puts tokens or keys of its own before the model's"

REASONS: dict[str, str] = {
    **dict.fromkeys(("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING"), _PROMPT),
    **dict.fromkeys(("CPT", "CARTRIDGE", "ADAPTION_PROMPT"), _PROMPT),
    "ADALORA": "adds a part of its own to the loss, once for each rank",
    "LILY": "weighs its experts by a mean over all tokens, of every document",
    "PVERA": "draws noise, another on each rank",
    "XLORA": "passes the whole model twice",
}
"""Reasons why other kinds of adapters are refused."""

_OF_LORA = {
    "alora_invocation_tokens": "looks for tokens in the sequence",
    "arrow_config": "was not compared",
    "monteclora_config": "draws noise, another on each rank",
    "velora_config": "keeps activations in part, so that gradients are not exact",
}
"""Options of ``LoraConfig`` that make another adapter of it."""


def check_peft(model: Any) -> None:
    """Refuses adapters, if there are any, that do not train on packs as on the documents alone.

    Args:
        model: of ``transformers``, with what ``peft`` has put around or into it.

    Raises:
        ConfigError: a kind of adapter is not on the list, or one is of the output projection.
    """
    base = unwrap(model)
    configs = {**(getattr(base, "peft_config", None) or {}), **(getattr(model, "peft_config", None) or {})}
    for config in configs.values():
        kind = str(getattr(config.peft_type, "value", config.peft_type))
        option = next((name for name in _OF_LORA if kind == "LORA" and getattr(config, name, None)), None)
        if option is None and kind in FOLLOWED:
            continue
        why = _OF_LORA[option] if option else REASONS.get(kind, "was not compared on packs")
        raise ConfigError(
            f"the model has an adapter of peft_type {kind}{f' with {option}' if option else ''}, which {why}: take "
            "plain LORA, or another of those in docs/integrations.md"
        )
    head = base.get_output_embeddings()
    if hasattr(head, "base_layer"):
        raise ConfigError(
            "the model has an adapter of its output projection, whose weight the loss multiplies by itself: leave that "
            "layer out of target_modules, or train it whole with modules_to_save"
        )


def check_order(head: Any) -> None:
    """Refuses what ``peft`` has put in the place of an output projection after that was made to lend its weight to the
    loss. Copies of it lend theirs, too.

    Raises:
        ConfigError: it lends none.
    """
    saved = getattr(head, "modules_to_save", {}).values()
    if hasattr(type(head), LENDS):
        return
    if hasattr(head, "token_adapter"):
        late = "trainable_token_indices were"
    elif not all(hasattr(type(each), LENDS) for each in saved):
        late = "modules_to_save with ensure_weight_tying were"
    else:
        return
    raise ConfigError(
        f"the embedding is the output projection, and {late} added after take_packs or PackedModel: add adapters first"
    )
