"""Compares a family with ``transformers`` on many photographs and clips, and prints a line of a table.

PYTHONPATH=.:tests/support python tests/ingest/families/oracle.py qwen3_vl --photographs 200 --clips 30
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from model_oracle import VOCABULARY, Document, Oracle, Refused, differences, takes
from photographs import photographs, write_clips

from preshard.packer_service.demo.families import FAMILIES
from preshard.packer_service.demo.model import tiny_model, write_model_folder
from preshard.packer_service.ingest.document import Medium
from preshard.schemas.sections import ImageBackend


def documents(n_photographs: int, n_clips: int, folder: Path, mixed: bool) -> Iterator[tuple[str, Document]]:
    """Each photograph and clip alone, and some together with others."""
    named = [(name, Medium(kind="image", data=data)) for name, data in photographs(n_photographs)]
    clips = [(path.name, Medium(kind="video", uri=path.name)) for path in write_clips(folder, n_clips)]
    for name, medium in (*named, *clips):
        yield name, Document([medium], folder=str(folder))
    draw = random.Random(1)
    small = [medium for name, medium in named if int(name.split()[1]) * int(name.split()[3]) < 500_000] or [named[0][1]]
    for number in range(max(1, n_clips // 2)):
        media = draw.choices(small, k=draw.randint(2, 4))
        if mixed:
            media.insert(draw.randint(0, len(media)), clips[number][1])
        yield f"several {number}", Document(media, folder=str(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--backend", choices=get_args(ImageBackend), default="torchvision", help="of stills")
    parser.add_argument("--photographs", type=int, default=200)
    parser.add_argument("--clips", type=int, default=30)
    parser.add_argument("--tiny", action="store_true", help="the tiny model's geometry, not the published one's")
    chosen = parser.parse_args()
    counts: Counter[str] = Counter()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder, files = Path(name, "model"), None if chosen.tiny else tiny_model(chosen.family).published
        write_model_folder(folder, chosen.family, vocabulary=VOCABULARY, files=files)
        oracle = Oracle(folder, chosen.backend)
        mixed = takes(oracle.family, "image", "video")
        for what, document in documents(chosen.photographs, chosen.clips, Path(name), mixed):
            ours, theirs = oracle.ours(document), oracle.theirs(document)
            found = differences(ours, theirs)
            refused = isinstance(theirs, Refused)
            counts["different" if found else "refused by both" if refused else "equal"] += 1
            if found:
                print(f"{what}: {'; '.join(found)}", flush=True)
    seconds = f"{time.monotonic() - begin:.0f} s"
    print(f"{chosen.family}, {chosen.backend}: {dict(counts)} of {counts.total()} documents, {seconds}")


if __name__ == "__main__":
    main()
