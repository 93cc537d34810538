"""The families of vision-language models, and what a model's configuration says of its own."""

from __future__ import annotations

from typing import Any

from preshard.schemas.errors import ConfigError
from preshard.schemas.model.followed import STATES
from preshard.trainer.models.interface import OWN_FUNCTIONS, has_transformers
from preshard.trainer.models.vision.family import ModelFamily
from preshard.trainer.models.vision.gemma import GEMMA3, GEMMA4
from preshard.trainer.models.vision.glm import GLM
from preshard.trainer.models.vision.internvl import INTERNVL
from preshard.trainer.models.vision.mistral3 import MISTRAL3
from preshard.trainer.models.vision.molmo2 import MOLMO2
from preshard.trainer.models.vision.qwen import QWEN2_5_VL, QWEN3_5, QWEN3_VL

FAMILIES: dict[str, ModelFamily] = {
    "qwen3_vl": QWEN3_VL,
    "qwen3_vl_moe": QWEN3_VL,
    "qwen3_5": QWEN3_5,
    "qwen3_5_moe": QWEN3_5,
    "qwen2_5_vl": QWEN2_5_VL,
    "internvl": INTERNVL,
    "molmo2": MOLMO2,
    "glm4v": GLM,
    "glm4v_moe": GLM,
    "glm46v": GLM,
    "gemma3": GEMMA3,
    "mistral3": MISTRAL3,
    "gemma4": GEMMA4,
}
"""Vision-language models by the ``model_type`` of their configuration."""


def family_of(config: Any) -> ModelFamily | None:
    """The family of a model's configuration; None if it reads only text.

    Raises:
        ConfigError: it reads images, and is of none of :data:`FAMILIES`.
    """
    if config.model_type in FAMILIES:
        return FAMILIES[config.model_type]
    if config.get_text_config() is config:
        return None
    raise ConfigError(
        f"--model: model_type {config.model_type!r} is not supported; take a causal language model of text, or one of "
        f"{', '.join(FAMILIES)}"
    )


def check_version(model_type: str | None) -> None:
    """Checks that the installed ``transformers`` is new enough for a kind of model.

    Raises:
        ConfigError: it is not.
    """
    family = FAMILIES.get(model_type or "")
    since = OWN_FUNCTIONS if model_type in STATES else (5, 0) if family is None else family.since
    if has_transformers(since):
        return
    import transformers

    first = ".".join(map(str, since))
    raise ConfigError(
        f"--model is a {model_type} model, which needs transformers {first} or newer; {transformers.__version__} is "
        f"installed: pip install 'transformers>={first}'"
    )
