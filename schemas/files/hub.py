"""The Hugging Face Hub as a filesystem: ``huggingface_hub``'s own, which sees what other processes write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import HfFileSystem, try_to_load_from_cache
from pyarrow import fs


class Hub(HfFileSystem):
    """Endpoint and token are the environment's (``HF_ENDPOINT``, ``HF_TOKEN``) and those of ``hf auth login``."""

    def info(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """Looks up as the base class does, but asks for what is not in a listing of some time ago."""
        try:
            return super().info(path, *args, **kwargs)
        except FileNotFoundError:
            self.invalidate_cache(path)
            return super().info(path, *args, **kwargs)

    def isfile(self, path: str) -> bool:
        """Looks up as the base class does, which takes every file for missing while the Hub does not answer."""
        try:
            return bool(self.info(path)["type"] == "file")
        except FileNotFoundError:
            return False

    def find(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """Lists as the base class does, with nothing kept of earlier listings."""
        self.invalidate_cache(path)
        return super().find(path, *args, **kwargs)

    def _open(self, path: str, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
        """Opens as the base class does, without reading 5 MB ahead of every range."""
        return super()._open(path, mode, *args, **{"cache_type": "none", **kwargs})


def cached_folder(model: str) -> str | None:
    """The folder of a model in the local cache; None where it is not there.

    Args:
        model: its name on the Hub.
    """
    found = try_to_load_from_cache(model, "config.json")
    return str(Path(found).parent) if isinstance(found, str) else None


def open_hub() -> fs.FileSystem:
    """The Hub for pyarrow."""
    return fs.PyFileSystem(fs.FSSpecHandler(Hub()))
