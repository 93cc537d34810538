"""What advice reads of a served dataset."""

from __future__ import annotations

from collections.abc import Iterator

from packer_service.http.dataset.reader import Dataset
from packer_service.report.advice.loads import PackLoads, read_pack_loads
from packer_service.report.loads import Block, read_loads
from schemas.balance import LoadGroup


def pack_loads(dataset: Dataset, gpus: int) -> PackLoads:
    """Loads of all packs, or of some of a large dataset.

    Raises:
        ProblemError: 409 the tables are damaged; 503 they cannot be read at the moment.
    """
    with dataset.parquet("balance.parquet") as file:

        def read(group: LoadGroup, packs: range) -> Iterator[Block]:
            return read_loads(file, dataset.order, group, packs)

        return read_pack_loads(dataset.order, lambda name: dataset.numbers("packs.parquet", name), read, gpus=gpus)
