"""Contents of a checkpoint on an optimiser."""

from __future__ import annotations

import json
import re
import resource
import shutil
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from preshard.schemas.errors import ConfigError
from preshard.trainer.core.checkpoint import (
    RUN,
    Checkpoints,
    RunState,
    SaveError,
    find_checkpoint,
    load_checkpoint,
    read_run_state,
)
from preshard.trainer.core.mesh import Mesh
from preshard.trainer.core.sharding import shard_model
from preshard.trainer.extra.checkpoint_check import find_damaged, find_unshared


def steps_after_a_save(mesh: Mesh, folder: str, learned: bool) -> tuple[set[float], set[float]]:
    """AdamW's count of steps after a checkpoint was saved, and in another optimiser that loads it."""
    counts = []
    for saves in (True, False):
        model = nn.Linear(3, 2)
        shard_model(model, [], mesh.parameters, bfloat16=False)
        optimizer = torch.optim.AdamW(model.parameters())
        if saves:
            if learned:
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            Checkpoints(Path(folder), keep=1).save(model, optimizer, RunState(step=1, data={}, model={}))
        else:
            load_checkpoint(Path(folder) / "step-00000001", model, optimizer)
        counts.append({float(state["step"]) for state in optimizer.state.values()})
    return counts[0], counts[1]


def save_two(mesh: Mesh, folder: str) -> None:
    """Saves after steps 1 and 2. Runs on each rank of the pool."""
    model = nn.Linear(64, 32)
    shard_model(model, [], mesh.parameters, bfloat16=False)
    optimizer, saves = torch.optim.AdamW(model.parameters()), Checkpoints(Path(folder), keep=2)
    for step in (1, 2):
        saves.save(model, optimizer, RunState(step=step, data={}, model={}))


def damaged_on_a_rank(mesh: Mesh, folder: str) -> dict[str, str]:
    """Runs on each rank of the pool."""
    return find_damaged(Path(folder))


def unshared_on_a_rank(mesh: Mesh, folders: list[str]) -> str | None:
    """Runs on each rank of the pool, for which each has a folder."""
    return find_unshared(Path(folders[dist.get_rank()]))


def failures_of_saves(mesh: Mesh, folder: str, beside: bool, where: str) -> list[str]:
    """Messages to each rank when the second checkpoint cannot be written on one of them."""
    model = nn.Linear(3, 2)
    shard_model(model, [], mesh.parameters, bfloat16=False)
    optimizer, said = torch.optim.AdamW(model.parameters()), []
    saves = Checkpoints(Path(folder), keep=2, beside=beside)
    for step in (1, 2, 3):
        full = step == 2 and (where == "everywhere" or dist.get_rank() == 1)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10 if full else before[0], before[1]))
        try:
            saves.save(model, optimizer, RunState(step=step, data={}, model={}))
            saves.finish()
        except SaveError as error:
            said.append(str(error))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            dist.barrier()
    return said


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("where", ["rank 1", "everywhere"])
def test_a_full_disk_ends_every_rank_with_one_line(gloo_pool: Any, tmp_path: Path, beside: bool, where: str) -> None:
    """Fails when a disk that is full for one rank leaves the others waiting, ends in torch's traceback, takes the
    checkpoint before with it, or leaves something that stops the next save.
    """
    for said in gloo_pool.run(failures_of_saves, str(tmp_path), beside, where, dp_shard=2):
        [line] = said
        assert line.startswith(f"the checkpoint after step 2 cannot be written to {tmp_path} (")
        assert line.endswith("and step-00000001 is whole: free some space there, then use --resume")
        assert "\n" not in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]


def saves_without_a_folder(mesh: Mesh, folder: str) -> str:
    """Message to each rank when a file stands in the folder's place. Runs on each rank of the pool."""
    model = nn.Linear(3, 2)
    shard_model(model, [], mesh.parameters, bfloat16=False)
    with pytest.raises(SaveError) as raised:
        Checkpoints(Path(folder), keep=2).save(
            model, torch.optim.AdamW(model.parameters()), RunState(step=1, data={}, model={})
        )
    return str(raised.value)


def test_a_folder_that_is_gone_ends_every_rank_with_one_line(gloo_pool: Any, tmp_path: Path) -> None:
    """Fails when the remedy for a missing folder is to free some space."""
    (tmp_path / "kept").touch()
    said = gloo_pool.run(saves_without_a_folder, str(tmp_path / "kept"), dp_shard=2)
    assert said == [said[0]] * 2
    assert said[0].endswith(
        "/kept (Not a directory), and no checkpoint is there yet: make it a folder that all ranks can write to, then "
        "use --resume"
    )


