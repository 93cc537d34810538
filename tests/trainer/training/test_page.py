"""Commands that docs/training.md tells a user to run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import torch
from pages import DOCS, programs_of

from preshard.trainer.core.command import cli
from preshard.trainer.core.config import TrainConfig
from preshard.trainer.models.load import load_model


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
