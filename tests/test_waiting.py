"""The line that a command has while nothing is printed."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import StringIO

import pytest

from preshard import waiting
from preshard.waiting import Waiting, with_home


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "QUIET_SECONDS", {True: 0.0, False: 0.0})
    monkeypatch.setattr(waiting, "TICK_SECONDS", 3600.0)  # the tests draw


def _open_terminal(monkeypatch: pytest.MonkeyPatch) -> int:
    """Makes standard error a terminal of 40 columns; what it shows is read from here."""
    ours, theirs = pty.openpty()
    monkeypatch.setattr(sys, "stderr", os.fdopen(theirs, "w", encoding="utf-8"))
    monkeypatch.setattr(waiting, "_columns", lambda _: 40)
    return ours


def _shown(terminal: int) -> str:
    """Text that a terminal shows: a line is erased where the cursor is sent to its beginning."""
    lines = _written(terminal).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rpartition("\r\x1b[K")[2] for line in lines)


def _written(terminal: int) -> str:
    """Everything written to a terminal up to now. It may arrive in parts, so a mark is sent behind it."""
    sys.stderr.flush()
    os.write(sys.stderr.fileno(), b"\0")
    data = b""
    while not data.endswith(b"\0"):
        data += os.read(terminal, 65536)
    return data[:-1].decode()


def test_a_terminal_shows_what_is_done_below_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when other output lands on the moving line, is erased by it, or the line is longer than the terminal."""
    terminal = _open_terminal(monkeypatch)
    line = Waiting("reading the sources, and a model whose name is long")
    line.show()
    assert _shown(terminal).startswith("⠙ [   0.0 s] reading the sources, and a")
    line.show()
    print("a line of others", file=sys.stderr)
    line.doing("writing")
    line.show()
    others, ours = _shown(terminal).split("\n")
    assert others == "a line of others"
    assert ours.endswith("s] writing")
    print("half a line", end="", file=sys.stderr)
    line.show()
    assert _shown(terminal) == "half a line"
    print(file=sys.stderr)
    line.show()
    line.close()
    assert _shown(terminal) == "\n"
    line.show()
    print("after", file=sys.stderr)
    assert _shown(terminal) == "after\n"


def test_a_log_has_each_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a log is filled with what does not change, or has a text that has not lasted."""
    log = StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    line = Waiting("reading")
    for what in ("reading", "writing", "reading"):
        line.doing(what)
        line.show()
        line.show()
    line.doing("")
    line.show()
    monkeypatch.setattr(waiting, "QUIET_SECONDS", {True: 0.0, False: 3600.0})
    line.doing("what is soon over")
    line.show()
    line.close()
    assert [said.partition("] ")[2] for said in log.getvalue().splitlines()] == ["reading", "writing"]


def test_a_fork_writes_as_if_nothing_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a process that is forked while the line is drawn waits for a lock that nobody there gives back."""
    terminal, called = _open_terminal(monkeypatch), list[Callable[[], None]]()
    monkeypatch.setattr(os, "register_at_fork", lambda **given: called.extend(given.values()))
    line = Waiting("reading")
    held = sys.stderr  # as a logging handler holds it
    with line._lock, ThreadPoolExecutor() as others:
        called[0]()
        for stream in (sys.stderr, held):
            others.submit(print, "of the fork", file=stream, flush=True).result(timeout=60)
            assert _shown(terminal) == "of the fork\n"


def test_a_line_that_nobody_closes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when the line of a job that is over goes on in the log of the next one."""
    monkeypatch.setattr(sys, "stderr", StringIO())
    line = Waiting("reading")
    over = line._over
    del line
    assert over.is_set()


def test_a_terminal_that_cannot_erase_is_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when an editor's shell shows escape sequences and a line for every frame."""
    terminal = _open_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    line = Waiting("reading")
    line.show()
    line.show()
    line.close()
    assert _written(terminal).partition("] ")[2] == "reading\r\n"


def test_closed_streams_drop_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a command whose standard error is closed (``2>&-``) ends by that, or prints it among its results."""
    results = StringIO()
    monkeypatch.setattr(sys, "stdout", results)
    monkeypatch.setattr(sys, "stderr", None)
    line = Waiting("reading")
    line.show()
    line.close()
    with sys.stderr as opened:
        print("dropped", file=opened)
    assert results.getvalue() == ""


def test_a_tilde_that_bash_leaves_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when ``--out=~/data`` makes a folder named ``~``, or a tilde elsewhere in a word is taken for a home."""
    monkeypatch.setenv("HOME", "/home/ada")
    given = ["~", "~/a", "--out=~/b", "model=~/c", "~ada/d", "e~/f", "--where=g = '~'", "h=i=~/j"]
    assert with_home(given) == [
        *("/home/ada", "/home/ada/a", "--out=/home/ada/b", "model=/home/ada/c"),
        *("~ada/d", "e~/f", "--where=g = '~'", "h=i=~/j"),
    ]
    monkeypatch.setattr(sys, "argv", ["preshard", "report", "~/k"])
    assert with_home(None) == ["report", "/home/ada/k"]