@pytest.fixture(scope="module")
def two_saves(gloo_pool: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints by two ranks. Read only."""
    folder = tmp_path_factory.mktemp("saves") / "kept"
    gloo_pool.run(save_two, str(folder), dp_shard=2)
    return folder


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "cut": ("__1_0.distcp", cut, r"__1_0.distcp has [\d,]+ bytes, not [\d,]+"),
    "flipped": ("__0_0.distcp", flip, r"__0_0.distcp has CRC-32C [0-9a-f]{8}, not [0-9a-f]{8}"),
    "missing": ("__1_0.distcp", Path.unlink, "__1_0.distcp cannot be read: No such file or directory"),
    "no metadata": (".metadata", Path.unlink, ".metadata cannot be read: No such file or directory"),
    "another step": ("run.json", flip, "run.json has CRC-32C"),
    "no sums": ("checksums.json", Path.unlink, "checksums.json cannot be read: No such file or directory"),
    "endless sums": (
        *("checksums.json", lambda path: path.write_text('{"run.json": [1e999, 0]}')),
        "checksums.json cannot be read: OverflowError",
    ),
    "other sums": ("checksums.json", lambda path: path.write_text("[1]"), "checksums.json cannot be read"),
}


@pytest.mark.parametrize(("name", "damage", "said"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_taken(
    gloo_pool: Any, two_saves: Path, tmp_path: Path, name: str, damage: Callable[[Path], None], said: str
) -> None:
    """Fails when a checkpoint is trusted of which a file is not as it was written, or one sound is not."""
    assert sorted(path.name for path in (two_saves / "step-00000002").iterdir()) == [
        *(".metadata", "__0_0.distcp", "__1_0.distcp", "checksums.json", "run.json")
    ]
    folder = Path(shutil.copytree(two_saves, tmp_path / "kept"))
    assert find_damaged(folder) == {}
    damage(folder / "step-00000002" / name)
    [(newest, fault)] = find_damaged(folder).items()
    assert newest == "step-00000002"
    assert re.match(said, fault)
    before = find_checkpoint(folder, find_damaged(folder))
    assert before is not None
    assert before.name == "step-00000001"
    assert gloo_pool.run(damaged_on_a_rank, str(folder), dp_shard=2) == [{newest: fault}] * 2


def test_a_folder_that_ranks_do_not_share_is_noticed(gloo_pool: Any, tmp_path: Path) -> None:
    """Fails when ranks on two machines write parts of a checkpoint into folders of their own, or leave a trace."""
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    assert gloo_pool.run(unshared_on_a_rank, [one, one], dp_shard=2) == [None, None]
    first, second = gloo_pool.run(unshared_on_a_rank, [one, two], dp_shard=2)
    assert first == second
    assert first.startswith(f"--checkpoint is {one}, where rank 0 does not find what rank 1 has written")
    assert not list((tmp_path / "one").iterdir()) + list((tmp_path / "two").iterdir())
    (tmp_path / "file").touch()
    [said] = set(gloo_pool.run(unshared_on_a_rank, [one, f"{tmp_path}/file"], dp_shard=2))
    assert said.endswith("/file, which cannot be written (File exists)") or "Not a directory" in said


def test_saving_is_no_step(gloo_pool: Any, tmp_path: Path) -> None:
    """Fails when a checkpoint before the first step with a loss makes AdamW count a step, which changes its bias."""
    assert gloo_pool.run(steps_after_a_save, str(tmp_path / "new"), False) == [({0.0}, {0.0})]
    assert gloo_pool.run(steps_after_a_save, str(tmp_path / "learned"), True) == [({1.0}, {1.0})]


@pytest.mark.parametrize("missing", [each.name for each in fields(RunState)])
def test_a_checkpoint_that_lacks_a_field_is_refused(tmp_path: Path, missing: str) -> None:
    """Fails when a field is filled with what the run that saved it may not have had."""
    state = asdict(RunState(step=1, data={"seed": 0}, model={"model_type": "qwen3"}, parts={"names": ["a"]}))
    (tmp_path / RUN).write_text(json.dumps(state), encoding="utf-8")
    assert asdict(read_run_state(tmp_path)) == state
    del state[missing]
    (tmp_path / RUN).write_text(json.dumps(state), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"is not a valid description of a checkpoint \(KeyError\('{missing}'\)\)"):
        read_run_state(tmp_path)
