"""Whether datasets can be mixed: what one model reads must be alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ReaderError
from preshard.schemas.manifest import ManifestHead

SAME_TOKENS = ("sha256", "vocab_size", "bos_id", "eos_id", "pad_id", "image_id")
"""Of a tokenizer; its name and its chat template may differ."""

SAME_INPUTS = ("axes", "merge", "row_ids", "group_ids", "settings")
"""Of the model that a dataset was packed for; the hashes of its files may differ, as of another chat template."""


def check_alike(datasets: Sequence[tuple[str, ManifestHead, PackConfig]]) -> None:
    """Checks that datasets, each with its location, hold packs of one length for one model, and that none comes twice.

    Raises:
        ReaderError: they do not; names the first two that differ, and in what.
    """
    first_path, first, _ = datasets[0]
    wanted = _properties(first, datasets[0][2])
    seen = {first.dataset_id: first_path}
    for path, manifest, config in datasets[1:]:
        if manifest.dataset_id in seen:
            raise ReaderError(
                f"{path} is the same dataset as {seen[manifest.dataset_id]}; give it once, with the sum of the weights"
            )
        seen[manifest.dataset_id] = path
        for name, value in _properties(manifest, config).items():
            if value != wanted[name]:
                raise ReaderError(
                    f"{path} cannot be mixed with {first_path}: {name} is {_shown(value)}, not {_shown(wanted[name])}; "
                    "pack one of them again like the other"
                )


def _properties(manifest: ManifestHead, config: PackConfig) -> dict[str, Any]:
    """What must be equal, by the name under which errors show it."""
    model = manifest.model
    return {
        "the model's type": None if model is None else model.model_type,
        "images.backend": None if model is None else config.images.backend,
        **{f"the model's {name}": None if model is None else getattr(model, name) for name in SAME_INPUTS},
        **{f"the tokenizer's {name}": getattr(manifest.tokenizer, name) for name in SAME_TOKENS},
        "seq_len": config.seq_len,
        **({"vision": config.vision.model_dump()} if model is None else {}),
    }


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
