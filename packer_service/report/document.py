"""One document as it is packed: its text in runs of equal loss, its images and frames in place; typed, and printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Float32, Int32, Int64
from pydantic import Field
from rich.console import Console
from rich.text import Text

from preshard.packer_service.plan.records import Figures
from preshard.schemas.files.printed import LONGEST_LINE, cut, plain, several
from preshard.schemas.manifest import UnitKind
from preshard.schemas.sections import ImageBackend
from preshard.schemas.sequence import IGNORE_INDEX

NO_UNIT = -1


class ShownSpan(Figures):
    """Consecutive tokens of one annotation, of one loss, and of one unit or of none."""

    start: int = Field(description="First token, counted from the start of the document.")
    end: int = Field(description="One past the last token.")
    branch: int = Field(description="The annotation, from 1; 0 for what all annotations see, and without annotations.")
    loss: bool = Field(description="Whether the token before each of these has it as its label.")
    weight: float = Field(description="Weight of that loss; 0 where there is none.")
    positions: list[tuple[int, int]] = Field(description="Least and greatest position along each axis.")
    unit: int | None = Field(description="The unit that these tokens, marks included, stand for; null for text.")
    text: str | None = Field(description="The tokens as text, special tokens spelled out; null for a unit.")


class ShownUnit(Figures):
    """A still image with its crops, a frame of a video, or several frames that the vision encoder sees together."""

    number: int
    medium: int = Field(description="Number of its image or video in the document, from 0.")
    kind: UnitKind
    start: int = Field(description="Its first token, marks included.")
    end: int = Field(description="One past its last token.")
    rows: int = Field(description="Feature rows, and so tokens that they fill.")
    patches: int = Field(description="Patches that the vision encoder sees.")
    grid: tuple[int, int, int] = Field(description="The same along time, height and width.")
    crops: list[tuple[int, int]] = Field(description="Width and height of each picture that a shard stores of it.")
    timestamps: list[float] = Field(description="Seconds from the clip's start of each frame; none for a still image.")


class ShownMedium(Figures):
    """An image or video as the source names it."""

    kind: str = Field(examples=["image", "video"])
    name: str = Field(description="Path or URI, or `inline bytes`.")
    width: int = Field(description="Pixels, upright.")
    height: int
    clip: tuple[float | None, float | None] | None = Field(description="Start and end in seconds, if given; of videos.")
    thinned_to: float | None = Field(
        None, description="Seconds between frames where `max_frames` spread them further than `fps` asks; else null."
    )
    backend: ImageBackend | None = Field(description="`images.backend`, of the still images of a model; else null.")
    units: int = Field(description="Units of the whole document that show it.")


class ShownPiece(Figures):
    """A document, or one piece of it if it is too long for a pack."""

    tokens: int
    loss_tokens: int = Field(description="Tokens with a label.")
    lost_tokens: int = Field(description="Tokens of the document behind this piece that no piece holds.")
    images: int = Field(description="Crops.")
    patches: int
    shared_tokens: int = Field(description="Tokens that all annotations see; 0 without annotations.")
    annotations: int
    preference: bool = Field(False, description="Whether annotation 1 is a better answer than annotation 2.")
    spans: list[ShownSpan]
    units: list[ShownUnit]


class ShownDocument(Figures):
    """A row of a source as it would be packed."""

    doc_id: str
    source: str
    location: str = Field(description="File and row.")
    form: str | None = Field(description="The form that the row was read as.")
    media: list[ShownMedium]
    pieces: list[ShownPiece]


def document_spans(
    *,
    tokens: Int32[np.ndarray, "doc"],
    labels: Int32[np.ndarray, "doc"],
    loss_weights: Float32[np.ndarray, "doc"],
    branch_ids: Int32[np.ndarray, "doc"],
    position_ids: Int32[np.ndarray, "axes doc"],
    unit_edges: Int64[np.ndarray, "units 2"],
    decode: Callable[[Sequence[int]], str],
    part: slice = slice(None),
) -> list[ShownSpan]:
    """A document's tokens in runs.

    Args:
        tokens: the document's.
        labels: of each token, the next one where that carries loss.
        loss_weights: the weight of each label.
        branch_ids: the annotation of each token.
        position_ids: of each token along each axis.
        unit_edges: half-open range of the tokens of each unit, marks included, ascending.
        decode: tokens to text.
        part: the tokens that are wanted, all by default.
    """
    asked = np.concatenate([[False], labels[:-1] != IGNORE_INDEX])[: len(tokens)]
    weights = np.where(asked, np.concatenate([[0], loss_weights[:-1]])[: len(tokens)], 0)
    units = np.full(len(tokens), NO_UNIT)
    for number, (start, end) in enumerate(unit_edges.tolist()):
        units[start:end] = number
    first, _, _ = part.indices(len(tokens))
    edges = run_edges(*(column[part] for column in (branch_ids, asked, weights, units)))
    return [
        ShownSpan(
            start=start,
            end=end,
            branch=int(branch_ids[start]),
            loss=bool(asked[start]),
            weight=float(weights[start]),
            positions=[(int(axis[start:end].min()), int(axis[start:end].max())) for axis in position_ids],
            unit=int(units[start]) if units[start] >= 0 else None,
            text=decode(tokens[start:end].tolist()) if units[start] < 0 else None,
        )
        for start, end in pairwise(first + edge for edge in edges)
    ]


def run_edges(*columns: np.ndarray) -> list[int]:
    """Edges of the runs in which no column changes; columns have one value for each token."""
    size = len(columns[0])
    if not size:
        return [0]
    changed = np.zeros(size - 1, bool)
    for column in columns:
        changed |= column[1:] != column[:-1]
    return [0, *(np.flatnonzero(changed) + 1).tolist(), size]


LOSS_STYLE = "black on bright_green"
UNIT_STYLE = "cyan"
HEADING_STYLE = "bold"
OPEN, CLOSE = "⟦", "⟧"
"""Stand around tokens under loss where there are no colours; hardly any text holds them."""


def print_document(document: ShownDocument, console: Console | None = None) -> None:
    """Prints a document. On a terminal with colours the tokens under loss have one, elsewhere marks around them."""
    to = console or Console(highlight=False)
    coloured = to.is_terminal and not to.no_color
    text = Text()
    for part, style in _parts(document, coloured):
        if style == UNIT_STYLE:  # images and frames stand in lines of their own
            text.append("" if text.plain.endswith("\n") else "\n")
            text.append(f"{part}\n", style)
        else:
            text.append(part, style)
    if to.is_terminal:
        to.print(text, soft_wrap=True)
    else:
        to.file.write(f"{text.plain}\n")


def _parts(document: ShownDocument, coloured: bool) -> Iterator[tuple[str, str]]:
    heading = f"{document.location}  {document.doc_id}  (source {document.source})"
    yield cut(plain(heading), LONGEST_LINE // 2), HEADING_STYLE
    yield (f", reads as {document.form}" if document.form else ""), ""
    for number, medium in enumerate(document.media, start=1):
        yield f"\n{_described(number, medium)}", ""
    yield "\nunder loss: ", ""
    yield from _loss("like this", coloured)
    for number, piece in enumerate(document.pieces, start=1):
        of = f"piece {number} of {len(document.pieces)}: " if len(document.pieces) > 1 else ""
        yield f"\n{of}{_counted(piece)}\n", HEADING_STYLE
        yield from _content(piece, coloured)


def _described(number: int, medium: ShownMedium) -> str:
    clip = ""
    if medium.clip is not None and medium.clip != (None, None):
        start, end = medium.clip
        clip = f", from {start or 0:g} s" + ("" if end is None else f" to {end:g} s")
    if medium.thinned_to is not None:
        clip += f", a frame in {medium.thinned_to:.3g} s (max_frames; start and end cut it into clips)"
    scaled = "" if medium.backend is None else f", scaled as by {medium.backend}"
    return plain(f"{medium.kind} {number}: {medium.name}, {medium.width} x {medium.height} pixels{clip}{scaled}")


def _counted(piece: ShownPiece) -> str:
    counts = [f"{piece.tokens:,} tokens, {piece.loss_tokens:,} under loss"]
    if piece.units:
        counts.append(f"{several(piece.images, 'crop')}, {piece.patches:,} patches")
    if piece.preference:
        counts.append(f"chosen and rejected after {piece.shared_tokens:,} shared tokens")
    elif piece.annotations:
        counts.append(f"{piece.annotations} annotations of {piece.shared_tokens:,} shared tokens")
    if piece.spans:
        counts.append(f"positions {_ranges(_hull(piece.spans))}")
    if piece.lost_tokens:
        counts.append(f"{piece.lost_tokens:,} tokens behind it are lost")
    return "; ".join(counts)


def _hull(spans: list[ShownSpan]) -> list[tuple[int, int]]:
    axes = zip(*(span.positions for span in spans), strict=True)
    return [(min(first for first, _ in axis), max(last for _, last in axis)) for axis in axes]


def _ranges(positions: list[tuple[int, int]]) -> str:
    shown = [f"{first} to {last}" if first < last else f"{first}" for first, last in positions]
    names = ("time", "height", "width") if len(shown) > 1 else ("",)
    return ", ".join(f"{name} {values}".strip() for name, values in zip(names, shown, strict=True))


def _content(piece: ShownPiece, coloured: bool) -> Iterator[tuple[str, str]]:
    branch = 0
    for span in piece.spans:
        if span.branch != branch:
            name = ("chosen", "rejected")[span.branch - 1] if piece.preference else f"annotation {span.branch}"
            yield f"\n-- {name}, from position {span.positions[0][0]}\n", HEADING_STYLE
            branch = span.branch
        if span.unit is not None:
            yield _unit(piece.units[span.unit], span), UNIT_STYLE
        elif span.loss:
            yield from _loss(plain(span.text or ""), coloured)
        else:
            yield plain(span.text or ""), ""


def _loss(text: str, coloured: bool) -> Iterator[tuple[str, str]]:
    yield (text if coloured else f"{OPEN}{text}{CLOSE}"), LOSS_STYLE


def _unit(unit: ShownUnit, span: ShownSpan) -> str:
    times = ", ".join(f"{seconds:.2f} s" for seconds in unit.timestamps)
    what = f"{'image' if unit.kind == 'image' else 'video'} {unit.medium + 1}{f' at {times}' if times else ''}"
    sizes = " and ".join(f"{number} of {width} x {height}" for (width, height), number in Counter(unit.crops).items())
    crops = sizes.removeprefix("1 of ") if len(unit.crops) == 1 else f"crops: {sizes}"
    time, height, width = unit.grid
    grid = f"{height} x {width} patches" if time == 1 else f"{time} x {height} x {width} patches"
    axes = f", positions {_ranges(span.positions)}" if len(span.positions) > 1 else ""
    return f"[{what}: {crops}, {grid}, {unit.rows:,} rows, tokens {unit.start:,} to {unit.end - 1:,}{axes}]"
