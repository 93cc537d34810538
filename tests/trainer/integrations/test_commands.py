"""The commands of docs/integrations.md train on packs as a plain loop on one rank does.

Each runs where its trainer is installed: ``tests/matrix/run.py ms-swift-4.6.0``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from packed_models import make_model
from pages import DOCS, programs_of

pytestmark = pytest.mark.process

STEPS, LR = 5, 1e-3
SUPPORT = Path(__file__).parents[2] / "support"


def section(name: str) -> tuple[list[str], list[str]]:
    """Programs and commands of a section of the page."""
    text = (DOCS / "integrations.md").read_text(encoding="utf-8").partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    return programs_of("integrations", name), re.findall(r"```bash\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def packed(made_once: Any, progress: Any) -> Path:
    """A model and enough packs for their order to show."""
    return Path(
        made_once("commands", lambda folder: make_model(folder, "qwen3", progress, documents=24, annotated=False))
    )


def plain_loop(folder: Path) -> list[float]:
    """Losses of the same steps on one rank, in float64."""
    from preshard.attention import ContextParallel
    from preshard.data import PackedDataset
    from preshard.models import PackedModel, load_model

    packed = PackedModel(load_model(folder / "model", dtype=torch.float64))
    optimizer = torch.optim.AdamW(packed.parameters(), lr=LR, weight_decay=0.0)
    losses = []
    for pack in islice(PackedDataset(folder / "dataset").stream(), STEPS):
        loss = packed(pack, ContextParallel(), attention="reference") / pack.total_loss_weight
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses


def run(command: str, folder: Path) -> None:
    """Runs a command of this environment."""
    own = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    own |= {"HF_HOME": str(folder / "hub"), "MODELSCOPE_CACHE": str(folder / "hub")}
    done = subprocess.run(
        shlex.split(command), cwd=folder, env=os.environ | own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.skipif(find_spec("swift") is None, reason="needs ms-swift, which wants transformers below 5.20")
def test_ms_swift_trains_on_packs(packed: Path, tmp_path: Path) -> None:
    """Fails when its packs or their order are others, a token's loss is another's, or documents see each other."""
    [program], [command] = section("ms-swift")
    for name in ("model", "dataset"):
        (tmp_path / "my" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "my" / name).symlink_to(packed / name)
    (tmp_path / "rows.py").write_text(program, encoding="utf-8")
    run(f"{sys.executable} rows.py", tmp_path)
    assert "--packing_length 4096" in command
    options = {
        **{"external_plugins": SUPPORT / "flash_on_cpu.py", "use_hf": "true", "use_cpu": "true", "report_to": "none"},
        **{"torch_dtype": "float32", "gradient_accumulation_steps": 1, "max_steps": STEPS, "save_strategy": "no"},
        **{"learning_rate": LR, "lr_scheduler_type": "constant", "warmup_ratio": 0, "max_grad_norm": 0},
        **{"adam_beta2": 0.999, "weight_decay": 0, "logging_steps": 1, "add_version": "false", "output_dir": "run"},
    }
    given = " ".join(f"--{name} {value}" for name, value in options.items())
    run(f"{command.replace('4096', '1024')} {given}".replace("\\\n", " "), tmp_path)
    log = [json.loads(line) for line in (tmp_path / "run" / "logging.jsonl").read_text(encoding="utf-8").splitlines()]
    losses: list[Any] = [entry["loss"] for entry in log if "loss" in entry]
    assert losses == pytest.approx(plain_loop(packed), rel=1e-6)
