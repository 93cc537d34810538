"""A look through a root whose folders wait, end late or never, or are too many."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from preshard.packer_service.http.dataset.folder import ServedFolder
from preshard.packer_service.http.settings import ServiceSettings
from preshard.packer_service.http.workers.look import Look

LONG = 60.0
"""Seconds until a test gives up; none of them waits for a moment."""

Told = list[dict[str, Any]]


class Running:
    """A look in a thread of its own, and what it told."""

    def __init__(self, root: Path, examined: Callable[[ServedFolder], Any], **others: Any) -> None:
        limits = {name: others.pop(name) for name in ("max_depth", "max_folders", "max_datasets") if name in others}
        self.told: Told = []
        self.news = threading.Condition()
        self.look = Look(ServiceSettings(root=str(root), **limits), (), self.tell, examined, **{"width": 2, **others})
        self.whole: bool | None = None
        self.thread = threading.Thread(target=self.run, args=(root,), daemon=True)
        self.thread.start()

    def run(self, root: Path) -> None:
        self.whole = self.look.run(ServedFolder(str(root)))

    def tell(self, message: dict[str, Any]) -> None:
        with self.news:
            self.told.append(message)
            self.news.notify_all()

    def until_told(self, *messages: dict[str, Any]) -> None:
        with self.news:
            assert self.news.wait_for(lambda: all(message in self.told for message in messages), LONG), self.told

    def end(self) -> bool | None:
        self.thread.join(LONG)
        assert not self.thread.is_alive()
        return self.whole


def datasets(root: Path, *names: str) -> None:
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "manifest.json").touch()


def path_of(folder: ServedFolder) -> str:
    return folder.path


def test_folders_that_wait_hold_up_none_of_the_others(tmp_path: Path) -> None:
    """Fails when folders are looked at one after the other, or so many at once that a few can take all turns."""
    waiting = [f"a{number:02}" for number in range(20)]
    datasets(tmp_path, *waiting, "sound", "below/sound")
    over = threading.Event()

    def examined(folder: ServedFolder) -> str:
        if folder.path in waiting:
            over.wait(LONG)
        return folder.path

    running = Running(tmp_path, examined)
    running.until_told({"found": "sound"}, {"found": "below/sound"})
    assert not any({"found": path} in running.told for path in waiting)
    over.set()
    assert running.end() is True
    assert sum("found" in message for message in running.told) == 22


def test_a_look_ends_without_what_it_has_left(tmp_path: Path) -> None:
    """Fails when a folder that never answers keeps the look from its end, or is told of after it was left."""
    datasets(tmp_path, "never", "sound")
    over = threading.Event()

    def examined(folder: ServedFolder) -> str:
        if folder.path == "never":
            over.wait(LONG)
        return folder.path

    running = Running(tmp_path, examined)
    running.until_told({"at": "never"}, {"found": "sound"})
    running.look.leave(["never", "sound", "nothing"])
    assert running.end() is False
    assert [message for message in running.told if "left" in message] == [{"left": "never"}]
    over.set()
    assert {"found": "never"} not in running.told


def test_folders_are_looked_at_alone_where_that_is_asked(tmp_path: Path) -> None:
    """Fails when two folders are looked at together after one has ended the process, and neither could be blamed."""
    datasets(tmp_path, *"abcdef")
    running = Running(tmp_path, path_of, width=1, waits=True)
    assert running.end() is True
    kinds = [next(iter(message)) for message in running.told]
    assert kinds == ["at", "past", *["at", "found"] * 6]


@pytest.mark.parametrize(
    ("limits", "found"), [({"max_datasets": 3}, 3), ({"max_depth": 0}, 0), ({"max_folders": 4}, 3), ({}, 6)]
)
def test_a_look_is_bounded_and_says_so(tmp_path: Path, limits: dict[str, int], found: int) -> None:
    """Fails when threads that look side by side find more than the limits admit, or wait for each other for ever."""
    datasets(tmp_path, *"abcdef")
    running = Running(tmp_path, path_of, **limits)
    assert running.end() is (found == 6)
    assert sorted(message["found"] for message in running.told if "found" in message) == list("abcdef"[:found])


def test_what_nobody_expected_ends_the_look(tmp_path: Path) -> None:
    """Fails when an error in a thread is lost: the process that listens would wait for the end of the look."""
    datasets(tmp_path, "a")

    def examined(folder: ServedFolder) -> str:
        raise RuntimeError(folder.path)

    look = Look(ServiceSettings(root=str(tmp_path)), (), lambda _: None, examined, width=2)
    with pytest.raises(RuntimeError, match="a"):
        look.run(ServedFolder(str(tmp_path)))
