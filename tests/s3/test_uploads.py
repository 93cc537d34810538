"""An object is whole or not there, whatever breaks its upload off."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs
from s3_server import Store

from preshard.packer_service.runtime.interrupt import Interrupted, interruptible
from preshard.packer_service.shards.store import Folder

SIZES = (0, 10, 12 << 20)
"""Nothing, one part, and several."""


@pytest.mark.parametrize("size", SIZES)
def test_a_whole_file_is_an_object(store: Store, size: int) -> None:
    """Fails when bytes are lost between the staged file and the store."""
    folder, data = Folder(store.uri(f"whole-{size}")), os.urandom(size)
    with folder.writer("staged.bin") as sink:
        sink.write(data[: size // 2])
        sink.write(data[size // 2 :])
    folder.write("at_once.bin", data)
    assert folder.read("staged.bin") == folder.read("at_once.bin") == data


def write_half(folder: Folder, size: int) -> None:
    with folder.writer(f"{size}.bin") as sink:
        sink.write(b"x" * size)
        raise InterruptedError


def test_a_file_that_is_given_up_leaves_nothing(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when an error in the middle of a file makes the part before it an object, as pyarrow does by itself."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = Folder(store.uri("given_up"))
    for size in SIZES:
        with pytest.raises(InterruptedError):
            write_half(folder, size)
    gc.collect()
    assert store.names("given_up") == []
    assert list(tmp_path.iterdir()) == []


ENDS = """
import os, signal, sys
from preshard.packer_service.shards.store import Folder
with Folder(sys.argv[1]).writer("half.bin") as sink:
    sink.write(b"x" * (12 << 20))
    {end}
"""


@pytest.mark.parametrize(
    ("end", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)]
)
def test_the_end_of_a_process_leaves_nothing(store: Store, tmp_path: Path, end: str, status: int) -> None:
    """Fails when what a process has open at its end becomes an object, or its staged file stays on the disk."""
    command = [sys.executable, "-c", ENDS.format(end=end), store.uri("ended")]
    done = subprocess.run(command, env={**os.environ, "TMPDIR": str(tmp_path)}, timeout=240, check=False)
    assert done.returncode == status
    assert store.names("ended") == []
    assert list(tmp_path.iterdir()) == []


@dataclass
class Faulty:
    """A store that does something before it answers the requests that ``matches`` picks, and may refuse them."""

    matches: Callable[[str, str], bool] = lambda *_: False
    before: Callable[[], object] = lambda: None
    refusals: int = 0
    seen: int = 0
    app: Any = field(kw_only=True)

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if self.matches(environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")):
            self.seen += 1
            self.before()
            if self.refusals:
                self.refusals -= 1
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                start("403 Forbidden", [("Content-Type", "application/xml")])
                return [b"<Error><Code>AccessDenied</Code><Message>not now</Message></Error>"]
        answer: Iterable[bytes] = self.app(environ, start)
        return answer


REQUESTS: dict[str, Callable[[str, str], bool]] = {
    "begin": lambda method, query: method == "POST" and "uploads" in query,
    "first part": lambda method, query: method == "PUT" and "partNumber=1" in query,
    "second part": lambda method, query: method == "PUT" and "partNumber=2" in query,
    "complete": lambda method, query: method == "POST" and "uploadId" in query,
}


@pytest.fixture(scope="module")
def faulty() -> Iterator[tuple[Faulty, str]]:
    """A store whose requests can be made to fail, and the URI of a folder in it."""
    # here, since every process that runs tests reads this file
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = Faulty(app=DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"127.0.0.1:{server.port}"
    fs.S3FileSystem(
        endpoint_override=endpoint, scheme="http", region="us-east-1", allow_bucket_creation=True
    ).create_dir("faulty")
    yield app, f"s3://faulty/folder?endpoint_override={endpoint}&scheme=http&region=us-east-1"
    server.shutdown()


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("refusals", [1, 1000])
def test_a_request_that_fails_is_raised_and_leaves_nothing(
    faulty: tuple[Faulty, str], request_: str, refusals: int
) -> None:
    """Fails when an upload whose request failed is completed all the same, later too, or counts as done."""
    app, uri = faulty
    app.matches, app.refusals, app.seen = REQUESTS[request_], refusals, 0
    folder, size = Folder(uri), 12 << 20 if request_ == "second part" else 10
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        folder.write("refused.bin", os.urandom(size))
    app.refusals = 0
    gc.collect()
    assert app.seen
    assert folder.names() == []
    folder.write("refused.bin", bytes(size))
    assert folder.size("refused.bin") == size
    folder.delete("refused.bin")


@pytest.mark.parametrize("request_", ["begin", "first part", "second part"])
def test_an_interrupt_during_an_upload_leaves_it_whole(faulty: tuple[Faulty, str], request_: str) -> None:
    """Fails when Ctrl-C between two requests completes an object with the parts that it has."""
    app, uri = faulty
    app.matches, app.seen = REQUESTS[request_], 0
    app.before = lambda: os.kill(os.getpid(), signal.SIGINT) if app.seen == 1 else None
    folder, data = Folder(uri), os.urandom(12 << 20 if request_ == "second part" else 10)
    with pytest.raises(Interrupted), interruptible():
        folder.write("interrupted.bin", data)
    app.before = lambda: None
    gc.collect()
    assert app.seen
    until = time.monotonic() + 240
    while not folder.is_file("interrupted.bin") and time.monotonic() < until:  # the thread may outlive the interrupt
        time.sleep(0.05)
    assert folder.read("interrupted.bin") == data
    folder.delete("interrupted.bin")
