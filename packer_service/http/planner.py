"""What-if plans, one at a time, each made in a process that is ended when it takes too long."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from preshard.packer_service.http.problems import ProblemError, not_legal
from preshard.packer_service.http.settings import ServiceSettings


class Planner:
    """Makes plans within the settings' limits of time and memory.

    Args:
        settings: the limits.
        is_bounded: whether this process is itself one that reads, and is ended at its limits; else each plan has a
            process of its own, which takes two seconds of processor time to start.
    """

    def __init__(self, settings: ServiceSettings, *, is_bounded: bool = False) -> None:
        self.settings = settings
        self.is_bounded = is_bounded
        self._lock = threading.Lock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Holds the only turn. Planning takes a whole processor, so a second client is told to come back.

        Raises:
            ProblemError: 503 another plan is being made.
        """
        if not self._lock.acquire(blocking=False):
            detail = "Another plan is being made, and only one is made at a time."
            raise ProblemError(503, "busy", "Busy", detail, {"Retry-After": "5"})
        try:
            yield
        finally:
            self._lock.release()

    def make(self, table: pa.Table, config: dict[str, Any], dp_sizes: list[int]) -> dict[str, Any]:
        """The figures of a plan, as JSON has them.

        Raises:
            ProblemError: 422 no plan can be made of this; 504 it took too long; 503 another plan is being made, or the
                system ended the process.
        """
        with self.turn():
            ask = self._plan_here if self.is_bounded else self._ask_worker
            answer = ask(table, config, dp_sizes)
        if "wrong" in answer:
            raise not_legal(answer["wrong"])
        figures: dict[str, Any] = answer["figures"]
        return figures

    def _plan_here(self, table: pa.Table, config: dict[str, Any], dp_sizes: list[int]) -> dict[str, Any]:
        from preshard.packer_service.report.what_if import planned  # takes half a second, which only plans should pay

        return planned(table, config, dp_sizes)

    def _ask_worker(self, table: pa.Table, config: dict[str, Any], dp_sizes: list[int]) -> dict[str, Any]:
        seconds = self.settings.plan_seconds
        asked = {
            "config": config,
            "dp_sizes": dp_sizes,
            "seconds": max(int(seconds), 1),
            "memory": self.settings.plan_memory,
        }
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "preshard.packer_service.http.plan_worker"],
                input=json.dumps(asked).encode() + b"\n" + _stream_of(table),
                capture_output=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            detail = f"The plan took longer than {seconds:g} seconds; ask about fewer documents."
            raise ProblemError(504, "too-slow", "Request took too long", detail) from None
        if done.returncode:
            detail = "The planning process ended without an answer, most likely for lack of memory; ask about less."
            raise ProblemError(503, "busy", "Busy", detail, {"Retry-After": "30"})
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


def _stream_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data
