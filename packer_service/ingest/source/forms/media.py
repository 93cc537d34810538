"""References to images and videos in every shape that rows have: paths, URIs, bytes, data URIs, frames, columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args
from urllib.parse import unquote_to_bytes

from preshard.packer_service.ingest.document import Medium, MediumKind
from preshard.packer_service.ingest.source.forms.fields import (
    bad,
    json_or_text,
    kind_of,
    listed,
    number,
    shown,
    strict_object,
    string,
    whole_number,
)
from preshard.packer_service.ingest.source.forms.inline import (
    VIDEO_SUFFIXES,
    decode_base64,
    is_base64,
    split_data_uri,
)
from preshard.schemas.sections import MAX_FRAMES

MAX_URI = 8000
"""Most characters of an image's or video's path or URI, which messages repeat."""
MAX_FPS = 1000.0
"""The limit of ``video.fps`` in the configuration."""

PLACES = {
    "image": ("image", "url", "path", "bytes", "base64", "source"),
    "video": ("video", "url", "path", "bytes", "base64"),
}
"""Keys of a part that say where its image or video is; a part has one of them."""
CLIP = ("start", "end", "video_start", "video_end", "fps", "sample_fps", "max_frames")
PIXELS = ("min_pixels", "max_pixels")
KEYS = {
    "image": ("type", "index", *PLACES["image"], *PIXELS),
    "video": ("type", "index", *PLACES["video"], *CLIP, *PIXELS),
}
NOT_FOLLOWED = {
    "nframes": "frames are taken by their times; give fps and max_frames",
    "min_frames": "frames are taken by their times; give fps",
    "raw_fps": "the times of a list of frames follow from fps; give that",
    "total_pixels": "the model's processor limits each image or video; give max_pixels",
    "resized_height": "the model's processor keeps the shape of a picture; give min_pixels and max_pixels",
    "resized_width": "the model's processor keeps the shape of a picture; give min_pixels and max_pixels",
}
"""Keys of qwen-vl-utils for which no processor of ``transformers`` gives the same, each with what to give instead."""
MAX_PIXELS = 2**40


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberedPlace(Medium):
    """A part without a file that says which one of its column it shows, counted from 0, as TRL's own data do."""

    index: int


def medium(given: Any, where: str) -> Medium:
    """An image or video of a content list. A part that only says its kind is a place for a file.

    Raises:
        DocumentError: ``bad_row``.
    """
    if not isinstance(given, dict):
        bad(f"{where} is {kind_of(given)}, not an object with a type")
    kind: Any = given.get("type")
    if isinstance(kind, str) and kind in ("image_url", "video_url"):
        return _of_openai(given, kind, where)
    if kind not in get_args(MediumKind):
        bad(f"{where}.type is {shown(kind)}; legal are text, image, video, image_url, video_url")
    for key, remedy in NOT_FOLLOWED.items():
        if given.get(key) is not None:
            bad(f"{where}.{key} is not followed: {remedy}")
    part = strict_object(given, where, KEYS[kind], "a type")
    return with_settings(_placed(part, kind, where), part, f"{where}.")


def _of_openai(given: dict[str, Any], name: str, where: str) -> Medium:
    """A part in OpenAI's form: ``{"type": "image_url", "image_url": {"url": ...}}``; vLLM has the same for videos."""
    kind: MediumKind = "image" if name == "image_url" else "video"
    part = strict_object(given, where, ("type", name), name)
    value = part.get(name)
    if isinstance(value, dict):
        known = ("url", "detail") if kind == "image" else ("url", *CLIP)
        inner = strict_object(value, f"{where}.{name}", known, "a url")
        if inner.get("detail") not in (None, "auto", "high"):
            found = shown(inner["detail"])
            bad(f"{where}.{name}.detail is {found}; images are shown as vision.* says, so legal are auto and high")
        return with_settings(reference(inner.get("url"), kind, f"{where}.{name}.url"), inner, f"{where}.{name}.")
    return reference(value, kind, f"{where}.{name}")


def _placed(part: Mapping[str, Any], kind: MediumKind, where: str) -> Medium:
    places = [name for name in PLACES[kind] if name in part]
    if len(places) > 1:
        bad(f"{where} has {' and '.join(places)}; give exactly one of {', '.join(PLACES[kind])}")
    if not places:
        return Medium(kind=kind) if "index" not in part else NumberedPlace(kind=kind, index=_index(part, where))
    if "index" in part:
        bad(f"{where} has index and {places[0]}; give one of them")
    [name] = places
    value = part[name]
    if kind == "video" and isinstance(value, list):
        return frames_video(value, f"{where}.{name}")
    if name == "source":
        return _of_anthropic(value, f"{where}.source")
    if name == "bytes":
        return _of_bytes(value, kind, f"{where}.bytes")
    if name == "base64":
        return _of_bytes(value, kind, f"{where}.base64")
    return reference(value, kind, f"{where}.{name}")


def _of_anthropic(value: Any, where: str) -> Medium:
    """An image in Anthropic's form: ``{"type": "base64", "media_type": ..., "data": ...}``, or one with a ``url``."""
    given = strict_object(value, where, ("type", "media_type", "data", "url"), "data or a url")
    if "data" in given:
        return _of_bytes(given["data"], "image", f"{where}.data")
    return reference(given.get("url"), "image", f"{where}.url")


def _index(part: Mapping[str, Any], where: str) -> int:
    index = part["index"]
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        bad(f"{where}.index is {shown(index)}, not the number of an image or video of the row, counted from 0")
    return index


