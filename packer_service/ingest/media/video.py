"""Which frames of a video a document shows, found without decoding, and then their pixels, each decoded once."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from typing import Any

import av
import numpy as np
from jaxtyping import Float64, Int64
from PIL import Image

from packer_service.ingest.document import Medium
from packer_service.ingest.families.family import Scaling
from packer_service.ingest.media.demux import Video, display_size, open_at, seek_to, shown_at
from packer_service.ingest.media.open import open_media
from packer_service.ingest.media.pixels import FrameScaler
from packer_service.ingest.media.sampling import as_written, clip_timestamps, sample_frames
from packer_service.ingest.media.timeline import Timeline, read_origin, read_timeline
from schemas.errors import DocumentError


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoFrames:
    """The frames of a clip that will be stored.

    ``pts`` are in the stream's time base, ascending and distinct; ``timestamps`` are in seconds from the clip's start,
    which is ``medium.start`` or else the first frame; they are 0 for a frame that is already on the screen then.
    ``width`` and ``height`` are those of the frame as it is shown, after the header's quarter turn.
    """

    pts: Int64[np.ndarray, "frames"]
    timestamps: Float64[np.ndarray, "frames"]
    width: int
    height: int

    @property
    def n_frames(self) -> int:
        return len(self.pts)

    def of_frames(self, numbers: Int64[np.ndarray, "chosen"]) -> VideoFrames:
        """Some of its frames, by their numbers from 0, ascending."""
        return replace(self, pts=self.pts[numbers], timestamps=self.timestamps[numbers])


def probe_video(medium: Medium, base: str, *, fps: float, max_frames: int) -> VideoFrames:
    """Chooses a clip's frames by time, reading only packets: no pixel is decoded.

    The rule of :func:`~packer_service.ingest.media.sampling.sample_frames` is applied to the times at which the frames
    are really shown, so variable frame rates, reordered frames, late starts and edit lists come out exactly. Second 0
    is the video's first frame. Only what the clip needs is read: from the key frame before ``medium.start`` until
    packets are decoded after ``medium.end``. Pictures before the stream's first key frame cannot be decoded and do not
    count.

    Args:
        medium: the video; ``start`` and ``end`` in seconds, an ``end`` past the video's own is the video's own.
        base: URI or path of the folder that holds the row's file.
        fps: frames per second of the clip, above 0.
        max_frames: most frames, at least 1.

    Raises:
        DocumentError: ``missing_media``, or ``bad_video``: not a video, damaged or cut short within the clip, larger
            than the limits, or a clip that is empty or outside of the video.
    """
    start, end = _clip_bounds(medium)
    with open_media(medium, base) as file:
        with open_at(file, None) as (video, packets):
            width, height = display_size(video)
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
    until = _clip_end(medium, line, start=start, end=end, time_base=time_base)
    chosen = sample_frames(
        line.pts,
        origin=origin,
        time_base=time_base,
        start=start,
        end=until,
        fps=as_written(fps),
        max_frames=max_frames,
    )
    timestamps = clip_timestamps(chosen, origin=origin, time_base=time_base, start=start)
    return VideoFrames(pts=chosen, timestamps=timestamps, width=width, height=height)


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
    medium: Medium, base: str, frames: VideoFrames, *, size: tuple[int, int], scaling: Scaling = "reduced"
) -> Iterator[Image.Image]:
    """Decodes the chosen frames once, in order, each as an RGB image of one size.

    Decoding starts at the key frame before the first of them, and on the way to the next one skips whatever lies before
    the last key frame before it. It uses one thread: a task holds one CPU, and results must not depend on their number.

    Args:
        medium: the video that was probed.
        base: URI or path of the folder that holds the row's file.
        frames: what :func:`probe_video` chose.
        size: width and height of the images; the whole frame is scaled, upright, without keeping its aspect ratio.
        scaling: how; ``reduced`` is FFmpeg's bicubic filter, straight from the decoder's planes.

    Yields:
        Exactly ``frames.n_frames`` images, in the order of ``frames.pts``.

    Raises:
        DocumentError: ``missing_media``, ``bad_video`` as in the probe, or ``decode_failed``: the decoder stopped, or
            did not return a frame that the packets promise.
    """
    with open_media(medium, base) as file, open_at(file, int(frames.pts[0])) as (video, packets):
        reader, scaler = _FrameReader(video, packets), FrameScaler(size, scaling)
        for index, tick in enumerate(frames.pts):
            image = reader.read(int(tick), scaler)
            if image is None:
                second = frames.timestamps[index]
                raise DocumentError(
                    "decode_failed",
                    f"{medium.label}: frame {index} of {frames.n_frames} ({second:.3f} s into the clip) "
                    f"cannot be decoded{reader.reason}",
                )
            yield image


class _FrameReader:
    """Feeds a decoder just enough packets to get the frames asked for, in ascending order."""

    def __init__(self, video: Video, packets: Iterator[Any]) -> None:
        self.decoder = video.stream.codec_context
        self.decoder.thread_count = 1
        self.packets = packets
        self.waiting: deque[Any] = deque()
        """Packets read and not yet decoded."""
        self.decoded: deque[Any] = deque()
        self.reason = ""
        self.flushed = False

    def read(self, tick: int, scaler: FrameScaler) -> Image.Image | None:
        """The frame shown at ``tick``, or None when it cannot be decoded; ``reason`` then says why."""
        try:
            frame = self._frame(tick)
            return None if frame is None else scaler.image(frame)
        except av.FFmpegError as error:
            self.reason = f" ({error.strerror})"
            return None

    def _frame(self, tick: int) -> Any | None:
        self._skip_to_key(tick)
        while True:
            while self.decoded:
                frame = self.decoded.popleft()
                shown = frame.pts if frame.pts is not None else frame.dts
                if shown == tick:
                    return self._whole(frame)
                if shown is not None and shown > tick:
                    self.reason = " (the decoder went on to a later frame)"
                    return None
            if self.flushed:
                return None
            self._decode_next()

    def _whole(self, frame: Any) -> Any | None:
        if frame.is_corrupt:
            self.reason = " (its data are damaged)"
            return None
        return frame

    def _skip_to_key(self, tick: int) -> None:
        """Reads packets up to ``tick``, and drops those before the last key frame that is shown by then."""
        if any((frame.pts or frame.dts or 0) >= tick for frame in self.decoded):
            return
        while not self.waiting or self.waiting[-1].dts is None or self.waiting[-1].dts < tick:
            packet = next(self.packets, None)
            if packet is None:
                break
            self.waiting.append(packet)
            if packet.is_keyframe:
                self._drop_before_keys(tick)
        self._drop_before_keys(tick)

    def _drop_before_keys(self, tick: int) -> None:
        keys = [i for i, p in enumerate(self.waiting) if p.is_keyframe and (shown_at(p) or 0) <= tick]
        if not keys or keys[-1] == 0:
            return
        for _ in range(keys[-1]):
            self.waiting.popleft()
        self.decoded.clear()
        self.decoder.flush_buffers()

    def _decode_next(self) -> None:
        packet = self.waiting.popleft() if self.waiting else next(self.packets, None)
        self.flushed = packet is None
        self.decoded.extend(self.decoder.decode(packet))
