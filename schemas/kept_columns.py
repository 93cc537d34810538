"""Columns of rows that documents keep, and columns that are read under another name."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from preshard.schemas.read_config import MAX_COLUMNS, as_pairs

KEPT_TYPES: dict[str, type] = {"string": str, "int": int, "float": float, "bool": bool}
"""Types of columns that are kept with documents, as the configuration spells them."""


def as_kept_columns(given: Any) -> Any:
    """Names with their types, sorted, as :func:`_as_token_columns`."""
    pairs = as_pairs(given, "{quality: float, licence: string}")
    for name, spelled in pairs:
        if spelled not in KEPT_TYPES:
            raise ValueError(f"{name} is {spelled!r:.100}; legal are {', '.join(KEPT_TYPES)}")
    return pairs


def _as_renamed(given: Any) -> Any:
    """Columns with the names under which they are read, sorted: a mapping in YAML and JSON, and pairs in a model."""
    given = dict(given) if isinstance(given, tuple) else given
    is_mapping = isinstance(given, dict) and len(given) <= MAX_COLUMNS
    if not is_mapping or not all(isinstance(name, str) and name for pair in given.items() for name in pair):
        raise ValueError(
            f"{given!r:.200} is not a mapping of at most {MAX_COLUMNS} columns to names; give one: {{pics: images}}"
        )
    if len(set(given.values())) < len(given):
        raise ValueError(f"{given!r:.200} gives two columns one name")
    return tuple(sorted(given.items()))


RenamedColumns = Annotated[
    tuple[tuple[str, str], ...],
    BeforeValidator(_as_renamed),
    PlainSerializer(dict, return_type=dict[str, str]),
]

KeptColumns = Annotated[
    tuple[tuple[str, str], ...], BeforeValidator(as_kept_columns), PlainSerializer(dict, return_type=dict[str, str])
]
