"""A dataset as one context-parallel rank reads it: its slice of the tokens and its crops, by ranges of bytes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from pyarrow.fs import FileSystem
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from schemas.config import stored_config
from schemas.errors import ReaderError
from schemas.layout import rank_positions
from schemas.sequence import IGNORE_INDEX, PackedSequence
from trainer.data.batch import RankBatch
from trainer.data.crops import read_crops
from trainer.data.files import DatasetFiles
from trainer.data.header import crop_edges, pool_positions, read_header, token_layout
from trainer.data.order import epoch_order
from trainer.data.sequences import find_sequences
from trainer.data.split import plan_split

LOCAL = ("tokens", "labels", "position_ids", "pool_ids")
"""Arrays of which a rank gets its slice, as int64, the dtype that torch indexes with."""


class PackedDataset(IterableDataset[RankBatch]):
    """Iterates over the steps of an epoch; each gives one rank's :class:`~trainer.data.batch.RankBatch` of one pack.

    Step s takes the packs ``[s * dp_size, (s + 1) * dp_size)`` of the epoch's order (see :mod:`trainer.data.order`),
    and data-parallel rank d the d-th of them. Every rank of a context-parallel group gets the same pack. If the packs
    do not divide by ``dp_size``, the last ones are left out: collectives would hang in a step that some ranks sit out.

    Of each sample it reads the header part and this rank's crops, two ranges of bytes, and nothing else; ``bytes_read``
    counts them. It can be pickled and works in a ``DataLoader`` with any number of workers: pass ``batch_size=None``,
    since a pack is a batch already. Each of n workers takes every n-th step, and the loader returns them in order.

    Iteration continues from the current position and ends with the epoch; the next iteration is the next epoch. Workers
    have copies of the dataset, so with workers call ``set_epoch`` before each epoch, and save ``RankBatch.state``, not
    ``state_dict()``: the dataset cannot know which of its batches have been trained on. For a stream through all epochs
    with persistent workers, see :func:`trainer.data.loader.make_loader`.

    Args:
        path: the dataset's folder, a path or a URI that pyarrow opens.
        dp_rank: this data-parallel rank, below ``dp_size``.
        dp_size: data-parallel ranks; a divisor of the dataset's ``order.window`` gives steps without a straggler.
        ulysses_degree: ranks among which a ring rank's slice is cut into equal consecutive pieces.
        ring_degree: ranks among which the layout deals the pack.
        cp_rank: ``ring_rank * ulysses_degree + ulysses_rank``, below the CP size ``ulysses_degree * ring_degree``,
            which divides ``seq_len``.
        layout: the layout's scheme. ``contiguous``, ``zigzag`` and the image boundaries are derived while reading at
            degrees and sizes that the dataset was not packed for, and rank 0 warns once of what packing for them would
            gain. The balanced layouts exist only where they were packed.
        seed: chooses the orders of the epochs.
        epoch: the epoch to start with.
        filesystem: the filesystem that holds ``path``, where a path or URI cannot say it.

    Raises:
        ReaderError: a rank is out of range, or the dataset neither has the layout nor lets it be derived; names what
            would do.
        FormatError: the manifest or ``packs.parquet`` is missing or breaks the format. Iteration raises it for a sample
            whose bytes break the format.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        dp_rank: int = 0,
        dp_size: int = 1,
        ulysses_degree: int = 1,
        ring_degree: int = 1,
        cp_rank: int = 0,
        layout: str = "contiguous",
        seed: int = 0,
        epoch: int = 0,
        filesystem: FileSystem | None = None,
    ) -> None:
        self.files = DatasetFiles(path, filesystem)
        self.config = stored_config(self.files.manifest)
        self.split = plan_split(self.config, layout=layout, ring_degree=ring_degree, ulysses_degree=ulysses_degree)
        _check_rank("dp_rank", dp_rank, "dp_size", dp_size)
        _check_rank("cp_rank", cp_rank, "ulysses_degree * ring_degree", ulysses_degree * ring_degree)
        if self.split.advice and dp_rank == cp_rank == 0:
            warnings.warn(self.split.advice, stacklevel=2)
        self.dp_rank, self.dp_size = dp_rank, dp_size
        self.cp_rank, self.cp_size = cp_rank, self.split.cp_size
        self.ring_rank, self.ulysses_rank = divmod(cp_rank, ulysses_degree)
        self.ulysses_degree = ulysses_degree
        self.seed = seed
        self._packs = self.files.packs()
        if self.n_packs < dp_size:
            raise ReaderError(f"dp_size is {dp_size}; the dataset has only {self.n_packs} packs: take at most as many")
        self.set_epoch(epoch)

    @property
    def n_packs(self) -> int:
        """Packs of the dataset."""
        return len(self._packs)

    @property
    def bytes_read(self) -> int:
        """Bytes asked from shards by this copy of the dataset."""
        return self.files.bytes_read

    def __len__(self) -> int:
        """Steps of the current pass over the epoch, or of the next one, counted from where it begins."""
        return (self.n_packs - self._begin) // self.dp_size

    def set_epoch(self, epoch: int) -> None:
        """Goes to the start of an epoch.

        Raises:
            ReaderError: ``epoch`` is negative.
        """
        if epoch < 0:
            raise ReaderError(f"epoch is {epoch}; epochs count from 0: take 0 or more")
        self.epoch = epoch
        self._begin = self._position = 0

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch. Only valid without workers; with them use ``RankBatch.state``."""
        return self._state(self._position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a position: the next step takes packs that no earlier step has taken.

        The position counts packs, so it is valid for any ``dp_size`` and any split of the sequence.

        Raises:
            ReaderError: a field is missing, the dataset or seed differs, or the position lies outside the dataset.
        """
        missing = [name for name in self._state(0) if name not in state]
        if missing:
            raise ReaderError(f"state has no {missing[0]}; pass what state_dict() or RankBatch.state returned")
        for name in ("dataset_id", "seed"):
            given, mine = state[name], self._state(0)[name]
            if given != mine:
                raise ReaderError(
                    f"state is of {name} {given!r}, not {mine!r}: open that one, as the position means other packs here"
                )
        if not 0 <= state["position"] <= self.n_packs:
            raise ReaderError(
                f"state's position is {state['position']}; it must be from 0 to the dataset's {self.n_packs} packs"
            )
        self.set_epoch(state["epoch"])
        self._begin = self._position = state["position"]

    def _state(self, position: int) -> dict[str, Any]:
        return {
            "dataset_id": self.files.manifest.dataset_id,
            "seed": self.seed,
            "epoch": self.epoch,
            "position": position,
        }

    def __iter__(self) -> Iterator[RankBatch]:
        self._begin = self._position
        worker = get_worker_info()
        first, every = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        yield from self.steps(first, every)

    def steps(self, first: int = 0, every: int = 1) -> Iterator[RankBatch]:
        """Every n-th step of the current or next pass; afterwards goes to the start of the next epoch."""
        order = epoch_order(self.n_packs, window=self.config.order.window, seed=self.seed, epoch=self.epoch)
        for step in range(first, len(self), every):
            at = self._begin + step * self.dp_size
            batch = self._read(int(order[at + self.dp_rank]), step, self._state(at + self.dp_size))
            self._position = at + self.dp_size
            yield batch
        self.set_epoch(self.epoch + 1)

    def _read(self, pack_id: int, step: int, state: dict[str, Any]) -> RankBatch:
        place, before = self._packs[pack_id], self.bytes_read
        manifest = self.files.manifest
        header = read_header(self.files, place, self.config, manifest.axes)
        layout = token_layout(header, self.split, self.config, place.where)
        edges = crop_edges(header.head, self.split, place.where)
        crops = read_crops(
            self.files,
            place,
            header.head,
            range(int(edges.crops[self.cp_rank]), int(edges.crops[self.cp_rank + 1])),
            image_format=self.config.image_format,
        )
        first_unit, end_unit = edges.units[self.cp_rank : self.cp_rank + 2].tolist()
        positions = rank_positions(
            layout.runs,
            ring_rank=self.ring_rank,
            ulysses_degree=self.ulysses_degree,
            ulysses_rank=self.ulysses_rank,
        )
        sequences = find_sequences(header.sequence.mask)
        return RankBatch(
            pack_id=pack_id,
            key=place.key,
            step=step,
            **_local(header.sequence, torch.from_numpy(positions)),
            doc_ids=torch.from_numpy(header.sequence.doc_ids),
            branch_ids=torch.from_numpy(header.sequence.branch_ids),
            group_ids=torch.from_numpy(header.sequence.group_ids),
            layout=layout,
            pixels=torch.from_numpy(crops.buffer),
            picture_sizes=torch.from_numpy(crops.sizes),
            crop_side=self.config.vision.image_size if manifest.model is None else None,
            units=tuple(header.head.units[first_unit:end_unit]),
            unit_edges=torch.from_numpy(edges.of_units[first_unit : end_unit + 1] - edges.crops[self.cp_rank]),
            model=manifest.model,
            image_edges=torch.from_numpy(edges.crops),
            pool_edges=torch.from_numpy(edges.pooled),
            pool_positions=torch.from_numpy(pool_positions(header.sequence, int(edges.pooled[-1]), place.where)),
            total_loss_weight=float(header.sequence.loss_weights.sum(dtype=np.float64)),
            sequence_edges=torch.from_numpy(sequences.edges),
            longest_sequence=sequences.longest,
            not_causal=sequences.not_causal,
            cp_rank=self.cp_rank,
            bytes_read=self.bytes_read - before,
            state=state,
        )


def _local(sequence: PackedSequence, positions: Int64[Tensor, "local"]) -> dict[str, Tensor]:
    local = {name: torch.from_numpy(getattr(sequence, name))[..., positions].long() for name in LOCAL}
    loss_tokens = torch.nonzero(local["labels"] != IGNORE_INDEX)[:, 0]
    loss_weights = torch.from_numpy(sequence.loss_weights)[positions]
    return {**local, "loss_weights": loss_weights, "loss_tokens": loss_tokens, "positions": positions}


def _check_rank(name: str, rank: int, size_name: str, size: int) -> None:
    if not 0 <= rank < size:
        raise ReaderError(f"{name} is {rank}; with {size_name} {size} it must be at least 0 and below {size}")
