"""The configuration that a dataset was packed with: frozen, checked as a whole, stored in the manifest key by key."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from preshard.schemas.dataset.document_rows import DOCUMENT_COLUMNS, MAX_EPOCHS
from preshard.schemas.errors import ConfigError
from preshard.schemas.files.validation import Violation, first_violation
from preshard.schemas.kept_columns import KeptColumns, RenamedColumns
from preshard.schemas.keys import COPIED, NO_FILE, NO_ROW, NO_TEXT, RENDERED_TEXT, Key, keys_of
from preshard.schemas.layout import BLOCK_SCHEMES, SCHEMES
from preshard.schemas.read_config import (
    BlockSize,
    Degrees,
    ImageFormat,
    MostImages,
    MostPatches,
    PacksPerShard,
    Schemes,
    SeqLen,
    TokenColumns,
)
from preshard.schemas.schemes import alignment_of
from preshard.schemas.sections import (
    ConfigSection,
    CostConfig,
    DuplicatesConfig,
    IgnorableFields,
    ImagesConfig,
    Names,
    OrderConfig,
    Phases,
    SpecialTokensConfig,
    VideoConfig,
    VisionConfig,
    Weights,
    nearest_multiples,
)
from preshard.schemas.sequence import TokenColumn
from preshard.schemas.worded import legal_instead, nearest

SHOWN_CHARACTERS = 200
"""Longest value that an error repeats."""

MARK = "duplicate_of"
"""The kept column in which documents that repeat another one are marked."""


class PackConfig(ConfigSection):
    """Everything that decides the bytes of a dataset, apart from the source and the version of preshard."""

    seq_len: SeqLen = Field(36864, description="Tokens of a pack.")
    max_images: MostImages = Field(384, description="Most crops in a pack; null for no limit.")
    max_patches: MostPatches = Field(
        None, description="Most patches that the vision encoder sees in a pack; null for no limit."
    )
    model: Annotated[str | None, Key(source=RENDERED_TEXT, names_file=True, plan=NO_TEXT)] = Field(
        None, min_length=1, description="Model folder that decides tokens, images and positions; null for none."
    )
    chat_template: Annotated[str | None, Key(source=RENDERED_TEXT, names_file=True, plan=NO_TEXT)] = Field(
        None, min_length=1, description="Jinja file that writes conversations; null for the tokenizer's own form."
    )
    tokenizer: Annotated[str, Key(source=RENDERED_TEXT, names_file=True, plan=NO_TEXT)] = Field(
        "tekken", min_length=1, description="`tekken`, or a tokenizer.json, or a folder with one."
    )
    special_tokens: Annotated[SpecialTokensConfig, Key(source=RENDERED_TEXT, plan=NO_TEXT)] = Field(
        SpecialTokensConfig(), description="Special tokens, given as text."
    )
    vision: Annotated[VisionConfig, Key(source="crops are not cut again")] = Field(
        VisionConfig(), description="The vision encoder's input."
    )
    images: Annotated[ImagesConfig, Key(source="pictures are not scaled again", plan="a plan scales no pictures")] = (
        Field(ImagesConfig(), description="How still images are read and scaled.")
    )
    video: Annotated[VideoConfig, Key(source="frames are not sampled again", plan="a plan samples no frames")] = Field(
        VideoConfig(), description="How frames are sampled from a video."
    )
    decoder_mib: Annotated[int, Key(plan="a plan decodes nothing")] = Field(
        512, ge=256, le=2**20, description="Memory of a task's decoder; a file that needs more is rejected."
    )
    image_format: Annotated[ImageFormat, Key(source=COPIED, plan=NO_FILE)] = Field(
        "jpeg", description="How crops are stored."
    )
    jpeg_quality: Annotated[int, Key(source=COPIED, plan=NO_FILE)] = Field(
        90, ge=1, le=100, description="Quality of stored JPEG crops."
    )
    bidirectional: Annotated[
        Literal["within_image", "image_tokens", "none"],
        Key(source="documents keep the mask that they were rendered with"),
    ] = Field("within_image", description="Which image tokens see each other in both directions.")
    annotation_weight: Annotated[
        Literal["none", "sqrt"],
        Key(source="documents keep the loss weights that they were rendered with", plan="a plan knows no loss weights"),
    ] = Field("none", description="`sqrt`: each of n annotations weighs 1/sqrt(n).")
    form: Annotated[str, Key(plan=NO_ROW)] = Field(
        "auto", min_length=1, description="Form of the rows: `auto`, a form's name, or `package.module:function`."
    )
    ignore: Annotated[Names, Key(plan=NO_ROW)] = Field(
        (), description="Patterns of files in a source's folders that are left out."
    )
    split: Annotated[str | None, Key(plan=NO_ROW)] = Field(
        None,
        min_length=1,
        description="Splits that are packed of folders that hold several: a name, `train+test`, `all`.",
    )
    source: Annotated[Literal["from_row", "from_file"], Key(plan=NO_ROW)] = Field(
        "from_row", description="Whether the row's column `source` names its source, or the name of its file does."
    )
    ignore_columns: Annotated[Names, Key(plan=NO_ROW)] = Field(
        (), description="Columns of the source that are left out."
    )
    rename_columns: Annotated[RenamedColumns, Key(plan=NO_ROW)] = Field(
        (), description="Columns of the source that are read under another name: `{pics: images, query: question}`."
    )
    ignore_fields: Annotated[IgnorableFields, Key(plan=NO_ROW)] = Field(
        (),
        description="Fields of messages that are left out, as if no row had them: `[name, recipient]`.",
    )
    token_columns: Annotated[
        TokenColumns, Key(source="documents keep the columns that they were rendered with", plan=NO_ROW)
    ] = Field(
        (),
        description="Columns of numbers for each token, by type: `{logprobs: float32, teacher: float32 x 8 or 0}`.",
    )
    keep_columns: Annotated[KeptColumns, Key(plan=NO_ROW)] = Field(
        (), description="Columns that documents keep, by type: `{quality: float, licence: string, n: int, ok: bool}`."
    )
    where: Annotated[str | None, Key(for_once=True, plan=NO_ROW)] = Field(
        None,
        min_length=1,
        max_length=10_000,
        description="Rows that are packed: a DuckDB expression over their columns, such as `quality > 0.5`.",
    )
    duplicates: Annotated[DuplicatesConfig, Key(for_once=True, plan=NO_ROW)] = Field(
        DuplicatesConfig(), description="What becomes of documents that repeat others."
    )
    turns: Annotated[
        Literal["whole", "last", "each"],
        Key(source="documents keep the turns that they were rendered with", plan=NO_TEXT),
    ] = Field(
        "whole",
        description="Which turns of an assistant are learnt: all as the whole conversation shows them, the last alone, "
        "or `each` as the end of a conversation of its own.",
    )
    oversize: Literal["reject", "truncate", "split"] = Field(
        "reject", description="What happens to a document above seq_len, max_images or max_patches."
    )
    mixture: Weights = Field(
        (), description="How often documents of a source are taken, by its name: `{text: 0.5}`; 1 if it is not named."
    )
    curriculum: Annotated[Phases, Key(plan="an answer has one share for each source; see preshard plan")] = Field(
        (),
        description="Phases of the run, each until a share of its tokens, and how sources weigh in it: "
        "`[{until: 0.2, weights: {web: 3}}, {until: 1.0, weights: {chat: 2}}]`; 1 if not named.",
    )
    epochs: int = Field(
        1, ge=1, le=MAX_EPOCHS, description="How often every document is packed, each time with other neighbours."
    )
    cp_sizes: Degrees = Field((1, 2, 4, 8), description="CP sizes for which image boundaries are stored.")
    ring_degrees: Degrees = Field((1, 2, 4, 8), description="Ring degrees for which token layouts are stored.")
    layouts: Schemes = Field(SCHEMES, description="Token layout schemes.")
    block_size: BlockSize = Field(128, description="Tokens of a block of the balanced schemes.")
    packs_per_shard: Annotated[PacksPerShard, Key(plan=NO_FILE)] = Field(16, description="Packs in one tar file.")
    order: OrderConfig = Field(OrderConfig(), description="The order of packs over training steps.")
    cost: CostConfig = Field(CostConfig(), description="Dimensions of the model that will train.")

    @property
    def alignment(self) -> int:
        """Documents begin at multiples of this."""
        return alignment_of(self.layouts, self.ring_degrees)

    @property
    def columns_of_tokens(self) -> tuple[TokenColumn, ...]:
        """The columns of tokens, in the order in which they are stored."""
        return tuple([TokenColumn.of(name, spelled) for name, spelled in self.token_columns])

    @property
    def columns_read(self) -> frozenset[str]:
        """Columns of rows that are read whatever the form."""
        return frozenset([name for name, _ in (*self.token_columns, *self.keep_columns)])

    def asks_for(self, column: str) -> bool:
        """Whether ``where`` may name a column."""
        return self.where is not None and column.lower() in words_of(self.where)

    @model_validator(mode="after")
    def _model_decides(self) -> PackConfig:
        if self.model is None:
            if self.images.backend != ImagesConfig().backend:
                raise ValueError(
                    f"images.backend {self.images.backend!r} applies only to the processors of a model; set model, too"
                )
            return self
        for name in ("tokenizer", "special_tokens.image", "bidirectional", *(f"vision.{key}" for key in _VISION_KEYS)):
            if _at(self, name) != _at(type(self)(), name):
                raise ValueError(f"{name} {_at(self, name)!r} contradicts model, whose folder decides it; leave it out")
        return self

    @model_validator(mode="after")
    def _columns_are_free(self) -> PackConfig:
        taken = {*(column.name for column in DOCUMENT_COLUMNS), *dict(self.token_columns)}
        for name, _ in self.keep_columns:
            if name in taken:
                raise ValueError(
                    f"keep_columns has {name!r}, which is a column of documents.parquet or of tokens; rename the column"
                )
        return self

    @model_validator(mode="after")
    def _phases_cover_the_run(self) -> PackConfig:
        ends = [phase.until for phase in self.curriculum]
        if ends and (ends[-1] != 1 or any(end <= before for before, end in pairwise(ends))):
            raise ValueError(f"curriculum has phases until {ends}; give ascending ends, the last of them 1.0")
        return self

    @model_validator(mode="after")
    def _marks_have_a_column(self) -> PackConfig:
        if "mark" in (self.duplicates.text, self.duplicates.images) and (MARK, "string") not in self.keep_columns:
            raise ValueError(f"duplicates marks documents in a kept column: add {MARK}: string to keep_columns")
        return self

    @model_validator(mode="after")
    def _lists_are_sets(self) -> PackConfig:
        for name in ("cp_sizes", "ring_degrees", "layouts"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"{name} {list(values)} contains a value twice; give each value once")
        return self

    @property
    def seq_len_step(self) -> tuple[int, str]:
        """Number that ``seq_len`` is a multiple of, and why."""
        step = math.lcm(*(2 * size for size in self.cp_sizes), *(2 * ring for ring in self.ring_degrees))
        reason = f"twice each of cp_sizes {list(self.cp_sizes)} and ring_degrees {list(self.ring_degrees)}"
        if any(scheme in BLOCK_SCHEMES for scheme in self.layouts):
            step = math.lcm(step, *(self.block_size * ring for ring in self.ring_degrees))
            reason += f", and of block_size {self.block_size} times each of ring_degrees"
        return step, reason

    @model_validator(mode="after")
    def _seq_len_divides(self) -> PackConfig:
        step, reason = self.seq_len_step
        if self.seq_len % step:
            raise ValueError(
                f"seq_len {self.seq_len} is not a multiple of {step}, the least multiple of {reason}; "
                f"take seq_len={nearest_multiples(self.seq_len, step, ' or seq_len=')}"
            )
        return self


KEYS = keys_of(PackConfig)
"""Keys and sections with what they say of themselves, by name with dots."""


def words_of(expression: str) -> frozenset[str]:
    """Everything in an expression that may be the name of a column, in lower case."""
    plain, quoted = re.findall(r"[^\W\d]\w*", expression), re.findall(r'"([^"]+)"', expression)
    return frozenset(name.lower() for name in (*plain, *quoted))


_VISION_KEYS = tuple(VisionConfig.model_fields)


def _at(section: BaseModel, name: str) -> Any:
    """A key's value, by its name with dots."""
    value: Any = section
    for key in name.split("."):
        value = getattr(value, key)
    return value


