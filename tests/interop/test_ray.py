"""The shards in Ray Data's own WebDataset reader."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image


@pytest.fixture(scope="module")
def shards(tiny_dataset: Path) -> list[str]:
    return [str(path) for path in sorted((tiny_dataset / "shards").glob("*.tar"))]


@pytest.fixture(scope="module")
def packs(tiny_dataset: Path) -> dict[str, dict[str, Any]]:
    rows = pq.read_table(tiny_dataset / "packs.parquet").to_pylist()
    assert len({row["n_images"] for row in rows}) > 1, "packs differ in their members"
    return {row["key"]: row for row in rows}


def _decode(sample: dict[str, Any]) -> dict[str, Any]:
    """A decoder as a user of Ray would write it: crops in one column, as packs differ in their number."""
    head, arrays = json.loads(sample["json"]), np.load(io.BytesIO(sample["sequence.npz"]))
    crops = tuple(value for name, value in sorted(sample.items()) if name.endswith(".jpg"))
    return {
        "key": sample["__key__"],
        "pack_id": head["pack_id"],
        "tokens": arrays["tokens"],
        "crops": crops,
        "first": crops[:1],
    }


@pytest.mark.usefixtures("ray_session")
def test_ray_data_gives_every_member_of_every_pack(shards: list[str], packs: dict[str, dict[str, Any]]) -> None:
    """Fails when Ray's tar reader, which groups by what stands before the first dot, loses or mixes members.

    Also when a crop that a pack lacks is taken for one of its crops: one task reads all shards, as with a single CPU,
    and then pandas joins their columns and writes NaN where Arrow would have null.
    """
    import ray

    samples = ray.data.read_webdataset(shards, decoder=None, override_num_blocks=1).take_all()
    assert sorted(sample["__key__"] for sample in samples) == sorted(packs)
    for sample in samples:
        row = packs[sample["__key__"]]
        crops = [value for name, value in sample.items() if name.endswith(".jpg") and isinstance(value, bytes)]
        assert len(crops) == row["n_images"]
        assert json.loads(sample["json"])["pack_id"] == row["pack_id"]
        assert len(np.load(io.BytesIO(sample["sequence.npz"]))["tokens"]) == 1024
        assert all(Image.open(io.BytesIO(crop)).size == (56, 56) for crop in crops)


@pytest.mark.usefixtures("ray_session")
def test_ray_data_takes_a_decoder_of_the_users(shards: list[str], packs: dict[str, dict[str, Any]]) -> None:
    """Fails when the decoder that the how-to shows does not work; of a list with one crop Ray would make the crop."""
    import ray

    samples = ray.data.read_webdataset(shards, decoder=_decode, override_num_blocks=1).take_all()
    assert {sample["key"]: len(sample["crops"]) for sample in samples} == {
        key: row["n_images"] for key, row in packs.items()
    }
    assert all(sample["tokens"].shape == (1024,) for sample in samples)
    assert {len(sample["first"]) for sample in samples} == {min(row["n_images"], 1) for row in packs.values()}
