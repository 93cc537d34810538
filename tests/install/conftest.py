"""Virtual environments that hold the project's wheel with some of its extras, made without a download."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

Environment = Callable[..., "subprocess.CompletedProcess[str]"]


REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def requirements() -> dict[str, list[Requirement]]:
    """Requirements of the project by extra; the base by the empty name."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = {"": project["dependencies"], **project["optional-dependencies"]}
    return {extra: [Requirement(line) for line in lines] for extra, lines in lists.items()}


def _closure(requirements: list[Requirement]) -> dict[str, Distribution]:
    """Every distribution that pip would install for requirements, from those installed here."""
    found: dict[str, Distribution] = {}
    waiting = [(one.name, extra) for one in requirements for extra in ("", *one.extras)]
    done = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        here = distribution(name)
        found[name] = here
        needed = [Requirement(line) for line in here.requires or ()]
        here_too = [one for one in needed if one.marker is None or one.marker.evaluate({"extra": extra})]
        more = {(one.name, e) for one in here_too for e in ("", *one.extras)} - done
        done |= more
        waiting += more
    return found


def _link(distributions: dict[str, Distribution], site_packages: Path) -> None:
    """Links whatever the distributions installed at the top of this interpreter's site-packages into another's."""
    for one in distributions.values():
        root = Path(str(one.locate_file("")))
        for name in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__", "bin"}:
            target = site_packages / name
            if not target.exists():
                target.symlink_to(root / name)


def _environment(folder: Path, needed: list[Requirement], wheels: list[Path]) -> Environment:
    """Runs programs of a new virtual environment, in its folder unless told otherwise: wheels, and what they need.

    The dependencies are links to those installed here, so nothing is downloaded; pip itself finds that they are all
    that the wheels ask for, since it has no index to look elsewhere.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    [site_packages] = (folder / "venv" / "lib").glob("python*/site-packages")
    _link(_closure(needed), site_packages)
    python = str(folder / "venv" / "bin" / "python")
    install = ["--python", python, "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    subprocess.run([sys.executable, "-m", "pip", *install, "--no-compile", *map(str, wheels)], check=True)
    environment = {name: value for name, value in os.environ.items() if not re.match("PYTHON|VIRTUAL_ENV", name)}

    def run(*arguments: str, program: str = "python", cwd: Path = folder) -> subprocess.CompletedProcess[str]:
        command = [str(folder / "venv" / "bin" / program), *arguments]
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def bare(
    tmp_path_factory: pytest.TempPathFactory, wheel: Path, requirements: dict[str, list[Requirement]]
) -> Environment:
    """``bare("-c", "...")`` runs Python in a new environment: the wheel and its base dependencies, nothing else."""
    return _environment(tmp_path_factory.mktemp("bare"), requirements[""], [wheel])


@pytest.fixture(scope="session")
def crowded(
    tmp_path_factory: pytest.TempPathFactory, wheel: Path, requirements: dict[str, list[Requirement]]
) -> Environment:
    """The same with the extras ``train`` and ``pack``, where others have the names of our folders.

    The folder holds files of a user's own, and a distribution of another project has the top-level name ``trainer``, as
    the one of that name on PyPI. Each ends the process that imports it.
    """
    folder = tmp_path_factory.mktemp("crowded")
    for name in ("trainer", "schemas", "packer_service", "data", "train"):
        (folder / f"{name}.py").write_text(f"raise SystemExit('a {name}.py of the user was imported')\n", "utf-8")
    needed = [one for extra in ("", "train", "pack") for one in requirements[extra]]
    return _environment(folder, needed, [wheel, _trainer_of_others(folder)])


def _trainer_of_others(folder: Path) -> Path:
    """A wheel with the package ``trainer``, which is not ours."""
    path, info = folder / "trainer-0.0.36-py3-none-any.whl", "trainer-0.0.36.dist-info"
    files = {
        "trainer/__init__.py": "raise SystemExit('the package trainer of others was imported')\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: trainer\nVersion: 0.0.36\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(name, text)
    return path
