"""The demo's photographs and pictures: those of scikit-image, with facts about each."""

from __future__ import annotations

import io
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from preshard.packer_service.demo.packages import package_folder

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
    return [_examine(folder / name, subject) for name, subject in SUBJECTS.items()]


def _examine(path: Path, subject: str) -> DemoPhoto:
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
