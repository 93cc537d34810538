"""Commands that docs/training.md tells a user to run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import DOCS, programs_of

from preshard.trainer.core.command import cli
from preshard.trainer.core.config import TrainConfig
from preshard.trainer.models.load import load_model
from preshard.training import Mesh


def test_the_loop_of_the_page_trains(texts: Path, tmp_path: Path) -> None:
    """Fails when the fifteen lines of a loop of one's own no longer run, or leave the model as it was."""
    [code] = programs_of("training", "Your own loop")
    folder = shutil.copytree(texts.with_name("model"), tmp_path / "model")
    built: Any = load_model(folder, from_scratch=True)
    built.save_pretrained(folder)
    names: dict[str, Any] = {}
    exec(code.replace("my/model", str(folder)).replace("my/dataset", str(texts)), names)
    change = [
        (ours - theirs).abs().max()
        for ours, theirs in zip(names["packed"].parameters(), built.parameters(), strict=True)
    ]
    assert torch.stack(change).max() > 1e-6
    assert len(code.strip().splitlines()) <= 15


def test_the_command_of_the_page_has_options_that_exist() -> None:
    """Fails when an option of the command is renamed, or a value is no longer legal."""
    page = (DOCS / "training.md").read_text(encoding="utf-8")
    [command] = re.findall(r"-m preshard\.train (.*?)\n```", page.partition("\n## Your own loop")[0], re.DOTALL)
    config = cli.main(command.replace("\\\n", " ").split(), standalone_mode=False)
    assert isinstance(config, TrainConfig)
    assert (config.cp_size, config.export) == (8, Path("run/model"))


def run_loop(_mesh: Mesh, program: str) -> list[str]:
    """Output of a rank of a program that starts its own process group."""
    printed: list[str] = []
    for line in ('dist.init_process_group("gloo")', "dist.destroy_process_group()"):  # the pool has one
        program = program.replace(line, "pass")
    exec(program, {"print": printed.append})
    return printed


@pytest.mark.slow  # two worlds of ranks load the model anew; test_own_recipe.py has a loop of the public parts
def test_the_loop_on_many_ranks_has_the_losses_of_one_rank_a_pack(gloo_pool: Any, texts: Path, tmp_path: Path) -> None:
    """Fails when the loop of the recipes counts a rank's part of a loss or gradient twice, or not at all."""
    [program] = programs_of("recipes", "A loop of your own on many ranks")
    built: Any = load_model(shutil.copytree(texts.with_name("model"), tmp_path / "model"), from_scratch=True)
    built.save_pretrained(tmp_path / "model")
    program = program.replace("packed/llava", str(texts)).replace('"model"', repr(str(tmp_path / "model")))
    assert "ring = 2" in program
    shared = gloo_pool.run(run_loop, program, dp_shard=2, ring=2)[0]
    alone = gloo_pool.run(run_loop, program.replace("ring = 2", "ring = 1"), dp_shard=2)[0]
    assert len(shared) > 1
    losses = [[float(line.rpartition(" ")[2]) for line in lines] for lines in (shared, alone)]
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)
    assert losses[0][0] - losses[0][-1] > 0.01
