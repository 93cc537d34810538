"""Marks among and around the rows of a unit, and the time that is written beside a frame."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from preshard.packer_service.verify.independent.model import (
    PROCESSOR,
    Files,
    named_token,
    processors,
)
from preshard.packer_service.verify.independent.vocabulary import Vocabulary, read_json
from preshard.schemas.header import Unit
from preshard.schemas.manifest import ModelEntry
from preshard.schemas.model.families import FAMILIES
from preshard.schemas.sections import VisionConfig

ROW = -1
"""Stands for a row among the tokens of a unit."""

Ids = tuple[int, ...]
Around = tuple[int | None, int | None]
Times = Literal["", "square", "qwen3", "molmo2", "gemma4", "glm4v", "glm46v"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Rows line by line, or crop by crop: marks before them, between two lines, and behind them."""

    begin: Ids = ()
    between: Ids = ()
    end: Ids = ()

    def tokens(self, lines: Sequence[int]) -> list[int]:
        """The tokens of lines of so many rows each."""
        found = list(self.begin)
        for number, rows in enumerate(lines):
            found += [*(self.between if number else ()), *([ROW] * rows)]
        return [*found, *self.end]


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """The marks of a dataset's units.

    Attributes:
        image, frame: blocks of a still image, and of a frame or frames that are joined.
        around_image, around_video: marks that belong to an image or a video if they stand directly before its first
            token and behind its last; none where a template writes none.
        times: how the time of a frame is written, if it is.
        pieces: the text of tokens that times are written with.
    """

    image: tuple[Block, ...]
    frame: tuple[Block, ...]
    around_image: Around = (None, None)
    around_video: Around = (None, None)
    times: Times = ""
    pieces: Mapping[int, str] = field(default_factory=dict)

    def tokens(self, unit: Unit, n_crops: int, vision: VisionConfig, model: ModelEntry | None) -> list[int]:
        """The tokens of a unit from its first mark to its last, without those around an image or video."""
        blocks = self.image if unit.kind == "image" else self.frame
        lines = _lines(unit, n_crops, vision, model)
        return [token for block, own in zip(blocks, lines, strict=True) for token in block.tokens(own)]

    def around(self, kind: str) -> Around:
        """The marks that belong to the first and last unit of an image or video where they stand beside it."""
        return self.around_image if kind == "image" else self.around_video

    def written_time(self, times: Sequence[float]) -> tuple[str, str]:
        """Text before and behind a frame, or frames, shown at these seconds; white space left out."""
        first, minutes = times[0], divmod(int(times[0]), 60)
        before = {
            "square": f"{first:.1f}s",
            "qwen3": f"<{(first + times[-1]) / 2:.1f}seconds>",
            "molmo2": f"{first:.1f}",
            "gemma4": f"{minutes[0]:02d}:{minutes[1]:02d}",
        }
        behind = {"glm4v": str(int(first)), "glm46v": f"{first:.1f}seconds"}
        return before.get(self.times, ""), behind.get(self.times, "")


