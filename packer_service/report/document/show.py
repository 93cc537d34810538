"""A document as it is packed, for a person: its text with the tokens under loss marked, images and frames in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from preshard.packer_service.report.document.shown import ShownDocument, ShownMedium, ShownPiece, ShownSpan, ShownUnit
from preshard.packer_service.report.plain import plain

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
    yield plain(f"{document.location}  {document.doc_id}  (source {document.source})"), HEADING_STYLE
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
        counts.append(f"{piece.images:,} crops, {piece.patches:,} patches")
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
