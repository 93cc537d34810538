"""Documents as often as a mixture and epochs take them, and what each source gets of everything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Float64, Int64

from packer_service.plan.mixture import count_copies, take
from packer_service.report.figures import Mixture, SourceShare
from schemas.config import PackConfig
from schemas.errors import ConfigError


class Mixed(NamedTuple):
    """The documents that are packed, and what became of the sources."""

    documents: pa.Table
    figures: Mixture


def take_mixture(documents: pa.Table, config: PackConfig, *, rejected_sources: Iterable[str] = ()) -> Mixed:
    """Lists documents as often as the configuration takes them.

    Args:
        documents: in canonical order, with ``id_hash``, ``source``, ``piece`` and ``tokens``, and ``loss_weight`` where
            that is known.
        config: its ``mixture`` and ``epochs`` are followed, by the seed of its order.
        rejected_sources: sources of documents that cannot be packed.

    Returns:
        The documents by epoch, pass and canonical order, with the columns ``copy_number``, ``epoch``, ``pass_number``
        and ``source_number``.

    Raises:
        ConfigError: the mixture names a source that no row has.
    """
    encoded = documents["source"].unify_dictionaries().combine_chunks()
    encoded = encoded if pa.types.is_dictionary(encoded.type) else encoded.dictionary_encode()
    names, numbers = _by_name(encoded)
    _check_names(config, {*names, *rejected_sources})
    weights = np.array([dict(config.mixture).get(name, 1.0) for name in names], np.float64)
    hashes = documents["id_hash"].to_numpy()
    copies = np.ones(len(documents), np.int64)
    if (weights != 1).any():
        copies = count_copies(hashes, weights[numbers], config.order.seed)
    left_out = int(((copies == 0) & (documents["piece"].to_numpy() == 0)).sum())
    shares = _shares(documents, names, numbers, weights, copies, config.epochs)
    figures = Mixture(left_out=left_out, shares=shares)
    if (copies == 1).all() and config.epochs == 1:
        nothing = np.zeros(len(documents), np.int8)
        added = {"copy_number": nothing, "epoch": nothing, "pass_number": nothing}
    else:
        taken = take(hashes, copies, epochs=config.epochs, seed=config.order.seed)
        documents, numbers = documents.take(pa.array(taken.document)), numbers[taken.document]
        added = {"copy_number": taken.copy_number, "epoch": taken.epoch, "pass_number": taken.pass_number}
    for name, column in (added | {"source_number": numbers}).items():
        width = next(width for width in (np.int8, np.int16, np.int32) if column.max(initial=0) <= np.iinfo(width).max)
        documents = documents.append_column(name, pa.array(column.astype(width)))
    return Mixed(documents, figures)


def _by_name(encoded: pa.DictionaryArray) -> tuple[list[str], Int64[np.ndarray, "docs"]]:
    """The names of the sources, sorted, and of each document the number of its own."""
    found = encoded.dictionary.to_pylist()
    place = np.argsort(np.argsort(np.array(found, object), kind="stable"), kind="stable")
    return sorted(found), place[encoded.indices.to_numpy()].astype(np.int64)


def _check_names(config: PackConfig, known: set[str]) -> None:
    """
    Raises:
        ConfigError: the mixture names a source that is not known.
    """
    unknown = [name for name, _ in config.mixture if name not in known]
    if unknown:
        raise ConfigError(
            f"mixture: no row has the source {', '.join(unknown)}; the rows have {', '.join(sorted(known)) or 'none'}"
        )


def _shares(
    documents: pa.Table,
    names: list[str],
    numbers: Int64[np.ndarray, "docs"],
    weights: Float64[np.ndarray, "sources"],
    copies: Int64[np.ndarray, "docs"],
    epochs: int,
) -> dict[str, SourceShare]:
    """Every epoch takes the same."""

    def by_source(values: np.ndarray) -> Float64[np.ndarray, "sources"]:
        return np.bincount(numbers, weights=values, minlength=len(names)).astype(np.float64)

    available = documents["tokens"].cast(pa.int64()).to_numpy()
    asked, got, counts = by_source(available) * weights, by_source(available * copies), by_source(copies)
    loss = None
    if "loss_weight" in documents.column_names:
        loss = by_source(documents["loss_weight"].cast(pa.float64()).to_numpy() * copies)
    return {
        name: SourceShare(
            weight=weights[i],
            documents=int(counts[i]) * epochs,
            tokens=int(got[i]) * epochs,
            asked=asked[i] / max(asked.sum(), 1),
            share=got[i] / max(got.sum(), 1),
            loss_share=None if loss is None else loss[i] / (loss.sum() or 1.0),
        )
        for i, name in enumerate(names)
    }
