"""What a connection does with requests that are wrong, endless, or for another protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn import Config
from uvicorn.server import ServerState

from preshard.packer_service.http.connections import MOST_HEADER_BYTES, BoundedConnection

Asked = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]

HOST = b"Host: localhost\r\n"


class Service:
    """An application that notes what it is asked, and answers each with the path."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[bytes, bytes], bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.requests.append((scope["path"], dict(scope["headers"]), body))
        said = scope["path"].encode()
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(said)).encode())]}
        )
        await send({"type": "http.response.body", "body": said})


def talk(ask: Asked) -> Service:
    """A conversation over one connection; returns the application, which knows what came."""
    service = Service()

    async def run() -> None:
        config = Config(service, ws="none", lifespan="off", log_config=None, access_log=False)
        config.load()
        state, loop = ServerState(), asyncio.get_running_loop()
        server = await loop.create_server(lambda: BoundedConnection(config, state, {}), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            async with asyncio.timeout(60):
                await ask(reader, writer)
        finally:
            writer.close()
            server.close()
            for connection in list(state.connections):
                connection.shutdown()  # type: ignore[union-attr]

    asyncio.run(run())
    return service


def answers_to(sent: bytes) -> tuple[bytes, Service]:
    """All that comes back until the connection is closed."""
    found = b""

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal found
        writer.write(sent)
        found = await reader.read()

    service = talk(ask)
    return found, service


def test_requests_one_after_the_other_are_answered_in_order() -> None:
    """Fails when a second request on a connection, or one that was sent before the first had its answer, is lost."""
    head = b"GET /%s HTTP/1.1\r\n" + HOST
    last = head % b"c%20d" + b"Connection: close\r\n\r\n"
    found, service = answers_to(head % b"a" + b"\r\n" + head % b"b?x=1" + b"\r\n" + last)
    assert [path for path, _, _ in service.requests] == ["/a", "/b", "/c d"]
    assert found.count(b"HTTP/1.1 200 OK") == 3
    assert found.endswith(b"/c d")


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /ä HTTP/1.1\r\nHost: a\r\n\r\n".encode(),
        b"GET http://a HTTP/1.1\r\nHost: a\r\n\r\n",
        b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n folded\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=lambda request: repr(request)[2:40],
)
def test_what_is_no_request_is_refused_and_its_connection_closed(request_head: bytes) -> None:
    """Fails when a request is guessed at that two programs may read as different ones, or that names no host."""
    found, service = answers_to(request_head)
    assert found.startswith(b"HTTP/1.1 400 Bad Request")
    assert service.requests == []


@pytest.mark.parametrize(
    ("before", "piece"),
    [
        (b"", b"\r\n" * 4096),
        (b"GET /", b"a" * 8192),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: ", b"a" * 8192),
        (b"GET / HTTP/1.1\r\n" + HOST, b"X: a\r\n" * 1024),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n", b"X: a\r\n" * 1024),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n1;", b"a" * 8192),
    ],
    ids=["blank lines", "target", "one header", "many headers", "trailers", "chunk's extension"],
)
def test_headers_that_never_end_take_no_memory(before: bytes, piece: bytes) -> None:
    """Fails when a client can make the listening process hold more and more of a request that has not begun."""
    sent, most = 0, 64 * MOST_HEADER_BYTES

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(before)
        over = asyncio.ensure_future(reader.read())
        while not over.done() and sent < most:
            writer.write(piece)
            sent += len(piece)
            try:
                await writer.drain()
            except ConnectionError:
                break
            await asyncio.sleep(0)
        await asyncio.wait([over])
        over.exception()  # a connection may end in either way

    service = talk(ask)
    assert MOST_HEADER_BYTES < sent < most
    assert service.requests == []


def test_headers_of_the_size_that_browsers_send_are_read() -> None:
    """Fails when the limit is so low that cookies of other services on this host keep a browser out."""
    head = (
        b"GET / HTTP/1.1\r\n" + HOST + b"Connection: close\r\nCookie: " + b"a" * (MOST_HEADER_BYTES // 2) + b"\r\n\r\n"
    )
    found, _ = answers_to(head)
    assert found.startswith(b"HTTP/1.1 200 OK")


def test_a_large_body_is_no_header() -> None:
    """Fails when the bytes of a body count as those of headers, whether its size is said or not."""
    body = b"a" * (4 * MOST_HEADER_BYTES)
    said = b"POST /said HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunk = b"%x\r\n" % (len(body) // 4) + body[: len(body) // 4] + b"\r\n"
    chunked = b"POST /chunked HTTP/1.1\r\nConnection: close\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    _, service = answers_to(said + chunked + 4 * chunk + b"0\r\nHost: evil\r\nX: later\r\n\r\n")
    assert [(path, sent == body) for path, _, sent in service.requests] == [("/said", True), ("/chunked", True)]
    assert service.requests[1][1][b"host"] == b"localhost"
    assert b"x" not in service.requests[1][1]


def test_a_request_to_change_the_protocol_is_answered_in_this_one() -> None:
    """Fails when what a client sends after `Upgrade: h2c`, as curl asks with --http2, waits for an answer for ever."""
    asked = b"GET /a HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    found, service = answers_to(asked)
    assert found.startswith(b"HTTP/1.1 200 OK")
    assert b"connection: close" in found
    assert [path for path, _, _ in service.requests] == ["/a"]


def test_a_request_of_an_older_protocol_needs_no_host() -> None:
    """Fails when probes that speak HTTP/1.0 are refused."""
    found, _ = answers_to(b"GET /healthz HTTP/1.0\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 200 OK")
