"""The ways to split the packs of a step over a number of devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import lcm

from preshard.packer_service.report.advice.figures import Kind
from preshard.schemas.config import PackConfig
from preshard.schemas.layout import SCHEMES
from preshard.schemas.model.savings import TILED_LOGITS_MIB, TILES, Offload, Recompute, Saving, halved, list_savings

WHOLE = "contiguous"
"""The layout at ring degree 1, where all are the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitChoice:
    """One way: ``ulysses * ring * dp`` devices. Ranks of a pack are neighbours, those of Ulysses nearest."""

    ulysses: int
    ring: int
    layout: str
    kind: Kind
    dp: int

    @property
    def cp_size(self) -> int:
        return self.ulysses * self.ring

    def options(self, saving: Saving) -> str:
        """Options of ``preshard.train`` for this split; what its defaults are is left out."""
        named = {
            "ulysses": str(self.ulysses) if self.ulysses > 1 else "",
            "ring": str(self.ring) if self.ring > 1 else "",
            "layout": self.layout if self.ring > 1 else "",
            "attention": self.kind if self.cp_size > 1 else "",
            "dp-shard": str(self.dp) if self.dp > 1 else "",
            "recompute": saving.recompute if saving.recompute != "none" else "",
            "mlp-tiles": str(TILES) if saving.tiled else "",
            "logits-mib": str(TILED_LOGITS_MIB) if saving.tiled else "",
            "head-stride": str(saving.head_stride) if saving.head_stride else "",
            "offload": saving.offload if saving.offload != "none" else "",
        }
        return " ".join(f"--{name} {value}" for name, value in named.items() if value)

    def savings(self, ways: Sequence[Recompute], kv_heads: int, *, offload: bool) -> Iterator[Saving]:
        """Ways to save memory, the cheapest first.

        Args:
            ways: what may be computed again, the least first.
            kv_heads: of the model.
            offload: whether anything may go to the host.
        """
        for way in ways:
            yield Saving(recompute=way)
        last = ways[-1]
        strides = halved(self.heads_on_the_way(kv_heads) // self.ulysses) if self.kind == "gather" else []
        away: tuple[Offload, ...] = ("state",) if last == "none" else ("host", "all")
        yield from list_savings(last, strides, away if offload else ())

    def heads_on_the_way(self, kv_heads: int) -> int:
        """Key heads that the ranks of Ulysses send between them: copied until they divide."""
        return lcm(kv_heads, self.ulysses)


MOST = 400
"""Splits that are estimated, those over fewest ranks first, which bounds the time of an answer."""


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def possible_splits(
    config: PackConfig, rings: Iterable[tuple[str, int]], *, gpus: int, heads: int
) -> list[SplitChoice]:
    """Every split that a trainer could run, over fewest ranks first; both kinds of attention where there is a ring.

    Args:
        config: the dataset's: its ``seq_len`` must divide by the ranks of a pack.
        rings: schemes and ring degrees with known loads.
        gpus: devices.
        heads: query heads, which the Ulysses degree must divide.
    """
    known = [(scheme, ring) for scheme, ring in rings if ring > 1]
    known.sort(key=lambda entry: (entry[1], SCHEMES.index(entry[0])))
    found: list[SplitChoice] = []
    for ulysses in divisors(gpus):
        if heads % ulysses:
            continue
        for layout, ring in [(WHOLE, 1), *known]:
            ranks = ulysses * ring
            if gpus % ranks or config.seq_len % ranks:
                continue
            kinds: tuple[Kind, ...] = ("gather", "ring") if ring > 1 else ("ulysses",) if ulysses > 1 else ("none",)
            found += [
                SplitChoice(ulysses=ulysses, ring=ring, layout=layout, kind=kind, dp=gpus // ranks) for kind in kinds
            ]
    return sorted(found, key=lambda split: split.cp_size)
