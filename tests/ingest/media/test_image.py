"""Still images: the number of crops from the header, and the pixels of every mode."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags, Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.families.family import CropShape, Scaling
from preshard.packer_service.ingest.families.folder import SquareFamily, choose_grid
from preshard.packer_service.ingest.media.crops import encode_image
from preshard.packer_service.ingest.media.image import decode_image, probe_image
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.media.shape import ImageSize, PlacedMedium, place
from preshard.packer_service.ingest.text.tokenizer import ImageFormat
from preshard.schemas.errors import DocumentError
from preshard.schemas.sections import VisionConfig


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)  # type: ignore[arg-type]
    return out.getvalue()


def probe(data: bytes, *, image_size: int = 32, max_crops: int = 1) -> PlacedMedium:
    vision = VisionConfig(image_size=image_size, patch_size=image_size, max_crops=max_crops)
    family = SquareFamily(vision, ImageFormat(begin=(), token=0, separator=(), end=()), 1)
    medium = Medium(kind="image", data=data)
    return place(family, medium, *probe_image(medium, MediaReach.of("/")))


def decode(data: bytes, *, image_size: int = 32, max_crops: int = 1) -> list[Image.Image]:
    crops = [crop for _, crop in probe(data, image_size=image_size, max_crops=max_crops).crops()]
    images = decode_image(Medium(kind="image", data=data), MediaReach.of("/"), crops, "reduced")
    assert len(images) == len(crops)
    assert all(image.mode == "RGB" and image.size == (image_size, image_size) for image in images)
    return images


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize(
    ("size", "max_crops", "expected"),
    [
        ((378, 378), 12, (1, 1)),  # its own size
        ((100, 90), 12, (1, 1)),  # enlarging it more gains nothing
        ((756, 378), 12, (1, 2)),
        ((378, 1134), 12, (3, 1)),
        ((1512, 1134), 12, (3, 4)),
        ((1512, 1134), 1, (1, 1)),
        ((600, 400), 8, (1, 2)),  # 1.26 x 1.06 against 1.59 x 1.06
        ((1411, 1411), 8, (2, 2)),  # 2 x 4 has a worse axis as bad, with more tiles
        ((4000, 3000), 9, (3, 3)),  # 3.53 and 2.65; 2 x 4 would be 2.65 and 3.97
    ],
)
def test_grids_by_hand(size: tuple[int, int], max_crops: int, expected: tuple[int, int]) -> None:
    # Fails when an axis is scaled more than it must be, or tiles are spent that gain nothing.
    assert choose_grid(*size, image_size=378, max_crops=max_crops) == expected


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 24))
def test_a_grid_keeps_to_its_limit_and_turns_with_its_image(width: int, height: int, max_crops: int) -> None:
    # Fails when rounding of logarithms decides a tie, or rows and columns are mixed up.
    rows, cols = choose_grid(width, height, image_size=378, max_crops=max_crops)
    assert 1 <= rows * cols <= max_crops
    turned = choose_grid(height, width, image_size=378, max_crops=max_crops)
    assert turned == (cols, rows) or width == height or rows * cols == turned[0] * turned[1]


def test_tiles_are_in_reading_order_and_the_thumbnail_is_last() -> None:
    # Fails when the thumbnail comes first, or tiles run by columns: features would be put on the wrong tokens.
    pixels = np.zeros((64, 96, 3), np.uint8)
    for row in range(2):
        for col in range(3):
            pixels[32 * row : 32 * row + 32, 32 * col : 32 * col + 32] = 40 * (3 * row + col)
    data = encoded(Image.fromarray(pixels), "PNG")
    assert [crop.canvas for _, crop in probe(data, max_crops=6).crops()] == [(96, 64)] * 6 + [(32, 32)]
    *tiles, thumbnail = decode(data, max_crops=6)
    assert [int(np.asarray(tile)[16, 16, 0]) for tile in tiles] == [0, 40, 80, 120, 160, 200]
    assert np.asarray(thumbnail)[4, 4, 0] < 10
    assert np.asarray(thumbnail)[28, 28, 0] > 190
    assert len(probe(data).crops()) == 1


def exif_of(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return exif


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def oriented(orientation: int) -> dict[str, bytes]:
    """A picture that is turned, in files of every format and with the orientation in each of its places."""
    picture, exif = noise(14, 10), exif_of(orientation).tobytes()
    as_attribute = f'<x tiff:Orientation="{orientation}"/>'.encode()
    as_element = f"<tiff:Orientation>{orientation}</tiff:Orientation>".encode()
    profile = b"\nexif\n%8d\n%s\n" % (len(exif), exif.hex().encode())
    files = {
        "TIFF": encoded(picture, "TIFF", tiffinfo={ExifTags.Base.Orientation: orientation}),
        "TIFF by libtiff": encoded(
            picture, "TIFF", tiffinfo={ExifTags.Base.Orientation: orientation}, compression="tiff_lzw"
        ),
        "TIFF, XMP": encoded(picture, "TIFF", tiffinfo={ExifTags.Base.XMLPacket: as_attribute}),
    }
    for kind in ("JPEG", "WEBP", "AVIF"):
        files[kind] = encoded(picture, kind, exif=exif)
        files[f"{kind}, XMP"] = encoded(picture, kind, xmp=as_attribute)
    plain = encoded(picture, "PNG")
    for name, part in {
        "eXIf": chunk(b"eXIf", exif.removeprefix(b"Exif\0\0")),
        "raw profile": chunk(b"tEXt", b"Raw profile type exif\0" + profile),
        "packed profile": chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(profile)),
        "XMP": chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + as_element),
        "packed XMP": chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(as_attribute)),
    }.items():
        files[f"PNG, {name} before"] = plain[:33] + part + plain[33:]
        files[f"PNG, {name} behind"] = plain[:-12] + part + plain[-12:]
    return files


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("scaling", ["reduced", "bicubic"])
def test_every_file_is_turned_once(orientation: int, scaling: Scaling) -> None:
    # Fails when an orientation is not seen in one of its places, mirrored the wrong way, undone twice (Pillow turns
    # TIFFs itself), or not seen by the probe (rows and columns swap).
    base, turned = MediaReach.of("/"), 0
    for name, data in oriented(orientation).items():
        expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
        medium = Medium(kind="image", data=data)
        assert probe_image(medium, base) == [ImageSize(*expected.size)], name
        [found] = decode_image(medium, base, [CropShape.whole(*expected.size)], scaling)
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected), name)
        turned += expected.size == (10, 14)
    assert turned == (19 if orientation >= 5 else 0)


def test_a_frame_that_is_turned_is_the_same_measured_and_written() -> None:
    # Fails when an orientation behind the frames of an APNG is read at one of both times alone.
    frames = [noise(14, 10), noise(14, 10).transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
    plain = encoded(frames[0], "PNG", save_all=True, append_images=frames[1:])
    late = chunk(b"eXIf", exif_of(6).tobytes().removeprefix(b"Exif\0\0"))
    for data, size in ((plain[:33] + late + plain[33:], (10, 14)), (plain[:-12] + late + plain[-12:], (14, 10))):
        medium = Medium(kind="image", data=data)
        assert probe_image(medium, MediaReach.of("/"), pages="all") == [ImageSize(*size)] * 2
        for number, frame in enumerate(frames):
            upright = frame.transpose(Image.Transpose.ROTATE_270) if size == (10, 14) else frame
            page = replace(medium, page=number)
            [found] = decode_image(page, MediaReach.of("/"), [CropShape.whole(*size)], "bicubic")
            np.testing.assert_array_equal(np.asarray(found), np.asarray(upright))


def png(width: int, height: int, data: bytes = b"", depth: int = 8) -> bytes:
    """A PNG of colours, of rows that Pillow does not write, or that are not there."""
    body = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", body) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def flat(mode: str, colour: object, **info: object) -> bytes:
    kind = "TIFF" if mode in ("I", "F", "CMYK", "YCbCr", "LAB") else "PNG"
    return encoded(Image.new(mode, (8, 8), colour), kind, **info)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (flat("1", 1), (255, 255, 255)),
        (flat("L", 100), (100, 100, 100)),
        (flat("LA", (100, 0)), (255, 255, 255)),
        (flat("RGB", (10, 20, 30)), (10, 20, 30)),
        (flat("RGBA", (10, 20, 30, 0)), (255, 255, 255)),
        (flat("RGBA", (0, 0, 0, 51)), (204, 204, 204)),
        (flat("CMYK", (0, 255, 255, 0)), (255, 0, 0)),
        (flat("I;16", 65535), (255, 255, 255)),
        (flat("I;16", 25700), (100, 100, 100)),
        (flat("I;16", 300), (1, 1, 1)),
        (flat("I", 25700), (100, 100, 100)),
        (png(8, 8, zlib.compress((b"\0" + bytes((10, 0, 120, 255, 230, 0)) * 8) * 8), 16), (10, 120, 230)),
        (flat("F", 0.4), (102, 102, 102)),
        (flat("F", float("nan")), (0, 0, 0)),
        (flat("L", 7, transparency=7), (255, 255, 255)),
        (encoded(Image.new("RGB", (8, 8), (9, 8, 7)).quantize(4), "GIF"), (9, 8, 7)),
        (encoded(Image.new("RGB", (8, 8), (90, 80, 70)), "WEBP", lossless=True), (90, 80, 70)),
        (encoded(Image.new("RGB", (8, 8), (90, 80, 70)), "BMP"), (90, 80, 70)),
    ],
)
def test_every_mode_becomes_rgb(data: bytes, expected: tuple[int, int, int]) -> None:
    # Fails when 16 bits are clipped instead of scaled, when transparency turns black, or a mode is refused.
    pixels = np.asarray(decode(data)[0]).astype(int)
    np.testing.assert_allclose(pixels, np.broadcast_to(expected, pixels.shape), atol=1)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("PNG", np.arange(256, dtype=np.uint16)),
        ("TIFF", np.arange(256, dtype=np.int32)),
        ("PPM", np.arange(256, dtype=np.int32)),
        ("TIFF", np.linspace(3.2, 254.7, 256, dtype=np.float32)),
        ("TIFF", np.where(np.arange(256) % 7 == 3, np.nan, np.arange(256)).astype(np.float32)),
    ],
)
def test_deep_greys_that_are_levels_are_taken_as_they_are(kind: str, values: np.ndarray) -> None:
    # Fails when a map of labels or distances in 16 bits, or a picture of floats within 0..255, is stretched or black:
    # the image processors of transformers show a model its values.
    data = encoded(Image.fromarray(values.reshape(16, 16)), kind)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))  # as `transformers` does
    assert np.ptp(expected) > 250
    for scaling in ("reduced", "bicubic"):
        [found] = decode_image(
            Medium(kind="image", data=data), MediaReach.of("/"), [CropShape.whole(16, 16)], cast(Scaling, scaling)
        )
        np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.parametrize(
    ("values", "expected"), [([-1.0, 0.0, 3.0], [0, 64, 255]), ([0, 100_000, 200_000], [0, 128, 255])]
)
def test_values_beyond_any_known_range_use_their_own(values: list[float], expected: list[int]) -> None:
    # Fails when values outside of 0..1 or of 16 bits are clipped to black and white.
    kind = np.float32 if isinstance(values[0], float) else np.int32
    stripes = np.repeat(np.array(values, kind), 32)[None].repeat(96, 0)
    got = np.asarray(decode(encoded(Image.fromarray(stripes), "TIFF"), image_size=96)[0])[48, 16::32, 0]
    np.testing.assert_allclose(got.astype(int), expected, atol=1)


def test_a_large_jpeg_decoded_small_is_the_same_picture() -> None:
    # Fails when decoding at a fraction (for speed) takes a smaller one than the canvas needs.
    smooth = noise(8, 6).resize((1600, 1200), Image.Resampling.BICUBIC)
    data = encoded(smooth, "JPEG", quality=95)
    got = np.asarray(decode(data, image_size=64)[0]).astype(int)
    expected = np.asarray(smooth.resize((64, 64), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(got - expected).mean() < 1.5


PHOTO = noise(120, 90)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"This is text. " * 50, "not an image"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, "not an image"),
        (encoded(PHOTO, "PNG")[:-12], "cut short"),
        (encoded(PHOTO, "PNG")[:900], "cut short"),
        (encoded(PHOTO, "WEBP")[:-40], "not an image|cut short"),
        (png(20_000, 20_000), "above the limit of 178956970 pixels"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", "not an image"),
        (encoded(PHOTO, "TIFF")[:100], "not an image"),  # without its directory
        (encoded(PHOTO, "PDF")[:200], "not a PDF that can be opened"),
    ],
)
def test_what_is_no_image_is_bad(data: bytes, reason: str) -> None:
    # Fails when Pillow's or PDFium's exception escapes, when a hostile header is believed, or PostScript is run.
    with pytest.raises(DocumentError, match=reason) as caught:
        probe(data)
    assert caught.value.code == "bad_image"
    assert str(caught.value).startswith("inline bytes: ")


def saved() -> dict[str, bytes]:
    """A small photograph in every format that Pillow writes."""
    Image.init()
    found = {}
    for name in sorted(Image.SAVE.keys() - {"EPS"}):  # which Pillow reads by running a program
        for mode in ("RGB", "CMYK", "L", "1", "P"):
            try:
                found[name] = encoded(noise(64, 64).convert(mode), name)
                Image.open(io.BytesIO(found[name])).load()
                break
            except Exception:  # a mode that the format does not have, or one that Pillow writes and cannot read
                found.pop(name, None)
    return found


@pytest.mark.filterwarnings("ignore:IM image format:DeprecationWarning")
def test_every_format_of_pillow_is_read_or_said_not_to_be() -> None:
    """Fails when a file that Pillow opens is refused as none that it can, or without a remedy."""
    read, said = set(), {}
    for name, data in saved().items():
        try:
            probe(data)
            read.add(name)
        except DocumentError as error:
            said[name] = str(error)
    assert {name: line for name, line in said.items() if "convert it to" not in line or "Pillow" in line} == {}
    assert read >= {"AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP"}


def test_a_png_that_pillow_refuses_says_why() -> None:
    """Fails when a PNG with a long text, as editors write them, is only "not an image"."""
    text = PngInfo()
    text.add_text("history", "x" * 2_000_000, zip=True)
    with pytest.raises(DocumentError, match="it is a PNG image: Decompressed data too large"):
        probe(encoded(PHOTO, "PNG", pnginfo=text))


def test_a_jpeg_that_is_cut_short_says_so() -> None:
    """Fails when the name of an exception is all that is said of a download that broke off."""
    data = encoded(PHOTO, "JPEG")
    with pytest.raises(DocumentError, match="its pixels cannot be decoded: image file is truncated"):
        decode(data[: len(data) // 2], image_size=64)


def test_a_large_image_is_no_attack() -> None:
    # 10,000 x 10,000 is where Pillow warns, below our limit: where warnings are errors, it must not be a crash.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert probe(png(10_000, 10_000)).shape == ImageSize(10_000, 10_000)


COLOURS = ((200, 40, 40), (40, 200, 40), (40, 40, 200))
"""Colours of the pages of a file, in their order."""


def paged(kind: str) -> bytes:
    pages = [Image.new("RGB", (60 + 20 * number, 90), colour) for number, colour in enumerate(COLOURS)]
    if kind not in ("TIFF", "PDF"):  # all frames of an animation have one size
        pages = [page.resize((60, 90)) for page in pages]
    lossless = {"lossless": True} if kind == "WEBP" else {}
    return encoded(pages[0], kind, save_all=True, append_images=pages[1:], **lossless)


@pytest.mark.parametrize("kind", ["TIFF", "PDF", "GIF", "WEBP", "PNG"])
def test_every_page_of_a_file_is_taken_or_said(kind: str) -> None:
    # Fails when pages behind the first are lost in silence, come in another order, or are all the first one.
    medium, base = Medium(kind="image", data=paged(kind)), MediaReach.of("/")
    with pytest.raises(DocumentError, match=r"has 3 (pages|frames); set images\.pages to all"):
        probe_image(medium, base)
    assert len(probe_image(medium, base, pages="first")) == 1
    sizes = probe_image(medium, base, pages="all", dpi=72)
    assert [size.width for size in sizes] == ([60, 80, 100] if kind in ("TIFF", "PDF") else [60] * 3)
    crop = CropShape.whole(20, 20)
    for number, colour in enumerate(COLOURS):
        [picture] = decode_image(replace(medium, page=number), base, [crop], "reduced", dpi=72)
        shown = picture.getpixel((10, 10))
        assert max(abs(a - b) for a, b in zip(shown, colour, strict=True)) < 12, (number, shown)  # type: ignore[arg-type]


def test_other_pictures_of_a_file_are_no_pages() -> None:
    # Fails when a thumbnail in a TIFF, or the second picture of a camera's JPEG (MPO), asks for images.pages.
    page, small = Image.new("RGB", (80, 60)), Image.new("RGB", (8, 6))
    small.encoderinfo = {"tiffinfo": {254: 1}}
    tiff, mpo = io.BytesIO(), io.BytesIO()
    page.save(tiff, "TIFF", save_all=True, append_images=[small])
    page.save(mpo, "MPO", save_all=True, append_images=[small])
    for data in (tiff.getvalue(), mpo.getvalue()):
        assert Image.open(io.BytesIO(data)).n_frames == 2, "there is no other picture"
        assert probe_image(Medium(kind="image", data=data), MediaReach.of("/"), pages="all") == [ImageSize(80, 60)]


def test_a_picture_that_is_turned_is_held_twice() -> None:
    # Fails when a photograph of 50 megapixels that EXIF turns ends its decoder, or the reject names no cure.
    exif, out = Image.Exif(), io.BytesIO()
    exif[ExifTags.Base.Orientation] = 6
    Image.new("L", (8688, 5792)).save(out, "JPEG", exif=exif)
    medium = Medium(kind="image", data=out.getvalue())
    with pytest.raises(DocumentError, match=r"need about 608 MiB .* decoder_mib 512; set decoder_mib to 1024"):
        probe_image(medium, MediaReach.of("/"), full_size=True)
    assert probe_image(medium, MediaReach.of("/")) == [ImageSize(5792, 8688)], "decoded small, it fits"
    assert probe_image(medium, MediaReach.of("/"), full_size=True, decoder_mib=1024) == [ImageSize(5792, 8688)]


@pytest.mark.parametrize("kind", ["JPEG", "BMP", "PPM", "PNG"])
def test_broken_pixels_fail_to_decode(kind: str) -> None:
    # Fails when a picture that is half grey, or a PNG of whole chunks of which one is damaged, is stored as if it were
    # sound.
    data = encoded(PHOTO, kind)
    middle = len(data) // 2
    cut = data[:middle] + (bytes(40) + data[middle + 40 :] if kind == "PNG" else b"")
    assert len(probe(cut).crops()) == 1, "the damage is not in the pixels alone"
    with pytest.raises(DocumentError, match="pixels cannot be decoded") as caught:
        decode(cut)
    assert caught.value.code == "decode_failed"


def test_the_probe_reads_no_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    # Fails when measuring a source costs a decode of every image in it.
    data = encoded(PHOTO, "PNG")

    def refuse(*_: object) -> None:
        raise AssertionError("load was called")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", refuse)
    assert len(probe(data, max_crops=4).crops()) > 1


def test_encoding() -> None:
    # Fails when a clock or metadata enters the bytes, or the quality is not heard.
    crop = noise(32, 32)
    crop.info["comment"] = b"secret"
    png = encode_image(crop, image_format="png", jpeg_quality=1)
    assert (np.asarray(Image.open(io.BytesIO(png))) == np.asarray(crop)).all()
    small, large = (encode_image(crop, image_format="jpeg", jpeg_quality=quality) for quality in (30, 95))
    assert len(small) < len(large)
    assert encode_image(noise(32, 32), image_format="jpeg", jpeg_quality=95) == large
    assert b"secret" not in large
