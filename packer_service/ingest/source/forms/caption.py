"""The form ``caption``: one or several images or videos and a text about them, with loss on all of the text."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from preshard.packer_service.ingest.document import Document, MediumKind
from preshard.packer_service.ingest.source.forms.fields import bad, string
from preshard.packer_service.ingest.source.forms.fill import MEDIA_COLUMNS, PLACEHOLDERS, Supply
from preshard.packer_service.ingest.source.forms.form import Form
from preshard.packer_service.ingest.source.forms.media import kind_by_name
from preshard.schemas.errors import DocumentError

TEXTS = ("caption", "text", "txt", "description")
"""Names of the text's column, the one that is taken first in front; img2dataset has both ``caption`` and ``txt``."""
PATHS = ("file_name", "image_path", "video_path")
"""Names of columns with the path of one file; ``file_name`` is that of the ``metadata.jsonl`` of an image folder."""
COLUMNS = (*TEXTS, *MEDIA_COLUMNS, *PATHS)


def _fits(columns: Collection[str]) -> bool:
    return any(name in columns for name in TEXTS) and any(name in columns for name in (*MEDIA_COLUMNS, *PATHS))


def _parse(row: dict[str, Any]) -> Document:
    name = next((name for name in TEXTS if name in row), None)
    if name is None:
        bad(f"has none of {', '.join(TEXTS)}; give one")
    text = string(row[name], name)
    others = [other for other in TEXTS if other in row and other != name and row[other] != text]
    if others:
        bad(f"{name} and {others[0]} are two different texts; leave one of them out")
    if not text.strip():
        raise DocumentError("empty", f"{name} is empty")
    supply = Supply.of(row, _paths(row))
    if not supply.columns:
        return Document(text=text)  # a row of text among rows with media
    marked = text if any(PLACEHOLDERS[kind] in text for kind in supply.columns) else _in_front(supply) + text
    parts = supply.into((marked,), name)
    supply.finish()
    return Document(interleaved=parts)


def _in_front(supply: Supply) -> str:
    """Places for all images, and then for all videos."""
    return "".join(PLACEHOLDERS[kind] * len(supply.media[kind]) for kind in supply.columns)


def _paths(row: dict[str, Any]) -> dict[str, MediumKind]:
    """The columns of :data:`PATHS` that the row has, each with the kind of its file."""
    kinds: dict[str, MediumKind] = {"image_path": "image", "video_path": "video"}
    return {name: kinds.get(name) or kind_by_name(row[name]) for name in PATHS if name in row}


FORM = Form(
    name="caption", title="images or videos with a caption", columns=frozenset(COLUMNS), fits=_fits, parse=_parse
)
