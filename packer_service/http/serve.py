"""``preshard serve``: the service under uvicorn."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import sys
from contextlib import suppress
from typing import Any

import uvicorn
from pydantic import SecretStr

from packer_service.http.app import create_app
from packer_service.http.settings import ServiceSettings
from packer_service.runtime.interrupt import Interrupted
from schemas.errors import ConfigError, PreshardError

TOKEN = "PRESHARD_TOKEN"
"""Environment variable that holds the bearer token."""

GRACE_SECONDS = 10
"""Time that requests in progress have to be answered before the process ends, well within Kubernetes' 30 seconds."""

MOST_CONNECTIONS = 1000
"""Connections at once; more are answered 503, so that memory stays bounded whoever connects."""

BACKLOG = 2048
"""Clients that may wait to be connected, uvicorn's own default."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def settings_for(root: str, host: str, token: str | None, **others: Any) -> ServiceSettings:
    """The settings for an address. Without a token only this machine gets answers, and only under its own names.

    A page from elsewhere can read a loopback service only if its own host name resolves to this machine; then the
    request names that host and is refused.

    Raises:
        ConfigError: other machines would reach the datasets, and no token keeps them out.
    """
    if token:
        return ServiceSettings(root=root, token=SecretStr(token), **others)
    if not is_loopback(host):
        raise ConfigError(
            f"--host {host}: other machines would reach the datasets; set {TOKEN} to a secret that clients must send, "
            "or leave --host at 127.0.0.1"
        )
    return ServiceSettings(root=root, hosts=("localhost", "127.0.0.1", "[::1]", host), **others)


def serve_folder(root: str, host: str, port: int, **others: Any) -> None:
    """Serves until SIGINT or SIGTERM, then answers the requests in progress. The token comes from the environment.

    Raises:
        ConfigError: there is no such root, or other machines could reach it without a token.
        PreshardError: the service cannot listen on the address.
    """
    settings = settings_for(root, host, os.environ.get(TOKEN), **others)
    app = create_app(settings)
    with _listening(host, port) as listener:
        name = f"[{host}]" if ":" in host else host
        where = f"http://{name}:{listener.getsockname()[1]}/"
        print(f"preshard: serving {root} at {where}", file=sys.stderr, flush=True)
        _log_to_stdout()
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
            limit_concurrency=MOST_CONNECTIONS,
        )
        with suppress(Interrupted):  # uvicorn has shut down in order, and raises the signal once more
            uvicorn.Server(config).run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # from now on clients wait instead of being refused
    except OSError as error:
        raise PreshardError(
            f"--host {host} --port {port}: cannot be listened on ({error.strerror}); give another --port, or 0 for any"
        ) from None
    return listener


def _log_to_stdout() -> None:
    """One line per request on standard output, for log collectors; everything else on standard error."""
    access = logging.getLogger("preshard.access")
    access.setLevel(logging.INFO)
    access.propagate = False
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    access.handlers = [handler]
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
