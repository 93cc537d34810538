"""Makes packs that train in seconds and yet hold what makes exactness hard.

    python tests/trainer/training/lessons.py demo/source FOLDER    # makes FOLDER/dataset, for grid.py

Videos, photographs, annotations and text of a demo source, in packs of 512 tokens with a vocabulary of 512.
"""

from __future__ import annotations

import inspect
import json
import pydoc
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from packer_service.config import load_config
from packer_service.job.pack import pack
from packer_service.runtime.executors import PlainExecutor
from packer_service.runtime.progress import ConsoleProgress

SETTINGS = [
    "seq_len=512",
    "block_size=32",
    "vision.image_size=56",
    "vision.pool_size=2",
    "video.fps=1",
    "video.max_frames=3",
    "max_images=12",
    "annotation_weight=sqrt",
    "packs_per_shard=4",
    "order.window=4",
]
EACH = 12
"""Documents of each of the demo's four subsets."""


def make_lessons(source: Path, folder: Path) -> Path:
    """Packs the short documents of a demo source into ``folder/dataset``."""
    source = source.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text("\n".join(_short_rows(source)), encoding="utf-8")
    tokenizer = _small_tokenizer(folder / "tokenizer.json")
    config = load_config(None, [*SETTINGS, f"tokenizer={tokenizer}"])
    pack([str(folder / "rows.jsonl")], str(folder / "dataset"), config, PlainExecutor(), ConsoleProgress())
    return folder / "dataset"


def _small_tokenizer(path: Path) -> Path:
    """A byte-level BPE of 512 tokens: with a real vocabulary nearly all time would go into logits."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<s>", "</s>", "[INST]", "[/INST]"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(inspect.getsource(pydoc).splitlines(), trainer)
    tokenizer.save(str(path))
    return path


def _short_rows(source: Path) -> list[str]:
    """The first short documents of each subset, with absolute paths to their media."""
    taken: dict[str, list[str]] = {}
    for line in (source / "documents.jsonl").read_text(encoding="utf-8").splitlines():
        if len(line) < 1000 and line.startswith('{"id": "') and not line.startswith('{"id": "bad'):
            moved = line.replace('"videos/', f'"{source}/videos/').replace('"photos/', f'"{source}/photos/')
            taken.setdefault(json.loads(line)["source"], []).append(moved)
    return [line for lines in taken.values() for line in lines[:EACH]]


if __name__ == "__main__":
    print(make_lessons(Path(sys.argv[1]), Path(sys.argv[2])))
