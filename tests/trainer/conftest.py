"""A tiny dataset packed by the real job, the same dataset read whole by other means, and a check that joins ranks."""

from __future__ import annotations

import io
import json
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from lessons import make_lessons, make_texts
from PIL import Image

from preshard.packer_service.config import load_config
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset

# This build of torchvision has operators for CUDA alone; what models use of it is plain torch.
sys.modules.setdefault("torchvision._meta_registrations", ModuleType("torchvision._meta_registrations"))

SETTINGS = [
    "seq_len=2048",
    "block_size=64",
    "vision.image_size=56",
    "vision.patch_size=14",
    "vision.pool_size=2",
    "max_images=24",
    "packs_per_shard=3",
    "order.window=4",
]
ARRAYS = ("tokens", "labels", "loss_weights", "position_ids", "pool_ids")


@dataclass(frozen=True, kw_only=True)
class WholeSample:
    """A sample as tarfile, json, numpy and PIL read it, without any of the trainer's code."""

    key: str
    head: dict[str, Any]
    arrays: dict[str, np.ndarray]
    layouts: dict[str, np.ndarray]
    images: list[np.ndarray]
    members: list[tarfile.TarInfo]


def _question(n_images: int, text: str, first: int = 0) -> list[dict[str, Any]]:
    images = [{"type": "image", "image": f"{(first + i) % 37}.png"} for i in range(n_images)]
    return [
        {"role": "user", "content": [*images, {"type": "text", "text": text}]},
        {"role": "assistant", "content": "It is noise, as far as anybody can tell."},
    ]


def _rows() -> list[dict[str, Any]]:
    annotations = [_question(0, f"question {i}") for i in range(3)]
    rows: list[dict[str, Any]] = [
        {"id": "long-text", "text": "one two three " * 676},
        {"id": "long-question", "messages": _question(3, "four five six " * 630)},
    ]
    rows += [
        {"id": f"many-{i}", "messages": _question(11 + i % 3, "seven eight " * (380 + 8 * i), first=11 * i)}
        for i in range(14)
    ]
    rows += [{"id": f"text-{i}", "text": "nine ten " * (40 * i + 5)} for i in range(8)]
    media = [{"type": "image", "image": "2.png"}, {"type": "image", "image": "4.png"}]
    return [*rows, {"id": "annotated", "media": media, "annotations": annotations}]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small matrices are slower on several threads, and many times slower where processors are shared."""
    torch.set_num_threads(1)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """This process as a job of one."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory, progress: Any) -> Path:
    """Images, text and annotations in 10 packs. Read only."""
    folder = tmp_path_factory.mktemp("reader")
    return _pack_noise(folder, [(8, 5 + i) for i in range(37)], _rows(), SETTINGS, progress)


def _pack_noise(
    folder: Path, sizes: list[tuple[int, int]], rows: list[dict[str, Any]], settings: list[str], progress: Any
) -> Path:
    """A dataset of rows that show pictures of noise, each by its number."""
    noise = np.random.default_rng(0)
    for number, size in enumerate(sizes):
        Image.fromarray(noise.integers(0, 255, (*size, 3), np.uint8)).save(folder / f"{number}.png")
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    config = load_config(None, settings)
    pack([str(folder / "rows.jsonl")], str(folder / "dataset"), config, PlainExecutor(), progress)
    return folder / "dataset"


@pytest.fixture
def copied(packed: Path, tmp_path: Path) -> Path:
    """A copy of the dataset, to be broken."""
    return Path(shutil.copytree(packed, tmp_path / "dataset"))


@pytest.fixture(scope="session")
def packed_in_tiles(tmp_path_factory: pytest.TempPathFactory, progress: Any) -> Path:
    """Stills of several crops each, as PNG, so that a unit is more than one crop. Read only."""
    folder = tmp_path_factory.mktemp("tiles")
    rows = [{"id": f"tiles-{i}", "messages": _question(1 + i % 2, "?", first=i)} for i in range(4)]
    settings = [*SETTINGS, "image_format=png", "vision.max_crops=4"]
    return _pack_noise(folder, [(60 + 20 * i, 170) for i in range(7)], rows, settings, progress)


@pytest.fixture(scope="session")
def whole(packed: Path) -> list[WholeSample]:
    """Every sample of ``packed``, by pack_id."""
    return _read_whole(packed)


@pytest.fixture(scope="session")
def whole_in_tiles(packed_in_tiles: Path) -> list[WholeSample]:
    """Every sample of ``packed_in_tiles``, by pack_id."""
    return _read_whole(packed_in_tiles)


