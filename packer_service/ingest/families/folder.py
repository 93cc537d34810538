"""A model folder to its family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from preshard.packer_service.ingest.families.family import Family
from preshard.packer_service.ingest.families.internvl import read_internvl
from preshard.packer_service.ingest.families.molmo2_folder import read_molmo2
from preshard.packer_service.ingest.families.qwen2_5_vl import read_qwen2_5_vl
from preshard.packer_service.ingest.families.qwen3_vl import read_qwen3_vl
from preshard.packer_service.ingest.families.settings import ModelFolder
from preshard.packer_service.ingest.families.text_only import TextFamily, is_text_only
from preshard.schemas.config import ImageBackend
from preshard.schemas.errors import ConfigError
from preshard.schemas.followed import check_followed, window_of

READERS: dict[str, Callable[[ModelFolder, ImageBackend], Family]] = {
    "qwen3_vl": read_qwen3_vl,
    "qwen3_vl_moe": read_qwen3_vl,
    "qwen2_5_vl": read_qwen2_5_vl,
    "molmo2": read_molmo2,
    "internvl": read_internvl,
}
"""Each ``model_type`` that reads images, and what reads its folder."""


@dataclass(frozen=True, kw_only=True)
class FolderFamily:
    """A family, the files of the folder that decided it by their SHA-256, and the most tokens that packs may have."""

    family: Family
    sha256: dict[str, str]
    window: int | None


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
    reader = READERS.get(folder.model_type)
    if reader is None and not is_text_only(folder):
        raise ConfigError(
            f"model: model_type {folder.model_type!r} is not supported; what is: {', '.join(READERS)}, and causal "
            "language models that read only text"
        )
    check_followed(folder.config, "model")
    family = TextFamily(folder.model_type) if reader is None else reader(folder, backend)
    return FolderFamily(family=family, sha256=folder.sha256, window=window_of(folder.config))
