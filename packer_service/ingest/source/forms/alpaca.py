"""The form ``alpaca``: ``instruction``, ``input`` and ``output``, with LLaMA-Factory's ``system`` and ``history``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from preshard.packer_service.ingest.document import Document, Message
from preshard.packer_service.ingest.source.forms.fields import bad, kind_of, listed, parsed_json, string
from preshard.packer_service.ingest.source.forms.fill import MEDIA_COLUMNS, Supply
from preshard.packer_service.ingest.source.forms.form import Form
from preshard.packer_service.ingest.source.forms.messages import template_columns, with_loss

COLUMNS = ("instruction", "input", "output", "system", "history", "tools", *MEDIA_COLUMNS)


def _fits(columns: Collection[str]) -> bool:
    return "instruction" in columns and "output" in columns


def _parse(row: dict[str, Any]) -> Document:
    for name in ("instruction", "output"):
        if name not in row:
            bad(f"has no {name}")
    texts = {name: string(row[name], name) for name in ("instruction", "input", "output", "system") if name in row}
    question = "\n".join(text for text in (texts["instruction"], texts.get("input", "")) if text)
    turns = [Message(role="system", parts=(texts["system"],))] if texts.get("system") else []
    for i, exchange in enumerate(listed(parsed_json(row.get("history", []), "history"), "history")):
        turns += _exchange(exchange, f"history[{i}]")
    turns += [Message(role="user", parts=(question,)), Message(role="assistant", parts=(texts["output"],))]
    supply = Supply.of(row)
    filled = supply.into_messages(turns, "turns")
    supply.finish()
    return with_loss(Document(branches=(filled,), **template_columns({k: row[k] for k in ("tools",) if k in row})))


def _exchange(value: Any, where: str) -> list[Message]:
    """An earlier question with its answer, which carries loss as the last answer does."""
    if not isinstance(value, list) or len(value) != 2:
        bad(f"{where} is a {kind_of(value)}, not a list of a question and its answer")
    question, answer = (string(text, f"{where}[{i}]") for i, text in enumerate(value))
    return [Message(role="user", parts=(question,)), Message(role="assistant", parts=(answer,))]


FORM = Form(name="alpaca", title="Alpaca instructions", columns=frozenset(COLUMNS), fits=_fits, parse=_parse)
