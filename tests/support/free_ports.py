"""Ports for processes that cannot choose one by themselves."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

LOWEST = 20_000
"""First port above those that Ray takes for its workers by default."""

FEWEST = 1_000
"""Ports that there should be to draw from."""


def free_ports(count: int) -> list[int]:
    """Ports of this machine on which nothing listens now, and which nobody who takes any port is given later.

    Those that the kernel gives to whoever asks for any port, for a connection too, could be taken before they are used.
    """
    with suppress(OSError, ValueError):  # not Linux
        kernels = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
        if kernels - LOWEST >= FEWEST:
            return _bound(random.SystemRandom().sample(range(LOWEST, kernels), FEWEST), count)
    return _bound([0] * count, count)


def _bound(ports: list[int], count: int) -> list[int]:
    """The first so many of these ports that can be bound; 0 stands for any."""
    with ExitStack() as stack:
        found: list[int] = []
        for port in ports:
            one = stack.enter_context(socket.socket())
            with suppress(OSError):
                one.bind(("127.0.0.1", port))
                found.append(one.getsockname()[1])
            if len(found) == count:
                return found
    raise OSError(f"fewer than {count} of {len(ports)} ports are free")
