"""Parameters that several routers take: the dataset in the path, layout and degrees, and the part of a list."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, Path, Query, Request

from preshard.packer_service.http.problems import not_legal

MOST_ITEMS = 1000
"""Most items in one part of a list."""

PackId = Annotated[int, Path(description="A pack's number, in step order.", ge=0, lt=2**63, examples=[0])]
ShardName = Annotated[str, Path(description="A shard's file name.", max_length=256, examples=["preshard-000000.tar"])]

Layout = Annotated[str | None, Query(description="Token layout.", examples=["balanced_ring"], max_length=64)]
Ring = Annotated[int | None, Query(description="Ring degree.", examples=[8], ge=1, le=4096)]
Cp = Annotated[int | None, Query(description="CP size, for images.", examples=[8], ge=1, le=4096)]


class PageRequest:
    """The part of a list that a request asks for."""

    def __init__(
        self,
        request: Request,
        offset: Annotated[int, Query(ge=0, lt=2**63, description="Items to skip at the start.")] = 0,
        limit: Annotated[int, Query(ge=1, description="Most items in the answer.")] = 50,
    ) -> None:
        if limit > MOST_ITEMS:
            raise not_legal(
                f"query.limit: {limit} is more than {MOST_ITEMS}, the most items of a page; ask for further pages"
            )
        self.offset = offset
        self.limit = limit
        self._path = request.scope["raw_path"].decode("ascii", "replace")
        self._others = [(k, v) for k, v in request.query_params.multi_items() if k not in ("offset", "limit")]

    @property
    def wanted(self) -> slice:
        """The part's place in the list."""
        return slice(self.offset, self.offset + self.limit)

    def fields(self, total: int) -> dict[str, Any]:
        """The fields of ``PageOf`` except its items."""
        after = self.offset + self.limit
        following = self._link(after) if after < total else None
        before = self._link(max(min(self.offset, total) - self.limit, 0)) if self.offset > 0 else None
        return {"total": total, "offset": self.offset, "limit": self.limit, "next": following, "previous": before}

    def _link(self, offset: int) -> str:
        return f"{self._path}?{urlencode([*self._others, ('offset', offset), ('limit', self.limit)])}"


Paged = Annotated[PageRequest, Depends()]
