"""Which frames of a video a document shows, found without decoding, and then their pixels, each decoded once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING

import av
import numpy as np
from PIL import Image

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.families.family import Scaling
from preshard.packer_service.ingest.media.demux import Video, display_size, open_at, seek_to
from preshard.packer_service.ingest.media.needs import DECODER_MIB, check_memory, video_bytes
from preshard.packer_service.ingest.media.open import open_media
from preshard.packer_service.ingest.media.passes import read_pictures
from preshard.packer_service.ingest.media.pictures import LostPictureError
from preshard.packer_service.ingest.media.pixels import FrameScaler
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.media.sampling import as_written, clip_timestamps, sample_frames
from preshard.packer_service.ingest.media.timeline import Timeline, read_origin, read_timeline
from preshard.schemas.errors import DocumentError

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoFrames:
    """The frames of a clip that will be stored.

    ``pts`` are in the stream's time base, ascending and distinct; ``timestamps`` are in seconds from the clip's start,
    which is ``medium.start`` or else the first frame; they are 0 for a frame that is already on the screen then.
    ``width`` and ``height`` are those of the frame as it is shown, after the header's quarter turn. ``thinned_to`` is
    the time between frames in seconds where ``max_frames`` made it longer than ``1 / fps``, else None.
    """

    pts: Int64[np.ndarray, "frames"]
    timestamps: Float64[np.ndarray, "frames"]
    width: int
    height: int
    thinned_to: float | None = None

    @property
    def n_frames(self) -> int:
        return len(self.pts)

    def of_frames(self, numbers: Int64[np.ndarray, "chosen"]) -> VideoFrames:
        """Some of its frames, by their numbers from 0, ascending."""
        return replace(self, pts=self.pts[numbers], timestamps=self.timestamps[numbers])


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

    The rule of :func:`~preshard.packer_service.ingest.media.sampling.sample_frames` is applied to the times at which
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


def decode_video(
    medium: Medium, base: MediaReach, frames: VideoFrames, *, size: tuple[int, int], scaling: Scaling = "reduced"
) -> Iterator[Image.Image]:
    """Decodes the chosen frames once, in order, each as an RGB image of one size.

    On the way to each, :func:`~preshard.packer_service.ingest.media.passes.read_pictures` decodes only what it must.

    Args:
        medium: the video that was probed.
        base: what it is relative to, and what it may reach.
        frames: what :func:`probe_video` chose.
        size: width and height of the images; the whole frame is scaled, upright, without keeping its aspect ratio.
        scaling: how; ``reduced`` is FFmpeg's bicubic filter, straight from the decoder's planes.

    Yields:
        Exactly ``frames.n_frames`` images, in the order of ``frames.pts``.

    Raises:
        DocumentError: ``missing_media``, ``bad_video`` as in the probe, or ``decode_failed``: the decoder stopped, or
            did not return a frame that the packets promise.
    """
    scaler, done = FrameScaler(size, scaling), 0
    with open_media(medium, base) as file:
        try:
            for image in read_pictures(file, frames.pts.tolist(), scaler.image):
                yield image
                done += 1
        except LostPictureError as lost:
            which = f"frame {done} of {frames.n_frames} ({frames.timestamps[done]:.3f} s into the clip)"
            raise DocumentError("decode_failed", f"{medium.label}: {which} cannot be decoded{lost}") from None
