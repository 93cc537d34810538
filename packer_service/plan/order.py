"""The order in which packs are trained on, so that the packs of one data-parallel step cost nearly the same."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int, Int64, UInt64

from preshard.packer_service.plan.alike import order_alike
from preshard.packer_service.plan.blend import blend_order
from preshard.schemas.dataset.step_order import mix64, part_size, places_in_group, rest_order
from preshard.schemas.errors import PlanError

_Weights = tuple[Float64[np.ndarray, "packs"], Float64[np.ndarray, "packs"] | None]
"""The cost of each pack, and the vision encoder's part of it where there is one."""

_PARTITION_STEP = 0x1CE4E5B9BF58476D
"""Difference of the seeds of two partitions: odd and large, so that it is no small sum of epochs and seeds."""


def step_order(
    costs: Float64[np.ndarray, "packs"],
    *,
    window: int,
    seed: int,
    vision: Float64[np.ndarray, "packs"] | None = None,
    tokens: Int64[np.ndarray, "packs sources"] | None = None,
    epochs: Int64[np.ndarray, "packs"] | None = None,
) -> Int64[np.ndarray, "packs"]:
    """Orders packs so that every aligned group of ``window`` of them is a set of neighbours in cost.

    Without work of a vision encoder that is a run in order of cost. With it, groups are neighbours in the encoder's
    part and in the rest (:func:`~preshard.packer_service.plan.alike.order_alike`), as ranks wait for each other
    behind either. Inside a group the seed shuffles the packs so that every aligned sub-group of a size that divides
    the window is again a set of neighbours (:mod:`preshard.schemas.dataset.step_order`). The seed also orders the
    groups, which is then changed so that sources are mixed evenly
    (:func:`~preshard.packer_service.plan.blend.blend_order`). When the number of packs does not divide by
    ``window``, the rest comes last: it is the run of neighbours in cost without which the other groups are the most
    even. Where parts of a group may change places, it is ordered as whole parts and a rest in the same way;
    otherwise by cost, either way round. Groups hold packs of one epoch, and stand in the order of epochs; the packs
    that are left over of several epochs are ordered together, behind them.

    Args:
        costs: cost of each pack, finite and not negative.
        vision: the part of each cost that is the vision encoder's; None for none.
        window: packs of a group: any data-parallel size that divides it has steps of nearly equal packs.
        seed: chooses the order of the groups and inside of them.
        tokens: tokens of each source in each pack; None to leave the order to the seed.
        epochs: of each pack; None for one.

    Returns:
        The packs in step order, each once; equal costs in the order of their indices. The order depends only on the
        arguments, not on the version of NumPy.

    Raises:
        PlanError: ``window`` is not a positive integer.
    """
    check_window(window)
    weights = costs, vision if vision is not None and vision.any() else None
    numbers = [0] if epochs is None else np.unique(epochs).tolist()
    if len(numbers) < 2:
        return _shuffle(np.arange(len(costs)), weights, window, seed, tokens)
    of_epochs = [
        _groups_and_rest(np.flatnonzero(epochs == number), weights, window, (seed + number) % 2**63, tokens)
        for number in numbers
    ]
    left = np.sort(np.concatenate([rest for _, rest in of_epochs]))
    return np.concatenate([*(groups for groups, _ in of_epochs), _shuffle(left, weights, window, seed, tokens)])


def _shuffle(
    packs: Int64[np.ndarray, "some"],
    weights: _Weights,
    window: int,
    seed: int,
    tokens: Int64[np.ndarray, "packs sources"] | None,
) -> Int64[np.ndarray, "some"]:
    """Some packs in step order: whole groups, whole parts of one, whole parts of those, down to single packs."""
    groups, rest = _groups_and_rest(packs, weights, window, seed, tokens)
    part = part_size(window)
    if part is None:  # the parts of one size would cut through those of another
        return np.concatenate(
            [groups, rest[rest_order(len(rest), window, int(_hash(np.zeros(1, np.uint64), seed)[0]))]]
        )
    if len(rest):
        rest = _shuffle(rest, weights, part, (seed + 1) % 2**63, None)
    return np.concatenate([groups, rest])


def _groups_and_rest(
    packs: Int64[np.ndarray, "some"],
    weights: _Weights,
    window: int,
    seed: int,
    tokens: Int64[np.ndarray, "packs sources"] | None,
) -> tuple[Int64[np.ndarray, "grouped"], Int64[np.ndarray, "rest"]]:
    """Some packs: those of whole groups in step order, and what is left over in order of cost."""
    costs, vision = weights
    by_cost = packs[np.argsort(costs[packs], kind="stable")]
    n_groups, n_rest = divmod(len(packs), window)
    rest_at = _rest_position(costs[by_cost], window) if n_rest else 0
    in_group = np.ones(len(packs), bool)
    in_group[rest_at : rest_at + n_rest] = False
    grouped = by_cost[in_group]
    if vision is not None and window > 1:
        grouped = grouped[order_alike(vision[grouped], costs[grouped] - vision[grouped], window)]
    groups = grouped.reshape(n_groups, window)
    hashes = _hash(np.arange(n_groups, dtype=np.uint64), seed)
    inside = places_in_group(np.tile(np.arange(window), n_groups), window, np.repeat(hashes, window))
    moved = np.take_along_axis(groups, inside.reshape(n_groups, window), axis=1)
    shuffled = moved[np.argsort(hashes << np.uint64(1), kind="stable")]
    if tokens is not None and n_groups > 1:
        shuffled = shuffled[blend_order(tokens[shuffled])]
    return shuffled.reshape(-1), by_cost[~in_group]


