"""Commands whose store never answers: they end by themselves, and by one signal. A socket accepts and says nothing."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from packer_service.runtime.patience import NoAnswerError, answer, is_waited_for

ENDINGS = """
import sys
from pathlib import Path
from packer_service.runtime.interrupt import Interrupted, interruptible
from packer_service.runtime.scratch import scratch_folder
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


@pytest.fixture
def silent() -> Iterator[str]:
    """Address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []
        threading.Thread(target=lambda: [held.append(server.accept()[0]) for _ in range(100)], daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        for connection in held:
            connection.close()


def uris(address: str) -> list[str]:
    where = f"endpoint_override={address}&scheme=http"
    return [f"gs://anonymous@bucket/rows?{where}", f"s3://key:secret@bucket/rows?{where}&region=us-east-1"]


@pytest.mark.parametrize("store", [0, 1])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_ends_a_command_whose_main_thread_waits_in_c_code(
    silent: str, store: int, number: signal.Signals, status: int
) -> None:
    """Fails when a signal is seen only once a request has been answered, which is never, or leaves a folder behind."""
    words = [sys.executable, "-c", ENDINGS, uris(silent)[store]]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        waiting = Path(running.stdout.readline().strip(), "rows")
        assert waiting.exists()
        time.sleep(0.2)
        running.send_signal(number)
        _, error = running.communicate(timeout=20)
    assert running.returncode == status
    assert error == "preshard: interrupted; run the same command again to continue\n"
    assert not waiting.parent.exists()


@pytest.mark.parametrize("words", [("pack", "URI", "--out", "OUT"), ("report", "URI")])
def test_a_store_that_does_not_answer_is_one_line(silent: str, tmp_path: Path, words: tuple[str, ...]) -> None:
    """Fails when a command waits for ever for its first answer, or for threads that still wait when it ends."""
    run = (
        "from packer_service.shards import reach; from packer_service.cli import main\n"
        "reach.require_answer.__defaults__ = (0.5,)\n"
        f"main({[{'URI': uris(silent)[0], 'OUT': f'{tmp_path}/out'}.get(word, word) for word in words]!r})"
    )
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"{uris(silent)[0]}: nothing answered in 0.5 s; check its address, the network" in done.stderr


def test_an_answer_and_an_error_come_through() -> None:
    """Fails when a call's result or exception is lost on its way from its thread."""
    assert answer(lambda: 7, 5) == 7
    with pytest.raises(OSError, match="broken"):
        answer(lambda: (_ for _ in ()).throw(OSError("broken")), 5)
    assert not is_waited_for()
    over = threading.Event()
    with pytest.raises(NoAnswerError):
        answer(over.wait, 0.01)
    assert is_waited_for()
    over.set()
    time.sleep(0.1)
    assert not is_waited_for()
