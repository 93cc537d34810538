"""Placeholders of a text and what is written instead of them."""

from __future__ import annotations

from preshard.packer_service.ingest.families.family import Mark, Rows, Token
from preshard.packer_service.ingest.render_text import Slot, fill_slots
from preshard.packer_service.ingest.text.chat_template import ChatText

PIECES = (Mark(0, "<a>"), Rows(0, 4, "<r>"), "then", Rows(1, 2, "<r>"), Mark(1, "<z>"))
"""Pieces written for two units: marks, rows, and text between the two."""


def spelled(token: Token) -> str:
    return str(token)


def test_units_count_on_from_the_first_of_each_slot() -> None:
    """Fails when the units of a second image are taken for those of the first, or are numbered otherwise than added."""
    slots = [Slot(placeholder="@", pieces=PIECES, first_unit=first) for first in (1, 3)]
    chat = ChatText(text="x@yz@w", loss=((0, 1, 1.0), (2, 5, 0.5)), marked=False)
    found, places = fill_slots(chat, slots, spelled, ["@"])
    written = "<a><r>then<r><z>"
    assert found.text == f"x{written}yz{written}w"
    assert [(place.unit, found.text[place.start : place.end], place.repeats, place.is_row) for place in places] == [
        (first + unit, token, count, token == "<r>")
        for first in (1, 3)
        for unit, token, count in ((0, "<a>", 1), (0, "<r>", 4), (1, "<r>", 2), (1, "<z>", 1))
    ]
    assert "".join(found.text[start:end] for start, end, _ in found.loss) == "xyz"
    assert [place.end - place.start for place in places] == [3] * 8


def test_marks_of_the_text_take_the_place_of_a_units_own_only_where_a_slot_says_so() -> None:
    """Fails when a family that writes its marks within the template's loses them, or a unit has them twice."""
    of_slot = {"placeholder": "@", "pieces": PIECES, "first_unit": 0, "opening": "<a>", "closing": "<z>"}
    for once, written in ((None, "<a><a><r>then<r><z><z>"), (True, "<a><r>then<r><z>")):
        slot = Slot(**of_slot) if once is None else Slot(**of_slot, once=once)
        chat = ChatText(text="<a>@<z>", loss=(), marked=False)
        found, places = fill_slots(chat, [slot], spelled, ["@"])
        assert found.text == written
        assert [found.text[place.start : place.end] for place in places] == ["<a>", "<r>", "<r>", "<z>"]
