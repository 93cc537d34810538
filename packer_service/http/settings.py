"""Settings of the service: what it serves, and the limits that a user may set."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class ServiceSettings(BaseModel):
    """The settings of one application. Other limits are constants where they hold: in pool, listing and guards."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    root: str = Field(description="Folder, a path or URI that pyarrow opens, below which datasets are served.")
    token: SecretStr | None = Field(None, description="Bearer token that requests for data must carry.")
    hosts: tuple[str, ...] = Field((), description="Host names that requests may name; any if empty.")
    tokenizers: tuple[str, ...] = Field((), description="Tokenizer files besides Tekken, for decoding tokens.")
    cache_bytes: int = Field(256 << 20, ge=0, description="Memory for columns, loads, samples and answers together.")
    rescan_seconds: float = Field(2.0, ge=0, description="Age at which the list of datasets is out of date.")
    scan_seconds: float = Field(10.0, gt=0, description="Longest look at one folder below the root.")
    request_seconds: float = Field(30.0, gt=0, description="Time limit of a request.")
    plan_seconds: float = Field(60.0, gt=0, description="What a what-if plan may take beyond that.")
