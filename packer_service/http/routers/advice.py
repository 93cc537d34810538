"""Advice on which split to train with."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from preshard.packer_service.http.dataset.cache import size_of
from preshard.packer_service.http.dataset.reader import ServedDataset
from preshard.packer_service.http.dataset.sample import read_sample
from preshard.packer_service.http.problems import ProblemError, not_legal
from preshard.packer_service.http.service import DatasetRoute
from preshard.packer_service.report.advice.answer import Advisor
from preshard.packer_service.report.advice.dataset import advised_model, limit_notes
from preshard.packer_service.report.advice.estimate.derived import PackMask, not_derived, with_derived
from preshard.packer_service.report.advice.estimate.loads import PackLoads, read_pack_loads
from preshard.packer_service.report.advice.figures import Advice
from preshard.packer_service.report.advice.question import AdviceQuestion
from preshard.schemas.errors import LayoutError

router = APIRouter(prefix="/v1/datasets/{name}", tags=["advice"], route_class=DatasetRoute)


@router.get("/advice", summary="Which split of packs over GPUs trains fastest")
def advice(dataset: ServedDataset, asked: Annotated[AdviceQuestion, Query()]) -> Advice:
    """The answer of `preshard advise`: the fastest splits with their times and memory, and everything assumed.

    Every assumption is a parameter. A model's dimensions that are not given are those of the dataset's `cost`.
    """
    if not dataset.n_packs:
        raise not_legal(f"{dataset.name}: has no packs, so there is nothing to split")
    sizes, notes = advised_model(dataset.manifest, dataset.config, asked)
    loads, unread = pack_loads(dataset, asked.gpus)
    notes = (*limit_notes(dataset.run[2]), *notes, *unread)
    return Advisor(config=dataset.config, sizes=sizes, question=asked, loads=loads, notes=notes).advice()


def pack_loads(dataset: ServedDataset, gpus: int) -> tuple[PackLoads, tuple[str, ...]]:
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


def _derived(dataset: ServedDataset, gpus: int) -> PackLoads:
    """The stored loads, and those of layouts that a reader derives."""

    def mask(pack: int) -> PackMask:
        sample = read_sample(dataset, pack)
        return PackMask.of(sample.index, sample.head.documents)

    return with_derived(_stored(dataset, gpus), dataset.config, gpus, mask)


def _stored(dataset: ServedDataset, gpus: int) -> PackLoads:
    return dataset.kept(("stored advice", gpus), lambda: _read(dataset, gpus), size_of)


def _read(dataset: ServedDataset, gpus: int) -> PackLoads:
    model = dataset.manifest.model
    layers = model.masks if model else None
    with dataset.measures() as measures:
        return read_pack_loads(measures, lambda name: dataset.numbers("packs.parquet", name), gpus=gpus, layers=layers)
