"""Stand-in for the dashboard of a head that ``ray job submit`` asks: the upload and the command are kept.

A real dashboard is a dozen processes, and starts a submitted command as it is. test_submit.py has one.
"""

from __future__ import annotations

import io
import json
import shlex
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

VERSION = {"version": "0", "ray_version": version("ray"), "ray_commit": "", "session_name": ""}
"""Version 0 of its interface tails no logs, so the submission ends once the job is accepted."""


class Submission:
    """Submission by one ``ray job submit``."""

    def __init__(self) -> None:
        self.package = b""
        self.job: dict[str, Any] = {}

    @property
    def command(self) -> list[str]:
        """The words that a head would run in the folder that was uploaded."""
        return shlex.split(self.job["entrypoint"])

    def unpack(self, folder: Path) -> Path:
        """Makes the folder as the head would, and gives it."""
        with zipfile.ZipFile(io.BytesIO(self.package)) as package:
            package.extractall(folder)
        return folder


@contextmanager
def dashboard() -> Iterator[tuple[str, Submission]]:
    """The address of a dashboard that takes one job, and what was submitted there."""
    taken = Submission()

    class JobTaker(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/api/version"
            self._answer(200 if known else 404, VERSION if known else {})

        def do_PUT(self) -> None:
            taken.package = self._body()
            self._answer(200, {})

        def do_POST(self) -> None:
            taken.job = json.loads(self._body())
            self._answer(200, {"job_id": "job", "submission_id": "job"})

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the tests' own output stays readable."""

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers["Content-Length"]))

        def _answer(self, status: int, value: dict[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), JobTaker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", taken
        finally:
            server.shutdown()
