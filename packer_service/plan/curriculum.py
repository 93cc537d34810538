"""When documents of a source come: phases of the run, in each of which sources weigh differently.

What is taken, and how often, is the mixture's. A phase holds its share of all tokens, and the odds of two sources in it
are their weights' times the same factor in every phase: the table of tokens by source and phase with these odds and
sums is unique, and found by iterative proportional fitting (Deming and Stephan 1940). Phases whose sources' shares fit
the mixture have exactly the shares of their weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int, Int64

from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError

_ROUNDS = 500
_TOLERANCE = 0.01
"""Largest difference of a phase's share of all tokens from what it is to have."""


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
                f"curriculum: the phase until {ends[number]:g} would hold {got:.1%} of all tokens, not "
                f"{shares[number]:.1%}, by what there is of {which}; move its end, repeat sources with mixture, or let "
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
