"""The sections of a dataset's configuration, and the types of its values."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from preshard.schemas.keys import Key
from preshard.schemas.read_config import Pixels, Window, as_tuple

MAX_FRAMES = 2**20
"""Six days of video at two frames a second; the times of all frames are computed before any is read."""
MAX_WEIGHT = 1000
"""Most copies of a document in an epoch; each is packed in a pass of its own."""
MAX_PHASES = 100
"""Each has packs of its own."""

Duplicates = Literal["keep", "mark", "drop"]
ImageBackend = Literal["torchvision", "pil"]
"""A backend of image processors, by its name in ``transformers``."""
Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple), Field(max_length=1000)]
CONTENT_FIELDS = frozenset(
    ("content", "from", "image", "role", "text", "tool_calls", "train", "type", "value", "video", "weight")
)
"""Fields of messages and their parts without which they say something else."""


def _can_be_left_out(names: tuple[str, ...]) -> tuple[str, ...]:
    if found := sorted(CONTENT_FIELDS.intersection(names)):
        raise ValueError(f"{found[0]} is what a message says; leave out its row or column instead")
    return names


IgnorableFields = Annotated[Names, AfterValidator(_can_be_left_out)]


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

STORED_WORK = Key(stored="the vision encoder's work on each image is stored with the documents")
"""Key of the encoder's dimensions, which change nothing once a model's own have been used."""


class ConfigSection(BaseModel):
    """Keys that stand together: frozen, and checked as a whole."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class VisionConfig(ConfigSection):
    """The vision encoder's input. Defaults: SigLIP 2 so400m at 378 pixels with 3 x 3 pooling, as in Molmo 2."""

    image_size: Pixels = Field(378, description="Side of a crop in pixels; every crop is a square.")
    patch_size: Pixels = Field(14, description="Side of the encoder's patch in pixels; divides image_size.")
    pool_size: Pixels = Field(3, description="Patches along one side of a pooling window.")
    max_crops: Annotated[int, Key(plan="a plan knows how many crops each document has, but not their sizes")] = Field(
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


class ImagesConfig(ConfigSection):
    """Reading and scaling of still images."""

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


class VideoConfig(ConfigSection):
    """Sampling of frames from a video."""

    fps: float = Field(2.0, gt=0, le=1000, description="Frames taken per second of video.")
    max_frames: int = Field(
        384, ge=1, le=MAX_FRAMES, description="Most frames of one video; a longer one is sampled evenly."
    )


class OrderConfig(ConfigSection):
    """The order of packs over training steps."""

    seed: int = Field(
        0, ge=0, le=2**63 - 1, description="Seed of the order of packs, and of which documents share one."
    )
    window: Window = Field(
        64,
        description="Packs in a group of nearly equal cost; data-parallel sizes that divide it have no straggler, and "
        "none is above a million.",
    )


class CostConfig(ConfigSection):
    """Dimensions of the model that will train; they weigh attention, linear and vision work.

    Defaults: Qwen3-8B with SigLIP 2 so400m, the pair of Molmo2-8B (their model cards).
    """

    hidden_size: Width = Field(4096, description="Width of the decoder.")
    num_layers: Width = Field(36, description="Layers of the decoder.")
    num_attention_heads: Width = Field(32, description="Query heads of the decoder.")
    num_key_value_heads: Width = Field(8, description="Key and value heads of the decoder.")
    head_dim: Width = Field(
        128, description="Width of a decoder head; the mean of keys' and values', where they differ."
    )
    intermediate_size: Width = Field(12288, description="Width of the decoder's SwiGLU.")
    vocab_size: Width = Field(151936, description="Rows of the output projection.")
    vision_hidden_size: Annotated[Width, STORED_WORK] = Field(1152, description="Width of the vision encoder.")
    vision_num_layers: Annotated[Width, STORED_WORK] = Field(
        25, description="Layers of the vision encoder that run; Molmo2 drops two of 27."
    )
    vision_intermediate_size: Annotated[Width, STORED_WORK] = Field(
        4304, description="Width of the vision encoder's MLP."
    )
    attention_tflops: float = Field(
        400.0, gt=0, le=1e9, description="Speed of the attention kernel, to weigh tiles and keys."
    )
    link_gb_per_s: float = Field(50.0, gt=0, le=1e9, description="Bandwidth between ranks, to weigh keys and features.")


class SpecialTokensConfig(ConfigSection):
    """Special tokens, given as text. One that is left out is looked up among the special tokens of the tokenizer."""

    bos: str | None = Field(None, description="Begins a document; omitted if the tokenizer has no such token.")
    eos: str | None = Field(None, description="Ends a document and an assistant turn.")
    image: str | None = Field(
        None,
        description="Placeholder for vision features; without one, a new id after the vocabulary is used.",
    )
    in_text: Names = Field(
        (), description="Special tokens that rows of a chat template may spell: `['<|box_start|>', '<|box_end|>']`."
    )


class DuplicatesConfig(ConfigSection):
    """Treatment of documents that say or show what an earlier one does."""

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


class PhaseConfig(ConfigSection):
    """A phase of the run. Weights are relative to each other and to those of the other phases."""

    until: float = Field(gt=0, le=1, description="Where it ends, as a share of the run's tokens.")
    weights: Weights = Field((), description="Weights of sources, by name.")


Phases = Annotated[tuple[PhaseConfig, ...], BeforeValidator(as_tuple), Field(max_length=MAX_PHASES)]


def nearest_multiples(value: int, step: int, between: str = " and ") -> str:
    """The positive multiples of ``step`` on either side of a value, for a message, with words ``between`` them."""
    below = value - value % step
    above = below if below == value else below + step
    return f"{below}{between}{above}" if 0 < below < above else f"{above}"
