"""The loss of preferences on packs is that of TRL's ``DPOTrainer`` on each pair alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packed_ranks import load_on_a_rank, train_job
from PIL import Image

from preshard.schemas.errors import ConfigError
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.core.config import make_config
from preshard.trainer.core.mesh import Mesh
from preshard.trainer.core.setup import prepare
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.extra.preferences import REWARDS, find_reference, preference_loss
from preshard.trainer.models.load import load_model
from preshard.trainer.models.packed import PackedModel
from preshard.trainer.train import run

pytestmark = pytest.mark.process  # packing decodes media in a process of its own

BETA = 0.3
WEIGHTS = (1.0, 0.5, 1.0, 2.0, 1.0, 1.0)
"""``document_weight`` of each pair."""


def make_pairs(folder: Path, family: str, progress: Any) -> None:
    """Pairs in ``folder/dataset``, for ``folder/model``, and ``folder/reference`` of other weights; some of the pairs
    again in ``folder/held_out``.
    """
    from packed_models import SETTINGS, VOCABULARY

    from preshard.packer_service.config import load_config
    from preshard.packer_service.demo.model import write_model_folder
    from preshard.packer_service.job.pack import pack
    from preshard.packer_service.runtime.executors import PlainExecutor

    for name, seed in (("model", 1), ("reference", 2)):
        write_model_folder(folder / name, family, vocabulary=VOCABULARY)
        load_model(folder / name, from_scratch=True, seed=seed).save_pretrained(folder / name)  # type: ignore[operator]
    noise, rows = np.random.default_rng(0), []
    for number in range(6):
        row: dict[str, Any] = {"id": f"pair-{number}", "document_weight": WEIGHTS[number]}
        content: list[dict[str, Any]] = [{"type": "text", "text": f"{number}: what is this? " * (3 + 4 * number)}]
        if family == "qwen3_vl" and number % 3:
            Image.fromarray(noise.integers(0, 255, (70 + 20 * number, 90, 3), np.uint8)).save(folder / f"{number}.png")
            row["images"], content = [f"{number}.png"], [{"type": "image"}, *content]
        row["prompt"] = [{"role": "user", "content": content}]
        names = ("rejected", "chosen") if number == 4 else ("chosen", "rejected")  # one pair the other way round
        answers = ("Noise, as before. " * (1 + number % 4), "A cat. " * (9 - number))
        for name, answer in zip(names, answers, strict=True):
            row[name] = [{"role": "assistant", "content": answer}]
        rows.append(row)
    config = load_config(None, [*SETTINGS, "seq_len=512", f"model={folder / 'model'}"])
    for name, some in (("dataset", rows), ("held_out", rows[2:])):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, some)), encoding="utf-8")
        pack([str(folder / f"{name}.jsonl")], str(folder / name), config, PlainExecutor(), progress)


@pytest.fixture(scope="module")
def pairs(made_once: Any, progress: Any) -> Callable[[str], Path]:
    """``pairs(family)``: the folder of :func:`make_pairs`. Read only."""
    return lambda family: made_once(f"pairs-{family}", lambda folder: make_pairs(folder, family, progress))


def train_on_pairs(
    mesh: Mesh, folder: str, kind: str
) -> tuple[float, torch.Tensor, list[tuple[int, int]], torch.Tensor]:
    """The sum of losses of all packs, its gradient, how many of each pack's tokens with loss lie here, of how many, and
    the sums of rewards.

    Runs on each rank of the pool.
    """
    exchanges: dict[str, Any] = {"attention": kind}
    degrees = {name: mesh.place[name] for name in ("ulysses_degree", "ring_degree", "cp_rank")}
    whole = PackedDataset(f"{folder}/dataset", layout="zigzag", **degrees)
    old = load_on_a_rank(mesh, f"{folder}/reference")
    reference = find_reference(old, [whole], mesh, **exchanges)
    packed, total, seen = load_on_a_rank(mesh, f"{folder}/model"), 0.0, []
    of_pairs = torch.zeros(4, dtype=torch.float64)
    for batch in PackedDataset(f"{folder}/dataset", layout="zigzag", **mesh.place):
        losses = packed(batch, mesh.cp, per_token=True, **exchanges)
        loss, _, rewards = preference_loss(losses, batch, mesh.cp, reference, BETA)
        loss.backward()
        of_pairs += rewards
        total += loss.item()
        seen.append((len(batch.loss_tokens), int(batch.total_loss_weight)))
    gradients = [parameter.grad.full_tensor() for parameter in packed.inner.parameters()]
    return total, torch.cat([each.flatten() for each in gradients]), seen, of_pairs


def paths(batch: RankBatch) -> list[tuple[int, list[torch.Tensor]]]:
    """Number of each document of a whole pack, and where the prompt and each answer lie, up to its last label."""
    found = []
    for number in range(len(batch.preferences)):
        sides = []
        for branch in (1, 2):
            mine = (batch.doc_ids == number) & ((batch.branch_ids == 0) | (batch.branch_ids == branch))
            places = torch.nonzero(mine)[:, 0]
            last = int(torch.nonzero(batch.labels[places] >= 0)[-1, 0]) + 2
            sides.append(places[:last])
        found.append((number, sides))
    return found


def by_trl(folder: Path, family: str, out: Path) -> tuple[float, torch.Tensor, list[float]]:
    """The sum of losses of all pairs by ``DPOTrainer``, one pair at a time, its gradient, and the sums of rewards."""
    from packed_models import _inputs, load_original
    from transformers import AutoTokenizer
    from trl import DPOConfig, DPOTrainer
    from trl.trainer.dpo_trainer import DataCollatorForPreference

    shutil.copytree(folder / "reference", out / "old" / "model")
    model, old = load_original(folder, family), load_original(out / "old", family).eval()
    from datasets import Dataset

    args = DPOConfig(
        output_dir=str(out / "run"),
        beta=BETA,
        report_to=[],
        use_cpu=True,
        bf16=False,
        max_length=None,
        disable_dropout=False,
    )
    stand_in = Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}])
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    trainer = DPOTrainer(model=model, ref_model=old, args=args, train_dataset=stand_in, processing_class=tokenizer)
    model, total, weights = trainer.model, 0.0, []
    for batch in sorted(PackedDataset(folder / "dataset"), key=lambda batch: batch.pack_id):
        for number, sides in paths(batch):
            pair: dict[str, list[int]] = {}
            for name, places in zip(("chosen", "rejected"), sides, strict=True):
                ids, first = batch.tokens[places].tolist(), int((batch.labels[places] >= 0).int().argmax()) + 1
                assert bool((batch.labels[places][first - 1 : -1] >= 0).all()), "an answer is all under loss"
                pair |= {"prompt_ids": ids[:first], f"{name}_ids": ids[first:]}
            inputs = DataCollatorForPreference(pad_token_id=0)([pair])
            own = {name: torch.from_numpy(array) for name, array in _inputs(batch, number).items()}
            if own:  # both sequences show the same images
                rows = torch.isin(inputs["input_ids"], torch.tensor(batch.model.row_ids))  # type: ignore[union-attr]
                own = {
                    name: torch.cat([x, x]).to(x.dtype if x.dtype == torch.int64 else torch.float64)
                    for name, x in own.items()
                }
                own["mm_token_type_ids"] = rows.long()
            weights.append(float(batch.loss_weights[batch.doc_ids == number].max()))
            loss = weights[-1] * trainer._compute_loss(model, {**inputs, **own}, return_outputs=False)
            loss.backward()
            total += loss.item()
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]
    assert len(set(weights)) > 1
    found = (trainer._metrics["train"][f"rewards/{name}"] for name in REWARDS)
    rewards = [sum(weight * value for weight, value in zip(weights, each, strict=True)) for each in found]
    return total, torch.cat([each.flatten() for each in gradients]), rewards


class ExactLogProbs:
    """Stand-in for TRL's kernel, whose sums are float32 whatever the model's dtype: 2e-6 of the loss with images."""

    @staticmethod
    def apply(hidden: torch.Tensor, weight: torch.Tensor, _: Any, labels: torch.Tensor, *__: Any) -> Any:
        found = torch.log_softmax(hidden @ weight.T, -1).gather(1, labels[:, None])[:, 0]
        return (found, *[torch.zeros_like(found)] * 3, torch.zeros_like(labels, dtype=torch.bool))


CASES = [
    pytest.param("qwen3", "gather", [{}, {"ring": 2}], marks=pytest.mark.slow),
    ("qwen3_vl", "ring", [{"ring": 2, "dp_shard": 2}]),
]


@pytest.mark.parametrize(("family", "kind", "splits"), CASES)
def test_loss_and_gradient_are_those_of_trl(
    gloo_pool: Any,
    pairs: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    kind: str,
    splits: list[dict[str, int]],
) -> None:
    """Fails when tokens of an answer on another rank are left out or counted twice, a pair is taken the wrong way
    round, the first token of an answer does not count, a pair's weight does not, or a reward is not TRL's.
    """
    import trl.trainer.utils

    folder, limit = pairs(family), 1e-7
    monkeypatch.setattr(trl.trainer.utils, "_ChunkedLogProbFunction", ExactLogProbs)
    loss, gradient, rewards = by_trl(folder, family, tmp_path)
    assert 0 < rewards[2] < 6, "the model prefers chosen answers, and rejected ones"
    for degrees in splits:
        answers = gloo_pool.run(train_on_pairs, str(folder), kind, **degrees)
        cp_size = degrees.get("ring", 1)
        assert sum(answer[0] for answer in answers) / cp_size == pytest.approx(loss, rel=limit)
        of_pairs = sum(answer[3] for answer in answers) / cp_size
        assert of_pairs.tolist() == pytest.approx(rewards, rel=limit)
        assert float((answers[0][1] - gradient).norm() / gradient.norm()) < limit
        assert cp_size == 1 or any(0 < own < every for _, _, seen, _ in answers for own, every in seen)


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="whole", marks=pytest.mark.slow),
        pytest.param({"lora": 2, "lora_targets": "q_proj"}, id="lora"),
    ],
)
def test_a_run_begins_at_no_margin_and_goes_on_from_its_checkpoint(
    gloo_pool: Any,
    pairs: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: dict[str, object],
) -> None:
    """Fails when the reference is not the model as the run began, or a resumed run takes the trained one for it; or
    when loss or rewards are not the means over the pairs of all ranks and micro-batches; or when an evaluation is not
    TRL's of the model exported after it.
    """
    import trl.trainer.utils

    folder = pairs("qwen3")
    common = {
        "data": str(folder / "dataset"),
        "model": str(folder / "model"),
        "dtype": "float64",
        "lr": 0.001,
        "warmup": 0,
    }
    options = {**common, "steps": 3, "min_lr": 1.0, "loss": "dpo", "beta": BETA, **more}
    options["accumulate"] = n_packs = PackedDataset(folder / "dataset").n_packs
    options |= {"eval_data": str(folder / "held_out"), "eval_every": 1}
    saved = {"checkpoint": str(tmp_path / "whole"), "save_every": 1, "keep": 9}
    saved["export"] = str(tmp_path / "trained" / "model")
    figures = gloo_pool.run(train_job, {**options, "ring": 2, **saved}, ring=2)[0]
    losses = [each.loss for each in figures]
    assert losses[0] == pytest.approx(float(np.log(2)), rel=1e-9)
    assert losses[2] < losses[0]
    assert n_packs > 1
    assert figures[0].rewards["margins"] == pytest.approx(0, abs=1e-9)
    for each in figures[1:]:
        assert each.loss_weight == sum(WEIGHTS)
        assert sum(WEIGHTS) * each.rewards["accuracies"] == pytest.approx(sum(WEIGHTS) - WEIGHTS[4], rel=1e-9)
        assert each.named()["rewards/margins"] == pytest.approx(each.rewards["chosen"] - each.rewards["rejected"])
    shutil.copytree(tmp_path / "whole" / "step-00000001", tmp_path / "again" / "step-00000001")
    resumed = {**options, "checkpoint": str(tmp_path / "again"), "resume": True, "accumulate": 1, "dp_shard": n_packs}
    rest = gloo_pool.run(train_job, resumed, dp_shard=n_packs)[0]
    assert [each.loss for each in rest] == pytest.approx(losses[1:], rel=1e-9)
    assert [each.grad_norm for each in rest] == pytest.approx([each.grad_norm for each in figures[1:]], rel=1e-9)
    for one, two in zip(rest, figures[1:], strict=True):
        assert one.rewards == pytest.approx(two.rewards, rel=1e-9)
        assert one.eval_rewards == pytest.approx(two.eval_rewards, rel=1e-9)
    assert PackedDataset(folder / "held_out").n_packs % n_packs, "some ranks have no pack in the last round"
    (tmp_path / "trained" / "dataset").symlink_to(folder / "held_out")
    (tmp_path / "trained" / "reference").symlink_to(folder / "model")
    monkeypatch.setattr(trl.trainer.utils, "_ChunkedLogProbFunction", ExactLogProbs)
    loss, _, rewards = by_trl(tmp_path / "trained", "qwen3", tmp_path / "trl")
    assert rewards[2] > 0
    weight = sum(WEIGHTS[2:])  # of those held out
    assert weight * figures[2].eval_loss == pytest.approx(loss, rel=1e-7)
    assert [weight * figures[2].eval_rewards[name] for name in REWARDS] == pytest.approx(rewards, rel=1e-7)


def first_pass_stopped(mesh: Mesh, folder: str) -> tuple[int, int]:
    """The step that a run ends with whose second rank is asked to stop in the first pass, and the packs that it has
    seen. Runs on each rank of the pool.
    """
    looked = [0]

    def stop() -> bool:
        looked[0] += 1
        return mesh.cp.cp_rank == 1

    options = {"data": f"{folder}/dataset", "model": f"{folder}/model", "steps": 3, "loss": "dpo", "ring": 2}
    job = prepare(make_config(options), rank=mesh.cp.cp_rank, world_size=2)
    return run(job, mesh, torch.device("cpu"), lambda _: None, stop), looked[0]


def test_a_signal_in_the_first_pass_ends_it(gloo_pool: Any, pairs: Callable[[str], Path]) -> None:
    """Fails when the pass before the first step goes on until the job is killed."""
    assert PackedDataset(pairs("qwen3") / "dataset").n_packs >= 2
    assert gloo_pool.run(first_pass_stopped, str(pairs("qwen3")), ring=2) == [(0, 2)] * 2


def test_preferences_are_learnt_as_such_or_not_at_all(pairs: Callable[[str], Path], folder_of: Any) -> None:
    """Fails when rejected answers are learnt like chosen ones, or documents without preference are passed over."""
    folder = pairs("qwen3")
    packed, cp = PackedModel(load_model(folder / "model", dtype=torch.float64)), ContextParallel()
    batch = next(iter(PackedDataset(folder / "dataset")))
    with pytest.raises(ConfigError, match="holds preferences, and rejected answers would be learnt like chosen ones"):
        packed(batch, cp)
    other = next(iter(PackedDataset(folder_of("qwen3") / "dataset")))
    with pytest.raises(ConfigError, match="document 0 of pack 0 is not a preference"):
        preference_loss(torch.zeros(len(other.loss_tokens)), other, cp, {}, BETA)
    with pytest.raises(ConfigError, match="--beta is given without"):
        make_config({"data": "x", "model": "y", "steps": 1, "beta": 0.1})
