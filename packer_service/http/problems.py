"""Every answer that is not a success: problem details, RFC 9457."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from preshard.packer_service.http.models.datasets import Problem
from preshard.schemas.files.validation import violations_of

MEDIA_TYPE = "application/problem+json"

_MOST_FAULTS = 5
"""Faults of one request that are listed; the others are counted."""

_MOST_CHARACTERS = 300
"""Longest description of one fault; a fault may quote a value of any length."""


class ProblemError(Exception):
    """Ends a request with a problem.

    Args:
        status: HTTP status.
        kind: slug of the problem's type.
        title: the kind of problem in a few words.
        detail: what was wrong with this request, and what is legal. Never a path outside the root.
        headers: additional headers of the answer.
    """

    def __init__(self, status: int, kind: str, title: str, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.title = title
        self.detail = detail
        self.headers = headers or {}

    def as_arguments(self) -> dict[str, Any]:
        """Arguments that make the error again, as JSON has them."""
        return {name: getattr(self, name) for name in ("status", "kind", "title", "detail", "headers")}


def not_found(what: str, detail: str) -> ProblemError:
    return ProblemError(404, "not-found", f"No such {what}", detail)


def not_legal(detail: str) -> ProblemError:
    """A parameter that is well formed but has no meaning for what it asks about."""
    return ProblemError(422, "invalid-request", "Invalid request", detail)


def no_dataset(name: str) -> ProblemError:
    listed = "/v1/datasets lists those that are there"
    return not_found("dataset", f"There is no dataset {name!r:.200} below the root; {listed}.")


def unfinished(name: str, reason: str) -> ProblemError:
    """A dataset whose job has not ended."""
    return ProblemError(409, "dataset-unfinished", "Dataset unfinished", f"{name}: {reason}")


def too_slow(seconds: float) -> ProblemError:
    """An answer that was given up."""
    detail = f"The answer took longer than {seconds:g} seconds; ask for less, or try again later."
    return ProblemError(504, "too-slow", "Request took too long", detail)


def busy(detail: str, retry_seconds: float) -> ProblemError:
    """A problem for what cannot be answered now, and may be later."""
    return ProblemError(503, "busy", "Busy", detail, {"Retry-After": str(math.ceil(retry_seconds))})


def damaged(name: str, reason: str) -> ProblemError:
    """A dataset whose files are not what its manifest says."""
    return ProblemError(409, "dataset-damaged", "Dataset damaged", f"{name}: {reason}")


def problem_response(scope: Any, problem: ProblemError) -> JSONResponse:
    """A problem as an answer."""
    body = Problem(
        type=f"urn:preshard:problem:{problem.kind}",
        title=problem.title,
        status=problem.status,
        detail=problem.detail,
        instance=scope.get("path", ""),
        request_id=scope.get("request_id", ""),
    )
    headers = {"Cache-Control": "no-store", **problem.headers}
    return JSONResponse(body.model_dump(), problem.status, headers=headers, media_type=MEDIA_TYPE)


def add_handlers(app: FastAPI) -> None:
    """Makes the application answer its own errors and those of its framework as problems."""

    @app.exception_handler(ProblemError)
    async def own(request: Request, error: ProblemError) -> JSONResponse:
        return problem_response(request.scope, error)

    @app.exception_handler(RequestValidationError)
    async def not_valid(request: Request, error: RequestValidationError) -> JSONResponse:
        return problem_response(request.scope, not_legal(_sentences(error)))

    @app.exception_handler(HTTPException)
    async def of_framework(request: Request, error: HTTPException) -> JSONResponse:
        phrase = HTTPStatus(error.status_code).phrase
        detail = {404: "There is nothing at this path.", 405: "This path does not support this method."}
        problem = ProblemError(
            error.status_code,
            phrase.lower().replace(" ", "-"),
            phrase,
            detail.get(error.status_code, str(error.detail)),
            dict(error.headers or {}),
        )
        return problem_response(request.scope, problem)


def _sentences(error: RequestValidationError) -> str:
    """The first few faults and their locations; values are not repeated, since they may be long."""
    violations = violations_of(error.errors())
    listed = [str(violation)[:_MOST_CHARACTERS] for violation in violations[:_MOST_FAULTS]]
    more = f"; and {len(violations) - _MOST_FAULTS} more" if len(violations) > _MOST_FAULTS else ""
    return "; ".join(listed) + more
