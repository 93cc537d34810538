"""What a training cluster must have installed to read a dataset."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIBRARIES = (
    "torch, torch.distributed, torch.utils.data, numpy, pyarrow.fs, pyarrow.parquet, pydantic, PIL.Image, jaxtyping, "
    "google_crc32c"
)
"""The libraries of the reader and the attention. What these import themselves is theirs to decide."""

PRINT_PACKAGES = "import sys; print(*{name.partition('.')[0] for name in sys.modules})"


def _packages_after(statement: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after a statement."""
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}\n{PRINT_PACKAGES}"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def library_packages() -> set[str]:
    """Packages that the libraries bring; a model makes pydantic load what it loads lazily."""
    return _packages_after(f"import {LIBRARIES}\nfrom pydantic import BaseModel, Field")


@pytest.mark.parametrize("module", ["trainer.data", "trainer.attention"])
def test_the_reader_and_the_attention_import_nothing_heavy(module: str, library_packages: set[str]) -> None:
    """Fails when reading needs Ray, PyAV, numba, FastAPI, webdataset, a tokenizer, click or YAML to be installed."""
    brought = _packages_after(f"import {module}") - library_packages - sys.stdlib_module_names
    assert {name for name in brought if not name.startswith("_")} == {"schemas", "trainer"}
