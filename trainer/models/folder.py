"""Facts that a model folder states before a weight is read."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preshard.schemas.errors import ConfigError
from preshard.schemas.model.languages import language_model, window_of
from preshard.trainer.attention.mask import Groups
from preshard.trainer.extras import load_extra
from preshard.trainer.models.interface import register_attention

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
"""Files of a model folder that hold weights."""


NOT_THE_MODEL = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache")
"""Keys of ``config.json`` that may change while the model stays the same."""


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """Sizes of a model's language part.

    Attributes:
        layer_heads: query heads of each layer.
        num_kv_heads: key and value heads, of the layer with the fewest.
        head_dims: width of a head in each layer.
        vocab_size: rows of the embedding.
        windows: tokens that each layer sees, None for a layer without a sliding window; empty if no layer has one.
        groups: in which layers bidirectional groups hold.
        softcap: what the logits are capped at, None if they are not.
        score_cap: the same of the scores of attention.
    """

    layer_heads: tuple[int, ...]
    num_kv_heads: int
    head_dims: tuple[int, ...]
    vocab_size: int
    windows: tuple[int | None, ...]
    groups: Groups
    softcap: float | None
    score_cap: float | None

    @property
    def num_heads(self) -> int:
        """The largest number of query heads that those of each layer are a multiple of: ranks may share so many."""
        return math.gcd(*self.layer_heads)


def read_model_config(folder: str | Path) -> Any:
    """The configuration of a folder's model, as ``transformers`` reads it. Nothing is downloaded.

    Raises:
        ConfigError: transformers is not installed, the folder holds no model, or one that packs do not follow
            (:func:`preshard.schemas.model.followed.check_followed`).
    """
    transformers = register_attention()
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"--model is {folder}, which has no config.json; give the path of a model folder")
    try:
        stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        load_extra("model_check").check_stored(stored)
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except ConfigError:
        raise
    except Exception as error:  # configurations check themselves, each by errors of its own
        raise ConfigError(f"--model {folder}: its config.json does not describe a model ({one_line(error)})") from None
    load_extra("model_check").check_config(config)
    return config


def model_sizes(config: Any) -> ModelSizes:
    """Sizes of the language part of a configuration."""
    text = config.get_text_config()
    language, num_heads = language_model(text.model_type), text.num_attention_heads
    return ModelSizes(
        layer_heads=tuple(getattr(text, "num_attention_heads_per_layer", None) or [num_heads] * text.num_hidden_layers),
        num_kv_heads=min(_of_layers(text, "num_key_value_heads", num_heads)),
        head_dims=_of_layers(text, "head_dim", text.hidden_size // num_heads),
        vocab_size=text.vocab_size + (getattr(text, "additional_vocab_size", None) or 0),
        windows=_layer_windows(text, window_of(config.to_dict())),
        groups=language.groups,
        softcap=text.final_logit_softcapping if "final_logit_softcapping" in language.caps else None,
        score_cap=text.attn_logit_softcapping if "attn_logit_softcapping" in language.caps else None,
    )


def _of_layers(text: Any, name: str, default: int) -> tuple[int, ...]:
    """A size of each layer: `transformers` refuses to say one for a model whose layers differ."""
    layers = range(text.num_hidden_layers)
    if getattr(text, "is_heterogeneous", False):
        return tuple(getattr(text.per_layer_config[layer], name) for layer in layers)
    return tuple(getattr(text, name, None) or default for _ in layers)


def _layer_windows(text: Any, window: int | None) -> tuple[int | None, ...]:
    if window is None:
        return ()
    kinds = getattr(text, "layer_types", None) or ["sliding_attention"] * text.num_hidden_layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def identity(folder: str | Path, *, with_weights: bool = False) -> dict[str, str]:
    """Identity of a model: its kind, a hash of its ``config.json``, and one of its weights if asked for.

    Raises:
        ConfigError: its weights cannot be read.
    """
    stored = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    own = json.dumps(_without(stored), sort_keys=True)
    found = {"model_type": str(stored["model_type"]), "config": hashlib.sha256(own.encode()).hexdigest()[:16]}
    return found | ({"weights": load_extra("model_check").weights_hash(Path(folder))} if with_weights else {})


def _without(values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    return {key: _without(value) for key, value in values.items() if key not in NOT_THE_MODEL}


def one_line(error: Exception) -> str:
    """The beginning of an error's message, without line breaks."""
    return " ".join(str(error).split())[:200]
