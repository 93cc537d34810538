"""The arrays of the tiny dataset, pinned: a change of what is written has to be meant, and versioned."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import numpy as np

from preshard.schemas import VERSION

PINNED = json.loads((Path(__file__).parent / "arrays.json").read_text(encoding="utf-8"))


def digests(dataset: Path) -> dict[str, str]:
    """SHA-256 of every array of every sample, by its name, over all packs in order; not of the compressed bytes."""
    hashes: dict[str, hashlib._Hash] = {}
    for shard in sorted((dataset / "shards").glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                if not member.name.endswith(".npz"):
                    continue
                content = tar.extractfile(member)
                assert content is not None
                with np.load(io.BytesIO(content.read())) as arrays:
                    for name in arrays.files:
                        hashes.setdefault(name, hashlib.sha256()).update(arrays[name].tobytes())
    return {name: found.hexdigest() for name, found in hashes.items()}


def test_arrays_are_the_same_on_every_machine(tiny_dataset: Path) -> None:
    """Fails when tokens, labels, masks or layouts change without a new version, or differ between machines.

    When the change is meant: raise ``VERSION`` in ``schemas/__init__.py``, and write what this test prints to
    ``arrays.json``.
    """
    found = {"version": VERSION, "arrays": digests(tiny_dataset)}
    assert found == PINNED, json.dumps(found, indent=1)
