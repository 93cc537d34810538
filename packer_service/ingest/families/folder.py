"""A model folder to its family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from preshard.packer_service.ingest.document import MediumKind
from preshard.packer_service.ingest.families.family import Family
from preshard.packer_service.ingest.families.settings import ModelFolder
from preshard.schemas.config import ImageBackend, PackConfig
from preshard.schemas.errors import ConfigError, DocumentError
from preshard.schemas.manifest import LayerMasks
from preshard.schemas.model.families import FAMILIES
from preshard.schemas.model.followed import check_followed, hidden_window_of, layer_masks, window_of

_OWN_CONFIGS = ("quantization_config", "compression_config")
"""Nested settings that say nothing of a second kind of input."""


def load_module(model_type: str) -> Any:
    """The file of a family that reads images, with its ``read_family`` and its tiny models, ``TINY``."""
    return import_module(f"{__package__}.{FAMILIES[model_type].file}")


@dataclass(frozen=True)
class TextFamily(Family):
    """A causal language model that reads only text, which counts up on one axis and sees what is before it."""

    model_type: str

    def check(self, kinds: Sequence[MediumKind]) -> None:
        """Refuses every image and video.

        Raises:
            DocumentError: ``bad_row``.
        """
        if kinds:
            raise DocumentError("bad_row", f"shows media ({kinds[0]}), and the model {self.model_type} reads only text")


@dataclass(frozen=True, kw_only=True)
class FolderFamily:
    """A family, and what its folder says.

    Attributes:
        sha256: of the files that decided it.
        config: ``config.json``.
        window: tokens that a layer with a sliding window sees; None if no layer has one.
        hidden_window: the same of layers that do not pass it to attention, so that packs must not be longer.
    """

    family: Family
    sha256: dict[str, str]
    config: Mapping[str, Any]
    window: int | None
    hidden_window: int | None


@lru_cache(maxsize=2)
def load_family(path: str, backend: ImageBackend = "torchvision") -> FolderFamily:
    """The family of a model folder, once per process. No weights are read, and nothing is imported for it.

    Args:
        path: the folder.
        backend: of the image processor whose pixels stills have.

    Raises:
        ConfigError: the folder is not a model folder, its ``model_type`` is of no family, its layers do not keep
            documents apart, its processors have settings that the family does not follow, or it has no image
            processor of this backend.
    """
    folder = ModelFolder(Path(path))
    reads_images = folder.model_type in FAMILIES
    if not reads_images and not _is_text_only(folder):
        raise ConfigError(
            f"model: model_type {folder.model_type!r} is not supported; what is: {', '.join(FAMILIES)}, and causal "
            "language models that read only text"
        )
    check_followed(folder.config, "model")
    family: Family = TextFamily(folder.model_type)
    if reads_images:
        family = load_module(folder.model_type).read_family(folder, backend)
    return FolderFamily(
        family=family,
        sha256=folder.sha256,
        config=folder.config,
        window=window_of(folder.config),
        hidden_window=hidden_window_of(folder.config),
    )


def masks_for(config: PackConfig) -> LayerMasks | None:
    """The layers of a job's model, where some have a window that is shorter than packs; None without a model."""
    found = None if config.model is None else load_family(config.model, config.images.backend)
    if found is None or found.window is None or found.window >= config.seq_len:
        return None
    return layer_masks(found.config, "model")


def _is_text_only(folder: ModelFolder) -> bool:
    """Whether ``config.json`` names a causal language model and holds no configuration of another input."""
    config = folder.config
    nested = [key for key, value in config.items() if isinstance(value, dict) and key.endswith("_config")]
    architectures = config.get("architectures") or []
    return (
        bool(folder.model_type)
        and not config.get("is_encoder_decoder")
        and not set(nested) - set(_OWN_CONFIGS)
        and not {"encoder", "decoder"} & config.keys()
        and any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in architectures)
    )
