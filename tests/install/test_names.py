"""Installed, the project has one name: neither a user's files nor other packages stand in its way, nor it in theirs."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from lessons import given, make_texts

from preshard.schemas import VERSION

Environment = Callable[..., "CompletedProcess[str]"]

REPOSITORY = Path(__file__).parents[2]

READ = """
import sys
from preshard.data import PackedDataset

print(sum(len(batch.tokens) for batch in PackedDataset(sys.argv[1])))
"""

FOLDERS = ("schemas", "trainer", "packer_service")

BY_FOLDER = """
import importlib, runpy, sys

def ask(name):
    try:
        print("found", importlib.import_module(name).__file__)
    except ImportError as error:
        print(error)

for name in ("schemas", "trainer.data", "packer_service.plan"):
    ask(name)
sys.argv = ["preshard", "--version"]
try:
    runpy.run_module("packer_service", run_name="__main__")
except SystemExit:
    ask("packer_service.plan")
"""


def test_the_wheel_has_one_name(wheel: Path) -> None:
    """Fails when a name beside ``preshard`` is installed, or when the wheel lacks the folders that are links."""
    with zipfile.ZipFile(wheel) as whole:
        names = whole.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"preshard"}
    assert len(tops) == 2
    folders = ("schemas", "packer_service", "trainer")
    ours = [path.relative_to(REPOSITORY).as_posix() for top in folders for path in (REPOSITORY / top).rglob("*.py")]
    assert len(ours) > 100
    assert {f"preshard/{name}" for name in ours} <= set(names)


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    """Fails when type checkers take the wheel for untyped, or it comes without its licence or under another."""
    with zipfile.ZipFile(wheel) as whole:
        names = set(whole.namelist())
        [metadata] = [whole.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
    typed = {f"preshard/{folder}py.typed" for folder in ("", "schemas/", "packer_service/", "trainer/")}
    assert {*typed, "preshard/__init__.pyi"} <= names
    assert {name for name in names if name.endswith("/licenses/LICENSE")}
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert f"\nversion: {VERSION}\n" in (REPOSITORY / "CITATION.cff").read_text("utf-8")


@pytest.mark.parametrize("name", [pytest.param("trainer", marks=pytest.mark.slow), "data"])
def test_what_stands_in_the_way_ends_who_imports_it(crowded: Environment, name: str) -> None:
    """Fails when the tests below show nothing, since the user's files are not found first."""
    assert crowded("-c", f"import {name}").stderr == f"a {name}.py of the user was imported\n"


def test_the_package_of_others_stands_in_the_way(crowded: Environment, tmp_path: Path) -> None:
    """Fails when the tests below show nothing of the other package: it is found where the user has no such file."""
    assert crowded("-c", "import trainer", cwd=tmp_path).stderr == "the package trainer of others was imported\n"


def test_a_dataset_is_read_beside_files_of_the_same_names(crowded: Environment, tiny_dataset: Path) -> None:
    """Fails when reading imports a user's ``trainer.py`` or ``schemas.py`` in place of the project's."""
    done = crowded("-c", READ, str(tiny_dataset))
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) % 1024 == 0 < int(done.stdout)


def test_the_packer_s_command_starts_beside_files_of_the_same_names(crowded: Environment) -> None:
    """Fails when `preshard` or `python -m preshard` imports a user's ``packer_service.py``."""
    installed, module = crowded("--help", program="preshard"), crowded("-m", "preshard", "--help")
    assert (installed.returncode, installed.stderr) == (0, "")
    assert "Commands:" in installed.stdout
    assert module.stdout == installed.stdout


@pytest.mark.slow
def test_training_starts(crowded: Environment, made_once: Any, tmp_path: Path) -> None:
    """Fails when the trainer or its loader's process imports a user's file or another package in place of the
    project's.
    """
    texts, metrics = made_once("texts", make_texts) / "dataset", tmp_path / "metrics.jsonl"
    torchrun = ["torch.distributed.run", "--standalone", "-m", "preshard.train"]
    done = crowded("-m", *torchrun, *given(texts), "--steps", "1", "--workers", "1", "--metrics", str(metrics))
    assert done.returncode == 0, done.stderr
    [step] = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    assert step["loss"] > 0


def test_in_a_checkout_folders_are_imported_by_one_name(crowded: Environment) -> None:
    """Fails when a module can be there twice in a checkout, so that an exception or class of one is not that of the
    other: from the beginning, or once ``python -m`` has run a command by its folder's name.
    """
    done = crowded("-c", BY_FOLDER, cwd=REPOSITORY)
    assert done.stderr == ""
    *refused, version, again = done.stdout.splitlines()
    assert refused == [f"{name} is preshard.{name}: import it by that name" for name in FOLDERS]
    assert version.startswith("preshard, version")
    assert again == refused[-1]


def test_in_a_checkout_the_packer_s_folder_is_its_command(crowded: Environment) -> None:
    """Fails when `python -m packer_service` no longer works in a checkout."""
    done = crowded("-m", "packer_service", "pack", "/nowhere", "--out", "/nowhere/out", cwd=REPOSITORY)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, "preshard: SOURCE /nowhere: no such file or folder")


def test_in_a_checkout_the_trainer_s_folder_has_its_command(crowded: Environment) -> None:
    """Fails when `python -m trainer.train` no longer works in a checkout."""
    done = crowded("-m", "trainer.train", "--help", cwd=REPOSITORY)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: ")