def _lines(unit: Unit, n_crops: int, vision: VisionConfig, model: ModelEntry | None) -> list[list[int]]:
    if model is None:
        return [[vision.pooled_per_crop] * n_crops]
    inputs, settings = model.settings.get("inputs"), model.settings
    _, height, width = unit.grid
    if inputs == "pixtral":
        side = settings["pooling"]
        return [[width // side] * (height // side)]
    if inputs == "molmo2":
        side = settings["side"] // settings["patch_size"]
        if unit.kind != "image":
            return [_pooled(side, side, settings["video_pooling"])]
        pooling = settings["image_pooling"]
        return [_pooled(side, side, pooling), _pooled(height, width, pooling)]
    return [[unit.rows]]


def _pooled(height: int, width: int, pooling: Sequence[int]) -> list[int]:
    return [-(-width // pooling[1])] * -(-height // pooling[0])


def derive_marks(files: Files, model: ModelEntry | None, vocabulary: Vocabulary) -> Marks:
    """The marks of a dataset, by its carried files and the special tokens of its tokenizer.

    Raises:
        KeyError: the tokenizer lacks one of them.
    """
    if model is None:
        marks = _square(vocabulary.ids)
    elif model.model_type in FAMILIES:
        marks = _FAMILIES[FAMILIES[model.model_type].file](files, model.model_type, vocabulary.ids)
    else:
        marks = Marks(image=(), frame=())
    return replace(marks, pieces=vocabulary.pieces)


def _square(ids: Mapping[str, int]) -> Marks:
    begin, between, end = (
        next(((ids[name],) for name in names if name in ids), ())
        for names in (
            ("<|vision_start|>", "<im_start>"),
            ("[IMG_BREAK]", "<im_col>"),
            ("[IMG_END]", "<|vision_end|>", "<im_end>"),
        )
    )
    block = Block(begin=begin, between=between, end=end)
    return Marks(image=(block,), frame=(block,), times="square")


def _between(begin: int, end: int) -> tuple[Block, ...]:
    return (Block(begin=(begin,), end=(end,)),)


def _named(files: Files, ids: Mapping[str, int], *names: tuple[str, str]) -> list[int]:
    return [ids[named_token(files, *name)] for name in names]


def _qwen(files: Files, kind: str, ids: Mapping[str, int]) -> Marks:
    names = ("vision_start_token", "<|vision_start|>"), ("vision_end_token", "<|vision_end|>")
    start, end = _named(files, ids, *names)
    if kind in ("qwen2_5_vl", "exaone4_5"):
        return Marks(image=(Block(),), frame=(Block(),), around_image=(start, end), around_video=(start, end))
    return Marks(image=(Block(),), frame=_between(start, end), around_image=(start, end), times="qwen3")


def _glm(files: Files, kind: str, ids: Mapping[str, int]) -> Marks:
    start, end = ids["<|begin_of_image|>"], ids["<|end_of_image|>"]
    whole, image, _ = processors(files)
    named = [whole.get("processor_class"), image.get("processor_class"), named_token(files, "processor_class", "")]
    wrote = next(
        (name for name in named if name), "Glm46VProcessor" if kind in ("glm46v", "glm_ocr") else "Glm4vProcessor"
    )
    return Marks(
        image=(Block(),),
        frame=_between(start, end),
        around_image=(start, end),
        around_video=(ids["<|begin_of_video|>"], None),
        times="glm4v" if wrote == "Glm4vProcessor" else "glm46v",
    )


def _gemma3(files: Files, kind: str, ids: Mapping[str, int]) -> Marks:  # noqa: ARG001
    start, end = _named(files, ids, ("boi_token", "<start_of_image>"), ("eoi_token", "<end_of_image>"))
    return Marks(image=_between(start, end), frame=())


def _gemma4(files: Files, kind: str, ids: Mapping[str, int]) -> Marks:  # noqa: ARG001
    block = _between(*_named(files, ids, ("boi_token", "<|image>"), ("eoi_token", "<image|>")))
    return Marks(image=block, frame=block, times="gemma4")


def _internvl(files: Files, kind: str, ids: Mapping[str, int]) -> Marks:  # noqa: ARG001
    block = _between(*_named(files, ids, ("start_image_token", "<img>"), ("end_image_token", "</img>")))
    return Marks(image=block, frame=block)


def _mistral3(files: Files, kind: str, ids: Mapping[str, int]) -> Marks:
    if kind == "lighton_ocr":
        return Marks(image=(Block(),), frame=())
    whole = read_json(files, PROCESSOR)
    names = ("image_break_token", "[IMG_BREAK]"), ("image_end_token", "[IMG_END]")
    line, end = (ids[str(whole.get(name) or default)] for name, default in names)
    return Marks(image=(Block(between=(line,), end=(end,)),), frame=())


def _paddleocr_vl(files: Files, kind: str, ids: Mapping[str, int]) -> Marks:  # noqa: ARG001
    return Marks(image=(Block(),), frame=(), around_image=(ids["<|IMAGE_START|>"], ids["<|IMAGE_END|>"]))


def _kimi_k25(files: Files, kind: str, ids: Mapping[str, int]) -> Marks:  # noqa: ARG001
    return Marks(image=(Block(),), frame=(), around_image=(ids["<|media_content|>"], ids["<|media_end|>"]))


def _molmo2(files: Files, kind: str, ids: Mapping[str, int]) -> Marks:  # noqa: ARG001
    whole = read_json(files, PROCESSOR)

    def asks(name: str, default: bool) -> bool:
        value = whole.get(name)
        return default if value is None else bool(value)

    def block(begin: str, end: str, *, columns: bool) -> Block:
        column = (ids["<im_col>"],) if columns else ()
        return Block(begin=(ids[begin],), between=column, end=(*column, ids[end]))

    columns = asks("image_use_col_tokens", True)
    low = "<low_res_im_start>" if asks("use_single_crop_start_token", True) else "<im_start>"
    frame = ("<frame_start>", "<frame_end>") if asks("use_frame_special_tokens", True) else ("<im_start>", "<im_end>")
    return Marks(
        image=(
            block(low, "<im_end>", columns=asks("use_single_crop_col_tokens", columns)),
            block("<im_start>", "<im_end>", columns=columns),
        ),
        frame=(block(*frame, columns=asks("video_use_col_tokens", False)),),
        times="molmo2",
    )


_FAMILIES: dict[str, Callable[[Files, str, Mapping[str, int]], Marks]] = {
    **{"qwen": _qwen, "glm": _glm, "gemma3": _gemma3, "gemma4": _gemma4},
    **{"internvl": _internvl, "mistral3": _mistral3, "molmo2": _molmo2, "paddleocr_vl": _paddleocr_vl},
    "kimi_k25": _kimi_k25,
}
"""Readers of marks, by the name of a family's file."""
