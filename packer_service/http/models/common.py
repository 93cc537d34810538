"""Parts that several answers share."""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from preshard.packer_service.report.records import Figures

T = TypeVar("T")


class Problem(BaseModel):
    """What went wrong, as problem details (RFC 9457)."""

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


class Histogram(Figures):
    """Counts of values between edges: bar i counts `edges[i] <= value < edges[i + 1]`, the last one also its end."""

    unit: str = Field(description="What the edges count.", examples=["tokens"])
    edges: list[float] = Field(examples=[[0, 1024, 2048]])
    counts: list[int] = Field(examples=[[118, 31]])
