"""Tiles that are listed where batches are read, in a loader's workers, and not between two layers of a step.

Which tiles a rank's kernel calls meet follows from a batch alone, and listing them takes the host up to twenty
milliseconds. A worker plans a batch's attention as the step will, with a kernel that only lists; the step plans it
again and takes the lists in the order in which they were made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch.distributed as dist

from preshard.trainer.attention.bind import Exchange, bind
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.kernels import Kernel, Prepared
from preshard.trainer.attention.mask import Groups, MaskTensors, PackPart, count_layers
from preshard.trainer.attention.tiles import TileList, Tiles, count_occupied, list_for

NO_GROUP = cast("dist.ProcessGroup", "a group that a worker does not have")
"""Stands for the ring's group where nothing is sent, as a ring without a group has one rank."""


@dataclass(frozen=True, kw_only=True)
class TileLister:
    """``lister(batch)``: the tiles of a batch under one kind of attention. It can be pickled.

    Attributes:
        kind: one of ``preshard.attention.KINDS``.
        exchange: of the kind ``gather``.
        cp: this rank's place, without process groups.
        device_type: where the attention will be computed.
        windows: of each layer; empty if no layer has one.
        groups: in which layers bidirectional groups hold.
    """

    kind: str
    exchange: Exchange
    cp: ContextParallel
    device_type: str
    windows: tuple[int | None, ...] = ()
    groups: Groups = "all"

    @classmethod
    def of(
        cls,
        kind: str,
        cp: ContextParallel,
        *,
        exchange: Exchange,
        device_type: str,
        windows: tuple[int | None, ...] = (),
        groups: Groups = "all",
    ) -> TileLister:
        """The lister of a rank in its process group."""
        alone = replace(cp, ulysses_group=None, ring_group=None, cp_group=None)
        return cls(kind=kind, exchange=exchange, cp=alone, device_type=device_type, windows=windows, groups=groups)

    def __call__(self, batch: PackPart) -> ListedTiles:
        """Lists the tiles of a batch that is on the CPU.

        Raises:
            PreshardError: as ``preshard.attention.bind``.
        """
        mask, kernel = MaskTensors.of(batch), _ListingKernel(self.device_type)
        cp = replace(self.cp, ring_group=NO_GROUP if self.cp.ring_degree > 1 else None)
        for window in count_layers(self.windows, batch.seq_len, self.groups):
            of_layers = mask.within(window, self.groups)
            bind(self.kind, batch.layout, of_layers, cp, exchange=self.exchange, kernel=kernel)
        n_tiles = count_tiles(batch, self.windows, self.groups)
        return ListedTiles(lister=self, calls=tuple(kernel.calls), n_tiles=n_tiles)


@dataclass(frozen=True, kw_only=True)
class ListedTiles:
    """Tiles that a :class:`TileLister` found.

    Attributes:
        lister: who found it.
        calls: the tiles of each kernel call, in the order in which they are prepared: window by window.
        n_tiles: see :func:`count_tiles`.
    """

    lister: TileLister
    calls: tuple[TileList, ...]
    n_tiles: float


def count_tiles(batch: PackPart, windows: Sequence[int | None] = (), groups: Groups = "all") -> float:
    """Tiles of 128 x 128 between this rank's queries and the keys of the whole pack: its work, however it is shared.

    Args:
        batch: this rank's part of a pack.
        windows: of each layer; empty if no layer has one. Tiles are those of a layer on average.
        groups: in which layers bidirectional groups hold.
    """
    masks, place = count_layers(windows, batch.seq_len, groups), batch.positions.cpu().numpy()
    total = 0
    for window, layers in masks.items():
        mask = MaskTensors.of(batch).within(window, groups)
        total += layers * count_occupied(mask.at(place), mask)
    return total / sum(masks.values())


class _ListingKernel:
    """Prepares as the kernel for a type of device does, keeps the lists, and computes nothing."""

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self.calls: list[TileList] = []

    def prepare(self, queries: MaskTensors, keys: MaskTensors, listed: TileList | None = None) -> Tiles:  # noqa: ARG002
        tiles = list_for(self._device_type, queries, keys)
        self.calls.append(tiles.alone())
        return tiles

    forward = backward = whole = cast("Any", None)


class ListedKernel:
    """A kernel whose tiles are listed already.

    Args:
        kernel: computes.
        calls: the lists, in the order in which they will be asked for.
    """

    def __init__(self, kernel: Kernel, calls: tuple[TileList, ...]) -> None:
        self._calls: Iterator[TileList] = iter(calls)
        self._prepare = kernel.prepare
        self.forward, self.backward, self.whole = kernel.forward, kernel.backward, kernel.whole

    def prepare(self, queries: MaskTensors, keys: MaskTensors, listed: TileList | None = None) -> Prepared:
        return self._prepare(queries, keys, listed if listed is not None else next(self._calls))
