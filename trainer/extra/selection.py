"""Packs by what their documents are, and single packs by number."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from preshard.schemas.dataset.annotations import ANNOTATIONS, PLACES, open_annotations
from preshard.schemas.dataset.passing_rows import PassingRows
from preshard.schemas.errors import AnnotationsInvalid, ReaderError, TableInvalid, TableMissing
from preshard.schemas.files.printed import several, shown
from preshard.schemas.tables import open_table
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.data.order import EndlessEpochs, Stream
from preshard.trainer.data.position import Position
from preshard.trainer.extra.separate_epochs import SeparateEpochs

DOCUMENTS_TABLE = "documents.parquet"

MEMORY = "512MB"
"""Memory that a query may take before it spills."""


class SelectedPacks:
    """The stream of some packs of a dataset: their number in place of all packs', epochs as ever.

    Args:
        order: of as many packs, numbered from 0.
        packs: the packs that these numbers mean, ascending.
    """

    def __init__(self, order: Stream, packs: Int64[np.ndarray, "packs"]) -> None:
        self._order, self.packs = order, packs

    def place(self, epoch: int, position: int) -> tuple[int, int]:
        """Dataset (always 0) and pack at a position of an epoch."""
        return 0, int(self.packs[self._order.place(epoch, position)[1]])

    def __getattr__(self, name: str) -> Any:
        if name == "_order":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self._order, name)


def select(dataset: PackedDataset, where: str, *, every: bool) -> PackedDataset:
    """A view of the packs that hold documents for which an expression is true; as ``PackedDataset.select`` says."""
    if dataset.is_mixture:
        raise ReaderError("select takes packs of one dataset, and this is a mixture: open that dataset alone")
    order: Any = dataset._order
    packs = matching_packs(dataset, where, every=every)
    if isinstance(order, SelectedPacks):
        packs, order = np.intersect1d(packs, order.packs), order._order
    if len(packs) < dataset.dp_size:
        holds = "holds only such documents" if every else "holds such a document"
        found = (
            f"no pack {holds}"
            if not len(packs)
            else f"only {several(len(packs), 'pack')} for dp_size {dataset.dp_size}"
        )
        raise ReaderError(
            shown(f"select {where!r}: {found}; try it with DuckDB on {DOCUMENTS_TABLE}, or a smaller dp_size")
        )
    separate = isinstance(order, SeparateEpochs)
    stream: Stream = (
        SeparateEpochs(len(packs), window=1, seed=dataset.seed)
        if separate
        else EndlessEpochs([len(packs)], windows=[1], shares=[1], seed=dataset.seed)
    )
    digest = hashlib.sha256(packs.astype("<i8").tobytes()).hexdigest()
    name = {
        "dataset_id": f"{dataset.files.manifest.dataset_id} packs {digest}",
        "seed": dataset.seed,
        "tail": "drop" if separate else "wrap",
    }
    selected = SelectedPacks(stream, packs)
    position = Position(selected, name=name, dp_size=dataset.dp_size)
    position.set_epoch(dataset.epoch)
    return dataset._with(_order=selected, _position=position, dataset_id=name["dataset_id"])


def matching_packs(dataset: PackedDataset, where: str, *, every: bool) -> Int64[np.ndarray, "packs"]:
    """Packs with a document, or only with documents, for which an expression is true, ascending.

    Raises:
        ReaderError: DuckDB is not installed, or does not take the expression.
        FormatError: the tables break the format.
    """
    try:
        duckdb: Any = import_module("duckdb")
    except ModuleNotFoundError:
        raise ReaderError("select needs DuckDB: pip install duckdb") from None
    holds, rows = "bool_and" if every else "bool_or", _with_joined(dataset)
    settings = {"memory_limit": MEMORY, "threads": 1, "temp_directory": tempfile.gettempdir()}
    asked = f"coalesce(cast(({where}\n) AS BOOLEAN), false)"
    query = f"SELECT pack_id FROM documents GROUP BY pack_id HAVING {holds}({asked}) ORDER BY pack_id"
    with duckdb.connect(":memory:", config=settings) as database:
        database.execute("SET enable_progress_bar = false")
        database.register("documents", rows.reader)
        try:
            found = database.execute(query).fetchnumpy()["pack_id"]
        except duckdb.Error as error:
            if rows.raised is not None:
                raise rows.raised from None
            raise ReaderError(shown(f"select {where!r}: {' '.join(str(error).split('LINE 1:')[0].split())}")) from None
    packs = np.ma.getdata(found).astype(np.int64)
    n_packs = len(dataset.readers[0].packs)
    if len(packs) and not 0 <= packs[0] <= packs[-1] < n_packs:
        raise TableInvalid(DOCUMENTS_TABLE, f"names the packs {packs[0]} to {packs[-1]} of {n_packs}")
    return packs


def _with_joined(dataset: PackedDataset) -> PassingRows:
    """The rows of ``documents.parquet`` with those of ``annotations.parquet`` beside them, where there are any."""
    files = dataset.files
    rows = files.manifest.table(DOCUMENTS_TABLE).rows
    documents = open_table(files.open_table(DOCUMENTS_TABLE), DOCUMENTS_TABLE, rows=rows)
    try:
        annotations = open_annotations(files.open_table(ANNOTATIONS), files.manifest)
    except TableMissing:
        return PassingRows(documents.schema, documents.parts())
    schema = pa.schema([*documents.schema, *list(annotations.schema)[len(PLACES) :]])
    return PassingRows(schema, _beside(documents.parts(), annotations.parts(), schema))


def _beside(
    documents: Iterator[pa.RecordBatch], annotations: Iterator[pa.RecordBatch], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    held = next(annotations)
    for part in documents:
        at = 0
        while at < len(part):
            if not len(held):
                held = next(annotations)
            size = min(len(held), len(part) - at)
            ours, theirs = part.slice(at, size), held.slice(0, size)
            for name in PLACES.names:
                if not ours.column(name).equals(theirs.column(name)):
                    raise AnnotationsInvalid(ANNOTATIONS, f"has another {name} in a row than {DOCUMENTS_TABLE}")
            columns = [*ours.columns, *theirs.columns[len(PLACES) :]]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
            at, held = at + size, held.slice(size)


def read_pack(dataset: PackedDataset, number: int | tuple[int, int]) -> Any:
    """This rank's part of one pack, by its number, or by those of the dataset in a mixture and of the pack."""
    if dataset.is_mixture == isinstance(number, int):
        form = (
            "dataset[1, 812]: the dataset's place in the mixture, then the pack"
            if dataset.is_mixture
            else "dataset[812]"
        )
        raise ReaderError(f"a pack is {number!r}; write {form}")
    of, pack_id = (0, number) if isinstance(number, int) else number
    if not 0 <= of < len(dataset.readers):
        raise IndexError(f"dataset {of} is out of range: the mixture has 0 to {len(dataset.readers) - 1}")
    reader = dataset.readers[of]
    n_packs = len(reader.packs)
    if not -n_packs <= pack_id < n_packs:
        raise IndexError(f"pack {pack_id} is out of range: {reader.files.location} has packs 0 to {n_packs - 1}")
    return reader.read(pack_id % n_packs, dataset=of, step=0, state={})
