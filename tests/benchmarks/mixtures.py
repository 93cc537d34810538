"""Seeded mixtures of documents for the benchmarks: as columns of lengths, and as packs of mask arrays.

``mixed`` is the mixture on which the targets are stated. ``annotated`` has many questions to one medium, ``long`` long
texts and videos whose image tokens all see each other, the hardest shape of mask. Everything follows from the seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SEQ_LEN = 36_864


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of document. Ranges are half open and drawn evenly; text is log-normal.

    Attributes:
        share: its part of the documents.
        text_median, text_sigma: tokens of text of the shared part.
        images: units in a document.
        image_tokens: tokens of a unit.
        stamp_tokens: tokens of text before each unit.
        annotations: questions that see the shared part and themselves; below 2 there are none.
        annotation_tokens: tokens of each.
        whole_group: image tokens of the whole document see each other, and not just those of one unit.
    """

    share: float
    text_median: float
    text_sigma: float
    images: tuple[int, int] = (0, 1)
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
            share=0.25, text_median=150, text_sigma=0.7, images=(8, 385), image_tokens=(81, 82), stamp_tokens=(4, 7)
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
