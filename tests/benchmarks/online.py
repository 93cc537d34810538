"""Packs made of documents in memory, and the same packs read from a dataset: milliseconds of each, in turn.

    python tests/benchmarks/online.py [--packs 8] [--rounds 5]

``pack`` is :func:`preshard.packing.pack_batch`, ``read`` what one rank of four reads of its packs, and ``dataset`` the
same read from shards; the ratio is ``pack`` and ``read`` over ``dataset``. ``rollouts`` are tokens with a number for
each, ``chats`` text that is tokenised, and ``pictures`` conversations about pictures of PIL, which are decoded and
scaled in a process of their own.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from machine import cpu_seconds, hardware  # noqa: E402

import preshard  # noqa: E402
from preshard.data import PackedDataset  # noqa: E402
from preshard.packer_service.demo.model import write_model_folder  # noqa: E402
from preshard.packing import pack_batch  # noqa: E402

SEQ_LEN = 32_768
ALL: dict[str, Any] = {"seq_len": SEQ_LEN, "max_images": None, "cp_sizes": [1, 2, 4, 8], "ring_degrees": [1, 2, 4, 8]}
ONE: dict[str, Any] = {
    "seq_len": SEQ_LEN,
    "max_images": None,
    "cp_sizes": [4],
    "ring_degrees": [4],
    "layouts": ["balanced_ring"],
}
SPLIT: dict[str, Any] = {"layout": "balanced_ring", "ring_degree": 4, "cp_rank": 1}

Rows = list[dict[str, Any]]


def rollouts(n_packs: int, _: Callable[[Image.Image], Any]) -> Rows:
    """Answers of 500 to 6,000 tokens, each with what the policy thought of it."""
    drawn, left, rows = np.random.default_rng(0), n_packs * SEQ_LEN * 0.97, Rows()
    while left > 0:
        n = int(drawn.integers(500, 6000))
        left -= n
        ids, mask = drawn.integers(1000, 20_000, n).tolist(), [0] * 300 + [1] * (n - 300)
        rows.append({"id": f"{len(rows)}", "input_ids": ids, "loss_mask": mask, "logprobs": drawn.random(n).tolist()})
    return rows


def chats(n_packs: int, _: Callable[[Image.Image], Any]) -> Rows:
    """Conversations of some thousand tokens."""
    drawn, rows = np.random.default_rng(0), Rows()
    for number in range(n_packs * 12):
        answer = " ".join(f"word{word}" for word in drawn.integers(0, 999, 850))
        messages = [{"role": "user", "content": "What is said?"}, {"role": "assistant", "content": answer}]
        rows.append({"id": f"{number}", "messages": messages})
    return rows


def pictures(n_packs: int, show: Callable[[Image.Image], Any]) -> Rows:
    """Conversations about two photographs of 640 x 480 each, here smooth noise."""
    drawn, rows = np.random.default_rng(0), Rows()
    for number in range(n_packs * 30):
        images = [Image.fromarray(drawn.integers(0, 255, (15, 20, 3), np.uint8)).resize((640, 480)) for _ in "ab"]
        content = [*({"type": "image", "image": show(image)} for image in images), {"type": "text", "text": "?"}]
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "so it is " * 80}]
        rows.append({"id": f"{number}", "messages": messages})
    return rows


def inline(image: Image.Image) -> str:
    """A picture as JSON holds it."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + b64encode(file.getvalue()).decode()


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds on the clock, and of processors: of this process and of the one that decodes."""
    wall, used = time.perf_counter(), cpu_seconds(os.getpid())
    call()
    return time.perf_counter() - wall, cpu_seconds(os.getpid()) - used


def measure(rows: Rows, data: Path, rounds: int) -> str:
    """The cells of a row of the table.

    Args:
        rows: documents in memory.
        data: the same as a dataset, with whose configuration they are packed.
        rounds: how often all is timed, in turn.
    """
    config, dataset = preshard.open(data).config, PackedDataset(data, **SPLIT)
    packed = pack_batch(rows, config)  # what is compiled and loaded once
    n = len(packed)
    assert n == dataset.n_packs
    calls = (
        partial(pack_batch, rows, config),
        partial(packed.batches, **SPLIT),
        lambda: [dataset[pack] for pack in range(n)],
    )
    times = np.array([[timed(call) for call in calls] for _ in range(rounds)])
    shown = 1000 / n * np.median(times, axis=0)
    cells = "".join(f"{f'{wall:.1f} ({used:.1f})':>16}" for wall, used in shown.tolist())
    return f"{n:>6}{packed.nbytes / n / 1000:>10.0f}{cells}{shown[:2, 1].sum() / shown[2, 1]:>7.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(hardware())
    print(
        f"milliseconds a pack of {SEQ_LEN:,} tokens on the clock (and of processors), medians; ratio of processor time"
    )
    heads = "".join(f"{name:>16}" for name in ("pack", "read", "dataset"))
    print(f"{'documents':<10}{'layouts':>9}{'packs':>6}{'kB a pack':>10}{heads}{'ratio':>7}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_model_folder(folder / "model", "qwen3_vl")
        own = {rollouts: {"token_columns": {"logprobs": "float32"}}, pictures: {"model": str(folder / "model")}}
        for make in (rollouts, chats, pictures):
            source = folder / f"{make.__name__}.jsonl"
            source.write_text("\n".join(map(json.dumps, make(given.packs, inline))), encoding="utf-8")
            rows = make(given.packs, lambda image: image)
            for name, settings in (("all 16", ALL), ("one", ONE)):
                data, config = folder / f"{make.__name__}-{name}", {**settings, **own.get(make, {})}
                preshard.pack(source, data, progress=False, executor="local", **config)
                print(f"{make.__name__:<10}{name:>9}{measure(rows, data, given.rounds)}", flush=True)


if __name__ == "__main__":
    main()
