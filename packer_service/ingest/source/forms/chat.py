"""The form ``messages``: a conversation, several annotations of shared media, or a text; rows may take turns."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from preshard.packer_service.ingest.document import Document, Medium
from preshard.packer_service.ingest.source.forms.fields import bad, kind_of, listed, parsed_json
from preshard.packer_service.ingest.source.forms.fill import MEDIA_COLUMNS, Supply
from preshard.packer_service.ingest.source.forms.form import Form
from preshard.packer_service.ingest.source.forms.media import medium
from preshard.packer_service.ingest.source.forms.messages import TEMPLATE_COLUMNS, messages, template_columns, with_loss
from preshard.packer_service.ingest.source.forms.text import text_document

ALTERNATIVES = ("text", "messages", "annotations")
COLUMNS = (*ALTERNATIVES, "media", *MEDIA_COLUMNS, *TEMPLATE_COLUMNS)


def _fits(columns: Collection[str]) -> bool:
    return "messages" in columns or "annotations" in columns


def _parse(row: dict[str, Any]) -> Document:
    forms = [name for name in ALTERNATIVES if name in row]
    if len(forms) != 1:
        bad(f"has {' and '.join(forms) or 'none'} of {', '.join(ALTERNATIVES)}; give exactly one")
    [form] = forms
    legal = {"text": (), "annotations": ("media",), "messages": (*MEDIA_COLUMNS, *TEMPLATE_COLUMNS)}[form]
    stray = [name for name in COLUMNS if name in row and name != form and name not in legal]
    if stray == ["media"]:
        bad("media is legal only beside annotations; put a conversation's media into its messages")
    if stray:
        bad(f"{stray[0]} is not read beside {form}; legal there are {', '.join(legal) or 'no other fields'}")
    if form == "text":
        return text_document(row["text"], "text")
    if form == "annotations":
        return with_loss(_annotated(row))
    supply = Supply.of(row)
    turns = supply.into_messages(messages(parsed_json(row["messages"], "messages"), "messages"), "messages")
    supply.finish()
    return with_loss(Document(branches=(turns,), **template_columns(row)))


def _annotated(row: dict[str, Any]) -> Document:
    annotations = listed(row["annotations"], "annotations")
    shared = tuple(
        _placed(medium(part, f"media[{i}]"), part, f"media[{i}]")
        for i, part in enumerate(listed(row.get("media", []), "media"))
    )
    nothing = Supply.of({})
    branches = []
    for i, given in enumerate(annotations):
        where = f"annotations[{i}]"
        branches.append(nothing.into_messages(messages(given, where), where))
        if not branches[-1]:
            bad(f"{where} has no messages; leave it out")
    return Document(shared=shared, branches=tuple(branches), annotated=True)


def _placed(found: Medium, part: dict[str, Any], where: str) -> Medium:
    if found.uri is None and found.data is None:
        bad(f"{where}.{found.kind} is a {kind_of(part.get(found.kind))}, not a string")
    return found


FORM = Form(
    name="messages",
    title="messages, text or annotations",
    columns=frozenset(COLUMNS),
    fits=_fits,
    parse=_parse,
)
