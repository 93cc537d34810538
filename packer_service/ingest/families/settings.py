"""The files of a model folder, read as ``transformers`` reads them, with nothing in them passed over in silence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from preshard.packer_service.ingest.families.family import Scaling
from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import ENCODER_KEY, VisionEncoder
from preshard.schemas.sections import ImageBackend

CONFIG = "config.json"
PROCESSOR = "processor_config.json"
IMAGE_PROCESSOR = "preprocessor_config.json"
VIDEO_PROCESSOR = "video_preprocessor_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"

Colours = tuple[tuple[float, float, float], tuple[float, float, float]]
"""Mean and standard deviation of red, green and blue, by which pixels between 0 and 1 are normalised."""

CLIP: Colours = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
"""Mean and deviation of CLIP's training images (Radford et al. 2021), which many processors have by default."""

HALVES: Colours = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""Mean and deviation that bring levels to the range from -1 to 1, as SigLIP (Zhai et al. 2023)."""

WITHOUT_EFFECT = frozenset(
    {
        # names of classes and code
        *("image_processor_type", "video_processor_type", "feature_extractor_type", "processor_class", "auto_map"),
        # where and in which order the processor computes, and in what form it returns
        *("device", "disable_grouping", "return_tensors", "return_metadata", "data_format", "input_data_format"),
        *("default_to_square", "max_image_size", "num_channels"),
        # which frames of a video are taken: that is `video.fps` and `video.max_frames` here
        *("do_sample_frames", "fps", "num_frames", "min_frames", "max_frames", "max_fps", "max_duration"),
        *("initial_shift", "frame_sample_mode", "sampling_fps", "video_metadata"),
    }
)
"""Keys of a processor that change nothing of what is made of a picture or of frames already chosen."""

BICUBIC = 3
"""Pillow's number of the filter that the processors of the Qwen-VL models and InternVL scale with."""

BICUBIC_OF: dict[ImageBackend, Scaling] = {"torchvision": "bicubic_16_bits", "pil": "bicubic"}
"""The bicubic filter, as it is in each backend of image processors."""

BACKEND_KEY = "image_backend"
"""Key of a family's settings: a backend normalises stills in its own order of operations, too."""

STEPS = {
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "do_convert_rgb": True,
    "do_center_crop": False,
    "do_pad": False,
}
"""Steps that every family's processor applies to a picture."""


