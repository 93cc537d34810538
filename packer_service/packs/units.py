"""The units of a document: what must not be split between vision encoders, one row for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Float64, Int64


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Units:
    """Units of a document (or of a piece of one) in the order of their tokens, or those of a pack as they are stored.

    Attributes:
        kinds: what each unit is, an index into ``preshard.schemas.manifest.UNIT_KINDS``.
        edges: half-open range of the unit's tokens, with the marks that belong to it.
        grids: patches that the encoder sees, along time, height and width.
        patches: number of patches that the encoder sees, over all of its pictures.
        rows: pooled rows that the unit makes, and so tokens that it fills.
        crops: pictures of it that a shard stores.
        loads: the encoder's work, in multiplications of its forward pass.
        media: number of the image or video that the unit belongs to, counted from 0 in the document.
        time_steps: how much the temporal position grows from a unit of a video to its next, where positions have three
            axes.
        numbers: number of the unit in the whole document, counted from 0.
    """

    kinds: Int64[np.ndarray, "units"]
    edges: Int64[np.ndarray, "units 2"]
    grids: Int64[np.ndarray, "units 3"]
    patches: Int64[np.ndarray, "units"]
    rows: Int64[np.ndarray, "units"]
    crops: Int64[np.ndarray, "units"]
    loads: Int64[np.ndarray, "units"]
    media: Int64[np.ndarray, "units"]
    time_steps: Float64[np.ndarray, "units"]
    numbers: Int64[np.ndarray, "units"]

    def __len__(self) -> int:
        return len(self.kinds)

    @classmethod
    def none(cls) -> Units:
        """No unit."""
        empty = {field.name: np.zeros(0, np.int64) for field in fields(cls)}
        shaped = {"edges": np.zeros((0, 2), np.int64), "grids": np.zeros((0, 3), np.int64), "time_steps": np.zeros(0)}
        return cls(**{**empty, **shaped})

    @classmethod
    def joined(cls, parts: Sequence[Units]) -> Units:
        """The units of several parts, one after the other, as they are."""
        every = [cls.none(), *parts]
        return cls(**{f.name: np.concatenate([getattr(part, f.name) for part in every]) for f in fields(cls)})

    def of(self, chosen: np.ndarray | slice) -> Units:
        """Some of the units, their images and videos counted from 0 again."""
        chosen_fields = {field.name: getattr(self, field.name)[chosen] for field in fields(self)}
        chosen_fields["media"] = np.unique(chosen_fields["media"], return_inverse=True)[1].astype(np.int64)
        return replace(self, **chosen_fields)

    def reordered(self, order: Int64[np.ndarray, "units"]) -> Units:
        """The same units in another order."""
        return replace(self, **{field.name: getattr(self, field.name)[order] for field in fields(self)})

    def moved(self, tokens: int, media: int = 0) -> Units:
        """The same units so many tokens, and images and videos, further on."""
        return replace(self, edges=self.edges + tokens, media=self.media + media)
