"""The configuration that a dataset was packed with: frozen, checked as a whole, stored in the manifest key by key."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError, model_validator

from preshard.schemas.columns import KeptColumns, TokenColumn, TokenColumns, token_columns_of
from preshard.schemas.errors import ConfigError, ManifestInvalid
from preshard.schemas.files.validation import Violation, first_violation, nearest_multiples
from preshard.schemas.layout import BLOCK_SCHEMES, SCHEMES, Scheme
from preshard.schemas.manifest import MANIFEST, ManifestHead

MAX_WINDOW = 2**20
"""More packs than any step has data-parallel ranks. All divisors of the window are looked for, which takes that many
steps."""
MAX_FRAMES = 2**20
"""Six days of video at two frames a second; the times of all frames are computed before any is read."""
MAX_PACKS_PER_SHARD = 2**16
"""One task writes a shard, and keeps the rows of its packs in memory."""
SHOWN_CHARACTERS = 200
"""Longest value that an error repeats."""
MAX_DEGREES = 64
"""Each is solved and stored for every pack."""


DOCUMENT_COLUMNS = (
    *("doc_id", "piece", "copy_number", "epoch", "source", "pack_id", "start", "length", "aligned_length"),
    *("n_units", "n_images", "n_patches", "load", "truncated_tokens"),
)
"""Columns that ``documents.parquet`` always has."""

MARK = "duplicate_of"
"""The kept column in which documents that repeat another one are marked."""

MAX_WEIGHT = 1000
"""Most copies of a document in an epoch; each is packed in a pass of its own."""
MAX_PHASES = 100
"""Each has packs of its own."""
MAX_EPOCHS = 1000
"""A table of all documents holds each once for every epoch."""


def _as_tuple(given: Any) -> Any:
    """YAML and JSON give lists where the frozen models hold tuples."""
    return tuple(given) if isinstance(given, list) else given


Degree = Annotated[int, Field(ge=1, le=4096)]
Degrees = Annotated[tuple[Degree, ...], BeforeValidator(_as_tuple), Field(min_length=1, max_length=MAX_DEGREES)]
Schemes = Annotated[tuple[Scheme, ...], BeforeValidator(_as_tuple)]
Duplicates = Literal["keep", "mark", "drop"]
ImageBackend = Literal["torchvision", "pil"]
"""A backend of image processors, by its name in ``transformers``."""
Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple), Field(max_length=1000)]
IgnorableFields = Annotated[
    tuple[Literal["documents", "name", "reasoning", "reasoning_content", "thinking", "tool_call_id", "tools"], ...],
    BeforeValidator(_as_tuple),
]


def _as_weights(given: Any) -> Any:
    """Sources with their weights, sorted: a mapping in YAML and JSON, and pairs in a model that can be hashed."""
    if isinstance(given, tuple):
        given = dict(given)
    if not isinstance(given, dict):
        raise ValueError(f"{given!r:.200} is not a mapping; give one of sources to weights, such as {{text: 0.5}}")
    for name, weight in given.items():
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not isinstance(name, str) or not is_number or not 0 <= weight <= MAX_WEIGHT:
            raise ValueError(
                f"{name!r:.200} weighs {weight!r:.200}; give names of sources a weight of 0 to {MAX_WEIGHT}"
            )
    return tuple((name, float(weight)) for name, weight in sorted(given.items()))


Weights = Annotated[
    tuple[tuple[str, float], ...], BeforeValidator(_as_weights), PlainSerializer(dict, return_type=dict[str, float])
]
Width = Annotated[int, Field(ge=1, le=2**24)]
"""A dimension of a model: a hundred times those of any model, and no product of a few of them overflows."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class VisionConfig(_Section):
    """The vision encoder's input. Defaults: SigLIP 2 so400m at 378 pixels with 3 x 3 pooling, as in Molmo 2."""

    image_size: int = Field(378, ge=1, le=8192, description="Side of a crop in pixels; every crop is a square.")
    patch_size: int = Field(14, ge=1, le=8192, description="Side of the encoder's patch in pixels; divides image_size.")
    pool_size: int = Field(3, ge=1, le=8192, description="Patches along one side of a pooling window.")
    max_crops: int = Field(
        1, ge=1, le=256, description="Most tiles of a still image; more than one tile adds a thumbnail of the whole."
    )

    @property
    def patches_per_crop(self) -> int:
        """Tokens that the vision encoder sees for one crop."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def pooled_per_crop(self) -> int:
        """Rows of pooled features, and so image tokens, of one crop."""
        return math.ceil((self.image_size // self.patch_size) / self.pool_size) ** 2

    @model_validator(mode="after")
    def _patches_fit(self) -> VisionConfig:
        if self.image_size % self.patch_size:
            raise ValueError(
                f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}; "
                f"nearest that are: {nearest_multiples(self.image_size, self.patch_size)}"
            )
        return self


class ImagesConfig(_Section):
    """How still images are read and scaled."""

    backend: ImageBackend = Field(
        "torchvision",
        description="Whose pixels the stills of a `model` have: `torchvision`, the image processors that "
        "`transformers` takes where torchvision is installed, or `pil`, those that it takes elsewhere.",
    )
    pages: Literal["reject", "first", "all"] = Field(
        "reject",
        description="What becomes of a file of several pages or frames (PDF, TIFF, GIF, WebP ...) that is shown as an "
        "image: its row is rejected, the first is taken, or all, each as an image, in their order.",
    )
    pdf_dpi: int = Field(144, ge=18, le=1200, description="Pixels per inch of a PDF's pages, before they are scaled.")


class VideoConfig(_Section):
    """How frames are sampled from a video."""

    fps: float = Field(2.0, gt=0, le=1000, description="Frames taken per second of video.")
    max_frames: int = Field(
        384, ge=1, le=MAX_FRAMES, description="Most frames of one video; a longer one is sampled evenly."
    )


class OrderConfig(_Section):
    """The order of packs over training steps."""

    seed: int = Field(
        0, ge=0, le=2**63 - 1, description="Seed of the order of packs, and of which documents share one."
    )
    window: int = Field(
        64,
        ge=1,
        le=MAX_WINDOW,
        description="Packs in a group of nearly equal cost; data-parallel sizes that divide it have no straggler, and "
        "none is above a million.",
    )


class CostConfig(_Section):
    """Dimensions of the model that will train; they weigh attention, linear and vision work.

    Defaults: Qwen3-8B with SigLIP 2 so400m, the pair of Molmo2-8B (their model cards).
    """

    hidden_size: Width = Field(4096, description="Width of the decoder.")
    num_layers: Width = Field(36, description="Layers of the decoder.")
    num_attention_heads: Width = Field(32, description="Query heads of the decoder.")
    num_key_value_heads: Width = Field(8, description="Key and value heads of the decoder.")
    head_dim: Width = Field(128, description="Width of a decoder head.")
    intermediate_size: Width = Field(12288, description="Width of the decoder's SwiGLU.")
    vocab_size: Width = Field(151936, description="Rows of the output projection.")
    vision_hidden_size: Width = Field(1152, description="Width of the vision encoder.")
    vision_num_layers: Width = Field(25, description="Layers of the vision encoder that run; Molmo2 drops two of 27.")
    vision_intermediate_size: Width = Field(4304, description="Width of the vision encoder's MLP.")
    attention_tflops: float = Field(
        400.0, gt=0, le=1e9, description="Speed of the attention kernel, to weigh tiles and keys."
    )
    link_gb_per_s: float = Field(50.0, gt=0, le=1e9, description="Bandwidth between ranks, to weigh keys and features.")


class SpecialTokensConfig(_Section):
    """Special tokens, given as text. One that is left out is looked up among the special tokens of the tokenizer."""

    bos: str | None = Field(None, description="Begins a document; omitted if the tokenizer has no such token.")
    eos: str | None = Field(None, description="Ends a document and an assistant turn.")
    image: str | None = Field(
        None,
        description="Placeholder for vision features; without one, a new id after the vocabulary is used.",
    )


class DuplicatesConfig(_Section):
    """What becomes of documents that say or show what an earlier one does."""

    text: Duplicates = Field(
        "keep",
        description="What becomes of documents with the text and media of another: `keep`, `mark` in the kept column "
        "`duplicate_of`, or `drop`.",
    )
    near: float | None = Field(
        None,
        ge=0.5,
        le=1,
        description="Least estimated similarity of texts that count as the same, such as 0.8; null: equal ones.",
    )
    images: Duplicates = Field(
        "keep", description="The same of documents that show the images of another, by their pixels, whatever the text."
    )

    @property
    def is_asked(self) -> bool:
        """Whether any document is compared."""
        return (self.text, self.images) != ("keep", "keep")

    @model_validator(mode="after")
    def _near_needs_text(self) -> DuplicatesConfig:
        if self.near is not None and self.text == "keep":
            raise ValueError(f"duplicates.near {self.near:g} says when texts are the same; set duplicates.text, too")
        return self


class PhaseConfig(_Section):
    """A phase of the run. Weights are relative to each other and to those of the other phases."""

    until: float = Field(gt=0, le=1, description="Where it ends, as a share of the run's tokens.")
    weights: Weights = Field((), description="Weights of sources, by name.")


Phases = Annotated[tuple[PhaseConfig, ...], BeforeValidator(_as_tuple), Field(max_length=MAX_PHASES)]


class PackConfig(_Section):
    """Everything that decides the bytes of a dataset, apart from the source and the version of preshard."""

    seq_len: int = Field(36864, ge=1, le=2**27, description="Tokens of a pack.")
    max_images: int | None = Field(384, ge=1, le=2**27, description="Most crops in a pack; null for no limit.")
    max_patches: int | None = Field(
        None, ge=1, le=2**31, description="Most patches that the vision encoder sees in a pack; null for no limit."
    )
    model: str | None = Field(
        None, min_length=1, description="Model folder that decides tokens, images and positions; null for none."
    )
    chat_template: str | None = Field(
        None, min_length=1, description="Jinja file that writes conversations; null for the tokenizer's own form."
    )
    tokenizer: str = Field("tekken", min_length=1, description="`tekken`, or a tokenizer.json, or a folder with one.")
    special_tokens: SpecialTokensConfig = Field(SpecialTokensConfig(), description="Special tokens, given as text.")
    vision: VisionConfig = Field(VisionConfig(), description="The vision encoder's input.")
    images: ImagesConfig = Field(ImagesConfig(), description="How still images are read and scaled.")
    video: VideoConfig = Field(VideoConfig(), description="How frames are sampled from a video.")
    decoder_mib: int = Field(
        512, ge=256, le=2**20, description="Memory of a task's decoder; a file that needs more is rejected."
    )
    image_format: Literal["jpeg", "png"] = Field("jpeg", description="How crops are stored.")
    jpeg_quality: int = Field(90, ge=1, le=100, description="Quality of stored JPEG crops.")
    bidirectional: Literal["within_image", "image_tokens", "none"] = Field(
        "within_image", description="Which image tokens see each other in both directions."
    )
    annotation_weight: Literal["none", "sqrt"] = Field(
        "none", description="`sqrt`: each of n annotations weighs 1/sqrt(n)."
    )
    form: str = Field(
        "auto", min_length=1, description="Form of the rows: `auto`, a form's name, or `package.module:function`."
    )
    ignore: Names = Field((), description="Patterns of files in a source's folders that are left out.")
    split: str | None = Field(
        None,
        min_length=1,
        description="Splits that are packed of folders that hold several: a name, `train+test`, `all`.",
    )
    source: Literal["from_row", "from_file"] = Field(
        "from_row", description="Whether the row's column `source` names its source, or the name of its file does."
    )
    ignore_columns: Names = Field((), description="Columns of the source that are left out.")
    ignore_fields: IgnorableFields = Field(
        (), description="Fields beside the content of messages that are left out, as if no row had them."
    )
    token_columns: TokenColumns = Field(
        (),
        description="Columns of numbers for each token, by type: `{logprobs: float32, teacher: float32 x 8 or 0}`.",
    )
    keep_columns: KeptColumns = Field(
        (), description="Columns that documents keep, by type: `{quality: float, licence: string, n: int, ok: bool}`."
    )
    where: str | None = Field(
        None,
        min_length=1,
        max_length=10_000,
        description="Rows that are packed: a DuckDB expression over their columns, such as `quality > 0.5`.",
    )
    duplicates: DuplicatesConfig = Field(
        DuplicatesConfig(), description="What becomes of documents that repeat others."
    )
    turns: Literal["whole", "last", "each"] = Field(
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
    curriculum: Phases = Field(
        (),
        description="Phases of the run, each until a share of its tokens, and how sources weigh in it: "
        "`[{until: 0.2, weights: {web: 3}}, {until: 1.0, weights: {chat: 2}}]`; 1 if not named.",
    )
    epochs: int = Field(
        1, ge=1, le=MAX_EPOCHS, description="How often every document is packed, each time with other neighbours."
    )
    cp_sizes: Degrees = Field((1, 2, 4, 8), description="CP sizes for which image boundaries are stored.")
    ring_degrees: Degrees = Field((1, 2, 4, 8), description="Ring degrees for which token layouts are stored.")
    layouts: Schemes = Field(SCHEMES, min_length=1, description="Token layout schemes.")
    block_size: int = Field(128, ge=1, le=2**20, description="Tokens of a block of the balanced schemes.")
    packs_per_shard: int = Field(16, ge=1, le=MAX_PACKS_PER_SHARD, description="Packs in one tar file.")
    order: OrderConfig = Field(OrderConfig(), description="The order of packs over training steps.")
    cost: CostConfig = Field(CostConfig(), description="Dimensions of the model that will train.")

    @property
    def alignment(self) -> int:
        """Documents begin at multiples of this, since zigzag cuts each one into ``2 * ring_degree`` equal chunks."""
        return 2 * math.lcm(*self.ring_degrees) if "zigzag" in self.layouts else 1

    @property
    def columns_of_tokens(self) -> tuple[TokenColumn, ...]:
        """The columns of tokens, in the order in which they are stored."""
        return token_columns_of(self.token_columns)

    @property
    def columns_read(self) -> frozenset[str]:
        """Columns of rows that are read whatever the form."""
        return frozenset(name for name, _ in (*self.token_columns, *self.keep_columns))

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
        taken = {*DOCUMENT_COLUMNS, *dict(self.token_columns)}
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
        """What ``seq_len`` is a multiple of, and why."""
        step = math.lcm(*(2 * size for size in self.cp_sizes), *(2 * ring for ring in self.ring_degrees))
        reason = f"2 x each of cp_sizes {list(self.cp_sizes)} and ring_degrees {list(self.ring_degrees)}"
        if any(scheme in BLOCK_SCHEMES for scheme in self.layouts):
            step = math.lcm(step, *(self.block_size * ring for ring in self.ring_degrees))
            reason += f" and block_size {self.block_size} x each of ring_degrees"
        return step, reason

    @model_validator(mode="after")
    def _seq_len_divides(self) -> PackConfig:
        step, reason = self.seq_len_step
        if self.seq_len % step:
            raise ValueError(
                f"seq_len {self.seq_len} does not divide evenly by {reason}; "
                f"nearest that do: {nearest_multiples(self.seq_len, step)}"
            )
        return self


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
        raise ConfigError(_one_line(first_violation(error))) from None


def stored_config(manifest: ManifestHead) -> PackConfig:
    """The configuration that a dataset was packed with. A manifest writes every key out.

    Raises:
        ManifestInvalid: a key is missing or unknown, or a value is not legal.
    """
    try:
        config = parse_config(manifest.config)
    except ConfigError as error:
        raise ManifestInvalid(MANIFEST, f"config.{error}") from None
    if missing := _not_written_out(config.model_dump(mode="json"), manifest.config):
        raise ManifestInvalid(
            MANIFEST,
            f"config.{missing[0]} is not written out; a manifest has every key; if an earlier preshard wrote it, pack "
            "its sources again",
        )
    return config


def _not_written_out(whole: dict[str, Any], stored: dict[str, Any], path: str = "") -> list[str]:
    """Keys of a complete configuration that the stored one lacks or spells differently."""
    missing = []
    for key, value in whole.items():
        if isinstance(value, dict) and isinstance(stored.get(key), dict):
            missing += _not_written_out(value, stored[key], f"{path}{key}.")
        elif key not in stored or stored[key] != value:
            missing.append(f"{path}{key}")
    return missing


def _one_line(violation: Violation) -> str:
    """A violation as ``field: value is wrong, and what is legal``."""
    if violation.is_unknown_key:
        return f"{violation.path}: unknown key; legal here: {', '.join(_legal_keys(violation.place[:-1]))}"
    if violation.is_own:
        return str(violation)
    shown = repr(violation.value)
    shown = shown if len(shown) <= SHOWN_CHARACTERS else f"{shown[:SHOWN_CHARACTERS]}..."
    return f"{violation.path}: {shown} is not legal: {violation.message}"


def _legal_keys(path: Sequence[Any]) -> list[str]:
    model: Any = PackConfig
    for name in path:
        model = model.model_fields[name].annotation
    return list(model.model_fields)
