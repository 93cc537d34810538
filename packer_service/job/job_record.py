"""Identity of a job: what makes two runs the same one, and where two records of jobs differ."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from preshard.packer_service.ingest.media.reach import AllowedMedia
from preshard.packer_service.ingest.model import PackedFor
from preshard.packer_service.ingest.source.file import Fragment, SourceFile
from preshard.schemas import VERSION
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError
from preshard.schemas.files.printed import without_secrets

SHOWN_DIFFERENCES = 3
"""Differences between two jobs that are shown; the others are counted."""
SHOWN_CHARACTERS = 80
"""Longest value of a difference that is shown."""
SHOWN_BEFORE = 20
"""Characters shown before the first difference of two long values."""
SHOWN_ID = 12
"""Characters of a dataset's id and of a hash that are shown."""

PLAN = 2
"""Revision of plans, to be raised whenever the same documents are planned otherwise, or planned tables have other
columns: what was interrupted before must not go on with packs of both.
"""

_NOT_OF_THE_FILE = ("copy", "unread", "renamed", "beneath", "media_root", "media_roots", "asked", "quoted")

Record = dict[str, Any]
"""A job in JSON values: configuration, model, and the files of the source."""


def job_record(config: PackConfig, target: PackedFor, fragments: Sequence[Fragment], media: AllowedMedia) -> Record:
    """Everything that must be the same for two runs to be the same job."""
    files = dict.fromkeys(fragment.file for fragment in fragments)
    named = [f"{option} {without_secrets(location)}" for option, location in media.named()]
    return {
        "version": VERSION,
        "plan": PLAN,
        # not where the files of a model lie, but what they hold
        "config": config.model_dump(mode="json", exclude={"tokenizer", "model", "chat_template"}),
        "tokenizer": target.tokenizer.model_dump(mode="json"),
        "model": None if target.model is None else target.model.model_dump(mode="json"),
        "files": [_file_record(file) for file in files],
        **({"media": named} if named else {}),
    }


def _file_record(file: SourceFile) -> Record:
    """A source file as JSON gives it back."""
    facts = {name: value for name, value in asdict(file).items() if name not in _NOT_OF_THE_FILE}
    given: Record = json.loads(json.dumps({**facts, "uri": without_secrets(file.uri)}))
    return given


def refuse_difference(before: Record, now: Record, out: str) -> None:
    """Lets a job continue in a folder that was begun by the same job.

    Raises:
        ConfigError: the records differ; shows where.
    """
    differences = _differences(before, now)
    if differences:
        shown = "; ".join(differences[:SHOWN_DIFFERENCES])
        more = len(differences) - SHOWN_DIFFERENCES
        shown += f"; and {more} more" if more > 0 else ""
        raise ConfigError(
            f"--out {out}: was started with different input ({shown}); give another folder, or remove this one"
        )


def _differences(before: Any, now: Any, path: str = "") -> list[str]:
    """Differences between two JSON values, as ``path: old, now new``."""
    if path == "files" and _are_files(before) and _are_files(now):
        return _file_differences(before, now)
    if isinstance(before, dict) and isinstance(now, dict):
        keys = list(dict.fromkeys([*before, *now]))
        return [d for key in keys for d in _differences(before.get(key), now.get(key), f"{path}.{key}".strip("."))]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [d for i, (a, b) in enumerate(zip(before, now, strict=True)) for d in _differences(a, b, f"{path}[{i}]")]
    return [] if before == now else [f"{path}: {', now '.join(_shown(repr(before), repr(now)))}"]


def _shown(before: str, now: str) -> tuple[str, str]:
    """Two texts, each cut to what can be shown: from a little before the first character in which they differ."""
    if max(len(before), len(now)) <= SHOWN_CHARACTERS:
        return before, now
    common = next((i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now)))
    start = max(0, common - SHOWN_BEFORE)
    first, last = (
        ("..." if start else "")
        + text[start : start + SHOWN_CHARACTERS]
        + ("..." if len(text) > start + SHOWN_CHARACTERS else "")
        for text in (before, now)
    )
    return first, last


def _are_files(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(file, dict) and "label" in file for file in value)


def _file_differences(before: Sequence[Record], now: Sequence[Record]) -> list[str]:
    """Source files that are new, gone or changed, by their labels, each with its size and time."""
    then, here = ({file["label"]: file for file in files} for files in (before, now))
    found = []
    for label in dict.fromkeys([*then, *here]):
        old, new = then.get(label), here.get(label)
        if old is None or new is None:
            found.append(f"{label} {'is new' if old is None else 'is gone'}: {_stamp(new or old or {})}")
        elif _state(old) != _state(new):
            found.append(f"{label} changed: {_stamp(old)}, now {_stamp(new)}")
        else:
            found += _differences(old, new, label)
    if not found and [*then] != [*here]:
        found.append(f"the order of the source's files: {[*then]}, now {[*here]}")
    return found


def _state(file: Record) -> tuple[object, ...]:
    """Values by which two states of a file or dataset differ."""
    return file.get("size"), file.get("mtime_ns"), file.get("dataset")


def _stamp(file: Record) -> str:
    """Size and time of change of a file, or the id of a dataset."""
    if file.get("dataset"):
        dataset_id, manifest = (file["dataset"][name][:SHOWN_ID] for name in ("dataset_id", "manifest_sha256"))
        annotations = file["dataset"].get("annotations_sha256")
        joined = f" and the annotations {annotations[:SHOWN_ID]}" if annotations else ""
        return f"the dataset {dataset_id} with the manifest {manifest}{joined}"
    seconds, nanoseconds = divmod(file.get("mtime_ns") or 0, 10**9)
    changed = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{file.get('size') or 0:,} bytes of {changed}.{nanoseconds // 10**6:03d}Z"
