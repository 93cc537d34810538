"""What is compared of a dataset with another."""

from __future__ import annotations

from preshard.packer_service.http.answers.measures import image_balance, layout_balance
from preshard.packer_service.http.answers.overview import reject_columns, written_fill, written_sums
from preshard.packer_service.http.dataset.reader import Dataset
from preshard.packer_service.report.compare import ComparedSide, compared_side
from preshard.packer_service.report.dataset import mixture_of
from preshard.packer_service.report.losses import losses_of
from preshard.packer_service.report.records import Balances


def compared(dataset: Dataset) -> ComparedSide:
    """The same figures as those of `preshard report --against`, from the dataset's tables."""
    return dataset.figures("compared", ComparedSide.model_validate, lambda: _compared(dataset))


def _compared(dataset: Dataset) -> ComparedSide:
    config, counts, sums = dataset.config, dataset.manifest.counts, written_sums(dataset)
    return compared_side(
        dataset.name,
        source_documents=counts.source_documents,
        documents=counts.documents,
        fill=written_fill(dataset),
        losses=losses_of([reject_columns(dataset)], sums.lost_tokens),
        shares=mixture_of(None, sums, config, counts.left_out).shares,
        balances=_balances(dataset),
        lengths=sums.lengths,
        configuration=dataset.manifest.config,
    )


def _balances(dataset: Dataset) -> Balances:
    config = dataset.config
    degrees = sorted(config.ring_degrees)
    return Balances(
        balanced_packs=dataset.n_packs,
        balance={
            scheme: {degree: layout_balance(dataset, scheme, degree, None) for degree in degrees}
            for scheme in config.layouts
        },
        images={size: image_balance(dataset, size, None) for size in sorted(config.cp_sizes)},
        preferred={},
    )
