"""What answering needs and imports late: loaded before the fork, once for all processes."""

from __future__ import annotations

import gc
import importlib
from typing import Any

MODULES = (
    "packer_service.layout.area",
    "packer_service.layout.measures",
    "packer_service.layout.picture",
    "pyarrow.compute",
    "pyarrow.parquet",
)


def preload_tokenizer() -> None:
    """Loads the tokenizer that is built in; a second of processor time."""
    load_decoder: Any = importlib.import_module("packer_service.ingest.text.tokenizer").load_decoder
    load_decoder("tekken")
    gc.collect()
    gc.freeze()


def preload() -> None:
    """Imports the modules; none of them starts a thread."""
    for name in MODULES:
        importlib.import_module(name)
