"""What is compared of a dataset with another."""

from __future__ import annotations

from fastapi import APIRouter

from preshard.packer_service.http.answers.compared import compared
from preshard.packer_service.http.parameters import ServedDataset
from preshard.packer_service.http.service import DatasetRoute
from preshard.packer_service.report.compare import ComparedSide

router = APIRouter(prefix="/v1/datasets/{name}", tags=["comparison"], route_class=DatasetRoute)


@router.get("/compared", summary="One side of a comparison: named figures, and which of two values is better")
def compared_figures(dataset: ServedDataset) -> ComparedSide:
    """Two of these answers side by side are `preshard report --against`: figures join by section and name.

    What only one side names is nothing among rejects and sources, and unknown elsewhere.
    """
    return compared(dataset)
