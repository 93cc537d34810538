"""Pack video, image and text documents offline into shards from which a context-parallel rank reads only its own part.

``pack`` is the command of the same name, and ``open`` shows what it made. The folders ``schemas``, ``packer_service``
and ``trainer`` of the repository are packages of this one, by links.
"""

from importlib import import_module
from typing import Any

from preshard.schemas import VERSION

__version__ = VERSION

__all__ = ["__version__", "open", "pack"]

_MODULES = (
    *("attention", "data", "documents", "energon", "export", "hugging_face", "models", "packing"),
    *("nemo_automodel", "schemas", "service", "torchtitan", "train", "training"),
)
"""Modules that programs may import, besides the names of this module."""

_FUNCTIONS = {"pack": ("pack", "pack"), "open": ("dataset", "Dataset")}


def __getattr__(name: str) -> Any:
    """Imports what packing needs when it is asked for: readers and trainers do without."""
    if name not in _FUNCTIONS:
        raise AttributeError(f"module 'preshard' has no attribute {name!r}")
    try:
        module, function = _FUNCTIONS[name]
        return getattr(import_module(f"preshard.packer_service.api.{module}"), function)
    except ModuleNotFoundError as error:
        missing = f"preshard.{name} needs the package {error.name}: pip install 'preshard[pack]'"
        raise ModuleNotFoundError(missing, name=error.name) from None


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
