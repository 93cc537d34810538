"""The keys of a dataset's configuration that its readers go by; what else it has decides bytes before they are read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from preshard.schemas.columns import TokenColumn, TokenColumns
from preshard.schemas.dataset.rows import MAX_PACKS_PER_SHARD, MAX_SEQ_LEN
from preshard.schemas.errors import ManifestInvalid
from preshard.schemas.files.validation import first_violation
from preshard.schemas.layout import Scheme
from preshard.schemas.manifest import MANIFEST, ManifestHead

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
Side = Annotated[int, Field(ge=1, le=8192)]
"""Pixels along one side of a crop or a patch, and patches along one of a pooling window."""
ImageFormat = Literal["jpeg", "png"]
BlockSize = Annotated[int, Field(ge=1, le=2**20)]
PacksPerShard = Annotated[int, Field(ge=1, le=MAX_PACKS_PER_SHARD)]
Window = Annotated[int, Field(ge=1, le=MAX_WINDOW)]


class _ReadKeys(BaseModel):
    """Some keys of a section. ``verify`` holds the others against what is legal."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class _ReadVision(_ReadKeys):
    image_size: Side


class _ReadOrder(_ReadKeys):
    window: Window


class ReadConfig(_ReadKeys):
    """What a reader needs of :class:`preshard.schemas.config.PackConfig`, under the same names and limits."""

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


def read_config(manifest: ManifestHead) -> ReadConfig:
    """The keys of a dataset's configuration that reading it needs.

    Raises:
        ManifestInvalid: one is missing, or its value is not legal.
    """
    try:
        return ReadConfig.model_validate(manifest.config)
    except ValidationError as error:
        raise ManifestInvalid(MANIFEST, f"config.{first_violation(error)}") from None
