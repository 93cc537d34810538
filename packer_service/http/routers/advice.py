"""Which split to train with."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from preshard.packer_service.http.dataset.advice import pack_loads
from preshard.packer_service.http.parameters import ServedDataset
from preshard.packer_service.http.problems import not_legal
from preshard.packer_service.http.service import DatasetRoute
from preshard.packer_service.report.advice.answer import Advisor
from preshard.packer_service.report.advice.dataset import advised_model, limit_notes
from preshard.packer_service.report.advice.figures import Advice
from preshard.packer_service.report.advice.question import AdviceQuestion

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
