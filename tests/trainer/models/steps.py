"""One step of each followed model on one rank and on two, beside the model of ``transformers`` on the documents alone.

    python tests/trainer/models/steps.py            # the table: loss and norm of the gradient, 1 and 2 ranks
    python tests/trainer/models/steps.py gpt2       # of one model

Models are in float64, with random weights, and read a pack of text.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from hand_made import pack_of, packed_for
from packed_ranks import load_on_a_rank
from scripts import load_script
from transformers_alone import load_transformers

from preshard.schemas.errors import ConfigError
from preshard.schemas.model.families import FAMILIES
from preshard.trainer.core.mesh import Mesh
from preshard.trainer.core.optimizer import make_optimizer
from preshard.trainer.core.step import LocalTotals, apply_gradients, join_totals
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.extra.parts import count_trains
from preshard.trainer.extra.work import StepWork
from preshard.trainer.models.interface import feature_parameters, unwrap
from preshard.trainer.models.load import load_model

LENGTHS, VOCABULARY = (12, 28, 8), 96

DRAWS = ("phimoe",)
"""Models that draw the routes of tokens in training."""


def pack_for(model: Any, *, ring_degree: int = 1, cp_rank: int = 0) -> RankBatch:
    """A pack of text as one is read that was packed for a model."""
    return packed_for(model, pack_of(LENGTHS, VOCABULARY, ring_degree=ring_degree, cp_rank=cp_rank))


def step_on_a_rank(mesh: Mesh, folders: Sequence[str]) -> list[tuple[float, float]]:
    """Loss and norm of the gradient of a step of each model, after whose update every weight is a number. Runs on each
    rank of the pool.
    """
    found = []
    for folder in folders:
        packed = load_on_a_rank(mesh, folder, weights="random")
        base = unwrap(packed.inner)
        assert StepWork.of(base).per_token > 0
        assert count_trains(base).trained > 0
        optimizer, local = make_optimizer(packed, lr=1e-3), LocalTotals.zero(torch.device("cpu"))
        batch = pack_for(base, ring_degree=mesh.cp.ring_degree, cp_rank=mesh.cp.cp_rank)
        loss = packed(batch, mesh.cp)
        loss.backward()
        local.add(batch, loss)
        parameters = [each for each in packed.parameters() if each.requires_grad]
        totals = join_totals(local, parameters, replica=mesh.replica, cp_size=mesh.cp.cp_size, stop=False)
        apply_gradients(optimizer, parameters, totals, lr=1e-3, clip=1.0, of_features=feature_parameters(base))
        assert all(bool(each.isfinite().all()) for each in parameters)
        found.append((totals.loss_sum / totals.loss_weight, totals.grad_norm / totals.loss_weight))
    return found


def alone(folder: str) -> tuple[float, float]:
    """The same of the unmodified model on each document."""
    transformers = load_transformers()
    made: Any = load_model(folder, from_scratch=True, seed=3, dtype=torch.float64)
    auto = transformers.AutoModelForCausalLM
    if made.config.model_type in FAMILIES:
        auto = transformers.AutoModelForImageTextToText
    own = made.config
    for part in (own, own.get_text_config()):
        part._experts_implementation = "eager"
    plain = auto.from_config(own, attn_implementation="eager", dtype=torch.float64).train()
    plain.load_state_dict(made.state_dict())
    batch, total = pack_of(LENGTHS, VOCABULARY), torch.zeros((), dtype=torch.float64)
    for number in range(len(LENGTHS)):
        mine = torch.nonzero(batch.doc_ids == number)[:, 0]
        given: dict[str, Any] = {"input_ids": batch.tokens[mine][None], "use_cache": False}
        types = {"token_type_ids", "mm_token_type_ids"} & signature(plain.forward).parameters.keys()
        given |= {name: torch.zeros_like(given["input_ids"]) for name in types if own.model_type in FAMILIES}
        logits = plain(**given).logits[0].double()
        total = total + cross_entropy(logits[:-1], batch.labels[mine][:-1], reduction="sum")
    mean = total / batch.total_loss_weight
    mean.backward()
    squares = [each.grad.double().square().sum() for each in plain.parameters() if each.grad is not None]
    return float(mean.detach()), float(torch.stack(squares).sum().sqrt())


def write_models(folder: Path, wanted: Sequence[str] = (), **settings: Any) -> dict[str, Path]:
    """Folders with a tiny ``config.json`` of each followed model, or of some, by name. Nothing is dropped at random."""
    folders = {}
    for name, config in load_script(Path(__file__).with_name("followed.py")).every_followed():
        if wanted and name not in wanted:
            continue
        folders[name] = folder / name.replace(", ", "-")
        folders[name].mkdir(parents=True)
        text = config.get("text_config") or config
        text |= {key: 0.0 for key in text if ("drop" in key or "noise" in key) and isinstance(text[key], float)}
        text |= settings
        (folders[name] / "config.json").write_text(json.dumps(config, default=str), encoding="utf-8")
    return folders


def main(wanted: list[str]) -> None:
    from preshard.trainer.core.mesh import build_mesh
    from preshard.trainer.core.processes import start_processes

    torch.set_num_threads(1)
    here = start_processes("cpu")
    mesh = build_mesh("cpu", dp_replicate=1, dp_shard=1, ring_degree=here.world_size, ulysses_degree=1)
    with tempfile.TemporaryDirectory() as folder:
        for name, path in write_models(Path(folder), wanted).items():
            try:
                ((loss, norm),) = step_on_a_rank(mesh, [str(path)])
            except ConfigError as error:
                print(f"| {name} | {error} |", flush=True)
                continue
            right = alone(str(path))
            if here.rank == 0:
                apart = max(abs(a - b) / max(abs(b), 1e-9) for a, b in zip((loss, norm), right, strict=True))
                print(f"| {name} | {loss:.6f} | {norm:.6f} | {apart:.0e} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
