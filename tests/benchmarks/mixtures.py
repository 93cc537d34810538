"""Seeded mixtures of documents for the benchmarks: as columns of lengths, and as packs of mask arrays.

``mixed`` is the mixture on which the targets are stated. ``annotated`` has many questions to one medium, ``long`` long
texts and videos whose image tokens all see each other, the hardest shape of mask. Everything follows from the seed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np

from preshard.schemas.sequence import CAUSAL_ONLY, PADDING_DOC, MaskArrays

SEQ_LEN = 36_864


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of document. Ranges are half open and drawn evenly; text is log-normal.

    Attributes:
        share: its part of the documents.
        text_median, text_sigma: tokens of text of the shared part.
        images: units in a document.
        log_images: units are drawn evenly on a logarithmic scale.
        image_tokens: tokens of a unit.
        stamp_tokens: tokens of text before each unit.
        annotations: questions that see the shared part and themselves; with fewer than 2, documents are not annotated.
        annotation_tokens: tokens of each.
        whole_group: image tokens of the whole document see each other, and not just those of one unit.
    """

    share: float
    text_median: float
    text_sigma: float
    images: tuple[int, int] = (0, 1)
    log_images: bool = False
    image_tokens: tuple[int, int] = (0, 1)
    stamp_tokens: tuple[int, int] = (0, 1)
    annotations: tuple[int, int] = (0, 1)
    annotation_tokens: tuple[int, int] = (0, 1)
    whole_group: bool = False


