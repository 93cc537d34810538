"""What answering needs and imports late: loaded before the fork, once for all processes."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from preshard.packer_service.layout.area import area_by_rank
from preshard.schemas.sequence import MaskArrays

MODULES = (
    "pyarrow.compute",
    "pyarrow.parquet",
    "preshard.packer_service.layout.measures",
    "preshard.packer_service.ingest.text.load",
)


def preload() -> None:
    """Imports the modules; none of them starts a thread."""
    for name in MODULES:
        importlib.import_module(name)
    settle()


def preload_slowly() -> Iterator[None]:
    """Loads what takes some tenths of a second each, between whose parts questions can be answered.

    Pandas comes first: Arrow imports it wherever it takes Python's values, in every process by itself otherwise. Then
    a compiled loop, what plans import, and the tokenizer that is built in.
    """
    with suppress(ImportError):
        importlib.import_module("pandas")
    settle()
    yield
    ids = np.zeros(128, np.int32)
    mask = MaskArrays(doc_ids=ids, branch_ids=ids, group_ids=ids - 1)
    area_by_rank(mask, np.array([[0, 0, len(ids)]], np.int32), 1)
    settle()
    yield
    # not the loops of plans: where no cache has them yet, compiling them would keep every process from starting
    importlib.import_module("preshard.packer_service.report.what_if")
    settle()
    yield
    importlib.import_module("preshard.packer_service.ingest.text.load").load_decoder("tekken").decode([])
    settle()


def settle() -> None:
    """Forks share the pages of what is there now until they are written, which collecting it would do."""
    gc.collect()
    gc.freeze()
