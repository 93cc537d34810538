"""What answering needs and imports late: loaded before the fork, once for all processes."""

from __future__ import annotations

import gc
import importlib
from contextlib import suppress

import numpy as np

from packer_service.layout.area import area_by_rank
from schemas.sequence import MaskArrays

MODULES = (
    "pyarrow.compute",
    "pyarrow.parquet",
    "packer_service.layout.measures",
    "packer_service.ingest.text.tokenizer",
)


def preload() -> None:
    """Imports the modules; none of them starts a thread."""
    for name in MODULES:
        importlib.import_module(name)
    settle()


def preload_slowly() -> None:
    """Loads what takes seconds of processor time: the compiled loops, the tokenizer that is built in, and pandas, which
    Arrow imports where it turns times into Python's.
    """
    ids = np.zeros(128, np.int32)
    mask = MaskArrays(doc_ids=ids, branch_ids=ids, group_ids=ids - 1)
    area_by_rank(mask, np.array([[0, 0, len(ids)]], np.int32), 1)
    with suppress(ImportError):
        importlib.import_module("pandas")
    importlib.import_module("packer_service.ingest.text.tokenizer").load_decoder("tekken").decode([])
    settle()


def settle() -> None:
    """Forks share the pages of what is there now until they are written, which collecting it would do."""
    gc.collect()
    gc.freeze()
