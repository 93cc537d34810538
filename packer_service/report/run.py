"""``run.json``: what the job that packed a dataset wrote of itself. Nothing in a dataset rests on it."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from preshard.packer_service.plan.records import Figures, FillLimit, Mixture, Thinned
from preshard.packer_service.shards.store import Folder
from preshard.schemas.errors import ConfigError
from preshard.schemas.files.filesystem import FileRefusedError
from preshard.schemas.files.validation import first_violation
from preshard.schemas.manifest import LARGEST_RUN, RUN

T = TypeVar("T", bound=BaseModel)


class JobFacts(Figures):
    """The whole file.

    Attributes:
        job: the job that the folder belongs to.
        attempts: the runs that it took.
        finished: when packing ended, RFC 3339.
        python, platform, versions: with which.
        mixture, limit, thinned: figures of the plan that no table has.
        fault: why the file is not read, where it is there and is not; never in the file.
    """

    job: dict[str, Any] = Field(default_factory=dict)
    attempts: list[dict[str, str | int]] = Field(default_factory=list)
    finished: str | None = None
    python: str | None = None
    platform: str | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    measure_seconds: float | None = None
    plan_seconds: float | None = None
    write_seconds: float | None = None
    finish_seconds: float | None = None
    measure_task_seconds: float | None = None
    write_task_seconds: float | None = None
    mixture: Mixture | None = None
    limit: FillLimit | None = None
    thinned: Thinned | None = None
    fault: str | None = Field(None, exclude=True)

    @property
    def seconds(self) -> dict[str, float]:
        """The times of the job's phases that are known."""
        return {name: value for name, value in self if name.endswith("_seconds") and value is not None}


def decode_strictly(record: type[T], data: bytes) -> T:
    """A record from JSON in which no field is unknown or of another type, and every number is finite.

    Raises:
        ValueError: it is anything else; one line.
    """
    try:
        if b"NaN" in data or b"Infinity" in data:  # JSON has no such numbers, and pydantic takes them
            json.loads(data, parse_constant=_refuse)
        return record.model_validate_json(data, strict=True, extra="forbid")
    except ValidationError as error:
        raise ValueError(str(first_violation(error))) from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"holds {constant}, which is not a JSON number")


def decode_run(data: bytes) -> JobFacts:
    """The facts in a file; with nothing but its ``fault`` where it is not one that packing wrote."""
    try:
        found = decode_strictly(JobFacts, data)
        if found.fault is not None:
            raise ValueError("fault: unknown key")
    except ValueError as error:
        return JobFacts(fault=f"{RUN} is damaged, so the job's times are not known ({error})")
    return found


def read_run(folder: Folder) -> JobFacts:
    """The facts of a dataset, none where it has no such file; with ``fault`` where they cannot be read."""
    try:
        return decode_run(folder.read(RUN, LARGEST_RUN))
    except FileNotFoundError:
        return JobFacts()
    except (FileRefusedError, ConfigError, OSError) as error:
        return JobFacts(fault=f"{RUN} cannot be read, so the job's times are not known ({error})")
