"""What advice reads of a served dataset."""

from __future__ import annotations

from preshard.packer_service.http.dataset.cache import size_of
from preshard.packer_service.http.dataset.reader import Dataset
from preshard.packer_service.http.dataset.sample import read_sample
from preshard.packer_service.http.problems import ProblemError
from preshard.packer_service.report.advice.estimate.derived import PackMask, not_derived, with_derived
from preshard.packer_service.report.advice.estimate.loads import PackLoads, read_pack_loads
from preshard.schemas.errors import LayoutError


def pack_loads(dataset: Dataset, gpus: int) -> tuple[PackLoads, tuple[str, ...]]:
    """Loads of all packs, or of some of a large dataset, kept while there is room; and what could not be read.

    Raises:
        ProblemError: 409 the tables are damaged; 503 they cannot be read at the moment.
    """
    try:
        return dataset.kept(("advice", gpus), lambda: _derived(dataset, gpus), size_of), ()
    except LayoutError as error:
        return _stored(dataset, gpus), (not_derived(str(error)),)
    except ProblemError as error:
        if dataset.broken:
            raise
        return _stored(dataset, gpus), (not_derived(error.detail),)


def _derived(dataset: Dataset, gpus: int) -> PackLoads:
    """The stored loads, and those of layouts that a reader derives."""

    def mask(pack: int) -> PackMask:
        sample = read_sample(dataset, pack)
        return PackMask.of(sample.index, sample.head.documents)

    return with_derived(_stored(dataset, gpus), dataset.config, gpus, mask)


def _stored(dataset: Dataset, gpus: int) -> PackLoads:
    return dataset.kept(("stored advice", gpus), lambda: _read(dataset, gpus), size_of)


def _read(dataset: Dataset, gpus: int) -> PackLoads:
    with dataset.measures() as measures:
        return read_pack_loads(measures, lambda name: dataset.numbers("packs.parquet", name), gpus=gpus)
