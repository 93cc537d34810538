"""Pictures of every mode, format and orientation, against Pillow and what the image processors show a model.

``PIL.ImageOps.exif_transpose`` says how a picture stands, and the conversion of ``transformers``' processors which
levels it has: transparency over white, then RGB. Greys that do not fit 8 bits are scaled here, so only their size and
their order from dark to light are compared. A TIFF of several pages is turned by loading it alone, which
``exif_transpose`` does not see.
"""

from __future__ import annotations

import io
import random
import struct
import zlib
from pathlib import Path

import numpy as np
from files import Case
from PIL import ExifTags, Image, ImageOps

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.families.family import CropShape
from preshard.packer_service.ingest.media.image import decode_image, probe_image
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.media.shape import ImageSize
from preshard.schemas.errors import DocumentError

FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "AVIF", "GIF", "BMP", "PPM", "JPEG2000")
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I;16", "I;16B", "I", "F")
COMPRESSIONS = (None, "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")
PLACES = (
    "none",
    "exif",
    "xmp",
    "xmp element",
    "raw profile",
    "packed profile",
    "late exif",
    "late xmp",
    "late profile",
)


def draw(seed: int, folder: Path) -> Case:
    rng = random.Random(seed)
    while True:
        kind, mode, orientation = rng.choice(FORMATS), rng.choice(MODES), rng.randint(0, 9)
        place = rng.choice(PLACES)
        try:
            data = _file(rng, kind, _picture(rng, mode), orientation, place)
            with Image.open(io.BytesIO(data)) as image:
                ImageOps.exif_transpose(image)
        except Exception:  # Pillow does not write, or turn, this mode in this format
            continue
        path = folder / f"f.{kind.lower()}"
        path.write_bytes(data)
        return Case(kind=f"{kind}, {mode}", files=(path,))


def _picture(rng: random.Random, mode: str) -> Image.Image:
    size = (rng.randint(1, 40), rng.randint(1, 40))
    noise = np.random.default_rng(rng.getrandbits(32))
    if mode in ("I;16", "I;16B", "I", "F"):
        largest = rng.choice([1, 2, 255, 255, 300, 65535])
        values = noise.integers(0, largest + 1, size[::-1])
        if mode == "F":
            scale = rng.choice([1, 1, 1 / largest])
            return Image.fromarray((values * scale - rng.choice([0, 0, 1])).astype(np.float32))
        kind = {"I;16": "<u2", "I;16B": ">u2", "I": "<i4"}[mode]
        return Image.fromarray((values - rng.choice([0, 1]) * (mode == "I")).astype(kind))
    image = Image.fromarray(noise.integers(0, 256, (*size[::-1], 4), dtype=np.uint8), "RGBA")
    if mode in ("RGBA", "LA", "PA"):
        return image.convert("LA" if mode == "LA" else "RGBA").convert(mode)
    return image.convert("RGB").convert(mode)


def _file(rng: random.Random, kind: str, image: Image.Image, orientation: int, place: str) -> bytes:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    packed = exif.tobytes()
    xmp = f'<x tiff:Orientation="{orientation}"/>'.encode()
    if place.endswith("element"):
        xmp = f"<tiff:Orientation>{orientation}</tiff:Orientation>".encode()
    options: dict[str, object] = {}
    if kind in ("WEBP", "AVIF", "JPEG", "PNG") and place == "exif":
        options["exif"] = packed
    if kind in ("WEBP", "AVIF", "JPEG") and place.startswith("xmp"):
        options["xmp"] = xmp
    if kind == "TIFF":
        options["compression"] = rng.choice(COMPRESSIONS)
        options["tiffinfo"] = {
            "exif": {ExifTags.Base.Orientation: orientation},
            "xmp": {ExifTags.Base.XMLPacket: xmp},
        }.get(place.split(maxsplit=1)[0], {})
    if kind == "WEBP":
        options["lossless"] = rng.random() < 0.5
    if kind == "JPEG":
        options |= {"quality": rng.randint(50, 100), "progressive": rng.random() < 0.5}
    if kind in ("PNG", "GIF") and image.mode in ("1", "L", "P", "RGB", "I;16") and rng.random() < 0.4:
        options["transparency"] = (0, 0, 0) if image.mode == "RGB" else rng.randrange(4)
    if kind in ("PNG", "GIF", "WEBP", "TIFF") and rng.random() < 0.1:
        options |= {"save_all": True, "append_images": [image.copy()]}
    out = io.BytesIO()
    image.save(out, kind, **options)  # type: ignore[arg-type]
    data = out.getvalue()
    if kind != "PNG" or place in ("none", "exif"):
        return data
    profile = b"\nexif\n%8d\n%s\n" % (len(packed), packed.hex().encode())
    chunk = {
        "exif": (b"eXIf", packed.removeprefix(b"Exif\0\0")),
        "xmp": (b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp),
        "raw": (b"tEXt", b"Raw profile type exif\0" + profile),
        "profile": (b"tEXt", b"Raw profile type exif\0" + profile),
        "packed": (b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(profile)),
    }[place.removeprefix("late ").split()[0]]
    part = struct.pack(">I", len(chunk[1])) + b"".join(chunk) + struct.pack(">I", zlib.crc32(b"".join(chunk)))
    at = len(data) - 12 if place.startswith("late") else 33
    return data[:at] + part + data[at:]


def shown(image: Image.Image) -> Image.Image:
    """An opened picture as the processors of ``transformers`` show it."""
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def is_scaled(image: Image.Image) -> bool:
    """Whether greys do not fit 8 bits."""
    if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
        return False
    values = np.asarray(image)
    return bool(values.min() < 0 or values.max() > 255 or (image.mode == "F" and values.max() < 2))


def judge(case: Case) -> list[str]:
    [path] = case.files
    medium, base = Medium(kind="image", uri=path.name), MediaReach.of(str(path.parent))
    # Not by its path: Pillow 13 maps a plain TIFF into memory then, with rows as long as those of the turned one.
    with Image.open(io.BytesIO(path.read_bytes())) as opened:
        what = f"{opened.format} {opened.mode} {opened.size} {sorted(opened.info)}"
        if opened.format == "TIFF" and getattr(opened, "n_frames", 1) > 1:
            opened.seek(0)
            opened.load()
            upright = opened.copy()
        else:
            upright = ImageOps.exif_transpose(opened)
    try:
        expected = np.asarray(shown(upright)).astype(int)
    except ValueError as error:  # Pillow has no way from LAB to RGB
        return [] if "conversion" in str(error) else [f"{what}: {error}"]
    try:
        sizes = probe_image(medium, base, pages="first")
    except DocumentError as error:
        return [f"{what}: refused: {error}"]
    if sizes != [ImageSize(*upright.size)]:
        return [f"{what}: {sizes} is not {upright.size}"]
    crop, wrong = CropShape.whole(*upright.size), list[str]()
    for scaling in ("bicubic", "reduced"):
        try:
            [found] = decode_image(medium, base, [crop], scaling)  # type: ignore[arg-type]
        except DocumentError as error:
            wrong.append(f"{what}: {scaling}: {error}")
            continue
        levels = np.asarray(found).astype(int)
        if is_scaled(upright):
            order = np.argsort(np.asarray(upright), axis=None, kind="stable")
            fault = "in another order" if (np.diff(levels[..., 0].ravel()[order]) < 0).any() else None
        else:
            apart = np.abs(levels - expected)
            fault = f"{apart.max()} levels apart" if apart.any() else None
        wrong += [f"{what}: {scaling}: {fault}"] if fault else []
    return wrong
