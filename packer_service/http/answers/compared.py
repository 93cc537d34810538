"""What is compared of a dataset with another."""

from __future__ import annotations

from preshard.packer_service.http.answers.measures import all_balances
from preshard.packer_service.http.answers.overview import reject_columns, written_fill, written_sums
from preshard.packer_service.http.dataset.cache import size_of
from preshard.packer_service.http.dataset.reader import Dataset
from preshard.packer_service.report.comparison.compare import ComparedSide, compared_side
from preshard.packer_service.report.dataset import mixture_of
from preshard.packer_service.report.losses import losses_of


def compared(dataset: Dataset) -> ComparedSide:
    """The same figures as those of `preshard report --against`, from the dataset's tables."""
    return dataset.kept(("compared",), lambda: _compared(dataset), size_of)


def _compared(dataset: Dataset) -> ComparedSide:
    config, counts, sums = dataset.config, dataset.manifest.counts, written_sums(dataset)
    return compared_side(
        dataset.name,
        source_documents=counts.source_documents,
        documents=counts.documents,
        fill=written_fill(dataset),
        losses=losses_of([reject_columns(dataset)], sums.lost_tokens),
        shares=mixture_of(None, sums, config, counts.left_out).shares,
        balances=all_balances(dataset),
        lengths=sums.lengths,
        configuration=dataset.manifest.config,
    )
