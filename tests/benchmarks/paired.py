"""Which of two calls takes less processor time, decided on a machine that is not quiet.

The two calls take turns as A B B A, so that whatever changes steadily (clock rates, caches, what others do) falls on
both alike, and each such block gives a ratio of its own. What the ratio is in the middle is said with an interval: the
blocks are drawn again with replacement many times (the percentile bootstrap of Efron 1979), and 95 % of those medians
lie in it. Other work on the machine makes the interval wide; it does not move it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

DRAWS = 4000
"""Times that the blocks are drawn again: the ends of the interval are then good to some thousandths of its width."""

FEWEST = 5
"""Blocks that are timed in any case: of fewer, no interval at 95 % can be told."""


class Ratio(NamedTuple):
    """The processor time of A over that of B: the median over blocks, and where it lies with 95 % certainty."""

    median: float
    low: float
    high: float
    blocks: int

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f}, {self.blocks} blocks)"


def compare(a: Callable[[], object], b: Callable[[], object], seconds: float) -> Ratio:
    """Calls both in turns for about so many seconds of processor time."""
    ratios, until = list[float](), time.process_time() + seconds
    a()
    b()
    gc.collect()
    gc.disable()
    try:
        while time.process_time() < until or len(ratios) < FEWEST:
            one, two, three, four = (_seconds_of(call) for call in (a, b, b, a))
            ratios.append((one + four) / (two + three))
    finally:
        gc.enable()
    return interval(np.array(ratios))


def interval(ratios: np.ndarray) -> Ratio:
    """The median of some ratios, and its interval."""
    drawn = np.random.default_rng(0).integers(0, len(ratios), (DRAWS, len(ratios)))
    low, high = np.quantile(np.median(ratios[drawn], axis=1), (0.025, 0.975))
    return Ratio(float(np.median(ratios)), float(low), float(high), len(ratios))


def _seconds_of(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began
