"""``preshard serve``: the service under uvicorn."""

from __future__ import annotations

import gc
import ipaddress
import logging
import os
import resource
import socket
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn
from pydantic import SecretStr

from preshard.packer_service.http.app import create_app
from preshard.packer_service.http.settings import ServiceSettings
from preshard.packer_service.runtime.interrupt import Interrupted
from preshard.schemas.errors import ConfigError, PreshardError
from preshard.schemas.files.printed import without_secrets

TOKEN = "PRESHARD_TOKEN"
"""Environment variable that holds the bearer token."""

GRACE_SECONDS = 2
"""Time that requests in progress have to be answered before the process ends."""

END_SECONDS = 3.0
"""Time after which the process ends whatever it is doing; a cluster or a terminal is told five seconds."""

MOST_FILES = 4096
"""Files and connections that the process may have open, where the system lets it choose."""

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
        print(f"preshard: serving {without_secrets(str(root))} at {where}", file=sys.stderr, flush=True)
        _log_to_stdout()
        _allow_files()
        gc.collect()
        gc.freeze()  # looking through all that was imported, as is done now and then, would stop every answer meanwhile
        config = uvicorn.Config(
            app,
            http="httptools",
            loop="uvloop",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        with suppress(Interrupted):  # uvicorn has shut down in order, and raises the signal once more
            _EndingServer(config).run(sockets=[listener])
        gc.unfreeze()  # or DuckDB reports what is left at the end as leaked


class _EndingServer(uvicorn.Server):
    """Ends the process in time, also where something keeps it from leaving in order."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            timer = threading.Timer(END_SECONDS, os._exit, [0])
            timer.daemon = True
            timer.start()
        super().handle_exit(sig, frame)


def _allow_files() -> None:
    """Raises the soft limit of open files, which on many systems is below what clients may take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio sends answers without delay only on a socket that names its protocol; else each waits 40 ms for the
        # client to confirm its head
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # from now on clients wait instead of being refused
    except OSError as error:
        raise PreshardError(
            f"--host {host} --port {port}: cannot listen there ({error.strerror}); "
            "give another --port, or 0 for any free one"
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
