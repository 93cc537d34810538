"""Which frames of a video are kept, by the time at which they are shown, in exact integers."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64


def as_written(seconds: float) -> Fraction:
    """The decimal that a person wrote: 0.1 is one tenth, not the binary fraction nearest to it.

    A frame at exactly 0.3 s is then found by a target of 0.3 s, whose float lies a little below.
    """
    return Fraction(str(seconds))


def sample_frames(
    pts: Int64[np.ndarray, "shown"],
    *,
    origin: int,
    time_base: Fraction,
    start: Fraction,
    end: Fraction,
    fps: Fraction,
    max_frames: int,
) -> Int64[np.ndarray, "frames"]:
    """Chooses the frames that are on the screen at evenly spaced times, the targets.

    The targets are ``start + k / fps`` for every ``k >= 0`` with a target before ``end``. If these are more than
    ``max_frames``, they are ``start + k * (end - start) / max_frames`` for ``k`` below ``max_frames``: spread evenly,
    the first one at ``start``. A target takes the last frame shown at or before it, or the first frame if there is
    none; a frame that several targets take is kept once. Any frame rate, even a variable one, is thus sampled by time.

    Args:
        pts: times of the frames shown, ascending and distinct, in ticks of ``time_base``.
        origin: tick of the video's first frame, time 0.
        time_base: seconds per tick.
        start: beginning of the clip in seconds from ``origin``.
        end: its end, above ``start``.
        fps: targets per second.
        max_frames: most targets.

    Returns:
        The chosen ``pts``, ascending and distinct; at least one and at most ``max_frames``.
    """
    span = end - start
    count = -(-span * fps // 1)  # ceil: targets strictly before the end
    step = 1 / fps if count <= max_frames else span / max_frames
    first, stride = start / time_base + origin, step / time_base
    # Over one denominator, so that each target is one integer division.
    scale = first.denominator * stride.denominator
    offset, slope = int(first * scale), int(stride * scale)
    targets = np.array([(offset + k * slope) // scale for k in range(min(int(count), max_frames))], np.int64)
    index = np.searchsorted(pts, targets, side="right") - 1
    return pts[np.unique(np.maximum(index, 0))]


def clip_timestamps(
    pts: Int64[np.ndarray, "frames"], *, origin: int, time_base: Fraction, start: Fraction
) -> Float64[np.ndarray, "frames"]:
    """Seconds from the clip's start at which each frame is shown, correctly rounded.

    For a frame that is already on the screen when the clip starts it is 0.
    """
    first = start / time_base + origin
    ticks = (int(tick) * first.denominator - first.numerator for tick in pts)
    den = time_base.denominator * first.denominator
    return np.array([max(0, tick) * time_base.numerator / den for tick in ticks], np.float64)
