"""``guard.cpp``, compiled once for each version of torch: autograd's own questions to a CUDA device."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from preshard.schemas.errors import ConfigError

SOURCE = Path(__file__).with_name("guard.cpp")


def compiler() -> str | None:
    """The C++ compiler that is found, by ``CXX`` or by name."""
    return next(
        (found for name in (os.environ.get("CXX"), "g++", "c++") if name and (found := shutil.which(name))), None
    )


@contextmanager
def cuda_in_autograd() -> Iterator[None]:
    """Shows torch's C++ parts a CUDA device whose streams are always done.

    Raises:
        ConfigError: there is no C++ compiler, or it does not compile against this torch.
    """
    library = ctypes.CDLL(str(_compiled()))
    library.preshard_begin()
    try:
        yield
    finally:
        library.preshard_end()


def _compiled() -> Path:
    """The library, in the user's cache; it appears under its name when it is complete."""
    fingerprint = hashlib.sha256(f"{torch.__version__}\n{SOURCE.read_text()}".encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "preshard"
    library = folder / f"guard-{fingerprint}.so"
    if library.exists():
        return library
    found = compiler()
    if found is None:
        raise ConfigError("--dry-run compiles a few lines of C++ and finds no compiler: install g++, or set CXX")
    folder.mkdir(parents=True, exist_ok=True)
    installed = Path(torch.__file__).parent
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        made = Path(fresh) / library.name
        done = subprocess.run(
            [
                *(found, "-shared", "-fPIC", "-O0", "-std=c++20", abi, f"-I{installed / 'include'}", str(SOURCE)),
                *(f"-L{installed / 'lib'}", "-ltorch_cpu", "-lc10", "-o", str(made)),
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            problem = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-200:])
            raise ConfigError(
                f"--dry-run: {found} does not compile {SOURCE} against torch {torch.__version__}: {problem}"
            )
        made.replace(library)
    return library
