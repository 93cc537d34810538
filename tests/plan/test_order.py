import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.packer_service.plan.order import check_dp_sizes, step_order, straggler_ratio, window_sizes
from preshard.schemas.errors import PlanError


@settings(deadline=None)
@given(
    costs=st.lists(st.floats(0, 1e9), max_size=70),
    window=st.integers(1, 20),
    seed=st.integers(0, 2**63 - 1),
)
def test_every_pack_once_and_groups_are_neighbours_in_cost(costs: list[float], window: int, seed: int) -> None:
    """Fails when the rest is lost or repeated, or when a group holds packs that are not neighbours in cost."""
    given_costs = np.array(costs, np.float64)
    order = step_order(given_costs, window=window, seed=seed)
    assert sorted(order) == list(range(len(costs)))
    n_groups = len(costs) // window
    ends = sorted((given_costs[g].min(), given_costs[g].max()) for g in order[: n_groups * window].reshape(-1, window))
    assert all(low[1] <= high[0] for low, high in itertools.pairwise(ends))


@pytest.mark.parametrize("dp_size", [2, 3, 4, 6, 8, 12, 24])
def test_every_divisor_of_the_window_has_steps_of_neighbours(dp_size: int) -> None:
    """Fails when the order inside a group is shuffled across a step's edge: a step would then span the whole group."""
    costs = np.random.default_rng(0).permutation(np.arange(240, dtype=np.float64))
    steps = costs[step_order(costs, window=24, seed=3)].reshape(-1, dp_size)
    assert (steps.max(axis=1) - steps.min(axis=1) == dp_size - 1).all()


def test_the_rest_takes_the_outliers() -> None:
    """Fails when the rest is always cut from the same end: one light and one heavy pack would then spoil a group."""
    even = np.full(8, 100.0)
    light = step_order(np.concatenate([even[:3], [1.0], even[3:]]), window=4, seed=0)
    heavy = step_order(np.concatenate([even[:3], [900.0], even[3:]]), window=4, seed=0)
    assert light[-1] == 3
    assert heavy[-1] == 3


@pytest.mark.parametrize(("n_packs", "window"), [(45, 64), (64, 64), (30, 32), (20, 27), (20, 24)])
def test_fewer_packs_than_a_window_have_even_steps_in_an_order_of_the_seed(n_packs: int, window: int) -> None:
    """Fails when a small dataset stands in order of cost whatever the seed, or a shuffle makes its steps uneven."""
    costs = np.sort(np.random.default_rng(0).lognormal(size=n_packs))
    orders = [step_order(costs, window=window, seed=seed) for seed in range(20)]
    assert len({tuple(order) for order in orders}) == (2 if window == 24 else 20)
    for order, size in itertools.product(orders, window_sizes(window)):
        steps = order[: n_packs // size * size].reshape(-1, size)
        assert (steps.max(axis=1, initial=0) - steps.min(axis=1, initial=n_packs) == size - 1).all() or not len(steps)


def test_seed_shuffles_groups_and_turns_some() -> None:
    """Fails when the seed is not used, when groups stay in order of cost, or when rank 0 always gets the cheapest."""
    costs = np.arange(400, dtype=np.float64)
    orders = [step_order(costs, window=4, seed=seed).reshape(-1, 4) for seed in (0, 0, 1, 2**63 - 1)]
    assert (orders[0] == orders[1]).all()
    for order in (orders[2], orders[3]):
        assert (order != orders[0]).any()
    several = step_order(np.tile(costs, 3), window=4, seed=0, epochs=np.arange(1200) // 400).reshape(3, 400) % 400
    assert len({order.tobytes() for order in several}) == 3, "each epoch has an order of its own"
    rising = (orders[0][:, 0] < orders[0][:, 1]).sum()
    assert 30 <= rising <= 70
    assert np.abs(np.corrcoef(np.arange(100), orders[0][:, 0])[0, 1]) < 0.3


def test_the_order_is_the_same_in_every_version() -> None:
    """Fails when the hash changes: a job resumed under a new version would meet other packs."""
    found = step_order(np.arange(14, dtype=np.float64), window=4, seed=7)
    assert found.tolist() == [4, 5, 3, 2, 8, 9, 6, 7, 13, 12, 11, 10, 1, 0]


def test_straggler_ratio_by_hand() -> None:
    """Fails when the incomplete step counts, or when the ratio is taken over the whole run and not step by step."""
    costs = np.array([1.0, 3.0, 2.0, 2.0, 50.0])
    assert straggler_ratio(costs, 2) == pytest.approx((1.5 + 1.0) / 2)
    assert straggler_ratio(costs, 1) == 1.0
    assert straggler_ratio(costs[:2], 8) == pytest.approx(1.5)
    assert straggler_ratio(np.zeros(0), 8) == 1.0
    assert straggler_ratio(np.zeros(4), 2) == 1.0


@pytest.mark.parametrize("seed", range(40))
def test_the_rest_is_where_the_other_groups_are_most_even(seed: int) -> None:
    """Fails when the rest is taken from elsewhere: a step would wait for one expensive pack among cheap ones."""
    rng = np.random.default_rng(seed)
    window, n_groups, n_rest = int(rng.integers(2, 6)), int(rng.integers(1, 6)), 0
    n_rest = int(rng.integers(1, window))
    costs = np.exp(rng.normal(0, 1.5, n_groups * window + n_rest))
    ascending = np.sort(costs)
    spreads = []
    for at in range(0, len(costs), window):
        groups = np.delete(ascending, np.arange(at, at + n_rest)).reshape(n_groups, window)
        spreads.append((1 - groups.min(axis=1) / groups.max(axis=1)).sum())
    rest = np.sort(costs[step_order(costs, window=window, seed=seed)[n_groups * window :]])
    best = int(np.argmin(spreads)) * window
    np.testing.assert_array_equal(rest, ascending[best : best + n_rest])


def test_packs_that_cost_nothing_divide_nothing_by_zero() -> None:
    """Fails when a cost of zero gives a warning, or an order that loses packs."""
    with np.errstate(all="raise"):
        assert straggler_ratio(np.zeros(4), 2) == 1.0
        assert sorted(step_order(np.zeros(10), window=4, seed=0).tolist()) == list(range(10))


@pytest.mark.parametrize("window", [0, -64, 2.0, True, "64"])
def test_a_window_that_is_no_positive_integer_is_refused(window: object) -> None:
    """Fails when a wrong window reaches the arithmetic and comes out as a traceback or an empty order."""
    with pytest.raises(PlanError, match=r"order\.window is .*positive integer"):
        step_order(np.ones(3), window=window, seed=0)  # type: ignore[arg-type]


def test_a_data_parallel_size_of_zero_is_refused() -> None:
    """Fails when a size of zero divides."""
    with pytest.raises(PlanError, match="dp_size is 0"):
        straggler_ratio(np.ones(3), 0)


def test_sizes_that_the_order_keeps_even_divide_the_window() -> None:
    """Fails when a size is left out of those that can be used, or one is offered that cuts through groups."""
    assert window_sizes(12) == [1, 2, 3, 4, 6, 12]
    assert window_sizes(1) == [1]
    check_dp_sizes([1, 3, 12], 12)
    for wrong in (5, 0, -4, 24):
        with pytest.raises(PlanError, match=f"size {wrong} does not divide.* sizes that do: 1, 2, 3, 4, 6, 12;"):
            check_dp_sizes([4, wrong], 12)
