"""``manifest.json``, the file that makes a folder a dataset. Versioned."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
)

from preshard.schemas.files.validation import first_violation
from preshard.schemas.model.families import TILES

FORMAT_VERSION = 3
PACK_AGAIN = "pack its sources again: preshard pack SOURCE --out NEW_DATASET"
"""Remedy where a dataset is of an older version."""
MANIFEST = "manifest.json"
RUN = "run.json"
FIGURES = "figures.json"
"""Figures of the dataset as a whole, from its tables: see :mod:`preshard.packer_service.report.stored`."""
TABLE_FILES = ("packs.parquet", "documents.parquet", "rejects.parquet", "measures.parquet")
"""The tables, in the order in which a manifest has them."""
SHARDS = "shards"
WORK = ".work"
"""Folder inside the dataset that holds the finished work of an unfinished job. It is gone once the dataset is whole."""
PLANNED = "planned.json"
"""File in that folder that says how many ``shards`` there will be, so that others can show the progress."""

ENERGON = ".nv-meta"
"""Folder inside the dataset that is Megatron Energon's."""
BESIDE = frozenset({"README.md", "croissant.json", ".gitattributes"})
"""Files that others keep at the root of a dataset, above all the Hugging Face Hub."""

MODEL = "model"
"""Folder inside the dataset with the files of the tokenizer and the processors, under the names that they had."""

