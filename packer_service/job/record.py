"""What makes two runs the same job, and how a run says that it is another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from packer_service.ingest.source.files import Fragment
from schemas.config import PackConfig
from schemas.errors import ConfigError
from schemas.filesystem import without_credentials
from schemas.manifest import TokenizerEntry
from schemas.version import VERSION


def job_record(config: PackConfig, tokenizer: TokenizerEntry, fragments: Sequence[Fragment]) -> dict[str, Any]:
    """What must be the same for two runs to be the same job."""
    files = list(dict.fromkeys(fragment.file for fragment in fragments))
    return {
        "version": VERSION,
        "config": config.model_dump(mode="json"),
        "tokenizer": tokenizer.model_dump(mode="json"),
        "files": [{**asdict(file), "uri": without_credentials(file.uri)} for file in files],
    }


def refuse_difference(before: dict[str, Any], now: dict[str, Any], out: str) -> None:
    """Lets the same job go on in a folder, and no other.

    Raises:
        ConfigError: the records differ; shows where, up to three times.
    """
    differences = _differences(before, now)
    if differences:
        shown = "; ".join(differences[:3]) + (f"; and {len(differences) - 3} more" if len(differences) > 3 else "")
        raise ConfigError(f"--out {out}: was begun with other input ({shown}); give another folder, or remove this one")


def _differences(before: Any, now: Any, path: str = "") -> list[str]:
    """Where two JSON values differ, as ``path: old, now new``."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = list(dict.fromkeys([*before, *now]))
        return [d for key in keys for d in _differences(before.get(key), now.get(key), f"{path}.{key}".strip("."))]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [d for i, (a, b) in enumerate(zip(before, now, strict=True)) for d in _differences(a, b, f"{path}[{i}]")]
    return [] if before == now else [f"{path}: {before!r:.80}, now {now!r:.80}"]
