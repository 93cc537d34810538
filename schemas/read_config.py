"""The keys of a dataset's configuration that its readers go by; what else it has decides bytes before they are read."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from preshard.schemas.dataset.rows import MAX_PACKS_PER_SHARD, MAX_SEQ_LEN
from preshard.schemas.errors import ManifestInvalid
from preshard.schemas.files.validation import first_violation
from preshard.schemas.layout import Scheme
from preshard.schemas.manifest import MANIFEST, PACK_AGAIN, ManifestHead
from preshard.schemas.sequence import SEQUENCE_DTYPES, TOKEN_DTYPES, TOKEN_TYPE, TokenColumn

MAX_WINDOW = 2**20
"""Limit above the number of data-parallel ranks of any step. All divisors of the window are looked for, which takes
that many steps."""
MAX_DEGREES = 64
"""Each is solved and stored for every pack."""
MOST_ENTRIES = 10_000
"""Most entries of any list; most may have fewer."""


def as_tuple(given: Any) -> Any:
    """YAML and JSON give lists where the frozen models hold tuples."""
    if isinstance(given, list | tuple) and len(given) > MOST_ENTRIES:  # each would be checked, and told of
        raise ValueError(f"has {len(given):,} entries; at most {MOST_ENTRIES:,} are legal")
    return tuple(given) if isinstance(given, list) else given


MAX_DEGREE = 4096
"""Most ranks of a CP group, and of a ring."""

Degree = Annotated[int, Field(ge=1, le=MAX_DEGREE)]
Degrees = Annotated[tuple[Degree, ...], BeforeValidator(as_tuple), Field(min_length=1, max_length=MAX_DEGREES)]
Schemes = Annotated[tuple[Scheme, ...], BeforeValidator(as_tuple), Field(min_length=1)]
SeqLen = Annotated[int, Field(ge=1, le=MAX_SEQ_LEN)]
MostImages = Annotated[int | None, Field(ge=1, le=2**27)]
MostPatches = Annotated[int | None, Field(ge=1, le=2**31)]
Pixels = Annotated[int, Field(ge=1, le=8192)]
"""Pixels along one side of a crop or a patch, and patches along one of a pooling window."""
ImageFormat = Literal["jpeg", "png"]
BlockSize = Annotated[int, Field(ge=1, le=2**20)]
PacksPerShard = Annotated[int, Field(ge=1, le=MAX_PACKS_PER_SHARD)]
Window = Annotated[int, Field(ge=1, le=MAX_WINDOW)]


class _ReadKeys(BaseModel):
    """Some keys of a section. ``verify`` holds the others against what is legal."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class _ReadVision(_ReadKeys):
    image_size: Pixels


class _ReadOrder(_ReadKeys):
    window: Window


class ReadConfig(_ReadKeys):
    """Keys of :class:`preshard.schemas.config.PackConfig` that reading takes, under the same names and limits."""

    seq_len: SeqLen
    max_images: MostImages
    max_patches: MostPatches
    vision: _ReadVision
    image_format: ImageFormat
    token_columns: TokenColumns
    cp_sizes: Degrees
    ring_degrees: Degrees
    layouts: Schemes
    block_size: BlockSize
    packs_per_shard: PacksPerShard
    order: _ReadOrder

    @property
    def columns_of_tokens(self) -> tuple[TokenColumn, ...]:
        """The columns of tokens, in the order in which they are stored."""
        return tuple([TokenColumn.of(name, spelled) for name, spelled in self.token_columns])


def not_written_out(key: str) -> str:
    """Says that a manifest lacks a key of the configuration, of which it has every one."""
    return f"config.{key} is not written out, and a manifest has every key; {PACK_AGAIN}"


def read_config(manifest: ManifestHead) -> ReadConfig:
    """The keys of a dataset's configuration that reading it needs.

    Raises:
        ManifestInvalid: one is missing, or its value is not legal.
    """
    try:
        return ReadConfig.model_validate(manifest.config)
    except ValidationError as error:
        violation = first_violation(error)
        if violation.is_missing:
            raise ManifestInvalid(MANIFEST, not_written_out(violation.path)) from None
        raise ManifestInvalid(MANIFEST, f"config.{violation}") from None


MAX_WIDTH = 1024
"""Most numbers of one column for a token: every rank reads those of the whole pack."""

MAX_COLUMNS = 64

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}", re.ASCII)


def _as_token_columns(given: Any) -> Any:
    """Names with their types, sorted: a mapping in YAML and JSON, and pairs in a model that can be hashed."""
    pairs = as_pairs(given, "{logprobs: float32, teacher: float32 x 8}")
    for name, spelled in pairs:
        if name in SEQUENCE_DTYPES:
            raise ValueError(f"{name!r} is the name of an array in every pack; rename the column")
        found = TOKEN_TYPE.fullmatch(spelled) if isinstance(spelled, str) else None
        if found is None or int(found[2] or 1) > MAX_WIDTH:
            raise ValueError(
                f"{name} is {spelled!r:.100}; legal are {', '.join(TOKEN_DTYPES)}, followed by x 8 for 8 numbers "
                f"a token (at most {MAX_WIDTH}), and by or 0 if rows may lack the column"
            )
    return pairs


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
