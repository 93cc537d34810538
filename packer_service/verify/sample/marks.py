"""The rules of what is written around a sample's rows: marks, and the times of frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int64

from preshard.packer_service.verify.independent.marks import ROW, Marks
from preshard.packer_service.verify.verdict import Finding
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import MarksInvalid, TimesInvalid
from preshard.schemas.header import SampleHead
from preshard.schemas.manifest import ModelEntry
from preshard.schemas.sequence import NOT_POOLED, PackedSequence


def check_marks(
    sequence: PackedSequence, head: SampleHead, marks: Marks, config: PackConfig, model: ModelEntry | None
) -> Iterator[Finding]:
    """A unit's tokens are its rows and its marks, all of them. Units, pooling and their tokens must be sound."""
    skeleton = np.where(sequence.pool_ids == NOT_POOLED, sequence.tokens, ROW)
    crops, order = np.diff(np.array(head.cum_image_bounds), prepend=0).tolist(), head.token_order
    media = [(head.units[number].document, head.units[number].medium) for number in order]
    for at, number in enumerate(order):
        unit, name = head.units[number], f"units[{number}]"
        is_first, is_last = media[at - 1 : at] != [media[at]], media[at + 1 : at + 2] != [media[at]]
        asked = np.array(marks.tokens(unit, crops[number], config.vision, model), np.int64)
        before, behind = marks.around(unit.kind)
        inside = _without_end(skeleton[unit.start : unit.end], before if is_first else None, 0)
        inside = _without_end(inside, behind if is_last else None, -1)
        if len(inside) != len(asked):
            yield MarksInvalid, f"{name} has {len(inside)} tokens, not {len(asked)}, its marks and its rows"
        elif len(wrong := np.flatnonzero(inside != asked)):
            found, legal = ("a row" if token == ROW else token for token in (inside[wrong[0]], asked[wrong[0]]))
            yield MarksInvalid, f"{name} has {found} at its token {wrong[0]}, not {legal}"
        span = head.documents[unit.document]
        first = is_first and unit.start > span.start and skeleton[unit.start] != before
        last = is_last and unit.end < span.start + span.length and skeleton[unit.end - 1] != behind
        for beside, mark, place in ((first, before, unit.start - 1), (last, behind, unit.end)):
            if beside and mark is not None and skeleton[place] == mark:
                yield MarksInvalid, f"{name} is {unit.start} to {unit.end}; the mark {mark} at {place} belongs to it"


def _without_end(tokens: Int64[np.ndarray, "unit"], mark: int | None, end: int) -> Int64[np.ndarray, "inside"]:
    """Tokens without a mark at an end (0 or -1), if it stands there."""
    if mark is None or not len(tokens) or tokens[end] != mark:
        return tokens
    return tokens[:-1] if end else tokens[1:]


def check_times(
    sequence: PackedSequence, head: SampleHead, marks: Marks, may_be_cut: Sequence[bool] | None
) -> Iterator[Finding]:
    """Frames are written beside the times at which they are shown. Units, marks and the list of crops must be sound.

    ``may_be_cut`` says of each span whether something of its document lies elsewhere; None where that is not known.
    """
    bounds, order, text = [0, *head.cum_image_bounds], head.token_order, _Text(sequence, marks)
    for at, number in enumerate(order):
        unit = head.units[number]
        if unit.kind == "image":
            continue
        span = head.documents[unit.document]
        times = [image.timestamp or 0.0 for image in head.images[bounds[number] : bounds[number + 1]]]
        before, behind = marks.written_time(times)
        others = [head.units[other] for other in order[max(at - 1, 0) : at + 2] if other != number]
        start = max([span.start, *(other.end for other in others if other.end <= unit.start)])
        end = min([span.start + span.length, *(other.start for other in others if other.start >= unit.end)])
        is_part = span.piece > 0 or may_be_cut is None or may_be_cut[unit.document]
        if before and not text.ends_with(before, start, unit.start, cut=is_part and start == span.start):
            yield TimesInvalid, f"units[{number}] is shown at {times[0]}, and {before!r} is not written before it"
        if behind and not text.begins_with(behind, unit.end, end):
            yield TimesInvalid, f"units[{number}] is shown at {times[0]}, and {behind!r} is not written behind it"


class _Text:
    """The text of some of a pack's tokens, as far as it is written with what times are; white space left out."""

    def __init__(self, sequence: PackedSequence, marks: Marks) -> None:
        self._tokens, self._pieces = sequence.tokens, marks.pieces

    def ends_with(self, asked: str, start: int, end: int, *, cut: bool) -> bool:
        """Whether the tokens ``[start, end)`` end with a text.

        Of a token that other characters begin, such as a word with the first digit, nothing is known; nor is it of what
        a cut took.
        """
        found = ""
        for token in self._tokens[start:end][::-1].tolist():
            if len(found) >= len(asked):
                return found.endswith(asked)
            if token not in self._pieces:
                return bool(found) and asked.endswith(found)
            found = "".join(self._pieces[token].split()) + found
        return found.endswith(asked) or (cut and asked.endswith(found))

    def begins_with(self, asked: str, start: int, end: int) -> bool:
        """The same of their beginning, which a document's end may cut."""
        found = ""
        for token in self._tokens[start:end].tolist():
            if len(found) >= len(asked):
                break
            if token not in self._pieces:
                return bool(found) and asked.startswith(found)
            found += "".join(self._pieces[token].split())
        return found.startswith(asked) or asked.startswith(found)
