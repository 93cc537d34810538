"""The mask in a sparse form, from which areas, tiles and needs are computed without a dense matrix.

A *class* is a (document, branch) pair, a *group class* a (document, branch, group) triple. The rule of the mask says of
a query of branch b, group g: it sees the keys up to itself of its own class and of its document's branch 0, and later
keys too where they are of its group in one of these two classes. So each class has at most one other class that its
queries see (its *root*), and each group class at most one other group class.

Under a window, a query sees those of these keys whose place in the document alone (see :func:`list_places`) is above
its own place less the window. Places rise along a class, so the keys of a class that consecutive queries see are
consecutive, too: from a place on, up to a position.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from preshard.packer_service.numerics import compiled
from preshard.schemas.manifest import LayerMasks
from preshard.schemas.sequence import MaskArrays

NO_WINDOW = 1 << 40
"""The window of the full mask: longer than any document."""

_BRANCH_ZERO = 1 << 31
"""Value of branch 0 once branches are shifted to be non-negative."""


class MaskIndex(NamedTuple):
    """A mask as runs of tokens with equal (document, branch, group), in natural order.

    Documents, branches and groups may each be scattered over any number of runs. Ids are dense: the same group id in
    two branches or documents has two group classes, so nothing leaks between them. A named tuple, since Numba's kernels
    take one whole.

    Attributes:
        seq_len: tokens of the sequence.
        run_edges: run i is the tokens ``run_edges[i]:run_edges[i + 1]``.
        run_class: class of each run; -1 for padding.
        run_group: group class of each run; -1 for tokens that see no later token.
        class_root: class of the same document's branch 0; -1 where that is the class itself or does not occur.
        group_root: the same group's class in branch 0 of the document; -1 likewise.
        run_place: place of each run's first token in its document alone.
        class_prefix: place of each class's first token: 0, or in an annotation the length of the shared prefix.
        window: a key is hidden from a query unless their places differ by less.
    """

    seq_len: int
    run_edges: Int64[np.ndarray, "runs_plus_1"]
    run_class: Int32[np.ndarray, "runs"]
    run_group: Int32[np.ndarray, "runs"]
    class_root: Int32[np.ndarray, "classes"]
    group_root: Int32[np.ndarray, "groups"]
    run_place: Int64[np.ndarray, "runs"]
    class_prefix: Int64[np.ndarray, "classes"]
    window: int

    def within(self, window: int | None) -> MaskIndex:
        """The same mask under a window; None for none."""
        return self._replace(window=NO_WINDOW if window is None else window)

    def without_groups(self) -> MaskIndex:
        """The same mask if no token sees a later one."""
        return self._replace(run_group=np.full_like(self.run_group, -1), group_root=self.group_root[:0])

    @staticmethod
    def of(mask: MaskArrays | MaskIndex) -> MaskIndex:
        """The index of a mask; an index is returned as it is."""
        return mask if isinstance(mask, MaskIndex) else index_mask(mask)


class WeighedMask(NamedTuple):
    """One of a model's masks, and how often its paths count."""

    mask: MaskIndex
    weight: int


def full_and_window(mask: MaskIndex, layers: LayerMasks | None) -> tuple[MaskIndex, MaskIndex | None]:
    """The mask of a model's full layers, and that of its layers with a window, if it has any."""
    if layers is None:
        return mask, None
    return mask if layers.groups == "all" else mask.without_groups(), mask.within(layers.window)


def weigh_masks(mask: MaskIndex, layers: LayerMasks | None) -> list[WeighedMask]:
    """The masks that a model has layers of, each weighed by their number."""
    full, window = full_and_window(mask, layers)
    if layers is None or window is None:
        return [WeighedMask(full, 1)]
    common = math.gcd(layers.full_layers, layers.window_layers)
    both = [WeighedMask(full, layers.full_layers // common), WeighedMask(window, layers.window_layers // common)]
    return [each for each in both if each.weight]


@compiled
def run_at(index: MaskIndex, position: int) -> int:
    """The last run that begins at a position or before it."""
    run, above = 0, len(index.run_edges)
    while above - run > 1:
        middle = (run + above) // 2
        if index.run_edges[middle] <= position:
            run = middle
        else:
            above = middle
    return run


def _lookup(keys: Int64[np.ndarray, "keys"], wanted: Int64[np.ndarray, "keys"]) -> Int32[np.ndarray, "keys"]:
    """Place of each wanted value in sorted ``keys``; -1 where it is missing or is the value at the same place."""
    place = np.searchsorted(keys, wanted)
    place[place == len(keys)] = 0
    found = keys[place] == wanted if len(keys) else np.zeros(0, bool)
    return np.where(found & (place != np.arange(len(keys))), place, -1).astype(np.int32)


def index_mask(mask: MaskArrays) -> MaskIndex:
    """Prepare a mask. Linear in its length, and exact for any arrays that the rule of the mask is defined on."""
    doc, branch, group = mask.doc_ids, mask.branch_ids, mask.group_ids
    changed = (doc[1:] != doc[:-1]) | (branch[1:] != branch[:-1]) | (group[1:] != group[:-1])
    edges = np.concatenate([[0], np.flatnonzero(changed) + 1, [len(doc)]]).astype(np.int64)
    heads = edges[:-1] if len(doc) else edges[:0]
    edges = edges if len(doc) else edges[:1]
    doc64, branch64, group64 = (a[heads].astype(np.int64) for a in (doc, branch, group))

    run_class = np.full(len(heads), -1, np.int32)
    real = doc64 >= 0
    class_keys, run_class[real] = np.unique(((doc64 << 32) + branch64 + _BRANCH_ZERO)[real], return_inverse=True)
    class_root = _lookup(class_keys, (class_keys >> 32 << 32) + _BRANCH_ZERO)

    run_group = np.full(len(heads), -1, np.int32)
    grouped = real & (group64 >= 0)
    # A class's number and a group id each fit 31 bits.
    group_keys, run_group[grouped] = np.unique(
        (run_class.astype(np.int64) << 32)[grouped] + group64[grouped], return_inverse=True
    )
    owner, inner = group_keys >> 32, group_keys & 0xFFFFFFFF
    root_of_owner = class_root[owner].astype(np.int64)
    group_root = _lookup(group_keys, np.where(root_of_owner >= 0, (root_of_owner << 32) + inner, -1))
    tokens = np.bincount(run_class[real], weights=np.diff(edges)[real], minlength=len(class_keys)).astype(np.int64)
    class_prefix = np.where(class_root >= 0, tokens[class_root], 0) if len(tokens) else tokens
    return MaskIndex(
        seq_len=len(doc),
        run_edges=edges,
        run_class=run_class,
        run_group=run_group,
        class_root=class_root,
        group_root=group_root,
        run_place=_first_places(edges, run_class, class_prefix),
        class_prefix=class_prefix,
        window=NO_WINDOW,
    )


@compiled
def _first_places(
    run_edges: Int64[np.ndarray, "runs_plus_1"],
    run_class: Int32[np.ndarray, "runs"],
    class_prefix: Int64[np.ndarray, "classes"],
) -> Int64[np.ndarray, "runs"]:
    """Place of each run's first token; 0 for padding."""
    places, next_place = np.zeros(len(run_class), np.int64), class_prefix.copy()
    for run in range(len(run_class)):
        own = run_class[run]
        if own >= 0:
            places[run] = next_place[own]
            next_place[own] += run_edges[run + 1] - run_edges[run]
    return places
