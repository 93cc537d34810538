"""Data files of installed packages, found without importing them: some are slow to import, or fail to."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from preshard.schemas.errors import PreshardError


def package_folder(package: str, *inside: str) -> Path:
    """Finds a folder inside an installed package.

    Raises:
        PreshardError: the package is not installed, or has no such folder.
    """
    spec = find_spec(package)
    roots = spec.submodule_search_locations if spec is not None else None
    folder = Path(roots[0], *inside) if roots else None
    if folder is None or not folder.is_dir():
        raise PreshardError(
            f"the demo needs the data of {package}, which is not installed: pip install 'preshard[demo]'"
        )
    return folder
