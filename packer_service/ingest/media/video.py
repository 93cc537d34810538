"""Choice of the frames of a video that a document shows, made without decoding."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING, Any

import av
import numpy as np

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media.demux import (
    Timeline,
    Video,
    display_size,
    open_at,
    read_origin,
    read_timeline,
    seek_to,
)
from preshard.packer_service.ingest.media.image import probe_image
from preshard.packer_service.ingest.media.reach import MediaReach, open_media
from preshard.packer_service.ingest.media.shape import DECODER_MIB, VideoFrames, check_memory, video_bytes
from preshard.schemas.errors import DocumentError

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64


def probe_video(
    medium: Medium,
    base: MediaReach,
    *,
    fps: float,
    max_frames: int,
    full_size: bool = False,
    decoder_mib: int = DECODER_MIB,
) -> VideoFrames:
    """Chooses a clip's frames by time, reading only packets: no pixel is decoded.

    The rule of :func:`sample_frames` is applied to the times at which
    the frames are really shown, so variable frame rates, reordered frames, late starts and edit lists come out exactly.
    Second 0 is the video's first frame. Only what the clip needs is read: from the key frame before ``medium.start``
    until packets are decoded after ``medium.end``. Pictures before the stream's first key frame cannot be decoded; they
    do not count.

    Args:
        medium: the video; ``start`` and ``end`` in seconds, an ``end`` past the video's own is the video's own.
        base: what it is relative to, and what it may reach.
        fps: frames per second of the clip, above 0.
        max_frames: most frames, at least 1.
        full_size: whether frames will be scaled from RGB at their full size.
        decoder_mib: memory of the process that will decode it.

    Raises:
        DocumentError: ``missing_media``, or ``bad_video``: not a video, damaged or cut short within the clip, too large
            for the decoder, or a clip that is empty or outside of the video.
    """
    start, end = _clip_bounds(medium)
    with open_media(medium, base) as file:
        with open_at(file, None) as (video, packets):
            width, height = display_size(video)
            _check_memory(video, full_size, decoder_mib)
            time_base = video.time_base
            origin, head = read_origin(video, packets)
            stop = None if end is None else origin + math.ceil(end / time_base)
            # A seek in the open file usually lands right; only if it does not is the file opened once more.
            tick = origin + int(start / time_base)
            sought = seek_to(video, tick) if start > 0 else chain(head, packets)
            line = None if sought is None else read_timeline(video, sought, origin=origin, stop=stop)
        if line is None:
            with open_at(file, tick) as (video, packets):
                line = read_timeline(video, packets, origin=origin, stop=stop)
    return chosen_frames(medium, line, time_base, (width, height), fps=fps, max_frames=max_frames)


def probe_frames(
    medium: Medium, base: MediaReach, *, fps: float, max_frames: int, pages: str = "reject", **options: Any
) -> VideoFrames:
    """Chooses the frames of a video that is a list of images: all of them, unless it is cut or they are too many.

    Args:
        medium: the video; frame k is shown at k / ``fps`` seconds.
        base: what its frames are relative to, and what they may reach.
        fps: frames that are shown a second.
        max_frames: most frames, at least 1.
        pages: see :func:`probe_image`; a frame is one picture.
        options: see there.

    Raises:
        DocumentError: as in :func:`probe_image` for each frame, or ``bad_video``: their sizes differ, or the clip is
            empty or outside of the video.
    """
    pages = "first" if pages == "first" else "reject"
    sizes = [size for frame in medium.frames for size in probe_image(frame, base, pages=pages, **options)]
    for frame, size in zip(medium.frames, sizes, strict=True):
        if size != sizes[0]:
            found = f"{frame.label} has {size.width} x {size.height} pixels and the first frame"
            reason = f"{found} {sizes[0].width} x {sizes[0].height}; scale the frames of a video to one size"
            raise DocumentError("bad_video", reason)
    line = Timeline(pts=np.arange(len(sizes), dtype=np.int64), origin=0, end=len(sizes))
    shown = (sizes[0].width, sizes[0].height)
    return chosen_frames(medium, line, 1 / as_written(fps), shown, fps=fps, max_frames=max_frames)


def chosen_frames(
    medium: Medium, line: Timeline, time_base: Fraction, size: tuple[int, int], *, fps: float, max_frames: int
) -> VideoFrames:
    """The frames of a clip, once it is known when each is shown.

    Raises:
        DocumentError: ``bad_video``: the clip is empty or outside of the video.
    """
    start, end = _clip_bounds(medium)
    until = _clip_end(medium, line, start=start, end=end, time_base=time_base)
    chosen = sample_frames(
        line.pts,
        origin=line.origin,
        time_base=time_base,
        start=start,
        end=until,
        fps=as_written(fps),
        max_frames=max_frames,
    )
    timestamps = clip_timestamps(chosen, origin=line.origin, time_base=time_base, start=start)
    step = (until - start) / max_frames
    thinned_to = float(step) if step * as_written(fps) > 1 else None
    return VideoFrames(pts=chosen, timestamps=timestamps, width=size[0], height=size[1], thinned_to=thinned_to)


def _check_memory(video: Video, full_size: bool, decoder_mib: int) -> None:
    context = video.stream.codec_context
    bits = av.VideoFormat(context.pix_fmt).padded_bits_per_pixel if context.pix_fmt else 12
    need = video_bytes(context.name, context.width * context.height, bits, full_size=full_size)
    what = f"{context.width} x {context.height} frames of {context.name} in {context.pix_fmt}"
    check_memory("bad_video", f"{video.label}: {what}", need, decoder_mib)


def _clip_bounds(medium: Medium) -> tuple[Fraction, Fraction | None]:
    """Start and end of the clip in exact seconds; ``(0, None)`` for a whole video."""
    for name, value in (("start", medium.start), ("end", medium.end)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise DocumentError(
                "bad_video", f"{medium.label}: {name} {value} is not a time in a video; give seconds of at least 0"
            )
    start = Fraction(0) if medium.start is None else as_written(medium.start)
    end = None if medium.end is None else as_written(medium.end)
    if end is not None and start >= end:
        raise DocumentError(
            "bad_video", f"{medium.label}: start {float(start)} is not before end {float(end)}; give start < end"
        )
    return start, end


def _clip_end(
    medium: Medium, line: Timeline, *, start: Fraction, end: Fraction | None, time_base: Fraction
) -> Fraction:
    """End of the clip in seconds, no later than the video's own end where that is known."""
    if line.end is None:
        assert end is not None  # only a clip's end stops the reading before the video's
        return end
    length = (line.end - line.origin) * time_base
    if start >= length:
        raise DocumentError(
            "bad_video",
            f"{medium.label}: start {float(start)} is past the end; the video is {float(length):.3f} seconds long",
        )
    return length if end is None else min(end, length)


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
