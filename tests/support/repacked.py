"""A source of documents whose pieces all carry loss when they are split, and datasets that are packed from it."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from compared_documents import FAMILIES
from mixed_source import IMAGES_ONLY, IMAGES_OR_ONE_VIDEO, TEXT_ONLY, write_source

from preshard.packer_service.config import load_config
from preshard.packer_service.demo.model import write_model_folder
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor

SETTINGS = [
    *("block_size=16", "image_format=png", "video.fps=100", "max_images=null", "annotation_weight=sqrt"),
    *("cp_sizes=[1,2]", "ring_degrees=[1]", "packs_per_shard=2", "order.window=2"),
    "cost.link_gb_per_s=1000000",  # else features of models so small cost more to send than to make
]
SQUARES = ["vision.image_size=56", "vision.pool_size=2"]
KINDS = {"square": "", **FAMILIES}
"""Media that documents of each family, and of the generic way, may show."""

Row = dict[str, Any]


class Listener:
    """A progress that keeps what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def doing(self, what: str) -> None: ...

    def note(self, message: str) -> None:
        self.notes.append(message)

    def step(self, what: str, done: int, total: int, amounts: object = None) -> None: ...


def make_source(folder: Path, family: str) -> list[str]:
    """Writes ``source`` and, for a family, ``model`` into a folder, and returns the settings of a job for them."""
    source = folder / "source"
    source.mkdir(parents=True)
    takes = KINDS[family]
    rows = list(write_source(source, 7, takes=takes, largest=160).values())
    rows += [{"id": "long text", "text": "some words in a row. " * 60}, {"id": "turns", "messages": turns(9, {})}]
    if takes != TEXT_ONLY:
        first, second = (image_in(source, name) for name in ("0a", "0b"))
        video = first if takes == IMAGES_ONLY else {"type": "video", "video": "1.mp4"}
        rows += [
            {"id": "images", "messages": turns(7, {0: first, 3: second})},
            {"id": "video", "messages": turns(5, {2: video})},
            {
                "id": "videos",
                "messages": turns(6, {1: video} if takes == IMAGES_OR_ONE_VIDEO else {1: video, 3: video}),
            },
            {"id": "annotated", "media": [first], "annotations": [turns(1, {}) for _ in range(7)]},
        ]
    write_rows(source, rows)
    if family == "square":
        return [*SETTINGS, *SQUARES]
    write_model_folder(folder / "model", family, vocabulary=400)
    return [*SETTINGS, f"model={folder / 'model'}"]


def turns(count: int, media: dict[int, Row]) -> list[Row]:
    """Questions, some of them about an image or video, and answers, so that few consecutive tokens carry no loss."""
    said: list[Row] = []
    for number in range(count):
        question = [*([media[number]] if number in media else []), {"type": "text", "text": f"what is {number}?"}]
        answer = "It is noise, as far as anybody can tell. " * (1 + number % 3)
        said += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return said


def image_in(source: Path, name: str) -> Row:
    return {"type": "image", "image": min(path.name for path in source.glob(f"{name}.*"))}


def write_rows(source: Path, rows: Sequence[Row]) -> None:
    (source / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def packed(source: Path, out: Path, settings: Sequence[str], progress: Listener | None = None) -> Path:
    """Packs rows or a dataset; of a dataset, keys that are left out are those that it was packed with."""
    config = load_config(None, settings, [str(source)])
    pack([str(source)], str(out), config, PlainExecutor(), progress or Listener())
    return out


def without(source: Path, out: Path, left_out: Collection[str]) -> Path:
    """The same source without some documents."""
    out.mkdir()
    for path in source.iterdir():
        (out / path.name).symlink_to(path)
    (out / "rows.jsonl").unlink()
    rows = [json.loads(line) for line in (source / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    write_rows(out, [row for row in rows if row["id"] not in left_out])
    return out


def shards(dataset: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (dataset / "shards").iterdir()}


def rejects(dataset: Path) -> dict[str, str]:
    """The message of each rejected document."""
    rows = pq.read_table(dataset / "rejects.parquet").to_pylist()
    return {row["doc_id"]: row["message"] for row in rows}
