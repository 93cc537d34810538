"""Packages that parts of the project import, read from their code: whatever a command may import, now or later."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import packages_distributions

import grimp
from packaging.utils import canonicalize_name

HUB = "preshard.schemas.files.hub"
"""Module that hf:// needs, which names the package where that is missing."""

COMMANDS = {
    "": [HUB, "transformers"],  # whose models alone make to_varlen ask for it
    "serve": [
        HUB,
        "preshard.packer_service.publish",
        "preshard.packer_service.api.pack",
        "preshard.packer_service.demo",
        "preshard.packer_service.job",
        "preshard.packer_service.runtime.nodes",
        "preshard.packer_service.runtime.ray",
    ],
    "pack": ["preshard.packer_service.http", "preshard.packer_service.demo"],
    "train": [
        HUB,
        *(f"preshard.trainer.integrations.{name}" for name in ("energon", "nemo", "torchtitan")),
        *(f"preshard.trainer.integrations.torchtitan_{name}" for name in ("data", "model")),
    ],
}
"""Imports of the command line for commands of other extras, and what only other trainers' users import."""


@cache
def import_graph() -> grimp.ImportGraph:
    """Every import of every module of ours."""
    return grimp.build_graph("preshard", include_external_packages=True)


def imported(parts: Sequence[str], without: Sequence[str]) -> set[str]:
    """Distributions that modules import, and whatever of ours these import.

    Args:
        parts: packages of ours, each with all that is below it.
        without: packages at which to stop, of ours or not.
    """
    graph = import_graph()
    reached: set[str] = set()
    ours = [part for part in without if not graph.is_module_squashed(part)]
    excluded = {*without, *(module for part in ours for module in graph.find_descendants(part))}
    waiting = {module for part in parts for module in {part, *graph.find_descendants(part)}} - excluded
    while waiting:
        module = waiting.pop()
        reached.add(module)
        waiting |= graph.find_modules_directly_imported_by(module) - reached - excluded
    owners = packages_distributions()
    outside = {name.partition(".")[0] for name in reached} - {"preshard"}
    return {canonicalize_name(owners.get(name, [name])[0]) for name in outside - sys.stdlib_module_names}
