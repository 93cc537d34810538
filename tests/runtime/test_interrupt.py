"""Commands whose store never answers: they end by themselves, and by one signal. A socket accepts and says nothing."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from preshard.packer_service.runtime.patience import NoAnswerError, answer, is_waited_for

LONG = 240.0
"""Seconds until a test gives up; none of them waits for a moment."""

ENDINGS = """
import sys
from pathlib import Path
from preshard.packer_service.runtime.interrupt import Interrupted, interruptible
from preshard.packer_service.runtime.scratch import scratch_folder
from pyarrow import fs
with interruptible(deaf_seconds=0.3, stop_seconds=0.3), scratch_folder("preshard-test-") as waiting:
    Path(waiting, "rows").touch()
    filesystem, path = fs.FileSystem.from_uri(sys.argv[1])
    print(waiting, flush=True)
    try:
        filesystem.get_file_info(path)
    except Interrupted:
        filesystem.get_file_info(path)
"""


class Silent:
    """A server that takes connections and never answers."""

    def __init__(self, server: socket.socket) -> None:
        self.address = f"127.0.0.1:{server.getsockname()[1]}"
        self.asked = threading.Event()
        """Set as soon as somebody waits for an answer."""
        self._server, self._held = server, list[socket.socket]()
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        with suppress(OSError):  # the server is closed
            while True:
                self._held.append(self._server.accept()[0])
                self.asked.set()

    def close(self) -> None:
        for connection in self._held:
            connection.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = Silent(server)
        yield silent
        silent.close()


def uris(address: str) -> list[str]:
    where = f"endpoint_override={address}&scheme=http"
    return [f"gs://anonymous@bucket/rows?{where}", f"s3://key:secret@bucket/rows?{where}&region=us-east-1"]


@pytest.mark.parametrize("store", [0, 1])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_ends_a_command_whose_main_thread_waits_in_c_code(
    silent: Silent, store: int, number: signal.Signals, status: int
) -> None:
    """Fails when a signal is seen only once a request has been answered, which is never, or leaves a folder behind."""
    words = [sys.executable, "-c", ENDINGS, uris(silent.address)[store]]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        waiting = Path(running.stdout.readline().strip(), "rows")
        assert waiting.exists()
        assert silent.asked.wait(LONG)
        running.send_signal(number)
        _, error = running.communicate(timeout=LONG)
    assert running.returncode == status
    assert error == "preshard: interrupted; run the same command again to continue\n"
    assert not waiting.parent.exists()


@pytest.mark.parametrize("words", [("pack", "URI", "--out", "OUT"), ("report", "URI")])
def test_a_store_that_does_not_answer_is_one_line(silent: Silent, tmp_path: Path, words: tuple[str, ...]) -> None:
    """Fails when a command waits for ever for its first answer, or for threads that still wait when it ends."""
    run = (
        "from preshard.packer_service.shards import store; from preshard.packer_service.cli import main\n"
        "from preshard import waiting; waiting.QUIET_SECONDS[False] = float('inf'); store.ANSWER_SECONDS = 0.5\n"
        f"main({[{'URI': uris(silent.address)[0], 'OUT': f'{tmp_path}/out'}.get(word, word) for word in words]!r})"
    )
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=LONG, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    shown = uris(silent.address)[0].replace("anonymous@", "")
    assert f"{shown}: nothing answered in 0.5 s; check its address, the network" in done.stderr


def test_an_answer_and_an_error_come_through() -> None:
    """Fails when a call's result or exception is lost on its way from its thread."""
    assert answer(lambda: 7, LONG) == 7
    with pytest.raises(OSError, match="broken"):
        answer(lambda: (_ for _ in ()).throw(OSError("broken")), LONG)
    assert not is_waited_for()
    over = threading.Event()
    with pytest.raises(NoAnswerError):
        answer(over.wait, 0.01)
    assert is_waited_for()
    over.set()
    until = time.monotonic() + LONG
    while is_waited_for() and time.monotonic() < until:
        time.sleep(0.01)
    assert not is_waited_for()
