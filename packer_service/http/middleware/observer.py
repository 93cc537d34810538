"""Observer of the service: a log line and a measurement per request, and a problem where one failed."""

from __future__ import annotations

import json
import logging
import time
import traceback
import uuid
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from preshard.packer_service.http.problems import ProblemError, problem_response
from preshard.schemas.files.printed import without_secrets

access = logging.getLogger("preshard.access")
errors = logging.getLogger("preshard.errors")

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Bounds of the histogram of times: Prometheus' usual ones, from what a cached answer takes to a plan's limit."""


class Metrics:
    """Prometheus metrics of one application.

    Args:
        cache_bytes: most bytes that are kept.
        cache_figures: returns bytes, entries, hits and misses of what is kept.
        count: returns how many datasets are in a state.
    """

    def __init__(
        self, cache_bytes: int, cache_figures: Callable[[], tuple[int, int, int, int]], count: Callable[[str], int]
    ) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "preshard_http_requests", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "preshard_http_request_seconds", "Time to answer.", ["route"], buckets=_SECONDS, registry=self.registry
        )
        values = {
            "preshard_cache_bytes": ("Bytes kept in memory.", lambda: cache_figures()[0]),
            "preshard_cache_limit_bytes": ("Most bytes that are kept.", lambda: cache_bytes),
            "preshard_cache_entries": ("Values kept in memory.", lambda: cache_figures()[1]),
            "preshard_cache_hits": ("Values found in memory.", lambda: cache_figures()[2]),
            "preshard_cache_misses": ("Values that had to be made.", lambda: cache_figures()[3]),
        }
        for name, (text, value) in values.items():
            Gauge(name, text, registry=self.registry).set_function(value)
        datasets = Gauge("preshard_datasets", "Datasets below the root.", ["state"], registry=self.registry)
        for state in ("whole", "unfinished", "damaged"):
            datasets.labels(state).set_function(lambda state=state: count(state))  # type: ignore[misc]


class Observer:
    """Gives each request an id, logs and measures it, and hides internal failures from the client."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, method, status, size = time.perf_counter(), scope["method"], 0, 0
        scope["request_id"] = uuid.uuid4().hex

        async def counted(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message["headers"], (b"x-request-id", scope["request_id"].encode())]
                message = {**message, "headers": headers}
            size += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, counted)
        except Exception as error:  # whatever no route expected becomes a 500 and a line of the log
            trace = without_secrets("".join(traceback.format_exception(error)))
            errors.error(json.dumps({"request_id": scope["request_id"], "error": trace}))
            if status:
                raise  # the answer has begun: only closing the connection can show that it is incomplete
            detail = "The service failed; its log has the reason under the request's id."
            problem = ProblemError(500, "internal-error", "Internal error", detail)
            await problem_response(scope, problem)(scope, receive, counted)
        finally:
            self._record(scope, method, status or 499, size, time.perf_counter() - began)

    def _record(self, scope: Scope, method: str, status: int, size: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or "none"
        self.metrics.requests.labels(method, route, str(status)).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        if access.isEnabledFor(logging.INFO):
            access.info(
                json.dumps(
                    {
                        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                        "method": method,
                        "path": scope["path"],
                        "query": scope["query_string"].decode("latin-1"),
                        "status": status,
                        "ms": round(1000 * seconds, 1),
                        "bytes": size,
                        "client": (scope.get("client") or ("",))[0],
                        "request_id": scope["request_id"],
                    }
                )
            )
