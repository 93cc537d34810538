"""A causal language model that reads only text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from preshard.packer_service.ingest.document import MediumKind
from preshard.packer_service.ingest.families.family import Placement
from preshard.packer_service.ingest.families.settings import ModelFolder
from preshard.schemas.errors import DocumentError

_OWN_CONFIGS = ("quantization_config", "compression_config")
"""Nested settings that say nothing of a second kind of input."""


class TextFamily:
    """Text counts up on one axis and sees what is before it; a document with an image or video is refused."""

    axes: Literal[1] = 1
    merge = 1
    prefix = opening = closing = ""
    group_tokens = row_tokens = tokens = ()
    settings: Mapping[str, Any] = {}

    def __init__(self, model_type: str) -> None:
        self.model_type = model_type

    def placeholder(self, kind: MediumKind) -> str:  # noqa: ARG002
        """Its chat templates write none."""
        return ""

    alone = placeholder

    def check(self, kinds: Sequence[MediumKind]) -> None:
        """Refuses every image and video."""
        if kinds:
            raise DocumentError("bad_row", f"shows media ({kinds[0]}), and the model {self.model_type} reads only text")

    def image(self, width: int, height: int) -> Placement:
        """Never asked for: :meth:`check` comes first."""
        raise DocumentError("bad_image", f"{width} x {height}: the model {self.model_type} reads only text")

    def video(self, width: int, height: int, timestamps: Sequence[float]) -> Placement:  # noqa: ARG002
        """Never asked for: :meth:`check` comes first."""
        raise DocumentError("bad_video", f"{width} x {height}: the model {self.model_type} reads only text")


def is_text_only(folder: ModelFolder) -> bool:
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
