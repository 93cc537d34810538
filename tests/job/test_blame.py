"""Media that a node does not see, and the driver does, while rows are measured and while shards are written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor, TaskError
from preshard.packer_service.runtime.progress import NoProgress
from preshard.schemas.config import PackConfig


@dataclass(frozen=True, kw_only=True)
class BlindNode:
    """Runs tasks of one function where no picture is to be seen.

    Args:
        folder: of the pictures.
        function: name of what runs so.
    """

    folder: Path
    function: str
    node: str = "10.0.0.2 (b)"

    def require(self, _: Callable[[], Any]) -> None: ...

    def run(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        is_blind = getattr(getattr(function, "func", function), "__name__", "") == self.function
        for number, item in enumerate(items):
            with hidden(self.folder) if is_blind else hidden(self.folder / "nothing"):
                found = function(item)
            yield number, found


@contextmanager
def hidden(folder: Path) -> Iterator[None]:
    pictures = {path: path.with_suffix(".hidden") for path in folder.glob("*.png")}
    for path, away in pictures.items():
        path.rename(away)
    yield
    for path, away in pictures.items():
        away.rename(path)


class Notes(NoProgress):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, message: str) -> None:
        self.said.append(message)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "run.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    ("function", "said"),
    [("measure_and_keep", "measured fragments: 0 of 1"), ("build_and_keep", "written shards: 0 of ")],
)
def test_media_that_one_node_lacks_are_its_own_fault(
    tiny_source: Path, tiny_config: PackConfig, tiny_dataset: Path, tmp_path: Path, function: str, said: str
) -> None:
    """Fails when rows are rejected because a node does not see their media, what it made of them is kept, or nobody
    hears how much waits before the first task has ended.
    """
    source, out, progress = tmp_path / "tiny", tmp_path / "out", Notes()
    shutil.copytree(tiny_source, source)
    blind = BlindNode(folder=source, function=function)
    with pytest.raises(TaskError, match=r"^node 10\.0\.0\.2 \(b\): .*0\.png.*, though the driver reads it \("):
        pack([str(source)], str(out), tiny_config, blind, progress)
    assert any(line.startswith(said) for line in progress.said)
    pack([str(source)], str(out), tiny_config, PlainExecutor(), NoProgress())
    assert contents(out) == contents(tiny_dataset)