def parse_config(values: dict[str, Any]) -> PackConfig:
    """Validates a mapping of configuration values.

    Raises:
        ConfigError: a key or value is not legal; one line that names it and says what is legal.
    """
    try:
        return PackConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_one_line(first_violation(error), legal_instead(error))) from None


def _one_line(violation: Violation, remedy: str) -> str:
    """A violation as ``field: value is wrong, and what is legal``."""
    if violation.is_unknown_key:
        legal = _legal_keys(violation.place[:-1])
        near = _nearest_key(str(violation.place[-1]), legal)
        return f"{violation.path}: unknown key; " + (
            f"did you mean {near}?" if near is not None else f"legal here: {', '.join(legal)}"
        )
    if violation.is_own:
        return str(violation)
    shown = repr(violation.value)
    shown = shown if len(shown) <= SHOWN_CHARACTERS else f"{shown[:SHOWN_CHARACTERS]}..."
    return f"{violation.path}: {shown} is not legal: {remedy}"


def _nearest_key(key: str, legal: Sequence[str]) -> str | None:
    """The key that a wrong one comes near: one that is legal in its place, or the same in a section."""
    if (here := nearest(key, legal)) is not None:
        return here
    sections = {name: field.annotation for name, field in PackConfig.model_fields.items()}
    return next(
        (
            f"{name}.{key}"
            for name, section in sections.items()
            if isinstance(section, type) and issubclass(section, ConfigSection) and key in section.model_fields
        ),
        None,
    )


def _legal_keys(path: Sequence[Any]) -> list[str]:
    model: Any = PackConfig
    for name in path:
        model = model.model_fields[name].annotation
    return list(model.model_fields)
