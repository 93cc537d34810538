"""A decoded video frame as an RGB image of the encoder's size, in integers that are the same on every machine.

FFmpeg's own scaler takes other roundings on other processors unless asked not to, and converts every pixel of the
full frame. Here each plane is first scaled as it is stored (Pillow's fixed-point bicubic filter, whose support grows
with the reduction so that nothing aliases), and only the few pixels that are left are turned into RGB, by tables.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Int32, UInt8
from PIL import Image

# Kr and Kb of the colour matrices (ITU-T H.273, table 4) by FFmpeg's number. FFmpeg, and every loader built on it,
# takes BT.601 for video that does not say.
_BT601 = (0.299, 0.114)
_MATRICES = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 7: (0.212, 0.087), 9: (0.2627, 0.0593), 10: (0.2627, 0.0593)}
_FULL_RANGE, _LIMITED_RANGE = 2, 1
_SHIFT = 16


def frame_to_image(frame: Any, image_size: int) -> Image.Image:
    """Scale a whole frame to a square RGB image, upright as the file's display matrix says.

    The aspect ratio is not kept, as in SigLIP's preprocessing. High bit depths are rounded to 8 bits, without tone
    mapping; an alpha plane is dropped.

    Args:
        frame: a decoded ``av.VideoFrame``.
        image_size: side of the result in pixels.
    """
    planes = _planes(frame)
    if planes is None:
        # RGB and palettes: a shuffle of bytes. What is left are formats for which no decoder of note exists.
        flags = _bitexact()
        rgb = frame.reformat(format="rgb24", interpolation=flags, threads=1)
        image = _plane_image(rgb, 0, "RGB").resize((image_size, image_size), Image.Resampling.BICUBIC, reducing_gap=3.0)
    else:
        scaled = [p.resize((image_size, image_size), Image.Resampling.BICUBIC, reducing_gap=3.0) for p in planes]
        image = Image.fromarray(_to_rgb([np.asarray(plane) for plane in scaled], frame))
    turn = _turn(frame)
    return image if turn is None else image.transpose(turn)


def _bitexact() -> int:
    from av.video.reformatter import Interpolation

    return int(
        Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.BITEXACT | Interpolation.FULL_CHR_H_INT
    )


def _planes(frame: Any) -> list[Image.Image] | None:
    """Luma and chroma as 8-bit images, each in its own size; None when the frame is not stored that way."""
    form = frame.format
    name = form.name
    if name.startswith("nv") or name.startswith("p0"):
        return _planes(frame.reformat(format="yuv420p" if name.startswith("nv") else "yuv420p10le"))
    if not name.startswith(("yuv", "gray")) or name.endswith("be") or (not form.is_planar and name[:4] != "gray"):
        return None
    bits = form.components[0].bits
    count = 1 if name.startswith("gray") else 3
    if bits == 8:
        return [_plane_image(frame, i, "L") for i in range(count)]
    return [_deep_plane(frame.planes[i], bits) for i in range(count)] if bits <= 16 else None


def _plane_image(frame: Any, index: int, mode: str) -> Image.Image:
    plane = frame.planes[index]
    return Image.frombuffer(mode, (plane.width, plane.height), plane, "raw", mode, plane.line_size, 1)


def _deep_plane(plane: Any, bits: int) -> Image.Image:
    rows = np.frombuffer(plane, "<u2").reshape(plane.height, plane.line_size // 2)[:, : plane.width].astype(np.int32)
    drop = bits - 8
    return Image.fromarray(np.minimum((rows + (1 << drop >> 1)) >> drop, 255).astype(np.uint8))


def _to_rgb(planes: list[np.ndarray], frame: Any) -> UInt8[np.ndarray, "height width 3"]:
    name, gray = frame.format.name, len(planes) == 1
    # FFmpeg's decoders leave the range of "yuvj" and of grey frames unsaid: both are full.
    unsaid_full = (name.startswith("yuvj") or gray) and frame.color_range != _LIMITED_RANGE
    full = frame.color_range == _FULL_RANGE or unsaid_full
    luma, red, green_blue, green_red, blue = _tables(_MATRICES.get(frame.colorspace, _BT601), full)
    y = luma[planes[0]]
    if gray:
        return np.repeat(_to_bytes(y)[..., None], 3, axis=-1)
    cb, cr = planes[1], planes[2]
    return np.stack(
        [_to_bytes(y + red[cr]), _to_bytes(y + green_blue[cb] + green_red[cr]), _to_bytes(y + blue[cb])], axis=-1
    )


def _to_bytes(fixed: Int32[np.ndarray, "height width"]) -> UInt8[np.ndarray, "height width"]:
    return np.clip(fixed >> _SHIFT, 0, 255).astype(np.uint8)


@lru_cache(maxsize=16)
def _tables(matrix: tuple[float, float], full: bool) -> tuple[Int32[np.ndarray, "256"], ...]:
    """What each 8-bit value of Y, Cr, Cb, Cr and Cb adds to R, G, G, B in 1/65536, the rounding half in Y's."""
    kr, kb = matrix
    kg = 1 - kr - kb
    offset, y_scale, c_scale = (0, 1.0, 1.0) if full else (16, 255 / 219, 255 / 224)
    one = 1 << _SHIFT
    value, centred = np.arange(256, dtype=np.int64) - offset, np.arange(256, dtype=np.int64) - 128
    factors = [2 * (1 - kr), -2 * kb * (1 - kb) / kg, -2 * kr * (1 - kr) / kg, 2 * (1 - kb)]
    luma = (value * round(y_scale * one) + one // 2).astype(np.int32)
    return luma, *((centred * round(factor * c_scale * one)).astype(np.int32) for factor in factors)


def _turn(frame: Any) -> Image.Transpose | None:
    """How to put a frame upright: the eight quarter turns and mirrorings of a display matrix (ISO/IEC 14496-12,
    6.2.2)."""
    from av.sidedata.sidedata import Type

    try:
        matrix = np.frombuffer(frame.side_data[Type.DISPLAYMATRIX], "<i4")
    except KeyError:
        return None
    a, b, c, d = (int(np.sign(matrix[i])) for i in (0, 1, 3, 4))
    return _TURNS.get((a, b, c, d))


_TURNS = {
    (-1, 0, 0, 1): Image.Transpose.FLIP_LEFT_RIGHT,
    (1, 0, 0, -1): Image.Transpose.FLIP_TOP_BOTTOM,
    (-1, 0, 0, -1): Image.Transpose.ROTATE_180,
    (0, 1, -1, 0): Image.Transpose.ROTATE_270,
    (0, -1, 1, 0): Image.Transpose.ROTATE_90,
    (0, 1, 1, 0): Image.Transpose.TRANSPOSE,
    (0, -1, -1, 0): Image.Transpose.TRANSVERSE,
}
