"""Share of the stored bytes of crops that are stored already: in the pack, the shard, the dataset.

    python tests/benchmarks/repeated_crops.py [DATASET ...]

Without a dataset it packs two sources. The demonstration, whose clips of a film overlap; and a source as of video
questions: clips of 8 s of the demonstration's videos, 4 s apart, with five rows each, in an order that scatters the
rows over the dataset. The last column is the second with one row a clip and its questions as annotations of it. Crops
are equal if their sizes and CRC-32C are, which their bytes then are in all likelihood.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from machine import hardware

from preshard.packer_service.config import load_config
from preshard.packer_service.demo.media import write_videos
from preshard.packer_service.demo.source import write_demo_source
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.schemas.dataset.manifest_parts import stored_config
from preshard.trainer.data.files import DatasetFiles
from preshard.trainer.data.split import read_header

SETTINGS = ["packs_per_shard=4", "max_images=96", "video.fps=2"]
QUESTIONS = 5
CLIP, STEP = 8.0, 4.0


class Mute:
    def doing(self, what: str) -> None: ...

    def note(self, message: str) -> None: ...

    def step(self, what: str, done: int, total: int, amounts: object = None) -> None: ...


def video_questions(folder: Path, *, joined: bool) -> Path:
    """A source with several rows a clip, or one row a clip with as many annotations."""
    rows: list[dict[str, Any]] = []
    for video in write_videos(folder / "videos"):
        for number in range(max(1, int((video.duration - CLIP) // STEP) + 1)):
            start = number * STEP
            until = min(start + CLIP, video.duration)
            part = {"type": "video", "video": f"videos/{video.name}", "start": start, "end": until}
            name, asked = f"{video.name}-{number}", [f"What is seen in part {n}?" for n in range(QUESTIONS)]
            if joined:
                turns = [[_said("user", text), _said("assistant", video.subject)] for text in asked]
                rows.append({"id": name, "media": [part], "annotations": turns})
                continue
            for turn, text in enumerate(asked):
                question = {"role": "user", "content": [part, {"type": "text", "text": text}]}
                rows.append({"id": f"{name}-{turn}", "messages": [question, _said("assistant", video.subject)]})
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return folder / "rows.jsonl"


def _said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def shares(dataset: Path) -> tuple[int, int, list[float]]:
    """Packs, bytes of crops, and what share of these is stored already in the pack, in the shard, in the dataset."""
    files = DatasetFiles(dataset)
    config, total, again = stored_config(files.manifest), 0, [0, 0, 0]
    everywhere, shard, in_shard = set[tuple[int, int]](), "", set[tuple[int, int]]()
    for place in files.packs():
        if place.shard != shard:
            shard, in_shard = place.shard, set()
        in_pack = set[tuple[int, int]]()
        for image in read_header(files, place, config, files.manifest.axes).head.images:
            total += image.size
            for number, known in enumerate((in_pack, in_shard, everywhere)):
                again[number] += image.size * ((image.size, image.crc32c) in known)
                known.add((image.size, image.crc32c))
    return files.manifest.counts.packs, total, [part / max(total, 1) for part in again]


def packed(source: Path, out: Path) -> Path:
    config = load_config(None, SETTINGS, [str(source)])
    pack([str(source)], str(out), config, PlainExecutor(), Mute())
    return out


def main(datasets: Sequence[str]) -> None:
    print(hardware())
    print("| dataset | packs | MB of crops | again in the pack | in the shard | in the dataset |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder, named = Path(name), {Path(each).name: Path(each) for each in datasets}
        if not named:
            write_demo_source(folder / "demo")
            named["demonstration"] = packed(folder / "demo", folder / "demo-out")
            for label, joined in ((f"{QUESTIONS} rows a clip", False), ("one row a clip, annotated", True)):
                source = folder / label
                source.mkdir()
                named[label] = packed(video_questions(source, joined=joined), folder / f"{label}-out")
        for label, dataset in named.items():
            packs, total, found = shares(dataset)
            print(f"| {label} | {packs} | {total / 1e6:.1f} |", " | ".join(f"{share:.1%}" for share in found), "|")


if __name__ == "__main__":
    main(sys.argv[1:])
