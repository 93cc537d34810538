"""Packages that a training cluster must have installed to read a dataset."""

from __future__ import annotations

import subprocess
import sys

LIBRARIES = (
    "torch, torch.distributed, torch.utils.data, numpy, pyarrow.fs, pyarrow.parquet, pydantic, PIL.Image, jaxtyping, "
    "google_crc32c"
)
"""The libraries of the reader and the attention. What these import themselves is theirs to decide."""

PROGRAM = f"""
import sys

def packages():
    return {{name.partition(".")[0] for name in sys.modules}}

import {LIBRARIES}
from pydantic import BaseModel, Field  # a model makes pydantic load what it loads lazily
before = packages()
import preshard.trainer.data.loader, preshard.trainer.attention.bind, preshard.trainer.attention.listed
print(*packages() - before)
"""


def test_the_reader_and_the_attention_import_nothing_heavy() -> None:
    """Fails when reading needs Ray, PyAV, numba, FastAPI, webdataset, a tokenizer, click or YAML to be installed."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    brought = set(done.stdout.split()) - sys.stdlib_module_names
    assert {name for name in brought if not name.startswith("_")} == {"preshard"}
