"""A folder of hostile media and a row for each: strange but whole files, lies, and seeded damage to both."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hostile_images import BOMBS, lying_images, whole_images
from hostile_videos import lying_videos, slow_videos, whole_videos

Change = Callable[[np.random.Generator, bytes, bytes], bytes]


@dataclass(frozen=True, kw_only=True)
class HostileFile:
    """``whole``: strange, but must be packed."""

    name: str
    kind: str
    data: bytes
    whole: bool = False


def flip_bits(rng: np.random.Generator, data: bytes, other: bytes) -> bytes:
    """1 to 200 flipped bits, anywhere."""
    changed = np.frombuffer(data, np.uint8).copy()
    places = rng.integers(0, len(data), int(2 ** rng.uniform(0, 7.6)))
    np.bitwise_xor.at(changed, places, (1 << rng.integers(0, 8, len(places))).astype(np.uint8))
    return changed.tobytes()


def flip_header(rng: np.random.Generator, data: bytes, other: bytes) -> bytes:
    """Flipped bits only in the first kilobyte."""
    return flip_bits(rng, data[:1024], other) + data[1024:]


def lie_about_numbers(rng: np.random.Generator, data: bytes, other: bytes) -> bytes:
    """Words of 1, 2 and 4 bytes at the start or the end become extreme."""
    changed = bytearray(data)
    for _ in range(rng.integers(1, 6)):
        size = int(rng.choice([1, 2, 4]))
        near = int(rng.integers(0, min(len(data), 4096)))
        at = near if rng.random() < 0.7 else max(0, len(data) - near - size)
        changed[at : at + size] = bytes([int(rng.choice([0, 1, 127, 128, 255]))]) * size
    return bytes(changed[: len(data)])


def truncate(rng: np.random.Generator, data: bytes, other: bytes) -> bytes:
    return data[: int(len(data) * rng.random())]


def overwrite(rng: np.random.Generator, data: bytes, other: bytes) -> bytes:
    """A range of zeros, ones or noise."""
    start, end = sorted(rng.integers(0, len(data) + 1, 2))
    end = min(end, start + 4096)
    fills = (bytes(end - start), b"\xff" * (end - start), rng.bytes(end - start))
    return data[:start] + fills[int(rng.integers(3))] + data[end:]


def splice(rng: np.random.Generator, data: bytes, other: bytes) -> bytes:
    """The beginning of one file and the end of another."""
    return data[: int(len(data) * rng.random())] + other[int(len(other) * rng.random()) :]


def behead(rng: np.random.Generator, data: bytes, other: bytes) -> bytes:
    """Another file's first bytes."""
    size = int(2 ** rng.uniform(1, 9))
    return other[:size] + data[size:]


def shift(rng: np.random.Generator, data: bytes, other: bytes) -> bytes:
    """Bytes removed or inserted, so that every later offset is wrong."""
    at, size = int(rng.integers(0, len(data) + 1)), int(rng.integers(1, 64))
    return data[:at] + (data[at + size :] if rng.random() < 0.5 else rng.bytes(size) + data[at:])


def repeat(rng: np.random.Generator, data: bytes, other: bytes) -> bytes:
    return data * 2 if rng.random() < 0.5 else data + other


CHANGES: tuple[Change, ...] = (
    *(flip_bits, flip_bits, flip_header, lie_about_numbers, lie_about_numbers),
    *(truncate, overwrite, splice, behead, shift, repeat),
)


def damaged(seeds: Sequence[HostileFile], count: int, seed: int) -> Iterator[HostileFile]:
    """``count`` files made of the seeds, with every seed and every kind of damage equally often."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        one, other = seeds[number % len(seeds)], seeds[int(rng.integers(len(seeds)))]
        change = CHANGES[int(rng.integers(len(CHANGES)))]
        data = change(rng, one.data, other.data)
        if rng.random() < 0.15:
            data = CHANGES[int(rng.integers(len(CHANGES)))](rng, data, other.data) if data else data
        kind, (stem, _, suffix) = one.kind, one.name.rpartition(".")
        if rng.random() < 0.03:  # an image in place of a video, or a video under an image's name
            kind, suffix = "video" if kind == "image" else "image", other.name.rpartition(".")[2]
        yield HostileFile(name=f"{number:05d}_{change.__name__}_{stem}.{suffix}", kind=kind, data=data)


def seed_files() -> list[HostileFile]:
    """Strange but whole files of both kinds."""
    images = [HostileFile(name=name, kind="image", data=data, whole=True) for name, data in whole_images()]
    videos = [HostileFile(name=name, kind="video", data=data, whole=True) for name, data in whole_videos()]
    return [*images, *videos]


def lies() -> Iterator[HostileFile]:
    """Headers that lie, and files that are not media at all."""
    yield from (HostileFile(name=name, kind="image", data=data) for name, data in lying_images())
    yield from (HostileFile(name=name, kind="video", data=data) for name, data in lying_videos())
    for kind in ("image", "video"):
        yield HostileFile(name=f"empty_{kind}", kind=kind, data=b"")
        yield HostileFile(name=f"zeros_{kind}", kind=kind, data=bytes(100_000))
        yield HostileFile(name=f"noise_{kind}", kind=kind, data=np.random.default_rng(3).bytes(100_000))
        yield HostileFile(name=f"text_{kind}", kind=kind, data=b"This is text under a wrong name.\n" * 500)


def bombs(names: Iterable[str] = BOMBS) -> Iterator[HostileFile]:
    """Small files that unfold into large pictures, by name, for those that take long to make."""
    yield from (HostileFile(name=name, kind="image", data=BOMBS[name]()) for name in names)


def slow() -> Iterator[HostileFile]:
    """All bombs, and videos that take seconds to make."""
    yield from bombs()
    yield from (HostileFile(name=name, kind="video", data=data) for name, data in slow_videos())


def write_corpus(folder: Path, files: Iterator[HostileFile]) -> list[dict[str, object]]:
    """Writes the files and ``rows.jsonl`` with a row for each, and for paths that are not files; returns the rows."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, object]] = []
    for kind in ("image", "video"):
        (folder / kind).mkdir()
    for file in files:
        (folder / row_id(file)).write_bytes(file.data)
        rows.append(_row(row_id(file), file.kind))
    (folder / "folder.mp4").mkdir()
    (folder / "circle.png").symlink_to("circle.png")
    (folder / "nowhere.png").symlink_to("not/there.png")
    os.mkfifo(folder / "pipe.mp4")
    rows += [_row("folder.mp4", "video"), _row("circle.png", "image"), _row("nowhere.png", "image")]
    rows += [_row("pipe.mp4", "video"), _row("x" * 5000, "image"), _row("rows.jsonl/a.png", "image")]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return rows


def row_id(file: HostileFile) -> str:
    """Id of a file's document, and its path below the corpus."""
    return f"{file.kind}/{file.name}"


def _row(name: str, kind: str) -> dict[str, object]:
    content = [{"type": kind, kind: name}, {"type": "text", "text": "What is this?"}]
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "A file."}]
    return {"id": name[:200], "source": kind, "messages": messages}
