"""Rows in memory as a table would hold them: pictures and tensors become what a form reads, bytes and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from preshard.schemas.errors import DocumentError

PNG_MODES = ("1", "L", "LA", "P", "RGBA", "I;16")
PICTURE_AXES, CLIP_AXES = 3, 4
"""Dims of a tensor that is a picture ``(3, height, width)``, and of one that is the frames of a video."""


def plain_row(row: Any) -> Any:
    """A row in which pictures are bytes, videos lists of frames, and arrays of numbers lists.

    A picture of PIL is its pixels as they are: what its file said of how to turn them does not count, as in processors
    of ``transformers``.

    Raises:
        DocumentError: ``bad_row``: a tensor is neither numbers nor pictures as bytes; ``bad_image``.
    """
    return {name: _plain(value, str(name)) for name, value in row.items()} if isinstance(row, Mapping) else row


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each, f"{where}.{name}") for name, each in value.items()}
    if isinstance(value, list | tuple):
        is_numbers = bool(value) and type(value[0]) in (int, float)  # of a long document: its form checks each of them
        return list(value) if is_numbers else [_plain(each, f"{where}[{i}]") for i, each in enumerate(value)]
    if isinstance(value, Image.Image):
        return _encoded(value, where)
    return _of_tensor(value, where) if hasattr(value, "shape") and hasattr(value, "dtype") else value


def _of_tensor(value: Any, where: str) -> Any:
    shape, dtype = tuple(value.shape), str(value.dtype).removeprefix("torch.")
    if len(shape) < PICTURE_AXES:
        return value.tolist()  # of a dtype too that NumPy lacks, or from another device
    if dtype != "uint8" or len(shape) > CLIP_AXES or shape[-3] != PICTURE_AXES or 0 in shape:
        raise DocumentError(
            "bad_row",
            f"{where} is a tensor {dtype}{shape}; legal are pictures uint8(3, height, width) and videos "
            "uint8(frames, 3, height, width)",
        )
    array = np.asarray(value.cpu() if hasattr(value, "cpu") else value)
    pictures = [
        _encoded(Image.fromarray(each.transpose(1, 2, 0)), where) for each in array.reshape(-1, *array.shape[-3:])
    ]
    return pictures if array.ndim == CLIP_AXES else pictures[0]


def _encoded(picture: Image.Image, where: str) -> bytes:
    """The pixels of a picture as a file without loss: PPM, which takes no time, PNG, or TIFF for the other modes."""
    file = BytesIO()
    try:
        kept = picture.copy()
        kept.info = {name: value for name, value in picture.info.items() if name == "transparency"}
        form = "PNG" if kept.info or kept.mode in PNG_MODES else "PPM" if kept.mode == "RGB" else "TIFF"
        kept.save(file, form, compress_level=1)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DocumentError(
            "bad_image", f"{where}: the picture of mode {picture.mode} cannot be read: {error}"
        ) from None
    return file.getvalue()
