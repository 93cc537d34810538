"""The auxiliary loss of routers on packs is that of ``transformers`` on the documents together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hand_made import pack_of, packed_for
from packed_ranks import load_on_a_rank
from scripts import load_script
from torch.nn.functional import cross_entropy
from transformers_alone import load_transformers

from preshard.schemas.errors import ConfigError
from preshard.schemas.model.families import FAMILIES
from preshard.schemas.sequence import IGNORE_INDEX, PADDING_DOC
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.core.config import make_config
from preshard.trainer.core.mesh import Mesh
from preshard.trainer.core.setup import routers_weight
from preshard.trainer.core.step import LocalTotals, join_totals
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.extra.model_check import check_experts_whole
from preshard.trainer.extra.router_loss import WithRouters, find_coefficient, loss_with_routers
from preshard.trainer.integrations.hugging_face import take_packs
from preshard.trainer.models.interface import unwrap
from preshard.trainer.models.load import empty_model, load_model
from preshard.trainer.models.packed import PackedModel

CLOSE = 1e-6
"""Relative, in float64: norms and rotary angles are in float32, and so are the sums of ``transformers``."""

PACKS = ((24, 24, 12), (12, 12, 12, 12))
"""Tokens of the documents of each pack; the last one of each becomes padding. The others are as long as each other, as
``transformers`` gives NaN for padding behind a window in float64."""

VOCABULARY, COEFFICIENT = 96, 0.7

SOME = ["mixtral", "jetmoe", "qwen3_vl_moe"]
"""Models with routers of their MLPs, of their attention, too, and beside images."""

WITHOUT = {
    *("afmoe", "aria_text", "dots1", "exaone_moe", "glm4_moe", "hunyuan_v1_moe", "hy_v3", "kolibri1", "solar_open"),
    *("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mimo_v2_flash"),
    *("glm46v, glm4v_moe_text", "internvl, qwen3_moe", "mistral3, mistral4"),
    *("kimi_k25, deepseek_v3", "kimi_k25, kimi_k2"),
}
"""Mixtures of experts for which ``transformers`` has no such loss."""


@cache
def steps() -> Any:
    return load_script(Path(__file__).parents[1] / "models" / "steps.py")


def padded_pack(lengths: Sequence[int], model: Any, **place: int) -> RankBatch:
    """A pack of random documents for a model, whose last document is padding."""
    pack = pack_of(lengths, VOCABULARY, **place)
    is_padding = pack.doc_ids == len(lengths) - 1
    mine = is_padding[pack.positions]
    labels = pack.labels.masked_fill(mine, IGNORE_INDEX)
    learnt = sum(length - 1 for length in lengths[:-1])
    batch = replace(
        pack,
        doc_ids=pack.doc_ids.masked_fill(is_padding, PADDING_DOC),
        labels=labels,
        loss_weights=(labels != IGNORE_INDEX).float(),
        loss_tokens=torch.nonzero(labels != IGNORE_INDEX)[:, 0],
        total_loss_weight=float(learnt),
    )
    return packed_for(model, batch)


def step_on_a_rank(
    mesh: Mesh, folders: Sequence[str], saving: dict[str, Any] | None = None
) -> list[tuple[float, float]]:
    """Loss and norm of the gradient of a step on all packs, those of a data-parallel rank one after the other."""
    found = []
    for folder in folders:
        packed = load_on_a_rank(mesh, folder, weights="random", saving=saving).eval()
        objective, local = WithRouters(COEFFICIENT), LocalTotals.zero(torch.device("cpu"))
        for lengths in PACKS[mesh.dp_rank :: mesh.dp_size]:
            place = {"ring_degree": mesh.cp.ring_degree, "cp_rank": mesh.cp.cp_rank}
            batch = padded_pack(lengths, unwrap(packed.inner), **place)
            measured = objective(packed, batch, mesh.cp)
            measured.loss.backward()
            local.add(batch, *measured[1:])
        parameters = [each for each in packed.parameters() if each.requires_grad]
        totals = join_totals(local, parameters, replica=mesh.replica, cp_size=mesh.cp.cp_size, stop=False)
        found.append((totals.loss_sum / totals.loss_weight, totals.grad_norm / totals.loss_weight))
    return found


def together(folder: str) -> tuple[float, float, float]:
    """The same of the unmodified model on each pack's documents as one batch; and its loss without routers."""
    transformers = load_transformers()
    made: Any = load_model(folder, from_scratch=True, seed=3, dtype=torch.float64)
    auto = transformers.AutoModelForCausalLM
    if made.config.model_type in FAMILIES:
        auto = transformers.AutoModelForImageTextToText
    for part in (made.config, made.config.get_text_config()):
        part._experts_implementation = "eager"
    plain = auto.from_config(made.config, attn_implementation="eager", dtype=torch.float64).eval()
    plain.load_state_dict(made.state_dict())
    total, without, weight = torch.zeros((), dtype=torch.float64), 0.0, 0.0
    for lengths in PACKS:
        batch = padded_pack(lengths, plain)
        of_documents = [torch.nonzero(batch.doc_ids == number)[:, 0] for number in range(len(lengths) - 1)]
        tokens = torch.stack([batch.tokens[mine] for mine in of_documents])
        given = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "use_cache": False}
        types = {"token_type_ids", "mm_token_type_ids"} & signature(plain.forward).parameters.keys()
        given |= {name: torch.zeros_like(tokens) for name in types if made.config.model_type in FAMILIES}
        outputs = plain(**given, output_router_logits=True)
        labels = torch.stack([batch.labels[mine] for mine in of_documents])[:, :-1]
        logits = outputs.logits.double()[:, :-1]
        losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        total = total + losses + COEFFICIENT * batch.total_loss_weight * outputs.aux_loss
        without, weight = without + float(losses.detach()), weight + batch.total_loss_weight
    mean = total / weight
    mean.backward()
    squares = [each.grad.double().square().sum() for each in plain.parameters() if each.grad is not None]
    return float(mean.detach()), float(torch.stack(squares).sum().sqrt()), without / weight