def _read_whole(dataset: Path) -> list[WholeSample]:
    samples = []
    for shard in sorted((dataset / "shards").glob("*.tar")):
        with tarfile.open(shard) as tar:
            members = tar.getmembers()
            content = {m.name: tar.extractfile(m).read() for m in members}  # type: ignore[union-attr]
        for key in dict.fromkeys(name.partition(".")[0] for name in content):
            mine = [m for m in members if m.name.startswith(f"{key}.")]
            images = [content[m.name] for m in mine if m.name.endswith((".jpg", ".png"))]
            samples.append(
                WholeSample(
                    key=key,
                    head=json.loads(content[f"{key}.json"]),
                    arrays=dict(np.load(io.BytesIO(content[f"{key}.sequence.npz"]))),
                    layouts=dict(np.load(io.BytesIO(content[f"{key}.layouts.npz"]))),
                    images=[np.asarray(Image.open(io.BytesIO(data))) for data in images],
                    members=mine,
                )
            )
    return sorted(samples, key=lambda sample: sample.head["pack_id"])


def _check_union(batches: Sequence[RankBatch], sample: WholeSample) -> None:
    """All ranks' batches of a pack, in rank order, hold the sample once, and each rank holds what the file says."""
    positions = torch.cat([batch.positions for batch in batches]).numpy()
    assert np.array_equal(np.sort(positions), np.arange(len(sample.arrays["tokens"])))
    for name in ARRAYS:
        joined = torch.cat([getattr(batch, name) for batch in batches], dim=-1).numpy()
        np.testing.assert_array_equal(joined, sample.arrays[name][..., positions])
    joined = torch.cat([batch.images for batch in batches]).numpy()
    assert len(joined) == len(sample.images)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(joined, sample.images, strict=True))
    boundaries = sample.head["image_shard_boundaries"][str(len(batches))]
    for rank, batch in enumerate(batches):
        found = {name: getattr(batch, name) for name in boundaries[str(rank)]}
        assert found == boundaries[str(rank)]
        assert len(batch.images) == batch.end_image_idx - batch.start_image_idx
        assert all(torch.equal(mine, image) for mine, image in zip(batch.pictures, batch.images, strict=True))
        assert sum(unit.rows for unit in batch.units) == batch.end_pool_idx - batch.start_pool_idx
        for name in ("doc_ids", "branch_ids", "group_ids"):
            np.testing.assert_array_equal(getattr(batch, name).numpy(), sample.arrays[name])


class _IdsOnly:
    """Stand-in for a reader: gives each pack's id without reading it."""

    def read(self, pack_id: int, **given: Any) -> SimpleNamespace:
        return SimpleNamespace(pack_id=pack_id, **given)


@pytest.fixture(scope="session")
def ids_only() -> Callable[[PackedDataset], PackedDataset]:
    """``ids_only(dataset)``: the same dataset, whose batches have only ids, step and state. Orders need no pixels."""

    def replace_readers(dataset: PackedDataset) -> PackedDataset:
        dataset.readers = [_IdsOnly() for _ in dataset.readers]  # type: ignore[misc]
        return dataset

    return replace_readers


@pytest.fixture(scope="session")
def check_union() -> Callable[[Sequence[RankBatch], WholeSample], None]:
    return _check_union


HUGGING_FACE_DOCUMENTS = 6
"""Number of documents: as few as fill several packs, with some of text alone."""


@pytest.fixture(scope="session")
def folder_of(made_once: Any, progress: Any) -> Callable[..., Path]:
    """``folder_of(family)``: a folder with a Hugging Face model and its packs, with or without annotations."""
    from packed_models import make_model

    def make(family: str, annotated: bool = True) -> Path:
        def fill(folder: Path) -> None:
            make_model(folder, family, progress, documents=HUGGING_FACE_DOCUMENTS, annotated=annotated)

        return Path(made_once(f"hugging-face-{family}{'' if annotated else '-causal'}", fill))

    return make


@pytest.fixture(scope="session")
def made(folder_of: Callable[..., Path]) -> Callable[..., tuple[Path, Any]]:
    """``made(family)``: the same folder, and what the documents of each pack give alone, which takes seconds."""
    from packed_models import right_answers

    @cache
    def make(family: str, annotated: bool = True) -> tuple[Path, Any]:
        folder = folder_of(family, annotated)
        return folder, right_answers(folder, family)

    return make


@pytest.fixture(scope="session")
def lessons(made_once: Any, demo: Any) -> Path:
    """Videos, photographs, annotations and text of the demo in packs of 512 tokens, beside their model. Read only."""
    return made_once("lessons", lambda folder: make_lessons(demo[0], folder)) / "dataset"


@pytest.fixture(scope="session")
def texts(made_once: Any) -> Path:
    """Texts alone in five packs of 512 tokens, beside a model that is quicker to train. Read only."""
    return made_once("texts", make_texts) / "dataset"
