"""Forms with loss on all of their text: pre-training text, captions, and web pages of OBELICS and MMC4."""

from __future__ import annotations

from typing import Any

from preshard.packer_service.ingest.document import Document, Medium, MediumKind, Part
from preshard.packer_service.ingest.source.forms.fields import bad, listed, parsed_json, shown, strict_object, string
from preshard.packer_service.ingest.source.forms.fill import PLACEHOLDERS, Supply
from preshard.packer_service.ingest.source.forms.media import kind_by_name, reference
from preshard.schemas.errors import DocumentError

TEXTS = ("text", "content", "raw_content", "contents", "body", "txt")
"""Names of a text's column, the usual one first: RedPajama has ``raw_content``, collections of code ``content``."""

CAPTIONS = ("caption", "text", "txt", "description")
"""Names of a caption's column, the one that is taken first in front; img2dataset has both ``caption`` and ``txt``."""
PATHS = ("file_name", "image_path", "video_path")
"""Names of columns with the path of one file; ``file_name`` is that of the ``metadata.jsonl`` of an image folder."""

OBELICS, MMC4 = ("texts", "images"), ("text_list", "image_info")
FILE_KEYS = ("image", "path", "bytes", "image_name", "raw_url", "url")
"""Keys of an entry of ``image_info`` that can say where its image is; the first that is there wins, since MMC4 gives
the name of the file and where it came from."""
ENTRY_KEYS = ("matched_text_index", "matched_sim", "face_detections", "width", "height", *FILE_KEYS)
PARAGRAPH = "\n\n"
"""Stands between two texts of OBELICS with no image between them."""


def text_document(value: Any, where: str) -> Document:
    """A document of one text.

    Raises:
        DocumentError: ``bad_row`` or ``empty``.
    """
    checked = string(value, where)
    if not checked.strip():
        raise DocumentError("empty", f"{where} is empty")
    return Document(text=checked)


def parse_text(row: dict[str, Any]) -> Document:
    """The form ``text``."""
    present = [name for name in TEXTS if name in row]
    if len(present) != 1:
        bad(f"has {' and '.join(present) or 'none'} of {', '.join(TEXTS)}; give exactly one")
    return text_document(row[present[0]], present[0])


def parse_caption(row: dict[str, Any]) -> Document:
    """The form ``caption``: one or several images or videos and a text about them."""
    name = next((name for name in CAPTIONS if name in row), None)
    if name is None:
        bad(f"has none of {', '.join(CAPTIONS)}; give one")
    text = string(row[name], name)
    others = [other for other in CAPTIONS if other in row and other != name and row[other] != text]
    if others:
        bad(f"{name} and {others[0]} are two different texts; leave one of them out")
    if not text.strip():
        raise DocumentError("empty", f"{name} is empty")
    supply = Supply.of(row, (text,), _paths(row))
    if not supply.media:
        return Document(text=text)  # a row of text among rows with media
    marked = text if any(mark in text for mark in supply.marks) else _in_front(supply) + text
    parts = supply.into((marked,), name)
    supply.finish()
    return Document(interleaved=parts)


def _in_front(supply: Supply) -> str:
    """Places for all images, and then for all videos."""
    return "".join(PLACEHOLDERS[kind] * len(media) for kind, media in supply.media.items())


def _paths(row: dict[str, Any]) -> dict[str, MediumKind]:
    """The columns of :data:`PATHS` that the row has, each with the kind of its file."""
    kinds: dict[str, MediumKind] = {"image_path": "image", "video_path": "video"}
    return {name: kinds.get(name) or kind_by_name(row[name]) for name in PATHS if name in row}


def parse_interleaved(row: dict[str, Any]) -> Document:
    """The form ``interleaved``: texts and images in the order of a page."""
    pairs = [pair for pair in (OBELICS, MMC4) if pair[0] in row]
    if len(pairs) != 1:
        bad(f"has {' and '.join(pair[0] for pair in pairs) or 'none'} of texts, text_list; give exactly one")
    [pair] = pairs
    others = [name for name in (*OBELICS, *MMC4) if name in row and name not in pair]
    if others:
        bad(f"{others[0]} does not belong beside {pair[0]}")
    parts = _obelics(row) if pair == OBELICS else _mmc4(row)
    if not any(isinstance(part, str) and part.strip() for part in parts):
        raise DocumentError("empty", f"{pair[0]} holds no text, so no token would carry loss")
    return Document(interleaved=tuple(parts))


def _obelics(row: dict[str, Any]) -> list[Part]:
    """Two lists of one length; at each place one of them is null."""
    texts, images = (listed(parsed_json(row.get(name), name), name) for name in OBELICS)
    if len(texts) != len(images):
        bad(f"texts has {len(texts)} entries and images has {len(images)}; at each place one of them is null")
    parts: list[Part] = []
    for i, (text, image) in enumerate(zip(texts, images, strict=True)):
        if (text is None) == (image is None):
            bad(f"texts[{i}] and images[{i}] are both {'null' if text is None else 'set'}; exactly one of them is null")
        if image is not None:
            parts.append(reference(image, "image", f"images[{i}]"))
        else:
            behind_text = bool(parts) and isinstance(parts[-1], str)
            parts.append((PARAGRAPH if behind_text else "") + string(text, f"texts[{i}]"))
    return parts


def _mmc4(row: dict[str, Any]) -> list[Part]:
    """Sentences, and images that stand before the sentence that matches them best."""
    texts, images = (listed(parsed_json(row.get(name, []), name), name) for name in MMC4)
    sentences = [string(text, f"text_list[{i}]") for i, text in enumerate(texts)]
    before: dict[int, list[Medium]] = {}
    for i, entry in enumerate(images):
        where = f"image_info[{i}]"
        given = strict_object(entry, where, ENTRY_KEYS, "matched_text_index")
        before.setdefault(_matched(given, where, len(sentences)), []).append(_image(given, where))
    parts: list[Part] = []
    for i, sentence in enumerate(sentences):
        parts += before.get(i, [])
        parts.append(sentence if i == 0 else f" {sentence}")
    return parts


def _matched(entry: dict[str, Any], where: str, n_sentences: int) -> int:
    at = entry.get("matched_text_index")
    if not isinstance(at, int) or isinstance(at, bool) or not 0 <= at < n_sentences:
        bad(f"{where}.matched_text_index is {shown(at)}; legal are the numbers of text_list, 0 to {n_sentences - 1}")
    return at


def _image(entry: dict[str, Any], where: str) -> Medium:
    name = next((name for name in FILE_KEYS if name in entry), None)
    if name is None:
        bad(f"{where} has none of {', '.join(FILE_KEYS)}; give one")
    return reference(entry[name], "image", f"{where}.{name}")
