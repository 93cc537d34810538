"""The commands of docs/integrations.md train on packs as a plain loop on one rank does.

Each runs where its trainer is installed, ``tests/matrix/run.py ms-swift-4.6.0 axolotl-0.19.0 llamafactory-0.9.5``, and
prints the losses of the page with ``-rP``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
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
SEED = 1  # of an order in which pictures of the first packs are stored in another order than that of their tokens
SUPPORT = Path(__file__).parents[2] / "support"


def blocks_of(section: str, language: str) -> list[str]:
    """The blocks of a section of the page in another language than Python."""
    text = (DOCS / "integrations.md").read_text(encoding="utf-8").partition(f"\n## {section}\n")[2]
    return re.findall(rf"```{language}\n(.*?)```", text.partition("\n## ")[0], re.DOTALL)


@pytest.fixture(scope="module")
def packed(made_once: Any, progress: Any) -> Callable[[str], Path]:
    """``packed(family)``: a model, with Qwen's own ids if it has pictures, and enough packs for their order to show."""

    def make(family: str) -> Path:
        given: dict[str, Any] = {} if family == "qwen3" else {"vocabulary": None, "settings": ["where=id != 'clip'"]}
        settings = {"documents": 24, "annotated": False, **given}
        return Path(made_once(f"commands-{family}", lambda folder: make_model(folder, family, progress, **settings)))

    return make


def plain_loop(folder: Path) -> list[float]:
    """Losses of the same steps on one rank, in float64."""
    from preshard.attention import ContextParallel
    from preshard.data import PackedDataset
    from preshard.models import PackedModel, load_model

    packed = PackedModel(load_model(folder / "model", dtype=torch.float64))
    optimizer = torch.optim.AdamW(packed.parameters(), lr=LR, weight_decay=0.0)
    losses = []
    for pack in islice(PackedDataset(folder / "dataset", seed=SEED).stream(), STEPS):
        loss = packed(pack, ContextParallel(), attention="reference") / pack.total_loss_weight
        losses.append(loss.item())
        loss.backward()
        for parameter in packed.parameters():  # of the encoder, where a pack has no picture: trainers leave it alone
            parameter.grad = parameter.grad if parameter.grad is not None and parameter.grad.any() else None
        optimizer.step()
        optimizer.zero_grad()
    return losses


def write_rows(section: str, packed: Path, folder: Path, number: int = 0) -> None:
    """Runs a program of a section beside the folder ``my`` that it names."""
    program = programs_of("integrations", section)[number]
    (folder / "my").mkdir()
    for name in ("model", "dataset"):
        (folder / "my" / name).symlink_to(packed / name)
    # this build of torchvision has operators for CUDA alone; what models use of it is plain torch
    stub = "import sys, types\nname = 'torchvision._meta_registrations'\nsys.modules[name] = types.ModuleType(name)\n"
    (folder / "sitecustomize.py").write_text(stub, encoding="utf-8")
    (folder / "rows.py").write_text(program.replace('"my/dataset"', f'"my/dataset", seed={SEED}'), encoding="utf-8")
    run("python rows.py", folder)


