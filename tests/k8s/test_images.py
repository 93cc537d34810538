"""The Dockerfiles: linted, built from files that are there and reach the build, and enough for what runs in them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from checks import dockerfiles
from dockerfile_parse import DockerfileParser
from import_graph import COMMANDS, imported
from manifests import REPOSITORY
from packaging.requirements import Requirement

ALL = pytest.mark.parametrize("path", dockerfiles(), ids=lambda path: path.stem)


def instructions(path: Path) -> list[tuple[str, str]]:
    parser = DockerfileParser(fileobj=path.open("rb"))
    return [(one["instruction"], one["value"]) for one in parser.structure if one["instruction"] != "COMMENT"]


def installed(path: Path) -> list[str]:
    """Names of the packages that an image installs: those that its pip commands name, and those of its list.

    The list is what the Dockerfile's own command makes of pyproject.toml.
    """
    runs = [value for name, value in instructions(path) if name == "RUN"]
    commands = [one for value in runs for one in value.split("&&") if "pip install" in one]
    given = " ".join(command.partition("pip install")[2] for command in commands)
    assert "-r /tmp/requirements.txt" in given
    given = re.sub(r"(--extra-index-url|-c|-r) \S+|--\S+|\S+\.whl", " ", given)
    [lists] = [value for value in runs if value.endswith("> /requirements.txt")]
    listing = lists.replace("python -c", f"{sys.executable} -c", 1).removesuffix("> /requirements.txt")
    done = subprocess.run(listing, shell=True, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    named = [Requirement(line).name for line in done.stdout.splitlines()]
    return [*(name.strip('"') for name in given.split()), *named]


@ALL
def test_an_image_is_linted(path: Path) -> None:
    """Fails on what hadolint knows to go wrong: unpinned bases, caches that stay, words that no shell reads so."""
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([str(hadolint), str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_linter_finds_what_is_wrong(tmp_path: Path) -> None:
    """Fails when hadolint's verdict is not heard."""
    wrong = tmp_path / "wrong.Dockerfile"
    wrong.write_text("FROM python\nRUN cd /tmp && apt-get install gcc\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="DL3006"):
        test_an_image_is_linted(wrong)


@ALL
def test_what_is_copied_is_there_and_reaches_the_build(path: Path) -> None:
    """Fails when a file that an image is made from was renamed, or .dockerignore keeps it back."""
    let_in = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [value.split()[:-1] for name, value in instructions(path) if name == "COPY" and "--from" not in value]
    sources = {source for group in copied for source in group}
    assert {"pyproject.toml", "preshard", "schemas", "packer_service", "trainer", "constraints.txt"} <= sources
    assert all((REPOSITORY / source).exists() for source in sources)
    assert sources <= let_in
    readme = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["readme"]
    assert readme in sources, "the wheel cannot be built without it"


@ALL
def test_an_image_is_small_and_runs_as_nobody(path: Path) -> None:
    """Fails when an image runs as root, keeps pip's cache or the stage that builds, or takes unpinned packages."""
    text = path.read_text(encoding="utf-8")
    assert [value for name, value in instructions(path) if name == "USER"] == ["10001:10001"]
    assert {value.partition(" AS ")[0] for name, value in instructions(path) if name == "FROM"} == {
        "python:3.11-slim-bookworm"
    }
    for command in re.findall(r"pip (?:install|wheel)(?:\\\n|.)*", text):
        assert "--no-cache-dir" in command
        assert "-c /tmp/constraints.txt" in command or "--no-deps" in command
    last = instructions(path)[[name for name, _ in instructions(path)].index("FROM", 1) :]
    tools = {word for _, value in last for word in re.findall(r"\b(gcc|g\+\+|make|git|build-essential)\b", value)}
    assert tools == ({"gcc"} if path.stem == "train-cuda" else set())
    assert "HEALTHCHECK" in text if path.stem == "serve" else True


@ALL
def test_each_package_of_an_image_is_pinned(path: Path) -> None:
    """Fails when an image names a package that constraints.txt does not, so that two builds differ."""
    pinned = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").lower().replace("_", "-")
    names = installed(path)
    assert names
    assert [name for name in names if f"\n{name.partition('[')[0].lower().replace('_', '-')}==" not in pinned] == []


PARTS = {
    "serve": [
        "preshard.packer_service.cli",
        "preshard.packer_service.http",
        "preshard.packer_service.report",
        "preshard.packer_service.verify",
    ],
    "train": ["preshard.trainer"],
}
"""Programs that run in an image."""
ABSENT = {"serve": {"torch", "ray", "av"}, "train": {"ray", "av", "numba", "fastapi", "webdataset"}}
"""Packages that an image is kept small by leaving out."""


@pytest.mark.parametrize("image", PARTS)
def test_an_image_has_what_its_program_imports(image: str) -> None:
    """Fails when the service or the trainer imports a dependency of the project that its image leaves out."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = [line for extra in ("pack", "serve", "train", "demo") for line in project["optional-dependencies"][extra]]
    needed = {Requirement(line).name for line in (*project["dependencies"], *extras)} - {"preshard"}
    absent = needed - set(installed(REPOSITORY / "k8s" / "images" / f"{image}.Dockerfile"))
    assert ABSENT[image] <= absent
    assert imported(PARTS[image], COMMANDS.get(image, [])) & absent == set()
