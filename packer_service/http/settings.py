"""What the service serves, and its limits."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, SecretStr

_MIB = 1 << 20


class ServiceSettings(BaseModel):
    """The settings of one application. Limits bound what any number of clients together can make it do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    root: str = Field(description="Folder, a path or URI that pyarrow opens, below which datasets are served.")
    token: SecretStr | None = Field(None, description="Bearer token that requests for data must carry.")
    hosts: tuple[str, ...] = Field((), description="Host names that requests may name; any if empty.")
    tokenizers: tuple[str, ...] = Field((), description="Tokenizer files besides Tekken, for decoding tokens.")
    rescan_seconds: float = Field(2.0, ge=0, description="Age at which the list of datasets is out of date.")
    max_depth: int = Field(6, ge=0, description="Most folders between the root and a dataset.")
    max_folders: int = Field(10_000, ge=1, description="Most folders that are searched for datasets.")
    max_datasets: int = Field(1000, ge=1, description="Most datasets that are listed.")
    max_limit: int = Field(1000, ge=1, description="Most items in one part of a list.")
    cache_bytes: int = Field(512 * _MIB, ge=0, description="Memory for columns, loads, samples and answers together.")
    max_body_bytes: int = Field(16 * _MIB, ge=1, description="Most bytes of a request's body.")
    request_seconds: float = Field(30.0, gt=0, description="Time limit of a request.")
    plan_seconds: float = Field(60.0, gt=0, description="Time limit of a what-if plan.")
    plan_documents: int = Field(1_000_000, ge=1, description="Most documents of a what-if plan.")
    plan_memory: int = Field(8192 * _MIB, ge=_MIB, description="Most address space of a process that only makes one.")
    threads: int = Field(
        8, ge=1, description="Requests that are worked on at once for one dataset; the others wait their turn."
    )
    processes: int = Field(8, ge=1, description="Processes that read at once, each for one dataset.")
    process_memory: int = Field(2048 * _MIB, ge=64 * _MIB, description="Most memory of one of them.")
    memory_bytes: int = Field(3072 * _MIB, ge=64 * _MIB, description="Most memory of all of them together.")
    scan_seconds: float = Field(10.0, gt=0, description="Longest look at one folder below the root.")
    max_bodies_bytes: int = Field(64 * _MIB, ge=1, description="Most bytes of all requests' bodies at once.")
