"""What `make test-matrix` installs is what the project says that it runs with."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

REPOSITORY = Path(__file__).parents[2]


def test_the_oldest_and_the_newest_versions_are_run() -> None:
    """Fails when pyproject.toml allows an older version than any that is tested, or `make` installs a newer one."""
    table = tomllib.loads((REPOSITORY / "tests/matrix/versions.toml").read_text(encoding="utf-8"))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [Requirement(line) for line in (*project["dependencies"], *project["optional-dependencies"]["train"])]
    pinned = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    for name in ("torch", "transformers"):
        tested = sorted(map(Version, table[name]))
        [oldest] = [each.version for one in asked if one.name == name for each in one.specifier]
        assert tested[0] == Version(oldest)
        assert f"{name}=={tested[-1]}" in pinned
