"""The units of a document: what must not be split between vision encoders, one row for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Int64


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Units:
    """Units of a document (or of a piece of one), in the order of their tokens.

    Attributes:
        kinds: what each unit is, an index into ``schemas.manifest.UNIT_KINDS``.
        edges: half-open range of the unit's tokens, with the marks that belong to it.
        grids: patches that the encoder sees, along time, height and width.
        patches: number of patches that the encoder sees, over all of its pictures.
        rows: pooled rows that the unit makes, and so tokens that it fills.
        crops: pictures of it that a shard stores.
        loads: the encoder's work, an integer in units that are the same for a whole dataset.
        numbers: number of the unit in the whole document.
    """

    kinds: Int64[np.ndarray, "units"]
    edges: Int64[np.ndarray, "units 2"]
    grids: Int64[np.ndarray, "units 3"]
    patches: Int64[np.ndarray, "units"]
    rows: Int64[np.ndarray, "units"]
    crops: Int64[np.ndarray, "units"]
    loads: Int64[np.ndarray, "units"]
    numbers: Int64[np.ndarray, "units"]

    def __len__(self) -> int:
        return len(self.kinds)

    @classmethod
    def none(cls) -> Units:
        """No unit."""
        widths = {"edges": (0, 2), "grids": (0, 3)}
        return cls(**{field.name: np.zeros(widths.get(field.name, (0,)), np.int64) for field in fields(cls)})

    @classmethod
    def joined(cls, parts: Sequence[Units]) -> Units:
        """The units of several parts, one after the other, as they are."""
        every = [cls.none(), *parts]
        return cls(**{f.name: np.concatenate([getattr(part, f.name) for part in every]) for f in fields(cls)})

    def of(self, chosen: np.ndarray | slice) -> Units:
        """Some of the units."""
        return replace(self, **{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    def moved(self, tokens: int) -> Units:
        """The same units so many tokens further on."""
        return replace(self, edges=self.edges + tokens)
