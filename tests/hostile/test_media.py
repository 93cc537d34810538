"""A corpus of hostile media through the whole job: packed or rejected with a code, and what is packed is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hostile_corpus import HostileFile, row_id, write_corpus

from preshard.packer_service.config import load_config
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.verify import verify_dataset
from preshard.schemas.errors import REJECT_CODES

SETTINGS = [
    "images.pages=first",
    *("seq_len=1024", "vision.image_size=28", "vision.pool_size=2", "vision.max_crops=6", "video.max_frames=16"),
    *("video.fps=4", "max_images=64", "image_format=png", "layouts=[contiguous]", "cp_sizes=[1]", "ring_degrees=[1]"),
]


@pytest.fixture(scope="module")
def packed(
    tmp_path_factory: pytest.TempPathFactory,
    hostile_files: list[HostileFile],
    progress: Any,
) -> tuple[list[str], Path]:
    """The ids of the corpus, and the dataset packed from it."""
    folder = tmp_path_factory.mktemp("hostile")
    rows = write_corpus(folder / "corpus", iter(hostile_files))
    pack([str(folder / "corpus")], str(folder / "dataset"), load_config(None, SETTINGS), PlainExecutor(), progress)
    return [row["id"] for row in rows], folder / "dataset"


def documents(dataset: Path) -> set[str]:
    return set(pq.read_table(dataset / "documents.parquet")["doc_id"].to_pylist())


def rejects(dataset: Path) -> list[dict[str, Any]]:
    return pq.read_table(dataset / "rejects.parquet").to_pylist()


def test_every_file_is_packed_or_rejected_with_a_code(packed: tuple[list[str], Path], progress: Any) -> None:
    # Fails when a file ends the job, is lost, is counted on both sides, or raises what nobody foresaw.
    ids, dataset = packed
    refused = rejects(dataset)
    assert len(set(ids)) == len(ids) > 200
    assert sorted([*documents(dataset), *(row["doc_id"] for row in refused)]) == sorted(ids)
    assert {row["code"] for row in refused} <= set(REJECT_CODES)
    assert {"bad_image", "bad_video", "missing_media", "decode_failed"} <= {row["code"] for row in refused}
    assert not [row for row in refused if "the decoder failed (" in row["message"]]
    assert verify_dataset(str(dataset), processes=1, progress=progress).sound


def test_what_is_strange_but_whole_is_packed(packed: tuple[list[str], Path], hostile_seeds: list[HostileFile]) -> None:
    # Fails when a codec, pixel format, mode, rotation, odd size or order of times is refused.
    _, dataset = packed
    missing = {row_id(file) for file in hostile_seeds} - documents(dataset)
    assert not missing, [row for row in rejects(dataset) if row["doc_id"] in missing]


def test_a_file_measures_the_same_twice(packed: tuple[list[str], Path]) -> None:
    # Fails when the probe depends on chance or state: the writing half would lose good documents.
    _, dataset = packed
    late = [row for row in rejects(dataset) if row["stage"] == "write"]
    assert late, "no damage lies in the pixels alone"
    assert {row["code"] for row in late} == {"decode_failed"}
    assert not [row for row in late if "changed since" in row["message"]]


def test_messages_hold_no_path_of_this_machine(packed: tuple[list[str], Path]) -> None:
    # Fails when a library's message that contains the path of the source reaches the rejects.
    _, dataset = packed
    assert not [row["message"] for row in rejects(dataset) if str(dataset.parent) in row["message"]]
