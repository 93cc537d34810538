"""Strange files are packed as what they show: known pixels and times, read back from a shard."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from preshard.packer_service.config import load_config
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor

SIDE = 28
SETTINGS = [
    *("seq_len=256", f"vision.image_size={SIDE}", "vision.pool_size=2", "image_format=png", "video.fps=2"),
    "images.pages=first",
    *("layouts=[contiguous]", "cp_sizes=[1]", "ring_degrees=[1]", "block_size=128"),
]
UHLD = {"upper left": (7, 7), "upper right": (7, 20), "lower left": (20, 7), "lower right": (20, 20)}

Crops = list[tuple[float | None, np.ndarray]]


@pytest.fixture
def pack_one(tmp_path: Path, progress: Any) -> Callable[[str, bytes], Crops]:
    """Packs one file as a document, and returns each stored crop with its time."""

    def run(name: str, data: bytes) -> Crops:
        kind = "video" if name.endswith((".mkv", ".mp4", ".mov")) else "image"
        (tmp_path / name).write_bytes(data)
        content = [{"type": kind, kind: name}]
        turns = [{"role": "user", "content": content}, {"role": "assistant", "content": "It is."}]
        (tmp_path / "row.jsonl").write_text(json.dumps({"id": name, "messages": turns}), encoding="utf-8")
        out = tmp_path / "dataset"
        pack([str(tmp_path / "row.jsonl")], str(out), load_config(None, SETTINGS), PlainExecutor(), progress)
        with tarfile.open(next((out / "shards").glob("*.tar"))) as tar:
            members = {member.name.partition(".")[2]: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
        times = [image["timestamp"] for image in json.loads(members["json"])["images"]]
        images = [np.asarray(Image.open(io.BytesIO(members[f"{i:04d}.png"]))).astype(int) for i in range(len(times))]
        return list(zip(times, images, strict=True))

    return run


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)  # type: ignore[arg-type]
    return out.getvalue()


def quadrants() -> np.ndarray:
    """Brightness 240, 160, 80 and 0 in reading order."""
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[:24, :32], pixels[:24, 32:], pixels[24:, :32] = 240, 160, 80
    return pixels


def frame(pixels: np.ndarray, pix_fmt: str = "rgb24") -> Any:
    return av.VideoFrame.from_ndarray(pixels, format=pix_fmt)


def corners(crop: np.ndarray) -> list[int]:
    return [int(crop[place][0]) for place in UHLD.values()]


def flat(mode: str, colour: object) -> Image.Image:
    return Image.new(mode, (40, 30), colour)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("half_clear.png", encoded(flat("RGBA", (0, 0, 0, 128)), "PNG"), (127, 127, 127)),
        ("clear.webp", encoded(flat("RGBA", (200, 0, 0, 0)), "WEBP", lossless=True, exact=True), (255, 255, 255)),
        ("deep.png", encoded(Image.fromarray(np.full((30, 40), 128 * 257, np.uint16)), "PNG"), (128, 128, 128)),
        ("ink.tif", encoded(flat("CMYK", (255, 0, 0, 0)), "TIFF"), (0, 255, 255)),
        ("float.tif", encoded(flat("F", 0.2), "TIFF"), (51, 51, 51)),
        ("grey.jpg", encoded(flat("L", 77), "JPEG"), (77, 77, 77)),
        ("bits.png", encoded(flat("1", 1), "PNG"), (255, 255, 255)),
        (
            "moving.webp",
            encoded(flat("RGB", (1, 2, 3)), "WEBP", lossless=True, save_all=True, append_images=[flat("RGB", "red")]),
            (1, 2, 3),
        ),
        (
            "moving.png",
            encoded(flat("RGB", (9, 8, 7)), "PNG", save_all=True, append_images=[flat("RGB", "blue")]),
            (9, 8, 7),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_image_of_one_colour(
    pack_one: Callable[[str, bytes], Crops], name: str, data: bytes, expected: tuple[int, int, int]
) -> None:
    # Fails when transparency turns black, 16 bits are clipped, inks are inverted, or a later frame is taken.
    ((time, crop),) = pack_one(name, data)
    assert time is None
    np.testing.assert_allclose(crop, np.broadcast_to(expected, (SIDE, SIDE, 3)), atol=1)


def test_sixteen_bits_a_channel(pack_one: Callable[[str, bytes], Crops], deep_png: Callable[[Any], bytes]) -> None:
    # Fails when the low byte is taken for the pixel.
    ((_, crop),) = pack_one("deep_rgb.png", deep_png(np.full((30, 40, 3), (10, 120, 230), np.uint8)))
    np.testing.assert_allclose(crop, np.broadcast_to((10, 120, 230), (SIDE, SIDE, 3)), atol=1)


def test_a_turned_photograph(pack_one: Callable[[str, bytes], Crops]) -> None:
    # Fails when EXIF is ignored: orientation 6 is shown after a quarter turn clockwise.
    exif = Image.Exif()
    exif[0x0112] = 6
    ((_, crop),) = pack_one("turned.jpg", encoded(Image.fromarray(quadrants()), "JPEG", quality=95, exif=exif))
    np.testing.assert_allclose(corners(crop), [80, 240, 0, 160], atol=4)


@pytest.mark.parametrize(("turn", "expected"), [(90, [160, 0, 240, 80]), (180, [0, 80, 160, 240])])
def test_a_turned_video(
    pack_one: Callable[[str, bytes], Crops], encode_form: Callable[..., bytes], turn: int, expected: list[int]
) -> None:
    # Fails when the display matrix is ignored, or turns the wrong way: its angles count counterclockwise.
    data = encode_form([frame(quadrants())], name="turned.mp4", turn=turn, frames=2, options={"threads": "1"})
    for _, crop in pack_one("turned.mp4", data):
        np.testing.assert_allclose(corners(crop), expected, atol=8)


def test_an_uneven_video(pack_one: Callable[[str, bytes], Crops], encode_form: Callable[..., bytes]) -> None:
    # Fails when frames are taken by number instead of by the time at which they are on the screen.
    times = [0, 300, 400, 450, 480, 1_100, 1_700, 1_710, 2_600]
    pictures = [frame(np.full((48, 64, 3), 20 * number, np.uint8)) for number in range(len(times))]
    data = encode_form(pictures, name="uneven.mkv", times=times, options={"threads": "1"})
    # On the screen at 0, 0.5, 1, 1.5, 2 and 2.5 s are frames 0, 4, 4, 5, 7 and 7: each is stored once.
    crops = pack_one("uneven.mkv", data)
    np.testing.assert_allclose([crop.mean() for _, crop in crops], [0, 80, 100, 140], atol=3)
    assert [time for time, _ in crops] == [0.0, 0.48, 1.1, 1.71]


@pytest.mark.parametrize(
    ("name", "pixels", "pix_fmt", "form", "expected"),
    [
        ("deep.mkv", np.full((48, 64), 128 * 257, np.uint16), "gray16le", {"codec": "ffv1"}, (128, 128, 128)),
        ("clear.mov", np.full((48, 64, 4), (200, 100, 50, 0), np.uint8), "rgba", {"codec": "png"}, (200, 100, 50)),
        ("deep_planes.mkv", np.full((48, 64, 3), 100 * 257, np.uint16), "gbrp16le", {"codec": "ffv1"}, (100, 100, 100)),
    ],
)
def test_a_video_of_an_odd_pixel_format(
    pack_one: Callable[[str, bytes], Crops],
    encode_form: Callable[..., bytes],
    name: str,
    pixels: np.ndarray,
    pix_fmt: str,
    form: dict[str, str],
    expected: tuple[int, int, int],
) -> None:
    # Fails when deep samples are cut off, channels swapped, or an alpha plane that video players ignore hides a frame.
    data = encode_form([frame(pixels, pix_fmt)], name=name, pix_fmt=pix_fmt, frames=2, **form)
    for _, crop in pack_one(name, data):
        np.testing.assert_allclose(crop, np.broadcast_to(expected, (SIDE, SIDE, 3)), atol=2)
