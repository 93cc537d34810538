"""What a user should know of a dataset before it is packed again: what is not in it, and stays as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from preshard.packer_service.ingest.packed.dataset import open_dataset
from preshard.packer_service.ingest.source.file import DATASET, SourceFile

OF_SIZE = ("too_long", "too_many_images", "too_many_patches")
"""Codes of documents that were above a budget."""


def dataset_notes(files: Sequence[SourceFile]) -> Iterator[str]:
    """One line for each thing that packing a dataset again cannot give back.

    Raises:
        ConfigError: a table of a dataset is damaged.
    """
    for file in files:
        if file.kind != DATASET:
            continue
        source = open_dataset(file)
        counts, found = source.manifest.counts, Counter(source.reject_codes())
        above = ", ".join(f"{code} {found[code]}" for code in OF_SIZE if found[code])
        if above:
            yield (
                f"{file.label}: documents that it rejected for their size are not in it ({above}); "
                "to have them at another size, pack its source"
            )
        if counts.truncated_tokens:
            was = "split with tokens in no piece stay in these pieces, or are rejected at another size"
            stays = was if source.config.oversize == "split" else "cut short stay so"
            yield f"{file.label}: documents that were {stays} ({counts.truncated_tokens:,} tokens are gone)"
        if counts.left_out:
            yield f"{file.label}: documents that its mixture left out are not in it ({counts.left_out:,})"
