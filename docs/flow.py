"""Draws docs/flow.svg, the picture of docs/architecture.md: what flows from a source to a training step.

python docs/flow.py
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).with_name("flow.svg")
WIDTH, BOX, GAP, ROW = 1080, 156, 24, 150

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2933 }
  .name { font-weight: 600; font-size: 14px }
  .small { font-size: 11.5px; fill: #52606d }
  .stage { fill: #e6f0fa; stroke: #2b6cb0 } .bytes { fill: #fdf3dc; stroke: #b7791f }
  .use { fill: #e4f4ec; stroke: #2f855a } .ground { fill: #ffffff }
  path { fill: none; stroke: #52606d; stroke-width: 1.5; marker-end: url(#head) }
"""

# name, kind, what it is, column, row
BOXES = [
    ("source", "bytes", ["JSON Lines, Parquet,", "videos, images;", "disk or object store"], 0, 0),
    ("measure", "stage", ["tokens, time stamps,", "image headers; one", "task per fragment"], 1, 0),
    ("lengths", "bytes", ["one row per document:", "tokens, crops, place;", "rejects"], 2, 0),
    ("plan", "stage", ["documents to packs,", "packs to steps; pure,", "one process"], 3, 0),
    ("write", "stage", ["decode once, assemble,", "solve layouts; one task", "per shard"], 4, 0),
    ("shards", "bytes", ["tar and index: header", "part, then crops in", "unit order"], 5, 0),
    ("verify and serve", "use", ["every rule again from", "the bytes; fill, balance,", "what was lost"], 3, 1),
    ("tables, manifest", "bytes", ["packs, documents,", "rejects, balance;", "manifest last"], 4, 1),
    ("reader, trainer", "use", ["two byte ranges per rank;", "exact attention from", "the mask arrays"], 5, 1),
]
ARROWS = [
    ("source", "measure"),
    ("measure", "lengths"),
    ("lengths", "plan"),
    ("plan", "write"),
    ("write", "shards"),
    ("shards", "reader, trainer"),
    ("write", "tables, manifest"),
    ("tables, manifest", "verify and serve"),
]


def place(column: int, row: int) -> tuple[int, int]:
    return 12 + column * (BOX + GAP), 12 + row * ROW


def box(name: str, kind: str, lines: list[str], column: int, row: int) -> str:
    x, y = place(column, row)
    said = "".join(
        f'<text class="small" x="{x + 12}" y="{y + 44 + 16 * i}">{escape(line)}</text>' for i, line in enumerate(lines)
    )
    return (
        f'<rect class="{kind}" x="{x}" y="{y}" width="{BOX}" height="96" rx="8"/>'
        f'<text class="name" x="{x + 12}" y="{y + 24}">{escape(name)}</text>{said}'
    )


def arrow(start: str, end: str) -> str:
    where = {name: place(column, row) for name, _, _, column, row in BOXES}
    (x0, y0), (x1, y1) = where[start], where[end]
    if y0 == y1:
        forward = x1 > x0
        return f'<path d="M{x0 + BOX * forward} {y0 + 48} H{x1 - 4 if forward else x1 + BOX + 4}"/>'
    return f'<path d="M{x0 + BOX // 2} {y0 + 96} V{y1 - 4}"/>'


def picture() -> str:
    height = 12 + ROW + 96 + 12
    arrows = "".join(arrow(start, end) for start, end in ARROWS)
    boxes = "".join(box(*each) for each in BOXES)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="From a source to a training step"><style>{STYLE}</style>'
        '<defs><marker id="head" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" style="fill:#52606d;stroke:none;marker-end:none"/></marker></defs>'
        f'<rect class="ground" width="{WIDTH}" height="{height}" rx="10"/>{arrows}{boxes}</svg>\n'
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
