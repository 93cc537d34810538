"""Packs that are chosen by their documents, and single packs, against the tables and the whole dataset."""

from __future__ import annotations

import copy
import itertools
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from preshard.packer_service.publish.annotate import annotate
from preshard.schemas.errors import FormatError, ReaderError
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.data.loader import PackStream

LONG = "length > 800"


def packs_by_arrow(folder: Path, *, every: bool) -> set[int]:
    """The packs of :data:`LONG`, as pyarrow finds them."""
    table = pq.read_table(folder / "documents.parquet")
    long = set(table.filter(pc.field("length") > 800)["pack_id"].to_pylist())
    return long - set(table.filter(pc.field("length") <= 800)["pack_id"].to_pylist()) if every else long


def ids(batches: Any, count: int | None = None) -> list[int]:
    return [batch.pack_id for batch in itertools.islice(batches, count)]


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("tail", ["wrap", "drop"])
def test_a_view_has_the_packs_that_match(
    packed: Path, ids_only: Callable[[PackedDataset], PackedDataset], every: bool, tail: Any
) -> None:
    """Fails when a view has another pack, one twice in an epoch, or always the same order."""
    expected = packs_by_arrow(packed, every=every)
    assert 1 < len(expected) < 10
    view = PackedDataset(packed, seed=3, tail=tail).select(LONG, every=every)
    assert (view.n_packs, len(view)) == (len(expected), len(expected))
    orders = [ids(ids_only(view)) for _ in range(6)]
    assert all(sorted(order) == sorted(expected) for order in orders)
    assert len({tuple(order) for order in orders}) > 1 or len(expected) < 3


def test_a_view_resumes_at_every_step(packed: Path, ids_only: Callable[[PackedDataset], PackedDataset]) -> None:
    """Fails when a state of a view loses or repeats a pack at another number of ranks, or fits other packs."""

    def opened(dp_size: int = 1, dp_rank: int = 0, where: str = LONG) -> PackedDataset:
        return ids_only(PackedDataset(packed, seed=3, dp_size=dp_size, dp_rank=dp_rank).select(where))

    whole = ids(opened().stream(), 24)
    for step, batch in enumerate(itertools.islice(opened(2, 1).stream(), 8), start=1):
        resumed = opened()
        resumed.load_state_dict(batch.state)
        assert ids(PackStream(resumed), 5) == whole[2 * step :][:5]
    with pytest.raises(ReaderError, match="state is of dataset_id"):
        PackedDataset(packed, seed=3).load_state_dict(batch.state)
    with pytest.raises(ReaderError, match="state is of dataset_id"):
        opened(where="length <= 800").load_state_dict(batch.state)
    there = pickle.loads(pickle.dumps(copy.copy(opened())))
    assert ids(there.stream(), 24) == whole


def test_views_of_views_and_what_is_left(packed: Path) -> None:
    """Fails when a second selection forgets the first, or the dataset itself is changed by one."""
    dataset = PackedDataset(packed)
    narrow = dataset.select(LONG).select("pack_id >= 5")
    assert sorted(ids(narrow)) == sorted(pack for pack in packs_by_arrow(packed, every=False) if pack >= 5)
    assert dataset.n_packs == 10
    assert sorted(ids(dataset)) == list(range(10))


def test_joined_columns_and_sources_are_asked_together(packed: Path, tmp_path: Path) -> None:
    """Fails when a joined column is not there, is of another row, or a null counts as a match."""
    folder = Path(shutil.copytree(packed, tmp_path / "dataset"))
    table = pq.read_table(folder / "documents.parquet")
    names = sorted(set(table["doc_id"].to_pylist()))
    scored = {name: number / len(names) for number, name in enumerate(names) if number % 3}
    (tmp_path / "scores.csv").write_text("doc_id,quality\n" + "".join(f"{k},{v}\n" for k, v in scored.items()))
    annotate(str(folder), str(tmp_path / "scores.csv"), on="doc_id")
    source = table["source"][0].as_py()
    rows = table.to_pylist()
    expected = {row["pack_id"] for row in rows if row["source"] == source and scored.get(row["doc_id"], 0) > 0.8}
    assert len(expected) > 0
    view = PackedDataset(folder).select(f"source = '{source}' and quality > 0.8")
    assert sorted(ids(view)) == sorted(expected)
    (folder / "annotations.parquet").write_bytes(b"PAR1")
    with pytest.raises(FormatError, match=r"annotations\.parquet"):
        PackedDataset(folder).select("quality > 0.8")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("qualty > 0.5", 'select .*"qualty" not found'),
        ("length >", "select 'length >': .*[Ss]yntax error"),
        ("source", "select 'source': .*(convert|Conversion|cast)"),
        ("length < 0", "select 'length < 0': no pack holds such a document"),
        ("pack_id = 3", "only 1 pack for dp_size 2"),
        ("true -- all", ""),
        ("1", ""),
    ],
)
def test_an_expression_that_selects_nothing_is_one_line(packed: Path, where: str, said: str) -> None:
    """Fails when a wrong expression is a traceback of DuckDB, or an empty view waits for a pack."""
    dataset = PackedDataset(packed, dp_size=2)
    if not said:
        assert dataset.select(where).n_packs == 10
        return
    with pytest.raises(ReaderError, match=said) as caught:
        dataset.select(where)
    assert "\n" not in str(caught.value)


def test_a_pack_by_its_number_is_what_a_step_reads(packed: Path) -> None:
    """Fails when a pack is looked up by its place in the order, or as another rank reads it."""
    dataset = PackedDataset(packed, ring_degree=4, cp_rank=2, layout="zigzag")
    for batch in dataset:
        found = dataset[batch.pack_id]
        assert found.key == batch.key
        assert all(torch.equal(tensor, batch.tensors[name]) for name, tensor in found.tensors.items())
    assert dataset[-1].pack_id == 9
    assert dataset.select(LONG)[0].pack_id == 0
    with pytest.raises(IndexError, match=r"pack 10 is out of range: .* has packs 0 to 9"):
        dataset[10]
    with pytest.raises(ReaderError, match=r"write dataset\[812\]"):
        dataset[0, 1]


def test_a_mixture_names_the_dataset(packed: Path, packed_in_tiles: Path) -> None:
    """Fails when packs of several datasets are looked up by one number, or selected together."""
    mixture = PackedDataset([(packed, 1)], dp_size=1)
    assert mixture[3].pack_id == 3
    mixture.readers = [*mixture.readers, PackedDataset(packed_in_tiles).readers[0]]
    assert (mixture[1, 1].pack_id, mixture[1, 1].dataset) == (1, 1)
    with pytest.raises(ReaderError, match=r"write dataset\[1, 812\]"):
        mixture[3]
    with pytest.raises(IndexError, match="dataset 2 is out of range: the mixture has 0 to 1"):
        mixture[2, 0]
    with pytest.raises(ReaderError, match="this is a mixture: open that dataset alone"):
        mixture.select("true")
