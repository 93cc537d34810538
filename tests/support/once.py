"""Makes once, in one worker, what several need."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


class MadeOnce:
    """``made_once("name", make)``: a folder that ``make(folder)`` fills, once in a run however many workers ask.

    The others wait for it. Read only: copy what is in it before changing anything.
    """

    def __init__(self, base: Path) -> None:
        """``base`` is the worker's base folder; those of all workers of a run have one parent."""
        self._shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "made-once"
        self._shared.mkdir(exist_ok=True)

    def __call__(self, name: str, make: Callable[[Path], object]) -> Path:
        folder, whole = self._shared / name, self._shared / f"{name}.whole"
        with FileLock(self._shared / f"{name}.lock"):
            if not whole.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                whole.touch()
        return folder
