"""Work of a run beside its steps: evaluation, saves in the background, figures, traces."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from packed_ranks import train_job

from preshard.schemas.errors import ConfigError
from preshard.trainer.core.config import make_config
from preshard.trainer.core.setup import prepare
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.extra.work import StepWork
from preshard.trainer.models.load import load_model


@pytest.fixture(scope="module")
def options(texts: Path) -> dict[str, Any]:
    model = {"model": str(texts.with_name("model")), "from_scratch": True}
    return {**model, "data": str(texts), "dtype": "float64", "device": "cpu", "lr": 0.01, "warmup": 0}


@pytest.fixture(scope="module")
def both(gloo_pool: Any, options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """One process, and two that take two packs at a time and do everything else beside; the folder of the latter."""
    folder = tmp_path_factory.mktemp("beside")
    evaluated = {**options, "steps": 6, "eval_data": options["data"], "eval_every": 3}
    alone = gloo_pool.run(train_job, {**evaluated, "accumulate": 2})[0]
    beside = {"checkpoint": str(folder / "kept"), "save_every": 2, "async_save": True, "keep": 3}
    saving = {"recompute": "selective", "offload": "disk", "mlp_tiles": 2, "logits_mib": 1}
    more = {**beside, **saving, "profile": str(folder / "traces"), "dp_shard": 2}
    return alone, gloo_pool.run(train_job, {**evaluated, **more}, dp_shard=2)[0], folder


def test_an_evaluation_counts_every_pack_once(both: tuple[Any, Any, Path], options: dict[str, Any]) -> None:
    """Fails when a pack that does not fill a round is left out or counted twice, when the loss is not that of the
    model after the step, or when evaluating or saving memory changes the steps that follow.
    """
    alone, two, _ = both
    assert PackedDataset(options["data"]).n_packs % 2, "the last round has a pack for one of two ranks"
    assert [step.eval_loss is not None for step in two] == [False, False, True] * 2
    for key in ("loss", "grad_norm", "eval_loss"):
        ours, theirs = ([getattr(step, key) for step in steps] for steps in (two, alone))
        assert ours == pytest.approx(theirs, rel=1e-9), key
    assert two[5].eval_loss < two[2].eval_loss


def test_what_is_saved_beside_the_steps_is_the_state_after_its_step(
    gloo_pool: Any, both: tuple[Any, Any, Path], options: dict[str, Any]
) -> None:
    """Fails when later steps change what is being written, or when the last save is not waited for."""
    _, two, folder = both
    assert sorted(path.name for path in (folder / "kept").iterdir()) == [f"step-0000000{n}" for n in (2, 4, 6)]
    for later in ("step-00000004", "step-00000006"):
        shutil.rmtree(folder / "kept" / later)
    resumed = {**options, "checkpoint": str(folder / "kept"), "resume": True, "steps": 6, "accumulate": 2}
    again = gloo_pool.run(train_job, resumed)[0]
    assert [step.loss for step in again] == pytest.approx([step.loss for step in two[2:]], rel=1e-9)


def test_figures_of_speed_follow_from_work_and_time(both: tuple[Any, Any, Path]) -> None:
    """Fails when a rank's work or time is left out, or a rate is of the whole job where it should be of one process."""
    alone, two, folder = both
    for one, other in zip(alone, two, strict=True):
        assert sum(other.predicted_work) == pytest.approx(sum(one.predicted_work), rel=1e-9)
        assert len(other.compute_times) == 2
        assert other.measured_imbalance >= 1
        assert other.tflops == pytest.approx(sum(other.predicted_work) / 2 / other.step_time, rel=1e-9)
        assert other.tokens_per_second == pytest.approx(other.tokens / other.step_time)
    assert {path.name for path in (folder / "traces").iterdir()} == {"rank-0.json", "rank-1.json"}
    events = json.loads((folder / "traces" / "rank-0.json").read_text())["traceEvents"]
    assert (
        sum(str(event.get("name", "")).startswith("ProfilerStep#") and event.get("ph") == "X" for event in events) > 2
    )


def test_work_is_what_the_tables_of_packs_count(texts: Path) -> None:
    """Fails when the work of a pack is not its tokens and tiles by the model's own sizes."""
    model: Any = load_model(texts.with_name("model"), from_scratch=True)
    text, work = model.config, StepWork.of(model)
    heads = 2 * text.num_attention_heads + 2 * text.num_key_value_heads
    layer = text.hidden_size * (heads * text.head_dim + 3 * text.intermediate_size)
    assert work.per_token == 6 * (text.num_hidden_layers * layer + text.hidden_size * text.vocab_size)
    width = text.num_attention_heads * text.head_dim
    assert work.per_tile == 12 * 128 * 128 * width * text.num_hidden_layers
    table = pq.read_table(texts / "packs.parquet", columns=["n_tokens", "attention_tiles"]).to_pylist()
    for batch in PackedDataset(texts):
        row = table[batch.pack_id]
        expected = work.per_token * row["n_tokens"] + work.per_tile * row["attention_tiles"]
        assert work.of_rank(batch) == pytest.approx(expected, rel=1e-12)


def test_without_tensorboard_one_line_says_so(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a run begins and then ends with a traceback, because a package is missing."""
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    given = {**options, "steps": 1, "report_to": ["tensorboard"], "report_dir": "run/curves"}
    with pytest.raises(ConfigError, match="pip install tensorboard"):
        prepare(make_config(given), rank=0, world_size=1)
