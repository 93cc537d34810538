"""Placeholders of a text and what is written instead of them."""

from __future__ import annotations

from packer_service.ingest.families.family import Mark, Rows, Token
from packer_service.ingest.text.chat_template import Span
from packer_service.ingest.written import Slot, write

PIECES = (Mark(0, "<a>"), Rows(0, 4, "<r>"), "then", Rows(1, 2, "<r>"), Mark(1, "<z>"))
"""What is written for two units: marks, rows, and text between the two."""


def spelled(token: Token) -> str:
    return str(token)


def test_units_count_on_from_the_first_of_each_slot() -> None:
    """Fails when the units of a second image are taken for those of the first, or are numbered otherwise than added."""
    slots = [Slot(placeholder="@", pieces=PIECES, first_unit=first) for first in (1, 3)]
    loss: list[Span] = [(0, 1), (2, 5)]
    found = write("x@yz@w", loss, slots, spelled, ["@"])
    written = "<a><r>then<r><z>"
    assert found.text == f"x{written}yz{written}w"
    assert [(place.unit, place.token, place.count, place.is_row) for place in found.places] == [
        (first + unit, token, count, token == "<r>")
        for first in (1, 3)
        for unit, token, count in ((0, "<a>", 1), (0, "<r>", 4), (1, "<r>", 2), (1, "<z>", 1))
    ]
    assert all(found.text[place.start : place.end] == place.token for place in found.places)
    assert "".join(found.text[start:end] for start, end in found.loss) == "xyz"
    assert [place.end - place.start for place in found.places] == [3] * 8
