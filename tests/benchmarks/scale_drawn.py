"""Documents of a mixture as measuring would keep them, or as a file of lengths: what ``scale.py`` plans."""

from __future__ import annotations

from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from mixtures import lengths

from preshard.packer_service.job.planning.measured import MEASURED, Measured, keep_measured
from preshard.packer_service.plan.cost import CostModel, causal_area
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig
from preshard.schemas.manifest import WORK

PER_FRAGMENT = 62_500

N_FRAGMENTS = "fragments"
"""The file of the work folder that says how many fragments there are."""


def drawn(number: int, documents: int, mixture: str) -> dict[str, pa.Array]:
    """The documents of a fragment: names and sizes. The first of each fragment has the same id."""
    n = min(PER_FRAGMENT, documents - number * PER_FRAGMENT)
    tokens, images = lengths(mixture, n, number)
    numbers = np.arange(number * PER_FRAGMENT, number * PER_FRAGMENT + n)
    numbers[0] = 0
    padded = pc.utf8_lpad(pc.cast(pa.array(numbers), pa.string()), 10, "0")
    return {
        "doc_id": pc.binary_join_element_wise("document", padded, "-"),
        "tokens": pa.array(tokens),
        "images": pa.array(images),
        "source": pa.array(["web", "books", "video"]).take(pa.array(numbers % 3)),
    }


def keep(number: int, work: str, documents: int, mixture: str) -> None:
    """Keeps what measuring a fragment would have given."""
    columns: dict[str, Any] = drawn(number, documents, mixture)
    n, config = len(columns["doc_id"]), PackConfig()
    images, tokens = columns["images"].to_numpy(), columns["tokens"].to_numpy()
    columns |= {
        "row": np.arange(n),
        "offset": np.arange(n) * 512,
        "size": np.full(n, 511),
        "piece": np.zeros(n, np.int64),
        "patches": images * config.vision.patches_per_crop,
        "load": images * CostModel.of(config).vision_work_per_crop,
        "area": causal_area(tokens),
        "loss_weight": tokens / 2,
        "truncated": np.zeros(n, np.int64),
    }
    table = pa.table({name: columns.get(name, pa.nulls(n)) for name in MEASURED.names}).cast(MEASURED)
    keep_measured(Folder(work), number, Measured(table, n, []), 0.1)


def draw(out: Path, documents: int, mixture: str, processes: int) -> None:
    """Keeps all documents as measured."""
    work, n_fragments = out / WORK, -(-documents // PER_FRAGMENT)
    work.mkdir(parents=True)
    (work / N_FRAGMENTS).write_text(str(n_fragments), encoding="utf-8")
    with get_context("spawn").Pool(processes) as pool:
        task = partial(keep, work=str(work), documents=documents, mixture=mixture)
        for _ in pool.imap_unordered(task, range(n_fragments)):
            pass


def write_lengths(path: Path, documents: int, mixture: str) -> None:
    """The same documents as a file of lengths."""
    with pq.ParquetWriter(path, pa.table(drawn(0, 1, mixture)).schema, compression="zstd") as file:
        for number in range(-(-documents // PER_FRAGMENT)):
            file.write_table(pa.table(drawn(number, documents, mixture)))
