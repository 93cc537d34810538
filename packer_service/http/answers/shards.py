"""A shard by its name."""

from __future__ import annotations

from preshard.packer_service.http.dataset.reader import Dataset
from preshard.packer_service.http.problems import not_found


def packs_of_shard(dataset: Dataset, shard: str) -> range:
    """The packs of a shard.

    Raises:
        ProblemError: 404 there is no such shard.
    """
    entry = dataset.shards.find(shard)
    if entry is not None:
        return range(entry.first_pack, entry.first_pack + entry.packs)
    last = dataset.shards[len(dataset.shards) - 1].name if len(dataset.shards) else "none"
    raise not_found("shard", f"There is no shard {shard!r:.100}; the last one is {last}.")