def run(command: str, folder: Path) -> None:
    """Runs a command of this environment."""
    programs = Path(sys.executable).parent
    own = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": f"{folder}:{SUPPORT}", "OMP_NUM_THREADS": "1"}
    own |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub"), "MODELSCOPE_CACHE": str(folder / "hub")}
    own |= {"AXOLOTL_DO_NOT_TRACK": "1"}
    words = shlex.split(command.replace("\\\n", " "))
    done = subprocess.run(words, cwd=folder, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def lines_of(path: Path) -> list[dict[str, Any]]:
    """A file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def compare(log: list[dict[str, Any]], packed: Path) -> None:
    """Compares the losses of a log with those of the plain loop."""
    losses: list[Any] = [entry["loss"] for entry in log if "loss" in entry]
    right = plain_loop(packed)
    print(
        *(f"{step}  {loss:.6f}  {other:.6f}" for step, (loss, other) in enumerate(zip(losses, right, strict=True), 1)),
        sep="\n",
    )
    assert losses == pytest.approx(right, rel=1e-6)


@pytest.mark.skipif(find_spec("swift") is None, reason="needs ms-swift, which wants transformers below 5.20")
@pytest.mark.parametrize("family", ["qwen3", "qwen3_vl"])
def test_ms_swift_trains_on_packs(packed: Callable[[str], Path], tmp_path: Path, family: str) -> None:
    """Fails when packs, pictures or their order differ, a token has another's loss, or documents see each other."""
    write_rows("ms-swift", packed(family), tmp_path)
    [command] = blocks_of("ms-swift", "bash")
    if family == "qwen3":
        command = command.replace("qwen3_vl", family).replace("--use_chat_template false", "--template dummy")
    assert "--packing_length 4096" in command
    options = {
        **{"external_plugins": SUPPORT / "flash_on_cpu.py", "use_hf": "true", "use_cpu": "true", "report_to": "none"},
        **{"torch_dtype": "float32", "gradient_accumulation_steps": 1, "max_steps": STEPS, "save_strategy": "no"},
        **{"learning_rate": LR, "lr_scheduler_type": "constant", "warmup_ratio": 0, "max_grad_norm": 0},
        **{"adam_beta2": 0.999, "weight_decay": 0, "logging_steps": 1, "add_version": "false", "output_dir": "run"},
        **{"freeze_vit": "false", "freeze_aligner": "false"},
    }
    given = " ".join(f"--{name} {value}" for name, value in options.items())
    run(f"{command.replace('4096', '1024').strip()} {given}", tmp_path)
    compare(lines_of(tmp_path / "run" / "logging.jsonl"), packed(family))


BOTH = "axolotl and LLaMA-Factory"
OPTIONS = f"""
gradient_accumulation_steps: 1
max_steps: {STEPS}
learning_rate: {LR}
weight_decay: 0
max_grad_norm: 0
logging_steps: 1
"""


def configuration(number: int, more: str) -> str:
    """A configuration of the page with other options: those of the test, the same for both, and more."""
    text = blocks_of(BOTH, "yaml")[number].replace("learning_rate: 1e-5\n", "").replace("4096", "1024")
    return text + OPTIONS + more


@pytest.mark.skipif(find_spec("axolotl") is None, reason="needs axolotl, which pins other versions of most packages")
def test_axolotl_trains_on_packs(packed: Callable[[str], Path], tmp_path: Path) -> None:
    """Fails when its packs or their order are others, labels are one off, or documents see each other."""
    write_rows(BOTH, packed("qwen3"), tmp_path)
    plugin = "import flash_on_cpu\nfrom axolotl.integrations.base import BasePlugin\n\nclass OnCPU(BasePlugin): pass\n"
    (tmp_path / "plugin.py").write_text(plugin, encoding="utf-8")
    more = "lr_scheduler: constant\noptimizer: adamw_torch\nbf16: false\ntf32: false\nplugins: [plugin.OnCPU]\n"
    text = configuration(0, f"{more}save_steps: {STEPS}\n")
    (tmp_path / "axolotl.yaml").write_text(text, encoding="utf-8")
    run("axolotl train axolotl.yaml --launcher python", tmp_path)
    state = json.loads((tmp_path / "run" / f"checkpoint-{STEPS}" / "trainer_state.json").read_text(encoding="utf-8"))
    compare(state["log_history"], packed("qwen3"))


@pytest.mark.skipif(find_spec("llamafactory") is None, reason="needs LLaMA-Factory, which wants transformers below 5.7")
@pytest.mark.parametrize("family", ["qwen3", "qwen3_vl"])
def test_llama_factory_trains_on_packs(packed: Callable[[str], Path], tmp_path: Path, family: str) -> None:
    """Fails when packs, pictures or their order differ, labels are one off, or documents see each other."""
    write_rows(BOTH, packed(family), tmp_path, number=int(family == "qwen3_vl"))
    more = "lr_scheduler_type: constant\nsave_strategy: 'no'\nreport_to: none\nuse_cpu: true\n"
    (tmp_path / "torchaudio.py").touch()  # which is built for CUDA; packs have no sound
    text = configuration(1, more)
    if family == "qwen3_vl":
        text = text.replace("template: empty", "template: qwen3_vl")
        text += "freeze_vision_tower: false\nfreeze_multi_modal_projector: false\n"
    (tmp_path / "factory.yaml").write_text(text, encoding="utf-8")
    run("llamafactory-cli train factory.yaml", tmp_path)
    compare(lines_of(tmp_path / "run" / "trainer_log.jsonl"), packed(family))
