"""Files that are no modules of a package, as modules."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType


def load_script(path: Path) -> ModuleType:
    """The module of a script, which may import its neighbours. Scripts of one name have modules of their own."""
    spec = spec_from_file_location(f"script_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)  # dataclasses look for it there
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    sys.path.remove(str(path.parent))
    return module
