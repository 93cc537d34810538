"""Makes packs that train in seconds and yet hold what makes exactness hard.

    python tests/support/lessons.py demo/source FOLDER    # makes FOLDER/model and FOLDER/dataset, for grid.py

Videos, photographs, annotations and text of a demo source, in packs of 512 tokens for a tiny Qwen3-VL.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from preshard.packer_service.demo.model import write_model_folder

SETTINGS = [
    "seq_len=512",
    "block_size=32",
    "video.fps=1",
    "video.max_frames=4",
    "max_images=12",
    "annotation_weight=sqrt",
    "packs_per_shard=4",
    "order.window=4",
    "order.seed=3",
]
EACH = 12
"""Documents of each of the demo's four subsets."""

HEADS = 8
"""Heads of the models: Ulysses deals them to up to eight ranks."""

SMALL: dict[str, dict[str, Any]] = {
    "config.json": {"text_config": {"num_attention_heads": HEADS}, "vision_config": {"depth": 1}},
    "preprocessor_config.json": {"size": {"shortest_edge": 4096, "longest_edge": 12288}},
    "video_preprocessor_config.json": {"size": {"shortest_edge": 2048, "longest_edge": 24576}},
}
"""Changes of a tiny model's folder: pixels of an image and of a video are so few that several of them fit a pack."""

VOCABULARY = 400
"""Tokens besides the special ones: with a real vocabulary nearly all time would go into logits."""

TEXT_MODEL = {
    **{"num_attention_heads": HEADS, "head_dim": 8, "hidden_size": 32, "intermediate_size": 48},
    "tie_word_embeddings": True,
}
TEXT_SETTINGS = ["seq_len=512", "block_size=32", "packs_per_shard=4", "order.window=4"]


def make_lessons(source: Path, folder: Path) -> Path:
    """Packs the short documents of a demo source into ``folder/dataset``, for the model without weights beside it."""
    source = source.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text("\n".join(_short_rows(source)), encoding="utf-8")
    write_model_folder(folder / "model", "qwen3_vl", vocabulary=VOCABULARY, files=SMALL)
    return _pack(folder, SETTINGS, media_root=source)


def make_texts(folder: Path, documents: int = 10) -> Path:
    """Packs texts of many lengths into ``folder/dataset``, for a tiny Qwen3 without weights in ``folder/model``."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"id": f"text-{i}", "text": f"{i} is said again. " * (5 + 7 * i % 37)} for i in range(documents)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    write_model_folder(folder / "model", "qwen3", vocabulary=VOCABULARY, files={"config.json": TEXT_MODEL})
    return _pack(folder, TEXT_SETTINGS)


def _pack(folder: Path, settings: list[str], media_root: Path | None = None) -> Path:
    """Packs ``folder/rows.jsonl`` for ``folder/model``, with media that lie elsewhere."""
    # Imported here because each rank of the pool would import the packer with a file of tests, and packs nothing.
    from preshard.packer_service.config import load_config
    from preshard.packer_service.ingest.media.reach import AllowedMedia
    from preshard.packer_service.job.pack import pack
    from preshard.packer_service.runtime.executors import PlainExecutor
    from preshard.packer_service.runtime.progress import ConsoleProgress

    config = load_config(None, [*settings, f"model={folder / 'model'}"])
    sources, media = (
        [str(folder / "rows.jsonl")],
        AllowedMedia(roots=() if media_root is None else ((None, str(media_root)),)),
    )
    pack(sources, str(folder / "dataset"), config, PlainExecutor(), ConsoleProgress(), media=media)
    return folder / "dataset"


def given(data: Path) -> list[str]:
    """The options that name a dataset and the model beside it, which has no weights."""
    return ["--data", str(data), "--model", str(data.with_name("model")), "--from-scratch"]


def _short_rows(source: Path) -> list[str]:
    """The first short documents of each subset."""
    taken: dict[str, list[str]] = {}
    for line in (source / "documents.jsonl").read_text(encoding="utf-8").splitlines():
        if len(line) < 1000 and line.startswith('{"id": "') and not line.startswith('{"id": "bad'):
            taken.setdefault(json.loads(line)["source"], []).append(line)
    return [line for lines in taken.values() for line in lines[:EACH]]


if __name__ == "__main__":
    print(make_lessons(Path(sys.argv[1]), Path(sys.argv[2])))
