"""Frames are chosen by the time at which they are shown."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preshard.packer_service.ingest.media.video import as_written, clip_timestamps, sample_frames

MILLI = Fraction(1, 1000)


def sample(
    pts: list[int], *, start: str = "0", end: str, fps: str, max_frames: int = 100, origin: int = 0
) -> list[int]:
    chosen = sample_frames(
        np.array(pts, np.int64),
        origin=origin,
        time_base=MILLI,
        start=Fraction(start),
        end=Fraction(end),
        fps=Fraction(fps),
        max_frames=max_frames,
    )
    return [int(tick) for tick in chosen]


@pytest.mark.parametrize(
    ("given_pts", "asked", "expected"),
    [
        # 25 frames a second at 2: targets 0, 500, 1000 take what is on the screen, not what is nearest.
        (list(range(0, 1200, 40)), {"end": "1.2", "fps": "2"}, [0, 480, 1000]),
        # A target at the very end is not shown any more.
        (list(range(0, 1000, 40)), {"end": "1", "fps": "2"}, [0, 480]),
        # Slower than the targets: each frame once.
        ([0, 400, 800], {"end": "1.2", "fps": "10"}, [0, 400, 800]),
        # A variable rate: one frame is held from 100 to 1900.
        ([0, 50, 100, 1900, 1950], {"end": "2", "fps": "4"}, [0, 100]),
        # A clip begins with the frame that is already on the screen.
        ([0, 400, 800, 1200], {"start": "0.5", "end": "1.3", "fps": "2"}, [400, 800]),
        # Nothing is on the screen yet: the first frame.
        ([300, 400], {"start": "0", "end": "0.5", "fps": "10"}, [300, 400]),
        # 26 targets, 5 allowed: 0, 200, 400, 600, 800.
        (list(range(0, 1000, 40)), {"end": "1", "fps": "26", "max_frames": 5}, [0, 200, 400, 600, 800]),
        (list(range(0, 1000, 40)), {"end": "1", "fps": "26", "max_frames": 1}, [0]),
        # Time counts from the first frame, wherever the container's clock starts.
        ([7000, 7500, 8000], {"end": "1.5", "fps": "2", "origin": 7000}, [7000, 7500, 8000]),
    ],
)
def test_frames_by_hand(given_pts: list[int], asked: dict[str, str], expected: list[int]) -> None:
    # Fails when a target takes the nearest or the next frame, or an end is taken as part of its clip.
    assert sample(given_pts, **asked) == expected  # type: ignore[arg-type]


def test_decimals_are_meant_as_written() -> None:
    # The float 0.3 lies below 3/10, so that a frame at exactly 0.3 s would be missed by one tick.
    assert Fraction(0.3) < as_written(0.3) == Fraction(3, 10)
    frames = np.arange(0, 1000, 100, dtype=np.int64)
    chosen = sample_frames(
        frames, origin=0, time_base=MILLI, start=as_written(0.3), end=Fraction(1), fps=as_written(10.0), max_frames=99
    )
    assert list(chosen) == list(range(300, 1000, 100))


def test_timestamps_count_from_the_clips_start() -> None:
    # Fails when they count from the video's start, or when the frame already on the screen gets a negative time.
    pts = np.array([3400, 3500, 4000], np.int64)
    assert list(clip_timestamps(pts, origin=3000, time_base=MILLI, start=Fraction("0.45"))) == [0.0, 0.05, 0.55]


@given(
    gaps=st.lists(st.integers(1, 700), min_size=1, max_size=60),
    origin=st.integers(-5000, 5000),
    start=st.integers(0, 20_000),
    length=st.integers(1, 20_000),
    fps=st.fractions(min_value=Fraction(1, 20), max_value=120),
    max_frames=st.integers(1, 50),
)
def test_any_video_is_sampled_as_its_definition_says(
    gaps: list[int], origin: int, start: int, length: int, fps: Fraction, max_frames: int
) -> None:
    # Fails on any error of an exact end, of the integer targets, or of a frame that several targets take.
    pts = origin + np.concatenate([[0], np.cumsum(gaps)]).astype(np.int64)
    begin, end = start * MILLI, (start + length) * MILLI
    chosen = sample_frames(pts, origin=origin, time_base=MILLI, start=begin, end=end, fps=fps, max_frames=max_frames)
    targets = []
    while begin + len(targets) / fps < end and len(targets) <= max_frames:
        targets.append(begin + len(targets) / fps)
    if len(targets) > max_frames:
        targets = [begin + k * (end - begin) / max_frames for k in range(max_frames)]
    shown = [[int(tick) for tick in pts if (tick - origin) * MILLI <= target] for target in targets]
    assert list(chosen) == sorted({ticks[-1] for ticks in shown})
    assert 1 <= len(chosen) <= max_frames
    stamps = clip_timestamps(chosen, origin=origin, time_base=MILLI, start=begin)
    assert stamps[0] >= 0
    assert (np.diff(stamps) > 0).all()
    assert stamps[-1] < float(end - begin)
