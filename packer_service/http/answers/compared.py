"""What is compared of a dataset with another."""

from __future__ import annotations

import pyarrow as pa

from packer_service.http.answers.measures import image_balance, layout_balance
from packer_service.http.dataset.reader import Dataset
from packer_service.report.compare import ComparedSide, compared_side
from packer_service.report.dataset import mixture_of
from packer_service.report.document_sums import DocumentSums, LengthCounts
from packer_service.report.figures import Balances
from packer_service.report.fill import plan_as_written, plan_fill
from packer_service.report.losses import losses

DOCUMENTS = ("source", "pack_id", "start", "length", "aligned_length", "n_images", "n_patches", "truncated_tokens")
REJECTS = ("source", "code", "message", "location", "doc_id")


def compared(dataset: Dataset) -> ComparedSide:
    """The same figures as those of `preshard report --against`, from the dataset's tables."""
    config, counts = dataset.config, dataset.manifest.counts
    documents, rejects = _table(dataset, "documents.parquet", DOCUMENTS), _table(dataset, "rejects.parquet", REJECTS)
    columns = {name: dataset.numbers("documents.parquet", name) for name in DOCUMENTS[1:]}
    plan = plan_as_written(
        seq_len=config.seq_len,
        cost=dataset.numbers("packs.parquet", "cost"),
        pack_ids=columns["pack_id"],
        **{name: columns[name] for name in ("start", "length", "aligned_length")},
    )
    fill = plan_fill(
        plan,
        images=columns["n_images"],
        max_images=config.max_images,
        patches=columns["n_patches"],
        max_patches=config.max_patches,
        window=config.order.window,
    )
    return compared_side(
        dataset.name,
        source_documents=counts.source_documents,
        documents=counts.documents,
        fill=fill,
        losses=losses(rejects, documents, "truncated_tokens"),
        shares=mixture_of(None, DocumentSums.of([documents]), config, counts.left_out).shares,
        balances=_balances(dataset),
        lengths=LengthCounts.of([columns["length"]]),
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


def _table(dataset: Dataset, name: str, columns: tuple[str, ...]) -> pa.Table:
    return pa.table({column: dataset.column(name, column) for column in columns})
