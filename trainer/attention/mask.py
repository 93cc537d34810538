"""The mask's arrays as tensors, and the rule of the mask between any two sets of tokens.

Shapes: N tokens of a set, Q queries, T keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Int32, Int64
from torch import Tensor

from preshard.schemas.layout import TokenLayout
from preshard.schemas.sequence import CAUSAL_ONLY, MaskArrays, drop_groups, list_places
from preshard.trainer.device import to_device

ARRAYS = tuple(field.name for field in fields(MaskArrays))
"""Names of the mask's arrays, the same on the host and on the device."""

Groups = Literal["all", "window"]
"""Whether bidirectional groups hold in all layers of a model, or in those with a sliding window alone."""


class PackPart(Protocol):
    """A rank's part of a pack, as far as attention asks: :class:`preshard.data.RankBatch` is one.

    Attributes:
        doc_ids, branch_ids, group_ids: the mask's arrays of the whole pack in natural order.
        layout: runs of every ring rank, and the key blocks that each needs.
        positions: the natural position of each token of this rank.
        seq_len: tokens of the pack.
    """

    @property
    def doc_ids(self) -> Int32[Tensor, "seq"]: ...
    @property
    def branch_ids(self) -> Int32[Tensor, "seq"]: ...
    @property
    def group_ids(self) -> Int32[Tensor, "seq"]: ...
    @property
    def layout(self) -> TokenLayout: ...
    @property
    def positions(self) -> Int64[Tensor, "local"]: ...
    @property
    def seq_len(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class MaskTensors:
    """Definition of the mask of some tokens (see ``preshard.schemas.sequence.MaskArrays``), on a device and the host.

    A whole pack is its tokens 0 to S - 1 in natural order; ``at`` picks the queries of a slice, or the keys they meet.
    ``within`` restricts the mask of a whole pack to a window.

    Attributes:
        positions: natural positions of the tokens, on the device of the attention.
        doc_ids, branch_ids, group_ids: the mask's arrays of these tokens, on the same device.
        host_positions, host: the same on the CPU, where tiles are listed without waiting for the device.
        window: a query sees only keys whose place (``preshard.schemas.sequence.list_places``) is less than ``window``
            before its own; None if it sees all of them.
        places, horizons, host_places: with a window, the place of each token; and the last place that is too far back
            for it, on the device.
    """

    positions: Int32[Tensor, "N"]
    doc_ids: Int32[Tensor, "N"]
    branch_ids: Int32[Tensor, "N"]
    group_ids: Int32[Tensor, "N"]
    host_positions: Int64[np.ndarray, "N"]
    host: MaskArrays
    window: int | None = None
    places: Int32[Tensor, "N"] | None = None
    horizons: Int32[Tensor, "N"] | None = None
    host_places: Int64[np.ndarray, "N"] | None = None

    @classmethod
    def of(cls, batch: PackPart, moved: PackPart | None = None) -> MaskTensors:
        """The mask of a batch's whole pack, on the batch's device.

        Args:
            batch: best on the CPU; elsewhere the host waits for it.
            moved: the same batch where the attention will be computed, if that is elsewhere.
        """
        host = MaskArrays(**{name: getattr(batch, name).cpu().numpy() for name in ARRAYS})
        return cls._whole({name: getattr(moved or batch, name) for name in ARRAYS}, host)

    @classmethod
    def from_arrays(cls, arrays: MaskArrays) -> MaskTensors:
        """The mask of a whole pack, on the CPU."""
        return cls._whole({name: torch.from_numpy(getattr(arrays, name)) for name in ARRAYS}, arrays)

    @classmethod
    def _whole(cls, tensors: dict[str, Tensor], host: MaskArrays) -> MaskTensors:
        positions = torch.arange(host.seq_len, dtype=torch.int32, device=tensors["doc_ids"].device)
        named: dict[str, Any] = {"positions": positions, **tensors}
        return cls(**named, host_positions=np.arange(host.seq_len), host=host)

    def within(self, window: int | None, groups: Groups = "all") -> MaskTensors:
        """The mask of layers with a sliding window over the same whole pack, or of those without.

        Args:
            window: tokens that the layers see; None if they have no window.
            groups: whether bidirectional groups hold in layers without one.
        """
        if window is None and groups == "all":
            return self
        if window is None:
            return replace(self, group_ids=torch.full_like(self.group_ids, CAUSAL_ONLY), host=drop_groups(self.host))
        assert self.host_positions[-1:].tolist() == [self.host.seq_len - 1], "a window restricts whole packs"
        host_places = list_places(self.host).astype(np.int64)
        places = to_device(torch.from_numpy(host_places.astype(np.int32)), self.device)
        return replace(self, window=window, places=places, horizons=places - window, host_places=host_places)

    def to(self, device: torch.device | str) -> MaskTensors:
        """The same tokens on another device; the host's copy is shared."""
        return self._with_tensors(lambda tensor: to_device(tensor, device))

    def at(self, places: Int64[np.ndarray, "M"]) -> MaskTensors:
        """Some of these tokens, in this order. Of a whole pack, ``places`` are natural positions."""
        index = to_device(torch.from_numpy(places), self.device)
        host = MaskArrays(**{name: getattr(self.host, name)[places] for name in ARRAYS})
        picked = self._with_tensors(lambda tensor: tensor[index])
        host_places = None if self.host_places is None else self.host_places[places]
        return replace(picked, host_positions=self.host_positions[places], host=host, host_places=host_places)

    @property
    def device(self) -> torch.device:
        return self.doc_ids.device

    def __len__(self) -> int:
        return len(self.host_positions)

    def _with_tensors(self, change: Callable[[Tensor], Tensor]) -> MaskTensors:
        named = {name: getattr(self, name) for name in ("positions", *ARRAYS, "places", "horizons")}
        tensors: dict[str, Any] = {name: change(tensor) for name, tensor in named.items() if tensor is not None}
        return replace(self, **tensors)


def count_layers(windows: Sequence[int | None], seq_len: int, groups: Groups = "all") -> dict[int | None, int]:
    """The masks of a model's layers on packs of a length: how many layers have each window, None first.

    Args:
        windows: of each layer, None for a layer without; empty if no layer has one.
        seq_len: a window that is no shorter hides nothing.
        groups: under ``window``, layers with and without a window have two masks even so.
    """
    hides = [window is not None and (window < seq_len or groups == "window") for window in windows]
    shorter = [window if hidden else None for window, hidden in zip(windows, hides, strict=True)] or [None]
    found = Counter(shorter)
    return {window: found[window] for window in sorted(found, key=lambda window: window or 0)}


def visible(queries: MaskTensors, keys: MaskTensors, q: Tensor, k: Tensor) -> Bool[Tensor, "..."]:
    """Whether query ``q`` may see key ``k``; ``q`` and ``k`` index the two sets and broadcast.

    The rule is that of ``preshard.schemas.sequence.MaskArrays``, and of the window if there is one. Padding sees
    nothing and is seen by nothing.
    """
    doc_q, branch_k = queries.doc_ids[q], keys.branch_ids[k]
    same_doc = (doc_q == keys.doc_ids[k]) & (doc_q >= 0)
    branch = (branch_k == 0) | (branch_k == queries.branch_ids[q])
    group_q = queries.group_ids[q]
    together = (group_q == keys.group_ids[k]) & (group_q >= 0)
    allowed = same_doc & branch & ((keys.positions[k] <= queries.positions[q]) | together)
    if queries.horizons is None or keys.places is None:
        return allowed
    # Compared with a tensor: a number would be a constant of FlexAttention's graph.
    return allowed & (keys.places[k] > queries.horizons[q])


def visible_block(queries: MaskTensors, keys: MaskTensors, rows: slice, columns: Tensor) -> Bool[Tensor, "Q T"]:
    """``visible`` for a range of queries and some keys, as a matrix."""
    q = torch.arange(rows.start, rows.stop, device=columns.device)
    return visible(queries, keys, q[:, None], columns[None, :])
