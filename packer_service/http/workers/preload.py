"""What answering needs and imports late: loaded before the fork, once for all processes."""

from __future__ import annotations

import importlib

MODULES = (
    "packer_service.layout.area",
    "packer_service.layout.measures",
    "packer_service.layout.picture",
    "pyarrow.compute",
    "pyarrow.parquet",
)


def preload() -> None:
    """Imports the modules; none of them starts a thread."""
    for name in MODULES:
        importlib.import_module(name)
