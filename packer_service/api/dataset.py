"""``preshard.open``: a packed dataset as a program or a notebook looks at it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from io import BytesIO
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int64
from PIL import Image

from preshard.packer_service.ingest.carried import carried_decoder
from preshard.packer_service.ingest.crops import StoredCrops, read_crops
from preshard.packer_service.ingest.packed.dataset import PackedDatasetSource, StoredTable
from preshard.packer_service.ingest.packed.manifest import dataset_file, dataset_manifest
from preshard.packer_service.ingest.packed.pack import StoredPack
from preshard.packer_service.ingest.text.load import load_decoder
from preshard.packer_service.layout.area import most_common, shares
from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.report.dataset import open_dataset, report_dataset
from preshard.packer_service.report.records import DatasetReport
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError, DocumentError, ReaderError
from preshard.schemas.files.printed import several
from preshard.schemas.header import DocumentSpan
from preshard.schemas.layout import RankImages, TokenLayout, layout_name, rank_positions
from preshard.schemas.manifest import ManifestHead
from preshard.schemas.sequence import PackedSequence
from preshard.schemas.tables import TABLES

CELLS = 64
"""Cells along one side of a drawn mask."""
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8a2b", "#6f4e37")
"""Colours of ranks, as on the inspection page: Okabe and Ito's, which colour-blind readers tell apart."""

Location = str | os.PathLike[str]


