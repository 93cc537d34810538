"""Still images of every format, mode and oddity, made from scikit-image's pictures; and headers that lie."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from preshard.packer_service.demo.media import package_folder

HUGE = 30_000
"""Side that lying headers declare: 900 million pixels."""


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)  # type: ignore[arg-type]
    return out.getvalue()


def photographs() -> dict[str, Image.Image]:
    """Real pictures with odd sides, small enough that thousands of them are quickly decoded."""
    folder = package_folder("skimage", "data")
    sizes = {"chelsea.png": (151, 101), "coffee.png": (120, 80), "astronaut.png": (97, 97), "rocket.jpg": (160, 107)}
    return {
        Path(name).stem: Image.open(folder / name).convert("RGB").resize(size, Image.Resampling.BICUBIC)
        for name, size in sizes.items()
    }


def whole_images() -> Iterator[tuple[str, bytes]]:
    """Name and bytes of images that are strange but whole: each must be packed."""
    photos = photographs()
    yield from _common(photos)
    yield from _deep(photos["astronaut"])
    yield from _turned(photos["chelsea"])
    yield from _animated(list(photos.values()))
    for width, height in ((1, 1), (1, 2), (2, 1), (1, 3000), (3000, 1), (3, 5), (127, 1)):
        small = photos["coffee"].resize((width, height))
        for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
            yield f"odd_{width}x{height}.{kind.lower()}", encoded(small, kind)


def _common(photos: dict[str, Image.Image]) -> Iterator[tuple[str, bytes]]:
    for name, photo in photos.items():
        veil = Image.linear_gradient("L").resize(photo.size)
        clear = photo.copy()
        clear.putalpha(veil)
        yield f"{name}.png", encoded(photo, "PNG")
        yield f"{name}.jpg", encoded(photo, "JPEG", quality=88)
        yield f"{name}_progressive.jpg", encoded(photo, "JPEG", progressive=True, subsampling=0)
        yield f"{name}_alpha.png", encoded(clear, "PNG")
        yield f"{name}.webp", encoded(photo, "WEBP", quality=70)
        yield f"{name}_alpha.webp", encoded(clear, "WEBP", lossless=True)
        yield f"{name}_palette.png", encoded(photo.quantize(64), "PNG", transparency=3)
        yield f"{name}.gif", encoded(photo.quantize(128), "GIF")
        for compression in ("raw", "tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits"):
            yield f"{name}_{compression}.tif", encoded(photo, "TIFF", compression=compression)
    photo = photos["rocket"]
    yield "grey.jpg", encoded(photo.convert("L"), "JPEG")
    yield "ink.jpg", encoded(photo.convert("CMYK"), "JPEG")
    yield "ink.tif", encoded(photo.convert("CMYK"), "TIFF")
    yield "lab.tif", encoded(photo.convert("LAB"), "TIFF")
    yield "bits.png", encoded(photo.convert("1"), "PNG")
    yield "fax.tif", encoded(photo.convert("1"), "TIFF", compression="group4")
    yield "plain.bmp", encoded(photo, "BMP")
    yield "plain.ppm", encoded(photo, "PPM")
    yield "plain.jp2", encoded(photo, "JPEG2000")
    yield "plain.avif", encoded(photo, "AVIF", speed=10)


def _deep(photo: Image.Image) -> Iterator[tuple[str, bytes]]:
    grey = np.asarray(photo.convert("L")).astype(np.int32)
    yield "deep.png", encoded(Image.fromarray((grey * 257).astype(np.uint16)), "PNG")
    yield "deep.tif", encoded(Image.fromarray((grey * 257).astype(np.uint16)), "TIFF")
    yield "deep.pgm", encoded(Image.fromarray((grey * 257).astype(np.int32)), "PPM")
    yield "integer.tif", encoded(Image.fromarray(grey * 100_000 - 5_000_000), "TIFF")
    yield "float.tif", encoded(Image.fromarray((grey / 255).astype(np.float32)), "TIFF")
    infinite = (grey / 3 - 20).astype(np.float32)
    infinite[::7], infinite[::11], infinite[::13] = np.inf, -np.inf, np.nan
    yield "infinite.tif", encoded(Image.fromarray(infinite), "TIFF")
    yield "deep_rgb.png", deep_colour_png(np.asarray(photo))


def deep_colour_png(pixels: np.ndarray) -> bytes:
    """16 bits per channel, which Pillow does not write."""
    height, width = pixels.shape[:2]
    rows = (pixels.astype(">u2") * 257).reshape(height, -1)
    raw = b"".join(b"\0" + row.astype(">u2").tobytes() for row in rows)
    return png(width, height, zlib.compress(raw), depth=16)


def _turned(photo: Image.Image) -> Iterator[tuple[str, bytes]]:
    for orientation in (*range(1, 9), 0, 9, 65535):
        exif = Image.Exif()
        exif[0x0112] = orientation
        yield f"turned_{orientation}.jpg", encoded(photo, "JPEG", exif=exif)
        yield f"turned_{orientation}.webp", encoded(photo, "WEBP", exif=exif)
    yield "turned_garbage.jpg", encoded(photo, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff" + bytes(range(64)))


def _animated(photos: list[Image.Image]) -> Iterator[tuple[str, bytes]]:
    frames = [photo.resize((90, 60)) for photo in photos]
    for kind in ("GIF", "PNG", "WEBP", "TIFF", "MPO"):
        yield f"moving.{kind.lower()}", encoded(frames[0], kind, save_all=True, append_images=frames[1:])


def lying_images() -> Iterator[tuple[str, bytes]]:
    """Images whose headers promise what is not there, or whose small files unfold into large memory or long work."""
    photo = photographs()["chelsea"]
    grey = bytes(HUGE // 8 + 1) * 64
    exif = Image.Exif()
    exif[0x0112] = 1
    yield "huge.png", png(HUGE, HUGE, zlib.compress(grey))
    yield "huge_bits.png", png(HUGE, HUGE, zlib.compress(grey), depth=1, colour=0)
    yield "huge.jpg", jpeg_size(encoded(photo, "JPEG"), HUGE, HUGE)
    yield "huge_progressive.jpg", jpeg_size(encoded(photo, "JPEG", progressive=True), HUGE, HUGE)
    yield "widest.jpg", jpeg_size(encoded(photo, "JPEG"), 65500, 2700)
    yield "no_height.jpg", jpeg_size(encoded(photo, "JPEG"), 151, 0)
    yield "huge.gif", b"GIF89a" + struct.pack("<HH", HUGE, HUGE) + encoded(photo.quantize(8), "GIF")[10:]
    yield "huge.bmp", encoded(photo, "BMP")[:18] + struct.pack("<ii", HUGE, HUGE) + encoded(photo, "BMP")[26:]
    yield "upside.bmp", encoded(photo, "BMP")[:18] + struct.pack("<ii", 151, -(2**31)) + encoded(photo, "BMP")[26:]
    yield "huge.ppm", b"P6 %d %d 255\n" % (HUGE, HUGE) + bytes(999)
    yield "endless.ppm", b"P6 " + b"9" * 5000 + b" 1 255\n" + bytes(99)
    yield "huge.tif", tiff_header(HUGE, HUGE)
    yield "huge_strip.tif", tiff_header(8000, 8000)
    yield "huge.webp", _webp_canvas(encoded(photo, "WEBP", exif=exif), 16_384, 16_384)
    yield "huge.tga", struct.pack("<BBBHHBHHHHBB", 0, 0, 2, 0, 0, 0, 0, 0, HUGE, HUGE, 24, 0) + bytes(999)
    yield "icon.ico", encoded(photo.resize((64, 64)), "ICO")
    yield "plain.tga", encoded(photo, "TGA", compression="tga_rle")
    yield "empty_size.png", png(0, 0, zlib.compress(b""))


def _bomb_in_a_chunk(kind: bytes) -> bytes:
    """A small picture with a text or a profile of 300 MiB."""
    return png(9, 9, flat_zlib(9 * 28), before=png_chunk(kind, b"a\0\0" + flat_zlib(300 << 20)))


def _flat(mode: str = "RGB", size: int = 7_000) -> Image.Image:
    return Image.new(mode, (size, size))


BOMBS: dict[str, Callable[[], bytes]] = {
    "bomb_bits.png": lambda: png(13_000, 13_000, flat_zlib(13_000 * (13_000 // 8 + 1)), depth=1, colour=0),
    "bomb_rgb.png": lambda: png(8_000, 8_000, flat_zlib(8_000 * 24_001)),
    "bomb_rgba.png": lambda: png(8_000, 8_000, flat_zlib(8_000 * 32_001), colour=6),
    "bomb_deep.png": lambda: png(8_000, 8_000, flat_zlib(8_000 * 16_001), depth=16, colour=0),
    "bomb_limit.png": lambda: png(13_000, 13_000, flat_zlib(13_000 * 39_001)),
    "bomb_text.png": lambda: _bomb_in_a_chunk(b"zTXt"),
    "bomb_profile.png": lambda: _bomb_in_a_chunk(b"iCCP"),
    "bomb.webp": lambda: encoded(_flat(), "WEBP", lossless=True, quality=0, method=0),
    "bomb_progressive.jpg": lambda: encoded(_flat(), "JPEG", progressive=True, quality=10),
    "bomb_lzw.tif": lambda: encoded(_flat(), "TIFF", compression="tiff_lzw"),
    "bomb.gif": lambda: encoded(_flat("P"), "GIF"),
    "bomb.jp2": lambda: encoded(_flat(size=3_000), "JPEG2000"),
}
"""Small files, large pictures: whole ones below the limit are packed, within the memory of a task. Slow to make."""


def png(
    width: int, height: int, data: bytes, *, depth: int = 8, colour: int = 2, before: bytes = b"", interlace: int = 0
) -> bytes:
    """A PNG from its header's fields and its compressed rows."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    chunks = png_chunk(b"IHDR", header) + before + png_chunk(b"IDAT", data) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def flat_zlib(size: int) -> bytes:
    """``size`` zero bytes, compressed, without ever being in memory at once."""
    compressor = zlib.compressobj(1)
    block = bytes(1 << 20)
    parts = [compressor.compress(block) for _ in range(size >> 20)]
    return b"".join([*parts, compressor.compress(bytes(size & 0xFFFFF)), compressor.flush()])


def jpeg_size(data: bytes, width: int, height: int) -> bytes:
    """A JPEG whose frame header gives a wrong size."""
    at = next(data.index(mark) for mark in (b"\xff\xc0", b"\xff\xc2") if mark in data)
    return data[: at + 5] + struct.pack(">HH", height, width) + data[at + 9 :]


def tiff_header(width: int, height: int) -> bytes:
    """A TIFF of one uncompressed strip that is not there."""
    tags = ((256, width), (257, height), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, height), (279, 999))
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags)) + entries + bytes(1003)


def _webp_canvas(data: bytes, width: int, height: int) -> bytes:
    at = data.index(b"VP8X") + 12
    return data[:at] + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little") + data[at + 6 :]
