"""A loop of one's own, made of public names, trains as ``preshard.train`` does."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import own_recipe
from packed_ranks import train_job
from safetensors.torch import load_file
from syntax import parse

from preshard.training import Mesh

STEPS, STOPPED = 4, 2


def own_steps(mesh: Mesh, data: str, folder: Path, last: int) -> list[tuple[float, float]]:
    """The steps of the loop up to one of them. Runs on each rank of the pool."""
    model, kept = Path(data).with_name("model"), folder / "own"
    return own_recipe.train(mesh, data, model, kept, folder / "own-model", steps=STEPS, last=last, layout="zigzag")


def test_a_loop_of_public_names_trains_resumes_and_exports_the_same_bits(
    gloo_pool: Any, lessons: Path, tmp_path: Path
) -> None:
    """Fails when a step needs more than ``preshard.training`` has, or the recipe does something that the parts do not:
    the loss divided twice, decay of embeddings, another last step of an epoch, moments that are not resumed.
    """
    options = {
        **{"data": str(lessons), "model": str(lessons.with_name("model")), "from_scratch": True, "device": "cpu"},
        **{"steps": STEPS, "ring": 2, "layout": "zigzag", "attention": "gather", "accumulate": 2},
        **{"lr": own_recipe.LR, "warmup": own_recipe.WARMUP, "export": str(tmp_path / "model")},
    }
    expected = gloo_pool.run(train_job, options, ring=2)[0]
    assert sum(figures.bytes_read for figures in expected) > 0
    found = []
    for last in (STOPPED, STEPS):
        found += gloo_pool.run(own_steps, str(lessons), tmp_path, last, ring=2)[0]
    assert found == [(figures.loss, figures.grad_norm) for figures in expected]
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("own-model", "model"))
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)


def test_the_loop_imports_public_names_alone() -> None:
    """Fails when the loop reaches into a room, so that it shows nothing of what users can write."""
    tree = parse(Path(own_recipe.__file__).read_text(encoding="utf-8"))
    modules = [each.module or "" for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
    ours = [module for module in modules if module.startswith("preshard")]
    assert sorted(ours) == ["preshard.attention", "preshard.data", "preshard.models", "preshard.training"]