class Dataset:
    """A packed dataset: ``len(dataset)`` packs, ``dataset[i]`` the i-th. Tables are Arrow's, read when asked for.

    Args:
        path: its folder, a path or URI.
        tokenizer: the ``tokenizer.json`` (or its folder) that it was packed with; needed only to decode text of a
            dataset that carries none.

    Raises:
        ConfigError: there is no such folder, or it is not a dataset.
        FormatError: its manifest cannot be read.
    """

    def __init__(self, path: Location, tokenizer: Location | None = None) -> None:
        self.path = os.fspath(path)
        open_dataset(self.path)
        sealed = dataset_manifest(self.path)
        if sealed is None:
            raise ConfigError(f"DATASET {self.path}: is not a dataset of preshard")
        self._stored = PackedDatasetSource.of(dataset_file(self.path, self.path, sealed))
        self._tokenizer = tokenizer

    @property
    def manifest(self) -> ManifestHead:
        return self._stored.manifest

    @property
    def config(self) -> PackConfig:
        """The configuration it was packed with."""
        return self._stored.config

    def __len__(self) -> int:
        return self._stored.n_packs

    def __getitem__(self, number: int) -> Pack:
        if not -len(self) <= number < len(self):
            raise IndexError(f"pack {number} is out of range: {self.path} has packs 0 to {len(self) - 1}")
        return Pack(self, self._stored.pack(number % len(self)))

    def __iter__(self) -> Iterator[Pack]:
        return (self[number] for number in range(len(self)))

    def __repr__(self) -> str:
        counts = self.manifest.counts
        whole = f"{several(counts.documents, 'document')} in {several(len(self), 'pack')}"
        return f"<{self.path}: {whole} of {self.config.seq_len:,} tokens>"

    @cached_property
    def report(self) -> DatasetReport:
        """The figures of ``preshard report``."""
        return report_dataset(self.path)

    @cached_property
    def packs(self) -> pa.Table:
        """A row for each pack: where it lies, and its figures."""
        return self._table("packs.parquet")

    @cached_property
    def documents(self) -> pa.Table:
        """A row for each place of a document."""
        return self._table("documents.parquet")

    @cached_property
    def rejects(self) -> pa.Table:
        """A row for each document that was rejected, with the reason."""
        return self._table("rejects.parquet")

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Tokens as text.

        Raises:
            ConfigError: the dataset carries no tokenizer, and none was given.
            ReaderError: the tokenizer that was given is another, or has no token of some id.
        """
        return self._decode(np.asarray(tokens).tolist())

    @cached_property
    def _decode(self) -> Callable[[Sequence[int]], str]:
        name, wanted = self._tokenizer, self.manifest.tokenizer
        if name is None:
            return carried_decoder(self.path, self.manifest)
        file = os.path.join(name, "tokenizer.json") if os.path.isdir(name) else os.fspath(name)  # noqa: PTH112, PTH118
        found = load_decoder(file)
        if found.sha256 != wanted.sha256:
            raise ReaderError(f"{self.path}: was packed with another tokenizer than {file} (SHA-256 {wanted.sha256})")
        return found.decode

    def _table(self, name: str) -> pa.Table:
        return StoredTable(self.path, self.path, self.manifest.table(name), TABLES[name].names, self.manifest).read()


class Pack:
    """One pack in natural order. In a notebook it shows its mask and who owns which token."""

    def __init__(self, dataset: Dataset, stored: StoredPack) -> None:
        self.dataset = dataset
        self.number: int = stored.head.pack_id
        self._stored = stored

    @property
    def sequence(self) -> PackedSequence:
        """All arrays: tokens, labels, loss weights, positions, and the ids that the mask is made of."""
        return self._stored.sequence

    @property
    def tokens(self) -> np.ndarray:
        return self.sequence.tokens

    @property
    def labels(self) -> np.ndarray:
        return self.sequence.labels

    @property
    def documents(self) -> Sequence[DocumentSpan]:
        """The place of each document in the pack."""
        return self._stored.head.documents

    @cached_property
    def layouts(self) -> Mapping[str, TokenLayout]:
        """The stored layouts by their names, such as ``balanced_ring.4``."""
        return self._stored.layouts()[0]

    def layout(self, scheme: str | None = None, ring_degree: int | None = None) -> TokenLayout:
        """A stored layout, by default of the last scheme and the largest degree that there are.

        Raises:
            ReaderError: the pack has no such layout.
        """
        config = self.dataset.config
        if not self.layouts:
            raise ReaderError(f"{self._stored.where}: its layouts are damaged; preshard verify says more")
        name = layout_name(scheme or config.layouts[-1], ring_degree or max(config.ring_degrees))
        if name not in self.layouts:
            raise ReaderError(f"pack {self.number}: has no layout {name}; there are {', '.join(self.layouts)}")
        return self.layouts[name]

    def positions(
        self, cp_rank: int, *, ring_degree: int, ulysses_degree: int = 1, layout: str | None = None
    ) -> Int64[np.ndarray, "local"]:
        """Natural positions of a rank's tokens: ``pack.tokens[pack.positions(3, ring_degree=4)]``.

        Raises:
            ReaderError: the pack has no such layout, or there is no such rank.
        """
        size = ring_degree * ulysses_degree
        if not 0 <= cp_rank < size:
            raise ReaderError(f"cp_rank {cp_rank} is out of range: CP size {size} has the ranks 0 to {size - 1}")
        ring_rank, ulysses_rank = divmod(cp_rank, ulysses_degree)
        runs = self.layout(layout, ring_degree).runs
        return rank_positions(runs, ring_rank=ring_rank, ulysses_degree=ulysses_degree, ulysses_rank=ulysses_rank)

    def boundaries(self, cp_rank: int, cp_size: int) -> RankImages:
        """A rank's part of the crops, and of the rows of pooled features that they make; empty in a pack without crops.

        Raises:
            ReaderError: the dataset has no such CP size, or there is no such rank.
        """
        boundaries = self._stored.head.image_shard_boundaries.get(str(cp_size), {})
        if str(cp_rank) not in boundaries:
            sizes = ", ".join(map(str, self.dataset.config.cp_sizes))
            raise ReaderError(f"there is no rank {cp_rank} of {cp_size}: the dataset has the CP sizes {sizes}")
        return boundaries[str(cp_rank)]

    def images(self, cp_rank: int = 0, cp_size: int = 1) -> list[Image.Image]:
        """A rank's crops, as pictures, in the order in which they are stored; by default all of the pack.

        Raises:
            ReaderError: as :meth:`boundaries`; or a crop is damaged, or its shard gone.
        """
        stored, own = self._stored, slice(None)
        if cp_size > 1:
            place = self.boundaries(cp_rank, cp_size)
            own = slice(place.get("start_image_idx", 0), place.get("end_image_idx", 0))
        try:
            crops = read_crops(
                StoredCrops(shard=stored.shard, crops_at=stored.crops_at, images=stored.head.images[own])
            )
        except DocumentError as error:
            raise ReaderError(f"{stored.where}: {error}; preshard verify says more") from None
        return [Image.open(BytesIO(crop.data)) for crop in crops]

    def text(self, document: int | None = None) -> str:
        """The text of one of its documents, or of the whole pack, with image tokens as the tokenizer spells them.

        Raises:
            ReaderError: as in :meth:`Dataset.decode`.
        """
        if document is None:
            return self.dataset.decode(self.tokens)
        span = self.documents[document]
        return self.dataset.decode(self.tokens[span.start : span.start + span.length])

    def svg(self, scheme: str | None = None, ring_degree: int | None = None) -> str:
        """The mask in cells, queries downwards and keys to the right, in the colours of the ranks that own the queries.

        The strips above it are the owners of the keys, and the documents.
        """
        return _drawn(self.sequence, self.layout(scheme, ring_degree))

    def __repr__(self) -> str:
        padding = int((self.sequence.doc_ids < 0).sum())
        return (
            f"<pack {self.number}: {several(len(self.documents), 'document')}, {len(self.tokens):,} tokens, "
            f"{padding:,} padding>"
        )

    def _repr_html_(self) -> str:
        layout = self.layout()
        names = ", ".join(escape(span.doc_id) for span in self.documents[:8])
        more = f" and {len(self.documents) - 8} more" if len(self.documents) > 8 else ""
        title = f"{escape(repr(self)[1:-1])}; {layout.scheme}, ring degree {layout.ring_degree}"
        return f"<figure><figcaption>{title}<br>{names}{more}</figcaption>{self.svg()}</figure>"


def _drawn(sequence: PackedSequence, layout: TokenLayout) -> str:
    cell = -(-sequence.seq_len // CELLS)
    in_order = layout.runs[np.argsort(layout.runs[:, 1])]
    owners = most_common(np.repeat(in_order[:, 0], in_order[:, 2]), cell).tolist()
    documents = most_common(sequence.doc_ids, cell).tolist()
    rows = [
        _bar(start, end, row + 4, _colour(owners[row]), opacity)
        for row, allowed in enumerate(shares(MaskIndex.of(sequence.mask), cell))
        for start, end, opacity in _stretches(
            np.where(allowed > 0, 0.25 + 0.75 * np.sqrt(allowed), 0).round(1).tolist()
        )
        if opacity
    ]
    top = [_bar(start, end, 0, _colour(owner), 1) for start, end, owner in _stretches(owners)]
    greys = [
        _bar(start, end, 2, "#444", 1 - document % 2 / 2)
        for start, end, document in _stretches(documents)
        if document >= 0
    ]
    size = len(owners)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{6 * size}" height="{6 * (size + 4)}" '
        f'viewBox="0 0 {size} {size + 4}" shape-rendering="crispEdges" role="img">'
        f"<title>Attention mask of {sequence.seq_len:,} tokens</title>{''.join([*top, *greys, *rows])}</svg>"
    )


def _stretches(values: Sequence[Any]) -> Iterator[tuple[int, int, Any]]:
    """Start, end and value of each stretch of equal values."""
    groups = [(value, len(list(group))) for value, group in groupby(values)]
    edges = np.cumsum([0, *(length for _, length in groups)]).tolist()
    yield from ((start, end, value) for (start, end), (value, _) in zip(pairwise(edges), groups, strict=True))


def _colour(rank: int) -> str:
    return COLOURS[rank % len(COLOURS)]


def _bar(start: int, end: int, row: int, colour: str, opacity: float) -> str:
    return f'<rect x="{start}" y="{row}" width="{end - start}" height="1" fill="{colour}" opacity="{opacity:g}"/>'