MIXTURES: dict[str, tuple[Kind, ...]] = {
    "mixed": (
        Kind(share=0.35, text_median=500, text_sigma=1.0),
        Kind(share=0.40, text_median=120, text_sigma=0.7, images=(1, 10), image_tokens=(146, 147)),
        Kind(
            share=0.25, text_median=150, text_sigma=0.7, images=(8, 385), log_images=True, image_tokens=(81, 82),
            stamp_tokens=(4, 7),
        ),
    ),
    "annotated": (
        Kind(share=0.20, text_median=150, text_sigma=0.8),
        Kind(
            share=0.50, text_median=40, text_sigma=0.5, images=(1, 5), image_tokens=(405, 487), annotations=(1, 13),
            annotation_tokens=(20, 120),
        ),
        Kind(
            share=0.30, text_median=40, text_sigma=0.5, images=(8, 65), image_tokens=(81, 82), stamp_tokens=(4, 7),
            annotations=(1, 21), annotation_tokens=(30, 200),
        ),
    ),
    "long": (
        Kind(share=0.50, text_median=4000, text_sigma=1.1),
        Kind(share=0.10, text_median=400, text_sigma=0.6, images=(4, 33), image_tokens=(146, 147), whole_group=True),
        Kind(
            share=0.40, text_median=150, text_sigma=0.7, images=(128, 385), image_tokens=(81, 82), stamp_tokens=(4, 7),
            whole_group=True,
        ),
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Drawn documents, one entry each."""

    kind: np.ndarray
    text: np.ndarray
    images: np.ndarray
    image_tokens: np.ndarray
    stamp_tokens: np.ndarray
    annotations: np.ndarray
    annotation_tokens: np.ndarray

    @property
    def tokens(self) -> np.ndarray:
        return (
            self.text
            + self.images * (self.image_tokens + self.stamp_tokens)
            + self.annotations * self.annotation_tokens
        )


def _log_even(kinds: tuple[Kind, ...], kind: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    low, high = np.array([k.images for k in kinds])[kind].T
    low = np.maximum(low, 1)
    return np.floor(low * (high / low) ** rng.random(len(kind))).astype(np.int64)


def columns(mixture: str, n: int, seed: int, seq_len: int = SEQ_LEN) -> Columns:
    """Draw ``n`` documents of a mixture, none longer than ``seq_len``."""
    kinds, rng = MIXTURES[mixture], np.random.default_rng(seed)
    kind = rng.choice(len(kinds), size=n, p=[k.share for k in kinds])

    def drawn(name: str) -> np.ndarray:
        ranges = np.array([getattr(k, name) for k in kinds])[kind]
        return rng.integers(ranges[:, 0], ranges[:, 1])

    median = np.array([k.text_median for k in kinds])[kind]
    sigma = np.array([k.text_sigma for k in kinds])[kind]
    text = np.maximum(16, np.rint(median * np.exp(sigma * rng.standard_normal(n)))).astype(np.int64)
    images, image_tokens, stamps = drawn("images"), drawn("image_tokens"), drawn("stamp_tokens")
    images = np.where(np.array([k.log_images for k in kinds])[kind], _log_even(kinds, kind, rng), images)
    annotations, annotation_tokens = drawn("annotations"), drawn("annotation_tokens")
    annotations[annotations < 2] = 0
    room = seq_len - 16 - annotations * annotation_tokens
    images = np.minimum(images, room // np.maximum(image_tokens + stamps, 1))
    text = np.minimum(text, seq_len - images * (image_tokens + stamps) - annotations * annotation_tokens)
    return Columns(
        kind=kind, text=text, images=images, image_tokens=image_tokens, stamp_tokens=stamps,
        annotations=annotations, annotation_tokens=annotation_tokens,
    )  # fmt: skip


def lengths(mixture: str, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and images of ``n`` documents, int64 each."""
    drawn = columns(mixture, n, seed)
    return drawn.tokens.astype(np.int64), drawn.images.astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Pack:
    """One pack: its mask, and the edges of its segments (documents with alignment padding, gaps)."""

    mask: MaskArrays
    edges: np.ndarray
    images: int


def _document(drawn: Columns, at: int, whole_group: bool) -> tuple[np.ndarray, np.ndarray]:
    """Branch and group of each token of a document: opening text, units with stamps, text, annotations."""
    opening = int(drawn.text[at]) // 4
    stamp, image, units = int(drawn.stamp_tokens[at]), int(drawn.image_tokens[at]), int(drawn.images[at])
    unit_ids = np.zeros(units, np.int32) if whole_group else np.arange(units, dtype=np.int32)
    media = np.full((units, stamp + image), CAUSAL_ONLY, np.int32)
    media[:, stamp:] = unit_ids[:, None]
    asked, each = int(drawn.annotations[at]), int(drawn.annotation_tokens[at])
    text = np.full(int(drawn.text[at]), CAUSAL_ONLY, np.int32)
    group = np.concatenate(
        [text[:opening], media.reshape(-1), text[opening:], np.full(asked * each, CAUSAL_ONLY, np.int32)]
    )
    branch = np.zeros(len(group), np.int32)
    if asked:
        branch[-asked * each :] = np.repeat(np.arange(1, asked + 1), each)
    return branch, group


def _best_fit_decreasing(sizes: np.ndarray, seq_len: int) -> list[list[int]]:
    """Documents of each pack, largest first, each into the fullest pack that has room."""
    bins: list[list[int]] = []
    free: list[tuple[int, int]] = []
    for at in np.argsort(-sizes, kind="stable").tolist():
        place = bisect_left(free, (int(sizes[at]), -1))
        if place == len(free):
            room, which = seq_len, len(bins)
            bins.append([])
        else:
            room, which = free.pop(place)
        bins[which].append(at)
        insort(free, (room - int(sizes[at]), which))
    return bins


def packs(mixture: str, n: int, seed: int, *, seq_len: int = SEQ_LEN, align: int = 32) -> list[Pack]:
    """``n`` packs out of many more, drawn evenly; documents start at multiples of ``align``, in random order."""
    pool = max(2000, 20 * n)
    drawn, rng = columns(mixture, pool, seed, seq_len - align), np.random.default_rng(seed + 1)
    aligned = -(-drawn.tokens // align) * align
    bins = _best_fit_decreasing(aligned, seq_len)
    chosen = rng.choice(len(bins), size=n, replace=len(bins) < n)
    return [_pack(drawn, MIXTURES[mixture], rng.permutation(bins[c]), aligned, seq_len) for c in chosen]


def _pack(drawn: Columns, kinds: tuple[Kind, ...], members: np.ndarray, aligned: np.ndarray, seq_len: int) -> Pack:
    doc = np.full(seq_len, PADDING_DOC, np.int32)
    branch, group = np.zeros(seq_len, np.int32), np.full(seq_len, CAUSAL_ONLY, np.int32)
    edges = [0]
    for number, at in enumerate(members.tolist()):
        branches, groups = _document(drawn, at, kinds[drawn.kind[at]].whole_group)
        here = slice(edges[-1], edges[-1] + len(groups))
        doc[here], branch[here], group[here] = number, branches, groups
        edges.append(edges[-1] + int(aligned[at]))
    if edges[-1] < seq_len:
        edges.append(seq_len)
    mask = MaskArrays(doc_ids=doc, branch_ids=branch, group_ids=group)
    return Pack(mask=mask, edges=np.array(edges, np.int64), images=int(drawn.images[members].sum()))