TOKENIZER, CHAT_TEMPLATE, CARRIED_TEMPLATES = "tokenizer.json", "chat_template.jinja", "additional_chat_templates"
CARRIED_FILES = (
    *(TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *(CHAT_TEMPLATE, "chat_template.json"),
    *("config.json", "processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"),
)
"""Files that are carried, besides templates in the folder of those: what ``AutoTokenizer`` and ``AutoProcessor`` read.
No weights and no code."""

LARGEST_CARRIED = 64 << 20
"""Bytes of one of them; the tokenizers of released models take up to 35 MB."""

LARGEST_MANIFEST, LARGEST_HEAD, MOST_KEYS = 256 << 20, 64 << 20, 100_000
"""Bytes of a manifest: twice what the 600,000 shards of ten million packs take. Of it without its list of shards, and
the keys in that: the longest part of it names the files of the source."""

LARGEST_RUN, LARGEST_FIGURES = 16 << 20, 64 << 20
"""Bytes of ``run.json``, of which a hundred thousand attempts of one job take fewer, and of ``figures.json``."""

Natural = Annotated[int, Field(ge=0, lt=2**63)]
"""A count, id, size or position; also fits the int64 columns of the tables."""

UnitKind = Literal["image", "frame", "frames"]
"""Kinds of unit: a still image with all of its crops, one frame of a video, or several that the encoder joins."""

UNIT_KINDS: tuple[UnitKind, ...] = get_args(UnitKind)

Checksum = Annotated[int, Field(ge=0, lt=2**32)]
"""A CRC-32C."""

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

FileName = Annotated[str, Field(max_length=255, pattern=r"^[^./\x00-\x1f\x7f][^/\x00-\x1f\x7f]*$")]
"""A file of a folder, and of no other."""


class StrictRecord(BaseModel):
    """A record of JSON that cannot be changed, with no field missing, unknown or of another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ShardEntry(StrictRecord):
    """One tar file. ``first_pack`` is the ``pack_id`` of its first sample; the others follow without gaps."""

    name: FileName
    bytes: Natural
    sha256: Sha256
    packs: Natural
    first_pack: Natural


class TableEntry(StrictRecord):
    """One Parquet table."""

    name: FileName
    bytes: Natural
    sha256: Sha256
    rows: Natural


class FiguresEntry(StrictRecord):
    """The file of the dataset's figures."""

    bytes: Natural
    sha256: Sha256


class CarriedFile(StrictRecord):
    """One file of the tokenizer or the model, by its name below ``model``."""

    name: Annotated[
        str, Field(pattern=rf"^({'|'.join(map(re.escape, CARRIED_FILES))}|{CARRIED_TEMPLATES}/\w[\w.-]*\.jinja)$")
    ]
    bytes: Annotated[int, Field(ge=0, le=LARGEST_CARRIED)]
    sha256: Sha256


class TokenizerEntry(StrictRecord):
    """The tokenizer that produced the tokens. ``vocab_size`` covers every id that can occur in ``tokens``."""

    name: str
    sha256: str
    vocab_size: Natural
    bos_id: Natural | None
    eos_id: Natural
    pad_id: Natural
    image_id: Natural
    chat_template_sha256: Sha256 | None


ENCODER_KEY = "encoder"
"""Its key in the ``settings`` of the manifest's ``model``."""

TIME_KEY = "tokens_per_second"
"""Key of the same ``settings``: growth of the temporal position in a second of video, where it follows time."""

Size = Annotated[int, Field(ge=0, lt=2**31)]
"""A dimension, or a number of layers."""

Side = Annotated[int, Field(ge=1, lt=2**31)]
"""A size that something is divided by."""


class VisionEncoder(StrictRecord):
    """Dimensions of a vision encoder: from them follow the patches and the load of every unit.

    Attributes:
        patch_size: height and width of a patch in pixels.
        temporal_patch_size: crops that one patch covers; where there are several, they are frames of a video.
        hidden_size: width of the hidden states.
        intermediate_size: width inside the MLP.
        mlp_matrices: matrices of the MLP: 2, or 3 with a gate.
        layers: that attend among all patches of a crop, or of the crops that share their patches.
        windowed_layers: that attend inside windows.
        window_size: side of these windows in patches, 0 without any.
        patch_inputs: numbers that the embedding, and a pooling of patches, take for each patch.
        row_inputs: width of what the two layers take that make a row of patches.
        row_hidden: width between them.
        row_outputs: width of what they give.
        key_size: width of the keys, and of the values, where several heads share them; else that of the hidden states.
    """

    patch_size: Annotated[list[Side], Field(min_length=2, max_length=2)]
    temporal_patch_size: Side
    hidden_size: Size
    intermediate_size: Size
    mlp_matrices: Size
    layers: Size
    windowed_layers: Size
    window_size: Size
    patch_inputs: Size
    row_inputs: Size
    row_hidden: Size
    row_outputs: Size
    key_size: Size | None = None


def encoder_of(settings: Mapping[str, Any]) -> VisionEncoder | None:
    """The encoder that a model's settings describe; None for a model that reads only text.

    Raises:
        ValueError: they describe it in another way.
    """
    if ENCODER_KEY not in settings:
        return None
    try:
        return VisionEncoder.model_validate(settings[ENCODER_KEY])
    except ValidationError as error:
        raise ValueError(f"{ENCODER_KEY}: {first_violation(error)}") from None


def tokens_per_second(settings: Mapping[str, Any]) -> float | None:
    """Growth of the temporal position in a second of video; None where it does not follow time.

    Raises:
        ValueError: it is not a number.
    """
    value = settings.get(TIME_KEY)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{TIME_KEY} is {value!r}, not a number")
    return value


class LayerMasks(StrictRecord):
    """A model's layers by their masks, where some see less than a whole pack.

    Attributes:
        full_layers: layers whose tokens see all of their document that the mask allows.
        window_layers: layers with a sliding window.
        window: tokens that these see, see :func:`preshard.schemas.mask.dense_mask`.
        groups: whether bidirectional groups hold in all layers, or in those with a window alone.
    """

    full_layers: Annotated[int, Field(ge=0, lt=2**31)]
    window_layers: Annotated[int, Field(ge=1, lt=2**31)]
    window: Annotated[int, Field(ge=1, lt=2**31)]
    groups: Literal["all", "window"]


class ModelEntry(StrictRecord):
    """The model that the dataset was packed for: what a reader needs to rebuild its inputs and to check the arrays.

    Attributes:
        model_type: as in the folder's ``config.json``; names the family.
        files: SHA-256 of each file of the folder that decided something, by name.
        axes: axes of ``position_ids``: 1, or 3 for time, height and width.
        merge: patches along one side of the square that one row stands for, where units are grids.
        row_ids: ids of the tokens that rows fill.
        group_ids: ids of the tokens that see each other in both directions inside a document; empty for a causal model.
        bidirectional: instead, ``within_image`` where the rows of each unit see each other; left out where not.
        settings: what else the family read from the folder, see also :class:`VisionEncoder`.
        masks: the layers by their masks; left out where no window is shorter than packs.
    """

    model_type: str
    files: dict[str, Sha256]
    axes: Literal[1, 3]
    merge: Annotated[int, Field(ge=1, lt=2**31)]
    row_ids: list[Natural]
    group_ids: list[Natural]
    settings: dict[str, Any]
    masks: LayerMasks | None = None
    bidirectional: Literal["within_image"] | None = None

    @model_serializer(mode="wrap")
    def _leave_out_nothing(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out what few models have."""
        fields: dict[str, Any] = dump(self)
        return {key: value for key, value in fields.items() if value is not None}

    @property
    def shares_crops(self) -> bool:
        """Whether a unit's crops do not see each other before the language model: its tiles are encoded one by one."""
        return TILES.get(str(self.settings.get("inputs"))) == "thumbnail"

    @property
    def has_grids(self) -> bool:
        """Whether each unit is a grid, of which a square of :attr:`merge` patches a side is a row."""
        return TILES.get(str(self.settings.get("inputs")), "") is None

    @field_validator("settings")
    @classmethod
    def _check_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        encoder_of(settings)
        tokens_per_second(settings)
        return settings


class Counts(StrictRecord):
    """Totals. Each of the ``source_documents`` rows that were read is counted in ``documents``, in ``rejected``, or in
    ``left_out``, which a mixture drops. ``duplicates`` are those ``rejected`` that ``duplicates`` of the configuration
    dropped. ``numbered`` of them got a number behind their id, which others have too.
    """

    source_documents: Natural
    documents: Natural
    pieces: Natural
    rejected: Natural
    duplicates: Natural
    left_out: Natural
    numbered: Natural
    packs: Natural
    tokens: Natural
    padding_tokens: Natural
    truncated_tokens: Natural
    images: Natural
    patches: Natural


UNSEALED = "0" * 64
"""``sha256`` of a manifest while its own hash is computed."""


class ManifestHead(StrictRecord):
    """A manifest but for its list of shards, which may be the longest part of it.

    ``unused_columns`` counts the source files that have a column that nothing reads, by the column's name, and
    ``unread_files`` the files in the source's folders that are no source, by a pattern of their names.
    ``filtered`` counts the rows of the source that ``where`` left out, by source; they are in none of the ``counts``.
    ``phases`` are the packs in whole groups of each phase of the configuration's ``curriculum``, which come first.
    ``carried`` are the files of the folder ``model``.
    """

    format_version: int
    dataset_id: str
    preshard_version: str
    config: dict[str, Any]
    tokenizer: TokenizerEntry
    model: ModelEntry | None
    sources: list[str]
    unused_columns: dict[str, Natural]
    unread_files: dict[str, Natural]
    filtered: dict[str, Natural]
    phases: list[Natural]
    counts: Counts
    tables: list[TableEntry]
    figures: FiguresEntry
    carried: list[CarriedFile]

    @field_validator("tables")
    @classmethod
    def _has_each_table(cls, tables: list[TableEntry]) -> list[TableEntry]:
        names = [entry.name for entry in tables]
        if names != list(TABLE_FILES):
            raise ValueError(f"has {names!r:.200}; legal are {', '.join(TABLE_FILES)}, in this order")
        return tables

    def table(self, name: str) -> TableEntry:
        """The entry of one of the tables."""
        return self.tables[TABLE_FILES.index(name)]

    @property
    def axes(self) -> int:
        """Axes of ``position_ids``."""
        return 1 if self.model is None else self.model.axes

    @property
    def shares_crops(self) -> bool:
        """Whether ranks share the crops of a unit: those of the generic way, and of some models."""
        return self.model is None or self.model.shares_crops


class Manifest(ManifestHead):
    """Manifest of a dataset, written last: a folder without it is not a dataset.

    ``sha256`` is that of the file's own bytes with this field as 64 zeros: no other file holds the manifest's hash.
    """

    shards: list[ShardEntry]
    sha256: Sha256 = UNSEALED
