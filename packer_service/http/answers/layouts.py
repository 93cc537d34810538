"""A pack's layout as it is stored."""

from __future__ import annotations

from preshard.packer_service.http.dataset.reader import Dataset
from preshard.packer_service.http.dataset.sample import ServedSample
from preshard.schemas.errors import LayoutsInvalid
from preshard.schemas.layout import TokenLayout, check_partition, layout_name


def stored_layout(dataset: Dataset, sample: ServedSample, layout: str, ring_degree: int) -> TokenLayout:
    """A layout that the configuration promises for a sample.

    Raises:
        ProblemError: 409 the sample lacks it, or it is not a partition of the pack.
    """
    with dataset.reading():
        found = sample.layouts.get(layout_name(layout, ring_degree))
        if found is None:
            raise LayoutsInvalid(sample.where, f"has no {layout_name(layout, ring_degree)}")
        check_partition(found, dataset.config.seq_len)
        return found