def whole_groups(epochs: Int[np.ndarray, "packs"], window: int) -> Int64[np.ndarray, "epochs"]:
    """Number of packs of each epoch that :func:`step_order` puts into whole groups; the others come behind them all.

    Args:
        epochs: of each pack.
        window: packs of a group.
    """
    found: Int64[np.ndarray, "epochs"] = np.bincount(epochs) // window * window
    return found


def partition_seed(seed: int, partition: int) -> int:
    """The seed of one of several partitions; that of the first is the seed itself."""
    return (seed + partition * _PARTITION_STEP) % 2**63


def check_window(window: int) -> None:
    """Raises PlanError unless ``window`` is a positive integer."""
    if isinstance(window, bool) or not isinstance(window, int | np.integer) or window < 1:
        raise PlanError(
            f"order.window is {window!r}; give a positive integer, a multiple of every data-parallel size in use"
        )


def window_sizes(window: int) -> list[int]:
    """Data-parallel sizes whose steps the order keeps free of stragglers: every divisor of the window."""
    check_window(window)
    return [size for size in range(1, window + 1) if window % size == 0]


def check_dp_sizes(dp_sizes: Sequence[int], window: int) -> None:
    """Refuse data-parallel sizes whose steps would cut through groups of the window.

    Raises:
        PlanError: a size does not divide the window; says which sizes do.
    """
    for size in dp_sizes:
        if size < 1 or window % size:
            legal = ", ".join(map(str, window_sizes(window)))
            raise PlanError(
                f"data-parallel size {size} does not divide order.window {window}; sizes that do: {legal};"
                f" or set order.window to a multiple of {size}"
            )


def _rest_position(sorted_costs: Float64[np.ndarray, "packs"], window: int) -> int:
    """Position in the order of costs at which the rest is taken out so that the other groups' relative spread is least.

    Taking it out before group g leaves groups aligned at 0 below g, and at the rest's size from g on. The measure is
    the spread, not the ratio of maximum to mean, because machines differ in the order in which they sum up a mean.
    """
    n_groups, n_rest = divmod(len(sorted_costs), window)
    below = _spreads(sorted_costs[: n_groups * window].reshape(n_groups, window))
    above = _spreads(sorted_costs[n_rest:].reshape(n_groups, window))
    totals = np.concatenate([[0.0], np.cumsum(below)]) + np.concatenate([np.cumsum(above[::-1])[::-1], [0.0]])
    return int(np.argmin(totals)) * window


def _spreads(sorted_groups: Float64[np.ndarray, "groups packs"]) -> Float64[np.ndarray, "groups"]:
    largest = sorted_groups[:, -1]
    return (largest - sorted_groups[:, 0]) / np.where(largest > 0, largest, 1.0)


def straggler_ratio(costs: Float64[np.ndarray, "packs"], dp_size: int) -> float:
    """Mean over the steps of (largest cost of the step / mean cost of the step), for packs in step order.

    A step takes the next ``dp_size`` packs. An incomplete step at the end is left out, as trainers do, unless it is the
    only one. 1.0 is a step without a straggler, and the result when there is no pack at all.

    Raises:
        PlanError: ``dp_size`` is not positive.
    """
    largest, mean = _of_steps(costs, dp_size)
    if not len(mean):
        return 1.0
    return math.fsum(np.where(mean > 0, largest / np.where(mean > 0, mean, 1.0), 1.0)) / len(mean)


def part_straggler(work: Float64[np.ndarray, "packs"], dp_size: int) -> float:
    """Sum over the steps of their largest work / sum of their mean work, for a part of what packs cost.

    Unlike that of the whole cost, work of a part may be next to nothing in some steps, which is soon waited for
    however uneven it is. Steps are those of :func:`straggler_ratio`; 1.0 is the result without any work.

    Raises:
        PlanError: ``dp_size`` is not positive.
    """
    largest, mean = (math.fsum(values) for values in _of_steps(work, dp_size))
    return largest / mean if mean else 1.0


def _of_steps(
    costs: Float64[np.ndarray, "packs"], dp_size: int
) -> tuple[Float64[np.ndarray, "steps"], Float64[np.ndarray, "steps"]]:
    """Largest and mean cost of each step."""
    if dp_size < 1:
        raise PlanError(f"dp_size is {dp_size}; a data-parallel step takes at least 1 pack")
    width = max(1, min(dp_size, len(costs)))
    steps = costs[: len(costs) // width * width].reshape(-1, width)
    # in the order of the packs: along the last axis NumPy sums up in an order that depends on the processor
    return steps.max(axis=1, initial=0.0), np.add.reduce(np.ascontiguousarray(steps.T)) / width


def _hash(values: UInt64[np.ndarray, "n"], seed: int) -> UInt64[np.ndarray, "n"]:
    """Hash of each value and the seed."""
    return mix64(mix64(values + np.uint64(seed % 2**64)))
