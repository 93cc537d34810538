"""A server that nobody should ever ask: it records what connects to it and what is sent."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread


class Listener:
    """``address`` is its host and port, ``heard`` the beginning of what each connection sent."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.heard: list[bytes] = []
        Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            with connection:
                connection.settimeout(5)
                try:
                    self.heard.append(connection.recv(4096))
                    connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                except OSError:
                    self.heard.append(b"")

    def close(self) -> None:
        self._socket.close()


@contextmanager
def listening() -> Iterator[Listener]:
    """A listener that closes with the block."""
    listener = Listener()
    try:
        yield listener
    finally:
        listener.close()