def compare(gloo_pool: Any, folders: dict[str, Path], *splits: dict[str, int], **saving: Any) -> dict[str, float]:
    """Distance of each model's step from the documents together, the largest of several splits."""
    paths = [str(path) for path in folders.values()]
    answers = [gloo_pool.run(step_on_a_rank, paths, saving or None, **degrees)[0] for degrees in splits]
    apart = {}
    for number, (name, path) in enumerate(folders.items()):
        *right, without = together(str(path))
        assert right[0] - without > 0.5, "the routers' part of the loss cannot be seen"
        apart[name] = max(abs(a - b) / b for each in answers for a, b in zip(each[number], right, strict=True))
    return apart


def test_the_loss_is_that_of_the_documents_together(gloo_pool: Any, tmp_path: Path) -> None:
    """Fails when padding counts, a rank counts its own tokens alone, routers of a layer are missed or count twice, or
    packs of a step count otherwise than by their loss weights.
    """
    apart = compare(gloo_pool, steps().write_models(tmp_path, SOME), {}, {"ring": 2}, {"dp_shard": 2})
    assert len(apart) == len(SOME)
    assert max(apart.values()) < CLOSE, apart


@pytest.mark.parametrize("saving", [{"recompute": "full"}, {"recompute": "selective", "mlp_tiles": 3}])
def test_what_saves_memory_changes_nothing(gloo_pool: Any, tmp_path: Path, saving: dict[str, Any]) -> None:
    """Fails when routers are recorded again where blocks are recomputed, or tiles' tokens are taken for others."""
    apart = compare(gloo_pool, steps().write_models(tmp_path, ["qwen3_moe"]), {"ring": 2}, **saving)
    assert max(apart.values()) < CLOSE, apart


@pytest.mark.slow
def test_the_loss_of_every_followed_mixture_is_that_of_the_documents(gloo_pool: Any, tmp_path: Path) -> None:
    """The same for each model of the list, on one to three ranks, and none is left out."""
    folders, without, dense = {}, set(), 0
    for name, path in steps().write_models(tmp_path).items():
        model: Any = empty_model(path)
        if not any(word in key for key, _ in model.named_parameters() for word in ("experts", "router", "moe.")):
            dense += 1
            continue
        try:
            find_coefficient(model, COEFFICIENT)
        except ConfigError:
            without.add(name)
        else:
            folders[name] = path
    assert without == WITHOUT
    folders |= steps().write_models(tmp_path / "sparse", ["flint"], mlp_only_layers=[])
    assert dense > 40
    # the tiny models with a state have 4 value heads, which 3 ranks do not divide
    on_three = {name: path for name, path in folders.items() if not name.startswith(("qwen3_5", "qwen3_next"))}
    apart = compare(gloo_pool, folders, {}, {"ring": 2}, {"dp_replicate": 2})
    apart |= {f"{name} on 3": each for name, each in compare(gloo_pool, on_three, {"ring": 3}).items()}
    assert not {name: each for name, each in apart.items() if not each < CLOSE}


