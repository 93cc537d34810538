"""Packed datasets as one context-parallel rank reads them: its slice of the tokens, and its crops."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pyarrow.fs import FileSystem
from torch.utils.data import IterableDataset

from preshard.schemas.errors import ReaderError
from preshard.schemas.files.printed import several
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.files import DatasetFiles
from preshard.trainer.data.order import EndlessEpochs, Stream
from preshard.trainer.data.position import Position, Step
from preshard.trainer.data.reader import PackReader, RankPart, check_rank
from preshard.trainer.extras import load_extra

Weighted = tuple[str | Path, float]
"""A dataset's folder, and its weight in a mixture."""


class PackedDataset(IterableDataset[RankBatch]):
    """Iterates over the steps of an epoch; each gives one rank's ``RankBatch`` of one pack.

    Each step takes the next ``dp_size`` packs of the order (see :mod:`preshard.trainer.data.order`), and data-parallel
    rank d the d-th of them. Every rank of a context-parallel group gets the same pack. A step that begins in one epoch
    and ends in the next belongs to the first, so in any number of steps no pack comes more than once more often than
    another. With ``tail="drop"`` each epoch begins with a step of its own, and packs that fill no step are left out.

    Of each sample it reads the header part and this rank's crops, two ranges of bytes, and nothing else; ``bytes_read``
    counts them. It can be pickled and works in a ``DataLoader`` with any number of workers: pass ``batch_size=None``,
    since a pack is a batch already. Each of n workers takes every n-th step, and the loader returns them in order.

    Iteration continues from the current position and ends with the epoch; the next iteration is the next epoch. Workers
    have copies of the dataset and begin each pass where it is set in the main process: call ``set_epoch`` before each
    epoch, and save ``RankBatch.state`` or the ``state_dict()`` of torchdata's ``StatefulDataLoader``, not that of the
    dataset, which is refused then. For a stream through all epochs, see
    :class:`preshard.trainer.data.loader.PackStream`, and :func:`preshard.trainer.data.loader.make_loader`.

    **Several datasets**, ``[(path, weight), ...]``, are one endless stream, of which each gives its weight's share of
    the packs, to within one chunk at any time. A chunk is as many consecutive packs as divide the ``order.window`` of
    all of them, all from one dataset. Each dataset goes through epochs of its own, so that every pack comes once before
    any of its dataset comes again. ``n_packs`` is the number of packs of all, and an epoch of the mixture is that many
    packs of the stream, whichever these are: small weights go through less of their dataset, large ones through more.

    Args:
        path: the dataset's folder, a path or a URI that pyarrow opens; or several of them with their weights.
        dp_rank: this data-parallel rank, below ``dp_size``.
        dp_size: data-parallel ranks; a divisor of the datasets' ``order.window`` gives steps without a straggler.
        ulysses_degree: ranks among which a ring rank's slice is cut into equal consecutive pieces.
        ring_degree: ranks among which the layout deals the pack.
        cp_rank: ``ring_rank * ulysses_degree + ulysses_rank``, below the CP size ``ulysses_degree * ring_degree``,
            which divides ``seq_len``.
        layout: the layout's scheme. ``contiguous``, ``zigzag`` and the image boundaries are derived while reading at
            degrees and sizes that the dataset was not packed for, and rank 0 warns once of what packing for them would
            gain. The balanced layouts exist only where they were packed.
        seed: chooses the orders of the epochs.
        epoch: the epoch to start with.
        tail: packs at an epoch's end that fill no step: ``wrap`` joins them with the next epoch's first ones, ``drop``
            leaves them out, where there is one dataset.
        filesystem: the filesystem that holds ``path``, where a path or URI cannot say it.
        cache_dir: a folder on this node's disk in which all of its processes keep what they read, across runs.
        cache_limit: bytes that it may take, as a number or a text such as ``500GB``.
        store_timeout: seconds after which a store that fails or hangs is an error; by default 120.
        ahead: packs that this process reads ahead, in threads, while others are used; by default two from a store or
            through a cache, and none from a disk. A loader's worker does so too.

    Raises:
        ReaderError: a rank or weight is out of range, datasets to be mixed were packed for different models or lengths
            (the line names the difference), or a dataset neither has the
            layout nor lets it be derived; names what would do.
        FormatError: the manifest or ``packs.parquet`` is missing or breaks the format. Iteration raises it for a sample
            whose bytes break the format.
    """

    def __init__(
        self,
        path: str | Path | Sequence[Weighted],
        *,
        dp_rank: int = 0,
        dp_size: int = 1,
        ulysses_degree: int = 1,
        ring_degree: int = 1,
        cp_rank: int = 0,
        layout: str = "contiguous",
        seed: int = 0,
        epoch: int = 0,
        tail: Literal["wrap", "drop"] = "wrap",
        filesystem: FileSystem | None = None,
        cache_dir: str | Path | None = None,
        cache_limit: int | str | None = None,
        store_timeout: float | None = None,
        ahead: int | None = None,
    ) -> None:
        part = RankPart(scheme=layout, ulysses_degree=ulysses_degree, ring_degree=ring_degree, cp_rank=cp_rank)
        reads = {"cache_dir": cache_dir, "cache_limit": cache_limit, "store_timeout": store_timeout}
        reads = {name: value for name, value in reads.items() if value is not None}
        given = [(path, 1.0)] if isinstance(path, str | Path) else list(path)
        if not given:
            raise ReaderError("no dataset given; give at least one path with its weight")
        self.readers = [PackReader(DatasetFiles(each, filesystem, **reads), part) for each, _ in given]
        self._ahead = load_extra("store").AHEAD if ahead is None and self.readers[0].files.store else ahead or 0
        self.split = self.readers[0].split
        check_rank("dp_rank", dp_rank, "dp_size", dp_size)
        advice = next((reader.split.advice for reader in self.readers if reader.split.advice), "")
        if advice and dp_rank == cp_rank == 0:
            warnings.warn(advice, stacklevel=2)
        self.dp_rank, self.dp_size, self.seed = dp_rank, dp_size, seed
        self.cp_rank, self.cp_size = cp_rank, self.split.cp_size
        self._order, self.dataset_id = _stream(self.readers, [weight for _, weight in given], seed, tail)
        if self.n_packs < dp_size:
            remedy = "take at most as many" if self.n_packs else "its rejects.parquet says why"
            raise ReaderError(f"dp_size is {dp_size}; the dataset has only {several(self.n_packs, 'pack')}: {remedy}")
        name = {"dataset_id": self.dataset_id, "seed": seed, "tail": tail}
        self._position = Position(self._order, name=name, dp_size=dp_size)
        self.set_epoch(epoch)

    @property
    def files(self) -> DatasetFiles:
        """The files of the dataset; of the first one of a mixture."""
        return self.readers[0].files

    @property
    def config(self) -> Any:
        """The configuration the dataset was packed with, a ``PackConfig``; that of the first one of a mixture. What
        reading needs of it is ``files.config``.
        """
        return load_extra("whole_config").stored_config(self.files.manifest)

    @property
    def is_mixture(self) -> bool:
        """Whether there are several datasets."""
        return len(self.readers) > 1

    @property
    def n_packs(self) -> int:
        """Packs of the dataset, or of all datasets of a mixture."""
        return self._order.n_packs

    @property
    def epoch(self) -> int:
        """The epoch of the position."""
        return self._position.epoch

    @property
    def bytes_read(self) -> int:
        """Bytes asked from shards by this copy of the dataset."""
        return sum(reader.files.bytes_read for reader in self.readers)

    def __len__(self) -> int:
        """Steps of the current pass over the epoch, or of the next one, counted from where it begins."""
        return len(self._position)

    def set_epoch(self, epoch: int) -> None:
        """Goes to the first step that begins in an epoch; where a position in it has just been loaded, stays there.

        So a loop over epochs that begins with the loaded one finishes that one first. Workers of a loader, persistent
        ones too, begin their next pass where the dataset in the main process is set.

        Raises:
            ReaderError: ``epoch`` is negative.
        """
        self._position.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch.

        In a loader's worker, if there are several, it is what that worker has given; ``StatefulDataLoader`` collects
        those of all. Such a state fits the same worker of as many and the same ``dp_size``.

        Raises:
            ReaderError: workers or a stream have read from copies, and this one does not know how far.
        """
        return self._position.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a position: the next step takes packs that no earlier step has taken.

        The position counts packs, so it is valid for any ``dp_size``, any split of the sequence and any number of
        workers; load it before they start. It may also be the whole state of a ``StatefulDataLoader`` around such a
        dataset or its ``PackStream``, saved by any number of workers and data-parallel ranks.

        Raises:
            ReaderError: a field is missing, the datasets, weights, seed or tail differ, the position lies outside the
                epoch, or the state is of a worker, and this is no such worker.
        """
        self._position.load_state_dict(state)

    def __iter__(self) -> Iterator[RankBatch]:
        return self._position.iterate(self._read_steps, endless=False)

    def stream(self) -> Iterator[RankBatch]:
        """Iterates without end: one epoch after another. Workers share the whole stream, not each epoch."""
        return self._position.iterate(self._read_steps, endless=True)

    @property
    def steps_per_epoch(self) -> int:
        """Whole steps in ``n_packs`` packs."""
        return self.n_packs // self.dp_size

    def read_step(self, epoch: int, step: int) -> RankBatch:
        """This rank's part of one step, wherever the dataset itself is; for samplers that say which step comes next.

        Args:
            epoch: from 0. They follow one another in the stream, ``steps_per_epoch`` steps each.
            step: of the epoch, from 0 and below ``steps_per_epoch``.
        """
        epoch, position = self._order.place_of_step(epoch, step, self.dp_size)
        return self._call(Step(step, epoch, position, self._position.state_at(epoch, position + self.dp_size)))()

    def __getitem__(self, pack: int | tuple[int, int]) -> RankBatch:
        """This rank's part of a pack by its number, wherever the dataset is: ``dataset[812]``, or in a mixture
        ``dataset[1, 812]``. Its ``state`` is empty.

        Raises:
            IndexError: there is no such pack.
        """
        batch: RankBatch = load_extra("selection").read_pack(self, pack)
        return batch

    def select(self, where: str, *, every: bool = False) -> PackedDataset:
        """A view of the packs with a document for which an expression is true, with an order and position of its own.

        It begins in this dataset's epoch, and its states fit the same packs alone. Packs are shuffled one by one, so
        steps are not even. Reads all of ``documents.parquet``.

        Args:
            where: an expression of DuckDB over the columns of ``documents.parquet`` and of joined ones, such as
                ``source = 'video_qa' and quality > 0.5``.
            every: whether it must be true for every document of a pack.

        Raises:
            ReaderError: DuckDB is not installed or does not take the expression, fewer packs than ``dp_size`` are left,
                or this is a mixture.
            FormatError: the tables break the format.
        """
        view: PackedDataset = load_extra("selection").select(self, where, every=every)
        return view

    def _read_steps(self, steps: Iterator[Step]) -> Iterator[tuple[Step, RankBatch]]:
        calls = ((step, self._call(step)) for step in steps)
        if not self._ahead:
            return ((step, call()) for step, call in calls)
        found: Iterator[tuple[Step, RankBatch]] = load_extra("store").read_ahead(calls, self._ahead)
        return found

    def _call(self, step: Step) -> Callable[[], RankBatch]:
        dataset, pack_id = self._order.place(step.epoch, step.position + self.dp_rank)
        return partial(self.readers[dataset].read, pack_id, dataset=dataset, step=step.number, state=step.state)

    def lend(self) -> PackedDataset:
        """A copy to read from, after which this one's ``state_dict`` is refused: it does not know how far."""
        return self._with(_position=self._position.lend())

    def __copy__(self) -> PackedDataset:
        return self._with(_position=copy.copy(self._position))

    def _with(self, **changed: Any) -> PackedDataset:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, **changed)
        return other


def _stream(readers: Sequence[PackReader], weights: Sequence[float], seed: int, tail: str) -> tuple[Stream, str]:
    """The order of the packs, and the id under which a state names what they are of."""
    ids = [reader.files.manifest.dataset_id for reader in readers]
    sizes = [len(reader.packs) for reader in readers]
    windows = [reader.config.order.window for reader in readers]
    phases = [reader.files.manifest.phases for reader in readers]
    if tail not in ("wrap", "drop"):
        raise ReaderError(f"tail is {tail!r}; it must be 'wrap' or 'drop'")
    if len(readers) == 1:
        if tail == "drop":
            epochs = load_extra("separate_epochs").SeparateEpochs
            return epochs(sizes[0], window=windows[0], seed=seed, phases=phases[0]), ids[0]
        return EndlessEpochs(sizes, windows=windows, shares=[1], seed=seed, phases=phases), ids[0]
    located = [(reader.files.location, reader.files.manifest) for reader in readers]
    shares, name = load_extra("mixture").weighed(located, weights, tail)
    return EndlessEpochs(sizes, windows=windows, shares=shares, seed=seed, phases=phases), name
