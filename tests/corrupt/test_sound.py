"""Soundness of what the job writes, under every configuration that changes which rules apply."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from preshard.packer_service.config import load_config
from preshard.packer_service.demo.model import write_model_folder
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.verify import Verdict, verify_dataset

VARIANTS = {
    "crops": ["vision.max_crops=4"],
    "png": ["image_format=png"],
    "groups_of_documents, one_pack_a_shard": ["bidirectional=image_tokens", "packs_per_shard=1"],
    "truncate": ["oversize=truncate", "annotation_weight=sqrt"],
    "split": ["oversize=split", "annotation_weight=sqrt", "max_images=8"],
    "unaligned": ["layouts=[contiguous,balanced_ring]", "ring_degrees=[1,3]", "seq_len=1152", "cp_sizes=[1,2]"],
    "causal, contiguous": ["bidirectional=none", "layouts=[contiguous]", "block_size=100"],
}


OFTEN = ("crops", "split", "unaligned")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in OFTEN)) for name in VARIANTS]
)
def test_a_packed_dataset_is_sound(name: str, packed: Callable[..., Path], verify: Callable[[Path], Verdict]) -> None:
    """Fails when packing breaks a rule, or verifying asks for more than packing promises."""
    verdict = verify(packed(*VARIANTS[name]))
    assert not verdict.broken, verdict.as_lines()
    assert verdict.checked["packs"] > 1
    assert verdict.checked["images"] > 10


def test_the_variants_reach_their_cases(packed: Callable[..., Path]) -> None:
    """Fails when the source no longer has what the variants are for: pieces, cuts, clips."""
    split = pq.read_table(packed(*VARIANTS["split"]) / "documents.parquet").to_pydict()
    assert max(split["piece"]) >= 1
    assert sum(pq.read_table(packed(*VARIANTS["truncate"]) / "documents.parquet")["truncated_tokens"].to_pylist()) > 0
    assert {"clip", "clips", "asked"} <= set(split["doc_id"])


def test_a_dataset_without_packs_is_sound(
    tmp_path: Path, packed: Callable[..., Path], verify: Callable[[Path], Verdict]
) -> None:
    """Fails when a source of rejects alone cannot be verified."""
    (tmp_path / "rows.jsonl").write_text(json.dumps({"id": "a", "text": ""}) + "\n")
    verdict = verify(packed(source=tmp_path))
    assert not verdict.broken, verdict.as_lines()
    assert verdict.checked == {
        "shards": 0,
        "packs": 0,
        "independent": 0,
        "images": 0,
        "documents": 0,
        "rejects": 1,
    }


@pytest.mark.parametrize("oversize", ["reject", "split"])
def test_a_document_that_was_lost_in_writing_leaves_a_sound_dataset(
    oversize: str, mixed_source: Path, tiny_settings: list[str], tmp_path: Path, verify: Callable[[Path], Verdict]
) -> None:
    """Fails when the padding and the reject that a failed document leaves are taken for faults."""
    source = shutil.copytree(mixed_source, tmp_path / "tiny")
    settings = [*tiny_settings, f"oversize={oversize}", "max_images=8"]

    class BreakingProgress:
        """Damages two images after they were measured, as a failing disk would."""

        def doing(self, what: str) -> None: ...

        def note(self, message: str) -> None:
            if message.startswith("planned"):
                Image.new("RGB", (3, 3)).save(source / "1.png")
                (source / "1.png").write_bytes((source / "1.png").read_bytes()[:60])

        def step(self, what: str, done: int, total: int, amounts: object = None) -> None:
            pass

    out = tmp_path / "out"
    pack([str(source)], str(out), load_config(None, settings), PlainExecutor(), BreakingProgress())
    stages = pq.read_table(out / "rejects.parquet")["stage"].to_pylist()
    assert stages.count("write") > 2
    verdict = verify(out)
    assert not verdict.broken, verdict.as_lines()


def test_a_part_of_a_video_keeps_the_time_step_of_the_whole(
    mixed_source: Path, tmp_path: Path, progress: Any, verify: Callable[[Path], Verdict]
) -> None:
    """Fails when verifying derives the time step of a cut video from the frames that are left of it.

    The clip begins while its first frame is on the screen, so its frames are not evenly apart.
    """
    write_model_folder(tmp_path / "model", "qwen2_5_vl", vocabulary=300)
    source = tmp_path / "source"
    source.mkdir()
    shutil.copy(mixed_source / "clip.mp4", source)
    clip = {"type": "video", "video": "clip.mp4", "start": 0.1}
    turns = [{"role": "user", "content": [clip]}, {"role": "assistant", "content": "grey " * 30}]
    (source / "rows.jsonl").write_text(json.dumps({"id": "a", "messages": turns}))
    settings = [f"model={tmp_path / 'model'}", "oversize=split", "max_images=4", "seq_len=512", "block_size=64"]
    settings += ["layouts=[contiguous]", "ring_degrees=[1]", "cp_sizes=[1,2]", "video.fps=10"]
    pack([str(source)], str(tmp_path / "out"), load_config(None, settings), PlainExecutor(), progress)
    verdict = verify(tmp_path / "out")
    assert not verdict.broken, verdict.as_lines()
    assert verdict.checked["images"] == 4, "the last piece alone carries loss"


def test_processes_find_what_one_finds(sound: Path, tmp_path: Path, progress: object) -> None:
    """Fails when shards are lost, or faults come out of order, between processes."""
    copy = shutil.copytree(sound, tmp_path / "copy")
    for shard in sorted((copy / "shards").glob("*.tar")):
        data = bytearray(shard.read_bytes())
        data[700] ^= 1
        shard.write_bytes(data)
    one = verify_dataset(str(copy), processes=1, progress=progress)
    two = verify_dataset(str(copy), processes=2, progress=progress)
    assert one.as_json() == two.as_json()
    assert len({fault.file for fault in one.broken}) == len(list((copy / "shards").glob("*.tar"))) > 2
