"""Megatron Energon loads packed datasets by the program of docs/integrations.md. It runs where Energon is installed."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from pages import programs_of

from preshard.data import PackedDataset
from preshard.packer_service.cli.run import cli
from preshard.packer_service.verify import verify_dataset
from preshard.schemas.errors import FormatError

pytestmark = pytest.mark.process

[PROGRAM] = programs_of("integrations", "Megatron Energon")


def test_the_files_are_a_function_of_the_dataset_and_disturb_no_rule(copied: Path, progress: Any) -> None:
    """Fails when files of two runs differ, a shard is missing from them, or `verify` takes them for strangers."""
    told = []
    for _ in range(2):
        done = CliRunner().invoke(cli, ["energon", str(copied)])
        assert (done.exit_code, done.output.count(".nv-meta/")) == (0, 3)
        told.append({path.name: path.read_bytes() for path in (copied / ".nv-meta").iterdir()})
    assert told[0] == told[1]
    for shard in (copied / "shards").glob("*.tar"):
        assert shard.name.encode() in told[0][".info.json"]
        assert shard.name.encode() in told[0]["split.yaml"]
    (copied / "README.md").write_text("a card", encoding="utf-8")
    assert not verify_dataset(str(copied), progress=progress).broken


@pytest.fixture
def loaded(copied: Path) -> Any:
    """The page's program, up to its loop, with the dataset's folder and any number of workers."""
    pytest.importorskip("megatron.energon", reason="needs megatron-energon, which wants another tzdata")
    assert CliRunner().invoke(cli, ["energon", str(copied)]).exit_code == 0
    code = PROGRAM.partition("for sample in")[0].replace("my/dataset", str(copied))
    assert "num_workers=2" in code

    def load(workers: int, **cooker: Any) -> Any:
        arguments = ", ".join(f"{name}={value!r}" for name, value in cooker.items())
        made: dict[str, Any] = {}
        exec(
            code.replace("num_workers=2", f"num_workers={workers}").replace("ring_degree=2, cp_rank=1", arguments), made
        )
        return made["loader"]

    return load


@pytest.mark.parametrize("workers", [0, 2])
def test_energon_gives_the_samples_of_our_reader(loaded: Any, copied: Path, whole: list[Any], workers: int) -> None:
    """Fails when a tensor or picture differs from our reader's or from what a plain tar holds, or a pack is lost."""
    part = {"layout": "balanced_gather", "ring_degree": 2, "cp_rank": 1}
    right = {batch.pack_id: batch for batch in PackedDataset(copied, **part)}
    samples = list(islice(loaded(workers, **part), len(right)))
    assert {sample.pack.pack_id for sample in samples} == set(right)
    assert any(len(sample.pack.pixels) for sample in samples)
    for sample in samples:
        pack, stored = sample.pack, whole[sample.pack.pack_id]
        assert sample.__key__ == pack.key == stored.key
        expected = right[pack.pack_id].tensors
        assert all(torch.equal(value, expected[name]) for name, value in pack.tensors.items())
        assert np.array_equal(pack.tokens.numpy(), stored.arrays["tokens"][pack.positions])
        assert np.array_equal(pack.labels.numpy(), stored.arrays["labels"][pack.positions])
        pictures = stored.images[pack.start_image_idx : pack.end_image_idx]
        assert all(np.array_equal(one, other) for one, other in zip(pack.pictures, pictures, strict=True))
    stored_bytes = sum(member.size for sample in whole for member in sample.members)
    assert sum(sample.pack.bytes_read for sample in samples) < stored_bytes


@pytest.mark.parametrize("workers", [0, 2])
def test_a_saved_state_goes_on_with_the_same_packs(loaded: Any, workers: int) -> None:
    """Fails when packs after a restart are others than without it, or a sample cannot be made again by its key."""
    loader = loaded(workers)
    stream = iter(loader)
    before = list(islice(stream, 4))
    state = loader.save_state_rank()
    after = [sample.pack.pack_id for sample in islice(stream, 5)]
    resumed = loaded(workers)
    resumed.restore_state_rank(state)
    assert [sample.pack.pack_id for sample in islice(resumed, 5)] == after
    again = resumed.restore_sample(before[2].__restore_key__)
    assert torch.equal(again.pack.tokens, before[2].pack.tokens)
    assert len({sample.pack.pack_id for sample in before} | set(after)) == 9


def test_a_damaged_sample_ends_the_program(loaded: Any, copied: Path) -> None:
    """Fails when Energon leaves out a sample that cannot be read, as it does by default: ranks would part."""
    for shard in (copied / "shards").glob("*.tar"):
        shard.chmod(0o644)
        shard.write_bytes(shard.read_bytes().replace(b"\xff\xd8\xff", b"\xff\xd8\xfe"))  # the start of JPEG files
    with pytest.raises(FormatError):
        list(islice(loaded(0), 20))