@pytest.mark.parametrize(
    ("given", "settings", "found"),
    [
        (None, {}, 0.0),
        (None, {"output_router_logits": True, "router_aux_loss_coef": 0.02}, 0.02),
        (0.0, {"output_router_logits": True}, 0.0),
        (0.5, {"output_router_logits": True, "router_aux_loss_coef": 0.02}, 0.5),
        (0.5, {}, 0.5),
    ],
)
def test_the_option_counts_before_the_configuration(
    tmp_path: Path, given: float | None, settings: dict[str, Any], found: float
) -> None:
    """Fails when a model that asks for the loss trains without it, or its weight is not the one that is meant."""
    [folder] = steps().write_models(tmp_path, ["mixtral"], **settings).values()
    config = make_config({"data": "d", "model": folder, "steps": 1, "router_aux_loss": given})
    assert routers_weight(config, empty_model(folder)) == found


def test_other_models_are_refused(tmp_path: Path) -> None:
    """Fails when the option is taken and ignored, or ends in a traceback."""
    for name, path in steps().write_models(tmp_path, ["llama", "dots1"]).items():
        with pytest.raises(ConfigError, match=f"is 0.1, and transformers has no .* for {name}: leave"):
            find_coefficient(empty_model(path), 0.1)
        assert find_coefficient(empty_model(path), 0.0) == 0


@pytest.mark.parametrize(("option", "value"), [("loss", "dpo"), ("dry_run", True)])
def test_what_has_no_such_loss_is_refused(option: str, value: object) -> None:
    """Fails when the option is taken and has no effect."""
    with pytest.raises(ConfigError, match=r"^--router-aux-loss is given with --.*; leave it out$"):
        make_config({"data": "d", "model": "m", "steps": 1, "router_aux_loss": 0.1, option: value})


def test_experts_on_other_ranks_are_refused() -> None:
    """Fails when a model whose experts are dealt to ranks trains, or the line does not say who has that."""
    check_experts_whole(SimpleNamespace(distributed_config=None))
    with pytest.raises(ConfigError, match=r"ep_size of distributed_config is 4, .*; Megatron-Core and torchtitan have"):
        check_experts_whole(SimpleNamespace(distributed_config=SimpleNamespace(ep_size=4)))


def test_a_model_in_other_trainers_has_it_too(tmp_path: Path) -> None:
    """Fails when what TRL writes into the model's configuration, or what ``take_packs`` is given, has no effect."""
    [folder] = steps().write_models(tmp_path, ["qwen3_moe"]).values()
    model: Any = load_model(folder, from_scratch=True, seed=3, dtype=torch.float64).eval()
    batch, cp = padded_pack(PACKS[0], model), ContextParallel()
    right = loss_with_routers(PackedModel(model), batch, cp, COEFFICIENT) / batch.total_loss_weight
    plain = take_packs(model, cp)(batch=batch).loss
    assert right - plain > 0.5
    model.config.output_router_logits, model.config.router_aux_loss_coef = True, COEFFICIENT
    assert torch.equal(model(batch=batch).loss, right)
    assert torch.equal(take_packs(model, cp, router_aux_loss=0.0)(batch=batch).loss, plain)
    [dense] = steps().write_models(tmp_path / "dense", ["llama"]).values()
    with pytest.raises(
        ConfigError, match=r"^router_aux_loss is 0\.5, and transformers has no auxiliary loss for llama"
    ):
        take_packs(load_model(dense, from_scratch=True), cp, router_aux_loss=0.5)


def test_a_model_without_experts_is_refused(tmp_path: Path) -> None:
    """Fails when a kind of model that may have experts, and here has none, ends in a traceback."""
    [folder] = steps().write_models(tmp_path, ["qwen3_moe"], mlp_only_layers=[0, 1]).values()
    model = load_model(folder, from_scratch=True)
    with pytest.raises(ConfigError, match=r"no layer of this qwen3_moe has experts, .*: give --router-aux-loss 0"):
        loss_with_routers(PackedModel(model), padded_pack(PACKS[0], model), ContextParallel(), COEFFICIENT)