def frames_video(value: Any, where: str) -> Medium:
    """A video given by its frames; how many a second must follow."""
    frames = tuple(references(listed(value, where), "image", where))
    if not frames:
        bad(f"{where} is an empty list; give the frames of the video")
    return Medium(kind="video", frames=frames)


def with_settings(found: Medium, given: Mapping[str, Any], at: str) -> Medium:
    """The medium with what is said of it: the part of a video that is shown, how densely, and the limits of its pixels.

    Args:
        found: the image or video.
        given: keys of its part, or columns beside it.
        at: stands before a key in messages.
    """
    pixels: dict[str, Any] = {
        name: whole_number(given[name], f"{at}{name}", MAX_PIXELS) for name in PIXELS if name in given
    }
    if len(pixels) == 2 and pixels["min_pixels"] > pixels["max_pixels"]:
        bad(f"{at}min_pixels is {pixels['min_pixels']}, above max_pixels {pixels['max_pixels']}")
    found = replace(found, **pixels)
    if found.kind == "image":
        return found
    clip: dict[str, tuple[str, Any]] = {}
    for key in CLIP:
        name = key.removeprefix("video_").removeprefix("sample_")
        if key in given and name in clip:
            bad(f"{at}{key} is given and {clip[name][0]}, too; give one of them")
        if key in given:
            clip[name] = key, given[key]
    if "sample_fps" in given and not found.frames:
        bad(f"{at}sample_fps is for a list of frames; give fps")
    times: dict[str, Any] = {}
    for name in ("start", "end", "fps"):
        if name in clip:
            key, value = clip[name]
            times[name] = number(value, f"{at}{key}", "a number of seconds" if name != "fps" else "a number")
    if not 0 < times.get("fps", 1) <= MAX_FPS:
        bad(f"{at}fps is {shown(clip['fps'][1])}; legal are numbers above 0 and up to {MAX_FPS:g}")
    if found.frames and "fps" not in times:
        bad(f"{at}fps is missing: the video is a list of frames; give how many of them a second has")
    if "max_frames" in clip:
        times["max_frames"] = whole_number(clip["max_frames"][1], f"{at}max_frames", MAX_FRAMES)
    return replace(found, **times)


def reference(value: Any, kind: MediumKind, where: str) -> Medium:
    """A path or URI, bytes, or the ``{"bytes", "path"}`` of a Hugging Face image or video column.

    Raises:
        DocumentError: ``bad_row``.
    """
    if isinstance(value, dict):
        inner = strict_object(value, where, ("bytes", "path"), "bytes or a path")
        if "bytes" in inner:  # then the path is only the file's name
            return _of_bytes(inner["bytes"], kind, f"{where}.bytes")
        value = inner.get("path")
    if isinstance(value, bytes):
        return Medium(kind=kind, data=value)
    if value == "" or isinstance(value, float):
        bad(f"{where} is {shown(value)}, not a file; where there is none, leave it out or write null")
    uri = string(value, where)
    if (given := split_data_uri(uri)) is not None:
        return Medium(kind=kind, data=_of_data_uri(uri, *given, kind, where))
    if is_base64(uri):
        return Medium(kind=kind, data=_decoded(uri, where))
    if not uri or "\0" in uri or len(uri) > MAX_URI:
        bad(f"{where} is {shown(uri)}, not the path or URI of a file, of at most {MAX_URI} characters")
    return Medium(kind=kind, uri=uri)


def references(value: Any, kind: MediumKind, where: str) -> list[Medium]:
    """A column of one image or video, or of a list of them, which a table may keep as JSON text."""
    value = json_or_text(value, where)
    if not isinstance(value, list):
        return [reference(value, kind, where)]
    if kind == "video" and any(isinstance(item, list) for item in value):
        part = '{"type": "video", "video": ["0.jpg", "1.jpg"], "fps": 2}'
        bad(f"{where} holds lists of frames, whose rate is not said; name those of a video in its message, as {part}")
    return [reference(item, kind, f"{where}[{i}]") for i, item in enumerate(listed(value, where))]


def _of_data_uri(uri: str, is_of: str, parameters: Sequence[str], data: str, kind: MediumKind, where: str) -> bytes:
    """The data of a data URI of a kind of media, or of no kind."""
    if is_of not in ("", kind, "application"):
        bad(f"{where} is {shown(uri)}, not a data URI of an {kind}".replace("an video", "a video"))
    return _decoded(data, where) if "base64" in parameters else unquote_to_bytes(data)


def _of_bytes(value: Any, kind: MediumKind, where: str) -> Medium:
    """Bytes, or the base64 that stands for them in JSON."""
    if isinstance(value, bytes):
        return Medium(kind=kind, data=value)
    if not isinstance(value, str):
        bad(f"{where} is {kind_of(value)}, not bytes or base64")
    given = split_data_uri(string(value, where))
    data = _decoded(value, where) if given is None else _of_data_uri(value, *given, kind, where)
    return Medium(kind=kind, data=data)


def _decoded(text: str, where: str) -> bytes:
    found = decode_base64(text)
    if found is None:
        bad(f"{where} is {shown(text)}, which is not base64")
    return found


def kind_by_name(value: Any) -> MediumKind:
    """Whether a reference is a video, by the end of its name; anything else is taken for an image."""
    if isinstance(value, dict):
        value = value.get("path")
    if isinstance(value, list) and value:
        return kind_by_name(value[0])
    suffix = value.rpartition(".")[2].lower() if isinstance(value, str) else ""
    return "video" if suffix in VIDEO_SUFFIXES else "image"
