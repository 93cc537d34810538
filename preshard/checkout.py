"""In a checkout, ``schemas``, ``packer_service`` and ``trainer`` are also found by the names of their folders.

A module that is imported by both names must be one module, or an exception of one would not be caught as the other's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType


def alias(folder: str) -> None:
    """Makes ``folder`` and all modules below it other names of ``preshard.folder`` and the modules below that."""
    sys.modules[folder] = import_module(f"preshard.{folder}")
    sys.meta_path.insert(0, _Finder(folder))


class _Finder(MetaPathFinder):
    def __init__(self, folder: str) -> None:
        self._below = f"{folder}."

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        found = find_spec(f"preshard.{fullname}") if fullname.startswith(self._below) else None
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(fullname, _Loader(found), origin=found.origin, is_package=is_package)


class _Loader(InspectLoader):
    """Gives the module that another name stands for."""

    def __init__(self, found: ModuleSpec) -> None:
        self._found = found

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002
        return import_module(self._found.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._found  # importlib has put the other name's in its place

    def get_code(self, fullname: str) -> CodeType | None:  # noqa: ARG002
        """What ``python -m`` runs."""
        loader = self._found.loader
        assert isinstance(loader, InspectLoader)
        return loader.get_code(self._found.name)

    def get_source(self, fullname: str) -> str | None:  # noqa: ARG002
        loader = self._found.loader
        return loader.get_source(self._found.name) if isinstance(loader, InspectLoader) else None