@dataclass(kw_only=True)
class Section:
    """The settings of one processor. A key that is null has its default, as in ``transformers``."""

    where: str
    values: Mapping[str, Any]
    used: set[str] = field(default_factory=set)

    def take(self, name: str, default: Any) -> Any:
        """A setting that the family follows."""
        self.used.add(name)
        value = self.values.get(name)
        return default if value is None else value

    def positive(self, name: str, default: int) -> int:
        """A whole number of at least 1."""
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"model: {name} of {self.where} is {value!r}; a whole number of at least 1 is legal")
        return value

    def numbers(self, name: str, default: tuple[float, float, float]) -> list[float]:
        """One number for each colour."""
        value = self.take(name, list(default))
        values = [value] * 3 if isinstance(value, int | float) else list(value)
        if len(values) != 3:
            raise ConfigError(f"model: {name} of {self.where} is {value!r}; three numbers are legal")
        return [float(number) for number in values]

    def size(self, default: Mapping[str, int]) -> dict[str, int]:
        """``size``, which must have the keys of its default."""
        value = self.take("size", dict(default))
        if not isinstance(value, dict) or not all(isinstance(value.get(key), int) for key in default):
            names = " and ".join(default)
            raise ConfigError(f"model: size of {self.where} is {value!r}; an object with {names} is legal")
        return {key: value[key] for key in default}

    def fixed(self, expected: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        """Settings that must have the one value that the family follows.

        Args:
            expected: the values.
            defaults: the processor's own for keys that are left out, where these are others.

        Raises:
            ConfigError: one has another value.
        """
        for name, value in expected.items():
            found = self.take(name, (defaults or expected).get(name, value))
            if found != value:
                followed = json.dumps(value)
                raise ConfigError(f"model: {name} {json.dumps(found)} of {self.where} is not followed, only {followed}")

    def finish(self) -> None:
        """Every setting was followed, or has no effect.

        Raises:
            ConfigError: there is one more; one that is null or false asks for nothing.
        """
        for name, value in self.values.items():
            if name not in self.used | WITHOUT_EFFECT and value not in (None, False):
                raise ConfigError(
                    f"model: {name} {json.dumps(value)} of {self.where} is not followed; remove it, or pack without it"
                )


class ModelFolder:
    """A folder as Hugging Face's ``save_pretrained`` or a snapshot leaves it; ``sha256`` has each file that was read.

    Raises:
        ConfigError: the folder or its ``config.json`` is missing or not JSON.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sha256: dict[str, str] = {}
        if not path.is_dir():
            raise ConfigError(f"model: {str(path)!r} is not a folder; give a model folder of Hugging Face")
        config = self._read(CONFIG)
        if config is None:
            raise ConfigError(f"model: {str(path)!r} has no {CONFIG}; give a model folder of Hugging Face")
        self.config = config

    @property
    def model_type(self) -> str:
        return str(self.config.get("model_type", ""))

    def processor(self) -> Section:
        """Settings of the processor itself, without its parts."""
        values = self._read(PROCESSOR) or {}
        parts = ("image_processor", "video_processor", "feature_extractor", "tokenizer")
        return Section(where=PROCESSOR, values={name: values[name] for name in values if name not in parts})

    def tokenizer(self) -> Section:
        """Settings of the tokenizer."""
        return Section(where=TOKENIZER_CONFIG, values=self._read(TOKENIZER_CONFIG) or {})

    def image_processor(self, kinds: Collection[str]) -> Section:
        """The image processor, inside the processor's file or in its own; of one of these kinds."""
        return self._part("image_processor", (IMAGE_PROCESSOR,), kinds)

    def video_processor(self, kinds: Collection[str]) -> Section:
        """The video processor, inside the processor's file, in its own, or else the image processor's file."""
        return self._part("video_processor", (VIDEO_PROCESSOR, IMAGE_PROCESSOR), kinds)

    def named_token(self, name: str, default: str) -> str:
        """A special token that the tokenizer has under a name, such as ``image_token``."""
        values = self._read(TOKENIZER_CONFIG) or {}
        extra = values.get("extra_special_tokens")
        given = values.get(name) or (extra.get(name) if isinstance(extra, dict) else None)
        found = given.get("content") if isinstance(given, dict) else given
        return found if isinstance(found, str) else default

    def vision(self, defaults: Mapping[str, Any], name: str = "vision_config") -> dict[str, Any]:
        """The encoder's dimensions: those of ``config.json``, and the class's own for those that it leaves out."""
        given = self.config.get(name)
        values = given if isinstance(given, dict) else {}
        return {key: default if values.get(key) is None else values[key] for key, default in defaults.items()}

    def inputs(
        self,
        encoder: VisionEncoder,
        backend: ImageBackend,
        processors: tuple[Section, Section],
        colours: tuple[Colours, Colours],
    ) -> dict[str, Any]:
        """The settings by which a reader rebuilds the pixels of every family, and knows the encoder.

        Args:
            encoder: the encoder's dimensions.
            backend: of the image processor.
            processors: those of images and of videos.
            colours: their own, where their files leave them out.
        """
        (image, video), (still, moving) = processors, colours
        return {
            ENCODER_KEY: encoder.model_dump(exclude_none=True),
            BACKEND_KEY: backend,
            "image_mean": image.numbers("image_mean", still[0]),
            "image_std": image.numbers("image_std", still[1]),
            "video_mean": video.numbers("image_mean", moving[0]),
            "video_std": video.numbers("image_std", moving[1]),
        }

    def agree(self, section: Section, name: str, value: Any, configured: Any) -> None:
        """A processor must cut patches as the encoder takes them.

        Raises:
            ConfigError: the two differ.
        """
        if value != configured:
            raise ConfigError(
                f"model: {name} {value} of {section.where} differs from {configured} in vision_config of {CONFIG}"
            )

    def _part(self, part: str, names: tuple[str, ...], kinds: Collection[str]) -> Section:
        nested = (self._read(PROCESSOR) or {}).get(part)
        files = [(PROCESSOR, nested), *((name, self._read(name)) for name in names)]
        where, values = next(((name, found) for name, found in files if found is not None), (names[0], None))
        if values is None:
            raise ConfigError(f"model: {str(self.path)!r} has no {where}; give the whole model folder")
        kind = values.get(f"{part}_type")
        if kind is not None and str(kind).removesuffix("Fast") not in kinds:
            raise ConfigError(
                f"model: {part}_type {kind!r} of {where} is not followed for {self.model_type}, only {', '.join(kinds)}"
            )
        return Section(where=where, values=values)

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        if not path.is_file():
            return None
        content = path.read_bytes()
        self.sha256[name] = hashlib.sha256(content).hexdigest()
        try:
            values = json.loads(content)
        except ValueError:
            raise ConfigError(f"model: {str(path)!r} is not JSON") from None
        if not isinstance(values, dict):
            raise ConfigError(f"model: {str(path)!r} is not a JSON object")
        return values
