"""The form ``prompt_completion`` of TRL: loss on the completion only; both are strings, or both lists of messages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from preshard.packer_service.ingest.document import Document
from preshard.packer_service.ingest.source.forms.fields import bad, kind_of, parsed_json, string
from preshard.packer_service.ingest.source.forms.fill import MEDIA_COLUMNS, Supply
from preshard.packer_service.ingest.source.forms.form import Form
from preshard.packer_service.ingest.source.forms.messages import TEMPLATE_COLUMNS, messages, template_columns, with_loss
from preshard.schemas.errors import DocumentError

PREFERENCES = ("chosen", "rejected")
"""Columns of preference data, which has no place in packs: nothing says which of both is to be learnt."""
COLUMNS = ("prompt", "completion", *PREFERENCES, *MEDIA_COLUMNS, *TEMPLATE_COLUMNS)


def _fits(columns: Collection[str]) -> bool:
    return "prompt" in columns and "completion" in columns


def _parse(row: dict[str, Any]) -> Document:
    for name in PREFERENCES:
        if name in row:
            bad(f"{name} makes this a row of preferences, which cannot be packed; give prompt and completion")
    for name in ("prompt", "completion"):
        if name not in row:
            bad(f"has no {name}")
    prompt, completion = _side(row["prompt"]), _side(row["completion"])
    if isinstance(prompt, str) != isinstance(completion, str):
        found = f"prompt is a {kind_of(prompt)} and completion a {kind_of(completion)}"
        bad(f"{found}; give two strings or two lists of messages")
    supply = Supply.of(row)
    document = _of_texts(row, supply) if isinstance(prompt, str) else _of_messages(row, prompt, completion, supply)
    supply.finish()
    return document


def _side(value: Any) -> Any:
    """Messages that a table keeps as JSON text are messages; all other strings are what they say."""
    return parsed_json(value, "prompt") if isinstance(value, str) and _spells_messages(value) else value


def _spells_messages(text: str) -> bool:
    return text.lstrip().startswith("[") and '"role"' in text and '"content"' in text


def _of_texts(row: dict[str, Any], supply: Supply) -> Document:
    prompt, completion = string(row["prompt"], "prompt"), string(row["completion"], "completion")
    if any(name in row for name in TEMPLATE_COLUMNS):
        name = next(name for name in TEMPLATE_COLUMNS if name in row)
        bad(f"{name} is for a chat template; it is legal beside lists of messages only")
    if not completion.strip():
        raise DocumentError("empty", "completion is empty, so no token would carry loss")
    before = supply.into((prompt,) if prompt else (), "prompt")
    return Document(prompt=before, interleaved=supply.into((completion,), "completion"))


def _of_messages(row: dict[str, Any], prompt: Any, completion: Any, supply: Supply) -> Document:
    before = supply.into_messages(messages(prompt, "prompt"), "prompt")
    after = supply.into_messages(messages(completion, "completion"), "completion")
    silent = tuple(replace(turn, has_loss=False) for turn in before)
    return with_loss(Document(branches=((*silent, *after),), **template_columns(row)))


FORM = Form(
    name="prompt_completion",
    title="TRL prompt and completion",
    columns=frozenset(COLUMNS),
    fits=_fits,
    parse=_parse,
)
