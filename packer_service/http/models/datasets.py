"""Answers about whole datasets, parts that several answers share, and problems."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from preshard.packer_service.plan.records import Figures
from preshard.packer_service.report.records import Histograms, Losses, PackFill, SourceTotals, Unread, Warned
from preshard.schemas.manifest import Counts, TokenizerEntry

T = TypeVar("T")


class Problem(BaseModel):
    """An error, as problem details (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(
        "about:blank", description="A URI that names the kind of problem; about:blank where the status says it all."
    )
    title: str = Field(description="The kind of problem, in a few words.", examples=["No such dataset"])
    status: int = Field(description="The HTTP status.", examples=[404])
    detail: str = Field(description="What was wrong with this request, and what is legal.")
    instance: str = Field(description="The path of the request.")
    request_id: str = Field(description="Identifies the request in the access log.")


class PageOf(Figures, Generic[T]):
    """Part of a list. The `Link` header names the neighbouring parts as well."""

    items: list[T]
    total: int = Field(description="Items of the whole list.", examples=[14])
    offset: int = Field(description="Items before this part.", examples=[0])
    limit: int = Field(description="Most items that this part can hold.", examples=[50])
    next: str | None = Field(description="Path and query of the next part; null at the end.")
    previous: str | None = Field(description="Path and query of the previous part; null at the start.")

    def link_header(self) -> dict[str, str]:
        """The neighbouring parts as a header (RFC 8288), where there are any."""
        links = [f'<{url}>; rel="{rel}"' for rel, url in (("next", self.next), ("prev", self.previous)) if url]
        return {"link": ", ".join(links)} if links else {}


State = Literal["whole", "unfinished", "damaged"]


def name_below_root(path: str) -> str:
    """A folder's path below the root as a single path segment. Different paths have different names."""
    return path.replace("~", "~0").replace(":", "~1").replace("/", ":")


class Health(Figures):
    """The service is up."""

    status: Literal["ok"] = "ok"
    version: str = Field(description="preshard's version.")


class DatasetEntry(Figures):
    """A dataset in the list."""

    name: str = Field(
        description="Identifies it in every other path: its folder below the root, `/` written as `:` (and `~` as "
        "`~0`, `:` as `~1`); the root's own name where the root is the dataset.",
        examples=["demo"],
    )
    state: State = Field(
        description="`whole`; `unfinished` (no manifest yet); `damaged` (cannot be served, see `reason`)."
    )
    reason: str | None = Field(None, description="Why it is damaged or unfinished.")
    dataset_id: str | None = Field(None, description="SHA-256 of configuration, tokenizer and plan; if whole.")
    counts: Counts | None = Field(None, description="The manifest's totals; whole datasets only.")
    seq_len: int | None = Field(None, description="Tokens of a pack; whole datasets only.", examples=[36864])
    fill: float | None = Field(None, description="Real tokens over all tokens of the packs.", examples=[0.934])
    shards_done: int = Field(0, description="Shards that are written.", examples=[4])
    shards_total: int | None = Field(None, description="Shards that there will be, if known.", examples=[4])
    bytes: int = Field(0, description="Bytes of the shards.", examples=[48127488])
    packed: str | None = Field(
        None, description="When packing ended, from run.json, RFC 3339; null where it does not say."
    )


class DatasetPage(PageOf[DatasetEntry]):
    """Datasets below the root, by name."""

    complete: bool = Field(description="False where the root is deeper or wider than the service looks.")


class Overview(PackFill, Losses):
    """Overview of a dataset from its tables: how full it is, how even its steps are, what was lost and why."""

    sources: list[SourceTotals]
    histograms: Histograms


class DatasetDetail(Overview, Unread, Warned):
    """The same with what its manifest says: the figures of `preshard report`."""

    name: str
    dataset_id: str
    preshard_version: str = Field(description="Version that wrote it.")
    packed: str | None = Field(description="When packing ended, from run.json, RFC 3339; null where it does not say.")
    block_size: int
    shards: int
    bytes: int = Field(description="Bytes of the shards.")
    counts: Counts
    layouts: list[str] = Field(description="Token layouts that every pack has.", examples=[["zigzag", "balanced_ring"]])
    ring_degrees: list[int] = Field(description="Ring degrees that every layout has.", examples=[[1, 2, 4, 8]])
    cp_sizes: list[int] = Field(description="CP sizes for which images are divided.", examples=[[1, 2, 4, 8]])
    files: list[str] = Field(description="Names of the source files.")
    tokenizer: TokenizerEntry
    config: dict[str, Any] = Field(description="Free JSON.")
    seconds: dict[str, float] = Field(description="Time that the job's phases took, from run.json.")
    plan_seconds: float
