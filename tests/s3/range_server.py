"""A folder as an S3 server shows it to readers: objects and ranges of them from the disk, and what was asked for.

moto's server copies a whole object for each range of it, which takes seconds where the object has hundreds of
megabytes: a client takes that for a broken connection and asks again, until it gives up.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from s3_server import CREDENTIALS

BUCKET = "folder"
RANGE = re.compile(r"bytes=(?:(\d+)-(\d*)|-(\d+))$")

FAULTS = ("throttled", "reset", "ended", "stalled", "dripping", "cut", "damaged")
"""Faults of an answer: 503; a connection that is reset in the middle, or ends there; nothing for :data:`STALL` seconds;
a few bytes at a time; half of the bytes, as if these were all; one byte that is another."""

STALL = 2.0
DRIP, PAUSE = 4096, 0.1
"""Bytes that drip at once, and the seconds between."""


@dataclass(kw_only=True)
class Asked:
    """Requests of clients so far, by the object's name below the folder.

    Attributes:
        uri: where the folder is.
        endpoint: the server's address, below which objects can also be read by plain HTTP.
        requests: questions after an object and reads of it; lists by their prefix.
        sent: bytes of it that went out.
    """

    uri: str
    endpoint: str
    requests: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)

    def take(self) -> str:
        """Requests and bytes since the last call, in words."""
        names = sorted(self.requests)
        said = ", ".join(f"{name} {self.requests[name]} ({self.sent[name]:,} bytes)" for name in names)
        self.requests.clear()
        self.sent.clear()
        return said


@contextmanager
def served_ranges(
    folder: Path,
    *,
    before: Callable[[str], None] = lambda _: None,
    fault: Callable[[str, str], str] = lambda *_: "",
) -> Iterator[Asked]:
    """Serves a folder for reading from a thread of this process until the block ends.

    Args:
        folder: what is served.
        before: called with an object's name before each answer, in the thread that serves that connection.
        fault: called with the method and the object's name for each answer; one of :data:`FAULTS`, a status as digits,
            or nothing.
    """
    for name, value in CREDENTIALS.items():
        os.environ.setdefault(name, value)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # a client keeps its connections
        disable_nagle_algorithm = True

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            query = parse_qs(urlsplit(self.path).query)
            if "list-type" in query:
                self._list(query.get("prefix", [""])[0], query.get("delimiter", [""])[0])
                return
            name = unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").strip("/")
            path = folder / name
            if not name or not path.is_file():
                self.send_response(HTTPStatus.NOT_FOUND)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            before(name)
            kind = fault(self.command, name)
            if kind == "throttled" or kind.isdigit():
                self._refuse(HTTPStatus(int(kind)) if kind.isdigit() else HTTPStatus.SERVICE_UNAVAILABLE, with_body)
                return
            if kind == "stalled":
                time.sleep(STALL)
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                asked = RANGE.match(self.headers.get("Range", "")) if with_body else None
                first, end = 0, size
                if asked and asked[3]:
                    first = max(0, size - int(asked[3]))
                elif asked:
                    first, end = int(asked[1]), min(int(asked[2]) + 1, size) if asked[2] else size
                self.send_response(HTTPStatus.PARTIAL_CONTENT if asked else HTTPStatus.OK)
                if asked:
                    self.send_header("Content-Range", f"bytes {first}-{end - 1}/{size}")
                end -= (end - first) // 2 if kind == "cut" else 0
                self.send_header("Content-Length", str(end - first))
                self.send_header("Content-Type", "application/octet-stream")
                self.send_header("ETag", '"0"')
                self.send_header("Last-Modified", formatdate(0, usegmt=True))
                self.end_headers()
                with lock:
                    counted.requests[name] += 1
                    counted.sent[name] += (end - first) * with_body
                if with_body:
                    with contextlib.suppress(OSError):  # a client that has the range from elsewhere leaves
                        self._send(file, first, end - first, kind)

        def _list(self, prefix: str, delimiter: str) -> None:
            """Sends all names with this prefix at once, whole or up to the delimiter."""
            named = {each.relative_to(folder).as_posix(): each for each in folder.rglob("*") if each.is_file()}
            objects, folders = "", set[str]()
            for name in sorted(each for each in named if each.startswith(prefix)):
                head, cut, _ = name.removeprefix(prefix).partition(delimiter) if delimiter else ("", "", "")
                if cut:
                    folders.add(prefix + head + cut)
                    continue
                size, date = named[name].stat().st_size, "2026-01-01T00:00:00.000Z"
                objects += f"<Contents><Key>{escape(name)}</Key><LastModified>{date}</LastModified>"
                objects += f'<ETag>"0"</ETag><Size>{size}</Size></Contents>'
            for name in sorted(folders):
                objects += f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{objects}</ListBucketResult>".encode()
            with lock:
                counted.requests[prefix] += 1
                counted.sent[prefix] += len(body)
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _send(self, file: BinaryIO, first: int, size: int, kind: str) -> None:
            """Sends a range, or a part of it."""
            if kind in ("reset", "ended"):
                self.connection.sendfile(file, first, size // 2)
                if kind == "reset":
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True
            elif kind == "dripping":
                for at in range(0, size, DRIP):
                    self.connection.sendfile(file, first + at, min(DRIP, size - at))
                    time.sleep(PAUSE)
            elif kind == "damaged":
                file.seek(first)
                data = bytearray(file.read(size))
                data[size // 3] ^= 255
                self.wfile.write(data)
            else:
                self.connection.sendfile(file, first, size)

        def _refuse(self, status: HTTPStatus, with_body: bool) -> None:
            code = "SlowDown" if status == HTTPStatus.SERVICE_UNAVAILABLE else status.phrase.replace(" ", "")
            said = f"<Error><Code>{code}</Code><Message>{status.description}</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            if with_body:
                self.wfile.write(said)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        where = f"127.0.0.1:{server.server_port}"
        uri = f"s3://{BUCKET}?endpoint_override={where}&scheme=http&region=us-east-1"
        counted = Asked(uri=uri, endpoint=f"http://{where}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield counted
        finally:
            server.shutdown()
            thread.join()
