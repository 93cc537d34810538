"""What is known of the units whose pictures become a model's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from jaxtyping import UInt8

from preshard.schemas.manifest import UnitKind

Picture = UInt8[np.ndarray, "height width 3"]


@dataclass(frozen=True, kw_only=True, slots=True)
class InputUnit:
    """A unit with its stored pictures, in order.

    Attributes:
        document: the document of the pack that shows it.
        medium: which of the document's images and videos it belongs to.
        kind: a still image, a frame, or frames that the encoder takes together.
        grid: patches along time, height and width.
        pictures: RGB, of one size.
    """

    document: int
    medium: int
    kind: UnitKind
    grid: tuple[int, int, int]
    pictures: tuple[Picture, ...]


def stills(units: Sequence[InputUnit]) -> list[InputUnit]:
    """Units that are still images."""
    return [unit for unit in units if unit.kind == "image"]


def videos(units: Sequence[InputUnit]) -> list[list[InputUnit]]:
    """Units of videos, those of one video together."""
    moving = (unit for unit in units if unit.kind != "image")
    return [list(own) for _, own in groupby(moving, key=lambda unit: (unit.document, unit.medium))]
