"""Documents as often as a mixture and epochs take them, and what each source gets of everything."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Float64, Int64

from preshard.packer_service.plan.mixture import count_copies, take
from preshard.packer_service.report.records import Mixture, SourceShare
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError


class MixtureTotals(NamedTuple):
    """What an epoch takes of each source, in the order of their names; those of several partitions add up.

    ``available`` and ``taken`` count tokens, ``documents`` rows; ``loss_weight`` is None where it is not known.
    """

    left_out: int
    available: list[float]
    taken: list[float]
    documents: list[float]
    loss_weight: list[float] | None

    def __add__(self, other: MixtureTotals) -> MixtureTotals:  # type: ignore[override]  # of tuples that would join them
        losses = None
        if self.loss_weight is not None and other.loss_weight is not None:
            losses = _sums(self.loss_weight, other.loss_weight)
        return MixtureTotals(
            self.left_out + other.left_out,
            _sums(self.available, other.available),
            _sums(self.taken, other.taken),
            _sums(self.documents, other.documents),
            losses,
        )


def _sums(a: list[float], b: list[float]) -> list[float]:
    return [x + y for x, y in zip(a, b, strict=True)]


class Mixed(NamedTuple):
    """The documents that are packed, and what was taken of each source."""

    documents: pa.Table
    totals: MixtureTotals


def source_names(documents: pa.Table) -> list[str]:
    """The sources of some documents, sorted."""
    return _encoded(documents)[0]


def take_mixture(documents: pa.Table, config: PackConfig, names: Sequence[str]) -> Mixed:
    """Lists documents as often as the configuration takes them.

    Args:
        documents: in canonical order, with ``id_hash``, ``source``, ``piece`` and ``tokens``, and ``loss_weight`` where
            that is known.
        config: its ``mixture`` and ``epochs`` are followed, by the seed of its order.
        names: of all sources, sorted; those of these documents are among them.

    Returns:
        The documents by epoch, pass and canonical order, with the columns ``copy_number``, ``epoch``, ``pass_number``
        and ``source_number``, an index into ``names``.
    """
    found, numbers = _encoded(documents)
    numbers = np.searchsorted(np.array(names, object), np.array(found, object)).astype(np.int64)[numbers]
    weights = _weights(config, names)
    hashes = documents["id_hash"].to_numpy()
    copies = np.ones(len(documents), np.int64)
    if (weights != 1).any():
        copies = count_copies(hashes, weights[numbers], config.order.seed)
    totals = _totals(documents, len(names), numbers, copies)
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
    return Mixed(documents, totals)


def _encoded(documents: pa.Table) -> tuple[list[str], Int64[np.ndarray, "docs"]]:
    """The names of the sources, sorted, and of each document the number of its own."""
    encoded = documents["source"].unify_dictionaries().combine_chunks()
    encoded = encoded if pa.types.is_dictionary(encoded.type) else encoded.dictionary_encode()
    found = encoded.dictionary.to_pylist()
    place = np.argsort(np.argsort(np.array(found, object), kind="stable"), kind="stable")
    return sorted(found), place[encoded.indices.to_numpy()].astype(np.int64)


def _weights(config: PackConfig, names: Sequence[str]) -> Float64[np.ndarray, "sources"]:
    weights = dict(config.mixture)
    return np.array([weights.get(name, 1.0) for name in names], np.float64)


def check_mixture(config: PackConfig, known: Collection[str]) -> None:
    """
    Raises:
        ConfigError: the mixture names a source that is not known.
    """
    unknown = [name for name, _ in config.mixture if name not in known]
    if unknown:
        raise ConfigError(
            f"mixture: no row has the source {', '.join(unknown)}; the rows have {', '.join(sorted(known)) or 'none'}"
        )


def _totals(
    documents: pa.Table, n_sources: int, numbers: Int64[np.ndarray, "docs"], copies: Int64[np.ndarray, "docs"]
) -> MixtureTotals:
    def by_source(values: np.ndarray) -> list[float]:
        sums: list[float] = np.bincount(numbers, weights=values, minlength=n_sources).astype(np.float64).tolist()
        return sums

    available = documents["tokens"].cast(pa.int64()).to_numpy()
    loss = None
    if "loss_weight" in documents.column_names:
        loss = by_source(documents["loss_weight"].cast(pa.float64()).to_numpy() * copies)
    return MixtureTotals(
        left_out=int(((copies == 0) & (documents["piece"].to_numpy() == 0)).sum()),
        available=by_source(available),
        taken=by_source(available * copies),
        documents=by_source(copies),
        loss_weight=loss,
    )


def mixture_figures(totals: MixtureTotals, config: PackConfig, names: Sequence[str]) -> Mixture:
    """What became of the sources; every epoch takes the same."""
    weights, taken = _weights(config, names), np.array(totals.taken)
    asked, loss = np.array(totals.available) * weights, totals.loss_weight
    shares = {
        name: SourceShare(
            weight=weights[i],
            documents=int(totals.documents[i]) * config.epochs,
            tokens=int(taken[i]) * config.epochs,
            asked=asked[i] / max(asked.sum(), 1),
            share=taken[i] / max(taken.sum(), 1),
            loss_share=None if loss is None else loss[i] / (np.array(loss).sum() or 1.0),
        )
        for i, name in enumerate(names)
    }
    return Mixture(left_out=totals.left_out, shares=shares)
