"""Limits that keep packs from being fuller: each is lifted in turn, and the documents are planned again without it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int, Int64

from preshard.packer_service.plan.make import Columns, align_lengths
from preshard.packer_service.plan.pack import pack_documents
from preshard.packer_service.plan.records import FillLimit
from preshard.schemas.config import PackConfig
from preshard.schemas.manifest import Counts

GOOD_FILL = 0.95
"""Packs that are so full need no advice."""

LEAST_GAIN = 0.01
"""A limit is named if lifting it fills so much more."""

NEARLY = 0.98
"""Share of the fill without a limit that the value that is named reaches at least."""

PLANNED_AGAIN = 50_000
"""Documents that are planned again, of more an even sample: a tenth of a second each time, some twenty times."""

MaxKey = Literal["max_images", "max_patches"]

COUNTED: dict[MaxKey, str] = {"max_images": "images", "max_patches": "patches"}
"""Limits of what packs hold besides tokens, and what they limit."""

WORDS: dict[MaxKey, str] = {"max_images": "crops", "max_patches": "patches"}

LENGTHS_TRIED = 24
"""Lengths of packs that are tried."""


class Budgets(NamedTuple):
    """Limits of a pack; None for no limit. Documents begin at multiples of ``alignment``."""

    seq_len: int
    max_images: int | None
    max_patches: int | None
    alignment: int


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Documents that are planned again.

    Attributes:
        tokens, images, patches: of each.
        passes: of each, ascending; a pack holds documents of one pass.
        of: how many documents they are a sample of.
    """

    tokens: Int64[np.ndarray, "docs"]
    images: Int64[np.ndarray, "docs"]
    patches: Int64[np.ndarray, "docs"]
    passes: Int[np.ndarray, "docs"]
    of: int

    @classmethod
    def sampled(cls, columns: Columns) -> Sizes:
        """Takes every n-th of the documents in these columns."""
        passes = np.asarray(columns["pass_number"])
        every = slice(None, None, -(-len(passes) // PLANNED_AGAIN) or 1)
        names = ("tokens", "images", "patches")
        sizes = {name: np.asarray(columns[name])[every].astype(np.int64) for name in names}
        return cls(**sizes, passes=passes[every], of=len(passes))

    @cached_property
    def parts(self) -> list[slice]:
        return [slice(*part) for part in pairwise([0, *np.flatnonzero(np.diff(self.passes)) + 1, len(self.passes)])]

    def packs(self, budgets: Budgets) -> Int64[np.ndarray, "docs"]:
        """The pack of each document under some budgets."""
        aligned, before, found = align_lengths(self.tokens, budgets.alignment), 0, list[np.ndarray]()
        for part in self.parts:
            packs = pack_documents(
                aligned[part],
                self.images[part],
                seq_len=budgets.seq_len,
                max_images=budgets.max_images,
                patches=self.patches[part],
                max_patches=budgets.max_patches,
            )
            found.append(packs + before)
            before += int(packs.max()) + 1
        return np.concatenate(found)

    def fill(self, budgets: Budgets) -> float:
        """The share of real tokens under some budgets."""
        return float(self.tokens.sum()) / ((int(self.packs(budgets).max()) + 1) * budgets.seq_len)

    def most(self, packs: Int64[np.ndarray, "docs"], name: str) -> int:
        """The most of something that a pack holds."""
        return int(np.bincount(packs, weights=getattr(self, name)).max())


def fill_limit(columns: Columns, config: PackConfig, n_packs: int) -> FillLimit | None:
    """The limit that keeps the packs of a plan from being fuller, and the value that would fill them.

    Args:
        columns: ``tokens``, ``images``, ``patches`` and ``pass_number`` of the documents that were planned.
        config: what they were planned with.
        n_packs: packs of the plan.

    Returns:
        None if packs are full, or if the plan has no packs.
    """
    if not n_packs:
        return None
    tokens = int(np.asarray(columns["tokens"]).sum(dtype=np.int64))
    if tokens >= GOOD_FILL * n_packs * config.seq_len:
        return None
    sizes = Sizes.sampled(columns)
    budgets = Budgets(config.seq_len, config.max_images, config.max_patches, config.alignment)
    fill = sizes.fill(budgets)
    limits = tuple(name for name in COUNTED if getattr(budgets, name) is not None)
    lifted: dict[tuple[MaxKey, ...], float] = {(name,): sizes.fill(_lift(budgets, (name,))) for name in limits}
    best = max(lifted, key=lambda names: lifted[names], default=limits)
    reached = lifted.get(best, fill)
    if len(limits) > 1:
        both = sizes.fill(_lift(budgets, limits))
        if both - fill > 2 * (reached - fill):  # where one is lifted, the other one limits as much
            best, reached = limits, both
    unaligned = sizes.fill(budgets._replace(alignment=1)) if config.alignment > 1 else fill
    if max(reached, unaligned) < fill + LEAST_GAIN:
        return _of_lengths(sizes, budgets, config, fill)
    if unaligned > reached:
        return _of_alignment(sizes, config, unaligned)
    return _of_budgets(sizes, budgets, best, NEARLY * reached)


def rejected_when_written(limit: FillLimit | None, planned_tokens: int, counts: Counts) -> FillLimit | None:
    """The limit of a plan that was written: documents that were rejected only then leave their places empty.

    Args:
        limit: that of the plan.
        planned_tokens: tokens of the plan.
        counts: of what was written.
    """
    room, lost = counts.tokens + counts.padding_tokens, planned_tokens - counts.tokens
    if lost > room - planned_tokens and counts.tokens < GOOD_FILL * room:
        empty = lost / room
        message = f"documents that were rejected while they were written left {empty:.1%} of the packs empty"
        return FillLimit(key="rejects", setting=None, fill=None, message=f"{message}; mend them and pack again")
    return limit


def _lift(budgets: Budgets, names: tuple[MaxKey, ...]) -> Budgets:
    values: dict[str, Any] = {**budgets._asdict(), **dict.fromkeys(names)}
    return Budgets(**values)


def _of_budgets(sizes: Sizes, budgets: Budgets, names: tuple[MaxKey, ...], target: float) -> FillLimit:
    values, n_packs = least_values(sizes, budgets, names, target), int(sizes.packs(budgets).max()) + 1
    reached, full = sizes.fill(budgets._replace(**values)), float(sizes.tokens.sum()) / (n_packs * budgets.seq_len)
    held = [f"{getattr(sizes, COUNTED[name]).sum() / n_packs:,.0f} {WORDS[name]}" for name in names]
    held.append(f"{sizes.tokens.sum() / n_packs:,.0f} tokens")
    return FillLimit(
        key=next(iter(values)),
        setting=" ".join(f"{name}={value}" for name, value in values.items()),
        fill=reached,
        message=f"{' and '.join(f'{name} {getattr(budgets, name):,}' for name in names)} "
        f"keep{'s' if len(names) == 1 else ''} packs {1 - full:.1%} empty: on average they hold {' and '.join(held)}; "
        + _would(" and ".join(f"{name}={value}" for name, value in values.items()), reached, sizes),
    )


def least_values(sizes: Sizes, budgets: Budgets, names: tuple[MaxKey, ...], target: float) -> dict[MaxKey, int]:
    """The least values of limits above the present ones that reach a fill, by bisection over plans.

    Args:
        sizes: the documents.
        budgets: what a pack may hold at present, where the target is not reached.
        names: the limits; several grow in proportion.
        target: the fill.
    """
    present: dict[MaxKey, int] = {name: max(getattr(budgets, name), 1) for name in names}
    unlimited, first = sizes.packs(_lift(budgets, names)), present[names[0]]

    def raised(value: int) -> dict[MaxKey, int]:
        return {name: -(-value * now // first) for name, now in present.items()}

    factor = max(sizes.most(unlimited, COUNTED[name]) / now for name, now in present.items())
    low, high = first, max(first + 1, math.ceil(factor * first))
    while high - low > max(1, high // 32):
        middle = (low + high) // 2
        if sizes.fill(budgets._replace(**raised(middle))) < target:
            low = middle
        else:
            high = middle
    return raised(high)


def _of_alignment(sizes: Sizes, config: PackConfig, reached: float) -> FillLimit:
    others = [scheme for scheme in config.layouts if scheme != "zigzag"]
    setting = f"layouts=[{', '.join(others)}]" if others else None
    mean = float(sizes.tokens.mean())
    remedy = setting or "another layout than zigzag"
    return FillLimit(
        key="layouts",
        setting=setting,
        fill=reached,
        message=f"zigzag at ring_degrees {list(config.ring_degrees)} begins documents at multiples of "
        f"{config.alignment:,} tokens, and the mean document has {mean:,.0f}; {_would(remedy, reached, sizes)}",
    )


def _of_lengths(sizes: Sizes, budgets: Budgets, config: PackConfig, fill: float) -> FillLimit:
    """Documents whose lengths do not fill packs of this length: the nearest length that they fill."""
    tried = {length: sizes.fill(budgets._replace(seq_len=length)) for length in _lengths(sizes, config)}
    good = [length for length, reached in tried.items() if reached >= GOOD_FILL]
    best = max(tried, key=lambda length: tried[length], default=config.seq_len)
    chosen = min(good, key=lambda length: abs(math.log(length / config.seq_len)), default=best)
    reached = tried.get(chosen, fill)
    helps = reached >= fill + LEAST_GAIN
    would = _would(f"seq_len={chosen}", reached, sizes) if helps else "no seq_len up to twice as long fills more"
    few = sizes.tokens.sum() < 2 * config.seq_len * len(sizes.parts) and sizes.of == len(sizes.tokens)
    if few:
        each = " in each pass" if len(sizes.parts) > 1 else ""
        each_tokens = sizes.tokens.sum() // len(sizes.parts)
        why = f"there are too few documents: {each_tokens:,} tokens{each} for packs of {config.seq_len:,}"
    else:
        why = (
            f"documents do not fit together: the mean one has {sizes.tokens.mean():,.0f} tokens, and a pack has "
            f"{config.seq_len:,}"
        )
    return FillLimit(
        key="documents" if few else "seq_len",
        setting=f"seq_len={chosen}" if helps else None,
        fill=reached if helps else None,
        message=f"{why}; {would}",
    )


def _lengths(sizes: Sizes, config: PackConfig) -> list[int]:
    """Legal lengths from that of the longest document to twice the present one, at most some, at equal distances."""
    step = config.seq_len_step[0]
    longest = int(align_lengths(sizes.tokens, config.alignment).max())
    legal = range(-(-longest // step) * step, 2 * config.seq_len + 1, step)
    places = {number * (len(legal) - 1) // (LENGTHS_TRIED - 1) for number in range(LENGTHS_TRIED)} if legal else set()
    return [legal[place] for place in sorted(places) if legal[place] != config.seq_len]


def _would(setting: str, reached: float, sizes: Sizes) -> str:
    planned = f"{len(sizes.tokens):,}" + (f" of {sizes.of:,}" if sizes.of > len(sizes.tokens) else "")
    noun = "document" if sizes.of == 1 else "documents"
    return f"{setting} would fill {reached:.1%} (planned again with {planned} {noun})"
