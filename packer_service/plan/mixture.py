"""Frequency and time at which each document is taken: weights of sources, epochs, and phases of the run.

The documents of a pass are packed together, and no two of a pass are the same, so copies never share a pack. Every pass
has its own salt: documents of one size change places, and where that costs no pack, others do.

A curriculum decides when documents come, not how often. A phase holds its share of all tokens, and the odds of two
sources in it are their weights' times the same factor in every phase: the table of tokens by source and phase with
these odds and sums is unique, and found by iterative proportional fitting (Deming and Stephan 1940). Phases whose
sources' shares fit the mixture have exactly the shares of their weights.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int, Int64, UInt64

from preshard.packer_service.plan.records import Mixture, PhaseShares, SourceShare
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.step_order import mix64
from preshard.schemas.errors import ConfigError

_PHASE_SALT = 2**32
"""Salt of phases, above every epoch, which have the others."""

_FRACTION_BITS = 53
"""A weight's fraction is compared with so many bits of a document's hash: as many as it has itself."""

_ROUNDS = 500
_TOLERANCE = 0.01
"""Largest difference of a phase's share of all tokens from what it is to have."""


class Taken(NamedTuple):
    """Documents as often as they are taken, by epoch, pass and document.

    Attributes:
        document: index of the document.
        copy_number: which copy of the document it is in its epoch, from 0.
        epoch: from 0.
        pass_number: from 0, through all epochs.
        stage: the epoch, or under a curriculum the phase and the epoch: packs of a stage stand together.
    """

    document: Int64[np.ndarray, "taken"]
    copy_number: Int[np.ndarray, "taken"]
    epoch: Int[np.ndarray, "taken"]
    pass_number: Int[np.ndarray, "taken"]
    stage: Int[np.ndarray, "taken"]

    def columns_of(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Columns of documents as a plan takes them: as often as each is taken, with ``pass_number`` and ``stage``."""
        taken = {name: column[self.document] for name, column in columns.items()}
        return taken | {"pass_number": self.pass_number, "stage": self.stage}


class MixtureTotals(NamedTuple):
    """Amount that an epoch takes of each source, in the order of their names; those of several partitions add up.

    ``available`` and ``taken`` count tokens, ``documents`` rows; ``loss_weight`` is None where it is not known.
    ``asked_by_phase`` and ``taken_by_phase`` count tokens of all epochs, by phase of the curriculum and source.
    """

    left_out: int
    available: list[float]
    taken: list[float]
    documents: list[float]
    loss_weight: list[float] | None
    asked_by_phase: list[list[float]]
    taken_by_phase: list[list[float]]

    def __add__(self, other: MixtureTotals) -> MixtureTotals:  # type: ignore[override]  # of tuples that would join them
        return MixtureTotals(*map(_added, self, other))


def _added(a: Any, b: Any) -> Any:
    """Two numbers, or lists of them entry by entry; None where either is not known."""
    if isinstance(a, list) and isinstance(b, list):
        return [_added(x, y) for x, y in zip(a, b, strict=True)]
    return None if a is None or b is None else a + b


def check_mixture(config: PackConfig, known: Collection[str]) -> None:
    """
    Raises:
        ConfigError: the mixture or the curriculum names a source that is not known.
    """
    weights = {"mixture": config.mixture, "curriculum": [pair for phase in config.curriculum for pair in phase.weights]}
    for key, named in weights.items():
        unknown = list(dict.fromkeys(name for name, _ in named if name not in known))
        if not unknown:
            continue
        raise ConfigError(
            f"{key}: no row has the source {', '.join(unknown)}; the rows have {', '.join(sorted(known)) or 'none'}"
        )


def source_weights(config: PackConfig, names: Sequence[str]) -> Float64[np.ndarray, "sources"]:
    """Number of times that the documents of each source are taken in an epoch."""
    weights = dict(config.mixture)
    return np.array([weights.get(name, 1.0) for name in names], np.float64)


def take_mixture(
    columns: Mapping[str, np.ndarray], config: PackConfig, names: Sequence[str]
) -> tuple[Taken, MixtureTotals]:
    """Lists documents as often as the configuration takes them, and sums what each source gets.

    Args:
        columns: of documents in canonical order: ``id_hash``, ``source_number`` (an index into ``names``), ``piece``
            and ``tokens``, and ``loss_weight`` where that is known.
        config: its ``mixture``, ``curriculum`` and ``epochs`` are followed, by the seed of its order.
        names: of all sources, sorted.

    Raises:
        ConfigError: the curriculum asks for more or less of a source than there is.
    """
    hashes, numbers = columns["id_hash"], columns["source_number"]
    weights, copies = source_weights(config, names), np.ones(len(hashes), np.int64)
    if (weights != 1).any():
        copies = count_copies(hashes, weights[numbers], config.order.seed)

    def by_source(values: np.ndarray) -> list[float]:
        sums: list[float] = np.bincount(numbers, weights=values, minlength=len(names)).astype(np.float64).tolist()
        return sums

    loss = columns.get("loss_weight")
    available = columns["tokens"].astype(np.int64)
    totals = MixtureTotals(
        left_out=int(((copies == 0) & (columns["piece"] == 0)).sum()),
        available=by_source(available),
        taken=by_source(available * copies),
        documents=by_source(copies),
        loss_weight=None if loss is None else by_source(loss * copies),
        asked_by_phase=[],
        taken_by_phase=[],
    )
    if config.epochs == 1 and (copies == 1).all():
        nothing = np.zeros(len(hashes), np.int8)
        taken = Taken(np.arange(len(hashes)), nothing, nothing, nothing, nothing)
    else:
        taken = take(hashes, copies, epochs=config.epochs, seed=config.order.seed)
    if not config.curriculum:
        return taken, totals
    of_all = copies[taken.document]
    drawn = (_salt(hashes, config.order.seed, _PHASE_SALT) >> np.uint64(64 - _FRACTION_BITS)) * 0.5**_FRACTION_BITS
    wanted = phase_tokens(config, names, np.array(totals.taken) * config.epochs)
    source, tokens = numbers[taken.document], available[taken.document]
    phase = choose_phases(
        (taken.epoch * of_all + taken.copy_number + drawn[taken.document]) / (of_all * config.epochs),
        taken.document,
        source,
        tokens,
        wanted,
    )
    found = np.bincount(phase * len(names) + source, weights=tokens, minlength=wanted.size)
    in_phases = totals._replace(
        asked_by_phase=wanted.T.tolist(),
        taken_by_phase=[list(map(float, each)) for each in found.reshape(wanted.T.shape)],
    )
    return _by_phase(taken, phase, config.epochs), in_phases


def _by_phase(taken: Taken, phase: Int64[np.ndarray, "taken"], epochs: int) -> Taken:
    """The same by phase and pass: a pack holds documents of one pass of one phase."""
    n_passes = int(taken.pass_number.max(initial=0)) + 1
    passes = phase * n_passes + taken.pass_number
    order = np.argsort(passes, kind="stable")
    moved = taken._replace(pass_number=passes, stage=phase * epochs + taken.epoch)
    return Taken(*(column[order] for column in moved))


def count_copies(
    hashes: UInt64[np.ndarray, "docs"], weights: Float64[np.ndarray, "docs"], seed: int
) -> Int64[np.ndarray, "docs"]:
    """Copies of each document in an epoch: the whole part of its weight, and one more for a fraction of them.

    A document is among those by its hash and the seed, whatever the other documents are; those of a smaller fraction
    are among those of a larger one.

    Args:
        hashes: of each document's id; all pieces of a document have the same, so they stay together.
        weights: of each document's source, finite and not negative.
        seed: chooses which documents are taken once more.
    """
    whole = np.floor(weights)
    drawn = _salt(hashes, seed, 0) >> np.uint64(64 - _FRACTION_BITS)
    limit = np.ldexp(weights - whole, _FRACTION_BITS).astype(np.uint64)
    return whole.astype(np.int64) + (drawn < limit)


def take(hashes: UInt64[np.ndarray, "docs"], copies: Int64[np.ndarray, "docs"], *, epochs: int, seed: int) -> Taken:
    """Lists documents as often as they are taken.

    An epoch has as many passes as the document that is taken most often has copies. The copies of a document are spread
    over them, from a pass on that its hash names, so every pass has its share of every source.

    Args:
        hashes: of each document's id.
        copies: how often each is taken in an epoch.
        epochs: number of epochs.
        seed: chooses the passes.
    """
    n_passes = int(copies.max(initial=1))
    document = np.repeat(np.arange(len(copies)), copies)
    copy_number = np.arange(len(document)) - np.repeat(np.cumsum(copies) - copies, copies)
    found = []
    for epoch in range(epochs):
        first = (_salt(hashes, seed, epoch + 1) % np.uint64(n_passes)).astype(np.int64)
        pass_number = (first[document] + copy_number * n_passes // copies[document]) % n_passes
        order = np.argsort(pass_number, kind="stable")
        found.append((document[order], copy_number[order], epoch, epoch * n_passes + pass_number[order]))
    of_epoch = np.repeat(np.arange(epochs), len(document))
    return Taken(
        document=np.concatenate([part[0] for part in found]),
        copy_number=np.concatenate([part[1] for part in found]),
        epoch=of_epoch,
        pass_number=np.concatenate([part[3] for part in found]),
        stage=of_epoch,
    )


def _salt(hashes: UInt64[np.ndarray, "docs"], seed: int, salt: int) -> UInt64[np.ndarray, "docs"]:
    """Bits of a document that say nothing of its place in canonical order."""
    salts = mix64(np.array([seed % 2**64, salt], np.uint64))
    return mix64(mix64(hashes ^ salts[0]) ^ salts[1])


def phase_tokens(
    config: PackConfig, names: Sequence[str], tokens: Float64[np.ndarray, "sources"]
) -> Float64[np.ndarray, "sources phases"]:
    """Tokens of each source in each phase.

    Args:
        config: its curriculum is followed.
        names: of the sources.
        tokens: of each source, in all epochs.

    Raises:
        ConfigError: a phase has too few tokens of its sources, or more than fit into it.
    """
    ends = [phase.until for phase in config.curriculum]
    shares, total = np.diff([0.0, *ends]), max(float(_sums(tokens, 0)), 1.0)
    weights = [dict(phase.weights) for phase in config.curriculum]
    found = np.array([of_phase.get(name, 1.0) for name in names for of_phase in weights], np.float64)
    found = found.reshape(len(names), len(ends)) * (tokens > 0)[:, None]
    for _ in range(_ROUNDS):
        found *= _ratio(shares * total, _sums(found, 0))[None]
        found *= _ratio(tokens, _sums(found, 1))[:, None]
    for number, got in enumerate((_sums(found, 0) / total).tolist()):
        if abs(got - shares[number]) > _TOLERANCE and total > 1:
            which = ", ".join(name for name, row in zip(names, found, strict=True) if row[number] > 0) or "no source"
            raise ConfigError(
                f"curriculum: the phase that ends at {ends[number]:g} would hold {got:.1%} of all tokens instead of "
                f"{shares[number]:.1%}, given the tokens of {which}; move its end, repeat sources with mixture, or let "
                "others weigh more than 0 there"
            )
    return found


def _sums(table: np.ndarray, axis: int) -> np.ndarray:
    """Sums in the order of the entries, which ``np.sum`` does not promise."""
    found: np.ndarray = np.cumsum(table, axis=axis).take(-1, axis=axis) if table.size else np.zeros(0)
    return found


def _ratio(wanted: np.ndarray, present: np.ndarray) -> np.ndarray:
    return np.where(present > 0, wanted / np.where(present > 0, present, 1.0), 0.0)


def choose_phases(
    places: Float64[np.ndarray, "taken"],
    document: Int64[np.ndarray, "taken"],
    source: Int[np.ndarray, "taken"],
    tokens: Int64[np.ndarray, "taken"],
    wanted: Float64[np.ndarray, "sources phases"],
) -> Int64[np.ndarray, "taken"]:
    """The phase of each document as often as it is taken, so that each phase has its tokens of each source.

    Args:
        places: where in the run each would come, from 0 to 1, if its source were spread evenly; the same for pieces of
            one document in one pass, which stay together.
        document: its index.
        source: its source.
        tokens: of it.
        wanted: tokens of each source in each phase.
    """
    phase = np.zeros(len(places), np.int64)
    for number, row in enumerate(wanted):
        own = np.flatnonzero(source == number)
        if not len(own):
            continue
        own = own[np.lexsort((document[own], places[own]))]
        middle = np.cumsum(tokens[own]) - tokens[own] / 2
        first = np.diff(places[own], prepend=-1) != 0
        edges = np.cumsum(row)
        edges[np.flatnonzero(row)[-1] :] = np.inf  # what rounding leaves behind the last edge
        phase[own] = np.searchsorted(
            edges, middle[np.maximum.accumulate(np.where(first, np.arange(len(own)), 0))], "right"
        )
    return phase


def mixture_figures(totals: MixtureTotals, config: PackConfig, names: Sequence[str]) -> Mixture:
    """Outcome of the mixture for each source; every epoch takes the same."""
    weights, taken = source_weights(config, names), np.array(totals.taken)
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
    phases = [
        PhaseShares(until=phase.until, asked=_shares(names, wanted), shares=_shares(names, got))
        for phase, wanted, got in zip(config.curriculum, totals.asked_by_phase, totals.taken_by_phase, strict=True)
    ]
    return Mixture(left_out=totals.left_out, shares=shares, phases=phases)


def _shares(names: Sequence[str], tokens: Sequence[float]) -> dict[str, float]:
    return {name: number / max(math.fsum(tokens), 1) for name, number in zip(names, tokens, strict=True)}
