"""Pages of a PDF as pictures, by PDFium; the same pixels on every machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from PIL import Image

from preshard.packer_service.ingest.media.reach import MediaFile
from preshard.packer_service.ingest.media.shape import ImageSize
from preshard.schemas.errors import DocumentError

POINTS_PER_INCH = 72
SIGNATURE = b"%PDF-"
MAX_PAGES = 10_000
"""Most pages or frames of a file; every one of them has a header to be read."""


def is_pdf(file: MediaFile) -> bool:
    """Whether a file is a PDF, by its content."""
    file.seek(0)
    return file.read(len(SIGNATURE)) == SIGNATURE


def page_sizes(file: MediaFile, dpi: int, pages: str) -> list[ImageSize]:
    """Width and height of each page that is taken.

    Args:
        file: the PDF.
        dpi: pixels per inch.
        pages: ``reject``, ``first`` or ``all``.

    Raises:
        DocumentError: ``bad_image``: it cannot be opened, has no page, or several where these are rejected.
    """
    with _opened(file, "bad_image") as pdf:
        count = len(pdf)
        if not 0 < count <= MAX_PAGES:
            raise DocumentError("bad_image", f"{file.label}: has {count} pages; legal are 1 to {MAX_PAGES}")
        if count > 1 and pages == "reject":
            raise several_pages(file.label, f"{count} pages")
        return [_size(pdf, number, dpi) for number in range(1 if pages == "first" else count)]


def several_pages(label: str, found: str, otherwise: str = "") -> DocumentError:
    """The reject of a file with several pages, of which none is lost in silence."""
    remedy = f"set images.pages to all, which makes an image of each, or to first{otherwise}"
    return DocumentError("bad_image", f"{label}: has {found}; {remedy}")


def rendered_page(file: MediaFile, number: int, dpi: int) -> Image.Image:
    """A page as an RGB picture, with what is filled into its forms, on white.

    Raises:
        DocumentError: ``decode_failed``: it is not there, or cannot be drawn.
    """
    with _opened(file, "decode_failed") as pdf:
        pdf.init_forms()
        image: Image.Image = pdf[number].render(scale=dpi / POINTS_PER_INCH, rev_byteorder=True).to_pil()
        return image.convert("RGB")  # a copy: the bitmap's memory ends with the document


def _size(pdf: Any, number: int, dpi: int) -> ImageSize:
    width, height = (max(1, math.ceil(side * (dpi / POINTS_PER_INCH))) for side in pdf.get_page_size(number))
    return ImageSize(width, height)


@contextmanager
def _opened(file: MediaFile, code: str) -> Iterator[Any]:
    pdfium = _library()
    file.seek(0)
    try:
        with pdfium.PdfDocument(file.file) as pdf:
            yield pdf
    except pdfium.PdfiumError as error:
        reason = "it needs a password" if "password" in str(error).lower() else str(error)
        raise DocumentError(code, f"{file.label}: not a PDF that can be opened ({reason})") from error


@cache
def _library() -> Any:
    """PDFium. It draws text whose font is not in the file with its own fonts, whatever this machine has."""
    import pypdfium2  # only who has a PDF waits for it
    import pypdfium2.raw

    pypdfium2.raw.FPDF_SetSystemFontInfo(None)
    return pypdfium2
