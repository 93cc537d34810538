"""Contents of a dataset, read by ``tarfile``, ``json`` and NumPy alone: this file imports nothing of preshard."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


def file_bytes(folder: Path) -> dict[str, bytes]:
    """Every file below a dataset but run.json, which holds what is not deterministic."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "run.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def samples(dataset: Path) -> Iterator[tuple[dict[str, Any], Arrays]]:
    """Head and arrays of every pack."""
    for shard in sorted((dataset / "shards").glob("*.tar")):
        with tarfile.open(shard) as tar:
            members = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
        for name in sorted(name for name in members if name.endswith(".json")):
            arrays = np.load(io.BytesIO(members[name.replace(".json", ".sequence.npz")]))
            yield json.loads(members[name]), dict(arrays)


def documents(dataset: Path) -> Iterator[tuple[dict[str, Any], Arrays]]:
    """The span of every document, or piece of one, and its part of the arrays."""
    for head, arrays in samples(dataset):
        for span in head["documents"]:
            own = slice(span["start"], span["start"] + span["length"])
            yield (
                span,
                {name: array[..., own] if name == "position_ids" else array[own] for name, array in arrays.items()},
            )
