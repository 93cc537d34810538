"""Columns that rows may bring besides text and media: numbers for each token, and values of the document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, PlainSerializer

from preshard.schemas.sequence import SEQUENCE_DTYPES

TOKEN_DTYPES = ("float32", "int32", "bool")
MAX_WIDTH = 1024
"""Most numbers of one column for a token: every rank reads those of the whole pack."""
MAX_COLUMNS = 64

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}", re.ASCII)
_TOKEN_TYPE = re.compile(rf"({'|'.join(TOKEN_DTYPES)})(?: x ([1-9][0-9]{{0,3}}))?( or 0)?", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenColumn:
    """Numbers for each token of a pack: one, or ``width`` of them. Padding has 0 (false).

    ``optional`` says that rows may lack it, whose tokens have 0 then.
    """

    name: str
    dtype: np.dtype
    width: int | None = None
    optional: bool = False

    @property
    def member(self) -> str:
        """Name of its array in ``KEY.sequence.npz``."""
        return f"columns.{self.name}"

    def shape(self, tokens: int) -> tuple[int, ...]:
        """Shape of its array for so many tokens."""
        return (tokens,) if self.width is None else (tokens, self.width)

    def zeros(self, tokens: int) -> np.ndarray:
        """Its array for tokens that have no value."""
        return np.zeros(self.shape(tokens), self.dtype)

    @classmethod
    def of(cls, name: str, spelled: str) -> TokenColumn:
        """A column as the configuration spells its type: ``float32``, ``int32 x 8``, ``bool or 0``."""
        found = _TOKEN_TYPE.fullmatch(spelled)
        assert found is not None, "checked with the configuration"
        dtype, width, optional = found.groups()
        return cls(
            name=name,
            dtype=np.dtype(dtype),
            width=None if width is None else int(width),
            optional=optional is not None,
        )


def _as_token_columns(given: Any) -> Any:
    """Names with their types, sorted: a mapping in YAML and JSON, and pairs in a model that can be hashed."""
    pairs = as_pairs(given, "{logprobs: float32, teacher: float32 x 8}")
    for name, spelled in pairs:
        if name in SEQUENCE_DTYPES:
            raise ValueError(f"{name!r} is the name of an array in every pack; rename the column")
        found = _TOKEN_TYPE.fullmatch(spelled) if isinstance(spelled, str) else None
        if found is None or int(found[2] or 1) > MAX_WIDTH:
            raise ValueError(
                f"{name} is {spelled!r:.100}; legal are {', '.join(TOKEN_DTYPES)}, followed by x 8 for 8 numbers "
                f"a token (at most {MAX_WIDTH}), and by or 0 if rows may lack the column"
            )
    return pairs


Kept = str | int | float | bool | None
"""Value of a document in such a column; None where its row has nothing."""


def as_pairs(given: Any, example: str) -> tuple[tuple[str, Any], ...]:
    if isinstance(given, tuple):
        given = dict(given)
    if not isinstance(given, dict) or len(given) > MAX_COLUMNS:
        raise ValueError(
            f"{given!r:.200} is not a mapping of at most {MAX_COLUMNS} columns to types; give one such as {example}"
        )
    for name in given:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"{name!r:.100} is not a legal name; use at most 100 letters, digits and _")
    return tuple(sorted(given.items()))


TokenColumns = Annotated[
    tuple[tuple[str, str], ...],
    BeforeValidator(_as_token_columns),
    PlainSerializer(dict, return_type=dict[str, str]),
]


Columns = Mapping[str, np.ndarray]
"""Values of token columns, by their names."""
