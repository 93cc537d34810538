"""The family a document is for: squares for a model of one's own, or what a model folder says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preshard.packer_service.ingest.document import MediumKind
from preshard.packer_service.ingest.families.family import CropShape, Family, Mark, Piece, Placement, Rows, UnitShape
from preshard.packer_service.ingest.families.settings import ModelFolder
from preshard.schemas.errors import ConfigError, DocumentError
from preshard.schemas.manifest import UnitKind
from preshard.schemas.model.families import FAMILIES
from preshard.schemas.model.followed import REASONS, check_followed, hidden_window_of
from preshard.schemas.model.languages import LANGUAGES, window_of
from preshard.schemas.sections import ImageBackend, VisionConfig

if TYPE_CHECKING:
    from preshard.packer_service.ingest.text.tokenizer import ImageFormat


@dataclass(frozen=True)
class SquareFamily(Family):
    """Tiles of a still image and its thumbnail are one unit, and so is each frame of a video, after its time stamp.

    Chats are written by the packer itself, so no token holds an image's place.

    Attributes:
        vision: size, patches and pooling of a crop.
        marks: the tokens around and between crops.
        work_per_crop: what the vision encoder does for a crop, in multiplications.
    """

    vision: VisionConfig
    marks: ImageFormat
    work_per_crop: int
    model_type: str = field(default="square", kw_only=True)

    def image(self, width: int, height: int) -> Placement:
        """Tiles in reading order and, if there are several, a thumbnail of the whole."""
        side = self.vision.image_size
        rows, cols = choose_grid(width, height, image_size=side, max_crops=self.vision.max_crops)
        return self._placement([self._unit("image", CropShape.tiled(cols, rows, (side, side)))], [()])

    def video(self, width: int, height: int, timestamps: Sequence[float]) -> Placement:  # noqa: ARG002
        """Each frame as one square crop."""
        side = self.vision.image_size
        units = [self._unit("frame", (CropShape.whole(side, side, frame),)) for frame in range(len(timestamps))]
        return self._placement(units, [(f"{timestamp:.1f}s",) for timestamp in timestamps])

    def _unit(self, kind: UnitKind, crops: tuple[CropShape, ...]) -> UnitShape:
        side, n = self.vision.image_size // self.vision.patch_size, len(crops)
        rows, patches = n * self.vision.pooled_per_crop, n * self.vision.patches_per_crop
        load = n * self.work_per_crop
        return UnitShape(
            kind=kind, grid=(n, side, side), patches=patches, rows=rows, load=load, crops=crops, time_step=0.0
        )

    def _placement(self, units: Sequence[UnitShape], before: Sequence[tuple[str, ...]]) -> Placement:
        pieces: list[Piece] = []
        for number, (unit, texts) in enumerate(zip(units, before, strict=True)):
            pieces += [*texts, *(Mark(number, token) for token in self.marks.begin)]
            for crop in range(len(unit.crops)):
                pieces += [Mark(number, token) for token in self.marks.separator if crop]
                pieces.append(Rows(number, self.vision.pooled_per_crop, self.marks.token))
            pieces += [Mark(number, token) for token in self.marks.end]
        return Placement(pieces=tuple(pieces), units=tuple(units), scaling="reduced")


def choose_grid(width: int, height: int, *, image_size: int, max_crops: int) -> tuple[int, int]:
    """Rows and columns of tiles that show an image nearest to its own resolution.

    The scale of an axis is the larger over the smaller of canvas (``cols`` or ``rows`` times ``image_size``) and image.
    Of all grids of at most ``max_crops`` tiles, the one whose worse axis is scaled least is taken; ties go to fewer
    tiles, then to the grid whose better axis is scaled least, then to fewer rows. This follows the tiling of Molmo
    (Deitke et al. 2024, section 3), except that the image fills its canvas without a border, as a single crop does, and
    tiles do not overlap.
    """

    def rank(grid: tuple[int, int]) -> tuple[Fraction, int, Fraction, int]:
        rows, cols = grid
        scales = [
            Fraction(max(canvas, own), min(canvas, own))
            for canvas, own in ((cols * image_size, width), (rows * image_size, height))
        ]
        return max(scales), rows * cols, min(scales), rows

    grids = ((rows, cols) for rows in range(1, max_crops + 1) for cols in range(1, max_crops // rows + 1))
    return min(grids, key=rank)


_OWN_CONFIGS = ("quantization_config", "compression_config", "per_layer_config")
"""Nested settings that say nothing of a second kind of input."""


def load_module(model_type: str) -> Any:
    """The file of a family that reads images, with its ``read_family`` and its tiny models, ``TINY``."""
    return import_module(f"{__package__}.{FAMILIES[model_type].file}")


@dataclass(frozen=True)
class TextFamily(Family):
    """A causal language model that reads only text, which counts up on one axis and sees what is before it."""

    model_type: str

    def check(self, kinds: Sequence[MediumKind]) -> None:
        """Refuses every image and video.

        Raises:
            DocumentError: ``bad_row``.
        """
        if kinds:
            raise DocumentError("bad_row", f"shows media ({kinds[0]}), and the model {self.model_type} reads only text")


@dataclass(frozen=True, kw_only=True)
class FolderFamily:
    """A family, and what its folder says.

    Attributes:
        sha256: of the files that decided it.
        config: ``config.json``.
        window: tokens that a layer with a sliding window sees; None if no layer has one.
        hidden_window: the same of layers that do not pass it to attention, so that packs must not be longer.
    """

    family: Family
    sha256: dict[str, str]
    config: Mapping[str, Any]
    window: int | None
    hidden_window: int | None


def load_family(path: str, backend: ImageBackend = "torchvision") -> FolderFamily:
    """The family of a model folder, once per process. No weights are read, and nothing is imported for it.

    Args:
        path: the folder.
        backend: of the image processor whose pixels stills have.

    Raises:
        ConfigError: the folder is not a model folder, its ``model_type`` is of no family, its layers do not keep
            documents apart, its processors have settings that the family does not follow, or it has no image
            processor of this backend.
    """
    return family_at(Path(path).absolute(), path, backend)


@lru_cache(maxsize=2)
def family_at(place: Path, path: str, backend: ImageBackend) -> FolderFamily:  # noqa: ARG001 (one path is many places)
    """The same, kept by the place that the path means in the working folder."""
    folder = ModelFolder(Path(path))
    reads_images = folder.model_type in FAMILIES
    if not reads_images and not _is_text_only(folder):
        if folder.model_type in LANGUAGES and (named := folder.config.get("architectures")):
            raise ConfigError(
                f"model: architectures of config.json is {named}, and packs train {folder.model_type} as a causal "
                "language model: take a folder of one"
            )
        if folder.model_type in REASONS:
            check_followed(folder.config, "model")
        raise ConfigError(
            f"model: model_type {folder.model_type!r} is not supported; what is: {', '.join(FAMILIES)}, and causal "
            "language models that read only text"
        )
    check_followed(folder.config, "model")
    family: Family = TextFamily(folder.model_type)
    if reads_images:
        family = load_module(folder.model_type).read_family(folder, backend)
    return FolderFamily(
        family=family,
        sha256=folder.sha256,
        config=folder.config,
        window=window_of(folder.config),
        hidden_window=hidden_window_of(folder.config),
    )


def _is_text_only(folder: ModelFolder) -> bool:
    """Whether ``config.json`` names a causal language model and holds no configuration of another input."""
    config = folder.config
    nested = [key for key, value in config.items() if isinstance(value, dict) and key.endswith("_config")]
    # one that leaves them out is what its type is by itself
    architectures = config.get("architectures") or ["ForCausalLM"] * (folder.model_type in LANGUAGES)
    return (
        bool(folder.model_type)
        and not config.get("is_encoder_decoder")
        and not set(nested) - set(_OWN_CONFIGS)
        and not {"encoder", "decoder"} & config.keys()
        and any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in architectures)
    )
