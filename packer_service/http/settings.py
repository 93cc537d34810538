"""What the service serves, and its limits."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, SecretStr

_MIB = 1 << 20


class ServiceSettings(BaseModel):
    """Frozen: an application is made for them once. Limits bound what any number of clients can make it do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    root: str = Field(description="Folder, a path or URI that pyarrow opens, below which datasets are served.")
    token: SecretStr | None = Field(None, description="Bearer token that requests for data must carry.")
    hosts: tuple[str, ...] = Field((), description="Host names that requests may be for; any when empty.")
    tokenizers: tuple[str, ...] = Field((), description="Files of tokenizers besides Tekken, to spell tokens with.")
    rescan_seconds: float = Field(2.0, ge=0, description="Age from which the list of datasets is made anew.")
    max_depth: int = Field(6, ge=0, description="Folders between the root and a dataset.")
    max_folders: int = Field(10_000, ge=1, description="Folders that are looked into for datasets.")
    max_datasets: int = Field(1000, ge=1, description="Datasets that are listed.")
    max_limit: int = Field(1000, ge=1, description="Most items of a page.")
    cache_bytes: int = Field(512 * _MIB, ge=0, description="Memory for columns, loads, samples and answers together.")
    max_body_bytes: int = Field(16 * _MIB, ge=1, description="Most bytes of a request's body.")
    request_seconds: float = Field(30.0, gt=0, description="Time limit of a request.")
    plan_seconds: float = Field(60.0, gt=0, description="Time limit of a what-if plan.")
    plan_documents: int = Field(1_000_000, ge=1, description="Most documents of a what-if plan.")
    plan_memory: int = Field(8192 * _MIB, ge=_MIB, description="Address space of the process that makes such a plan.")
    threads: int = Field(8, ge=1, description="Requests that are worked on at once; others wait for their turn.")
