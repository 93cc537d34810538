"""Has what answers about large datasets need derived before it is asked for, one dataset at a time."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

from preshard.packer_service.http.dataset.catalog import derived_folder
from preshard.packer_service.http.pool.listing import Known
from preshard.packer_service.http.pool.pool import Pool, WorkerError
from preshard.packer_service.http.problems import ProblemError
from preshard.packer_service.http.settings import ServiceSettings


class Deriving:
    """Told of each dataset that is found; those that are large, and of which nothing was derived, get a process.

    Args:
        settings: the folder for it, and from how many packs a dataset is large.
        pool: the processes that read.
    """

    def __init__(self, settings: ServiceSettings, pool: Pool) -> None:
        self.settings = settings
        self.pool = pool
        self.folder = derived_folder(settings)
        self._given_up: set[str] = set()
        self._working: asyncio.Task[None] | None = None
        self._is_possible: bool | None = None

    def consider(self, known: Known) -> None:
        """Begins with a dataset, unless it is small, its turn has not come, or it was given up."""
        counts = known.entry.counts
        if not known.tag or counts is None or counts.packs < self.settings.derived_packs or not self._may_write():
            return
        if self._working is not None and not self._working.done():
            return
        if known.tag in self._given_up or self.pool.cooling.reason(_key(known)) or self.folder.has(known.tag):
            return
        self._working = asyncio.ensure_future(self._derive(known))

    def _may_write(self) -> bool:
        if self._is_possible is None:
            self._is_possible = self.folder.is_writable()
            if self.folder.path is not None and not self._is_possible:
                told = "cannot be written, so that figures of large datasets are computed again after each start"
                print(f"preshard: {self.folder.path} {told}", file=sys.stderr, flush=True)
        return self._is_possible

    async def _derive(self, known: Known) -> None:
        places = {known.name: known.path}
        try:
            await self.pool.ask(
                _key(known),
                known.name,
                places,
                {"derive": known.name},
                seconds=self.settings.derive_seconds,
                keep=False,
            )
        except (ProblemError, WorkerError):
            # a process that was ended for another reason than its own is started again when the root is looked at
            if not self.pool.cooling.reason(_key(known)):
                self._given_up.add(known.tag)

    def close(self) -> None:
        if self._working is not None:
            with suppress(RuntimeError):  # the loop may be closed already
                self._working.cancel()


def _key(known: Known) -> tuple[str, str, str]:
    """Not the key of the questions about a dataset, which are answered meanwhile."""
    return ("derive", known.name, known.tag)
