"""Values of Arrow's types as rows of JSON have them: a table is read as the rows that it was made of."""

from __future__ import annotations

import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from preshard.packer_service.ingest.source.containers.arrow_values import TableRows
from preshard.packer_service.ingest.source.files import list_fragments, read_fragment
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.schemas.errors import DocumentError

JSON = pa.json_(pa.string())
SOME = uuid.UUID(int=7)


def value_of(array: pa.Array) -> Any:
    return TableRows(pa.table({"x": array})).row(0)["x"]


def rows_of(path: Path) -> list[Any]:
    return [row for each in list_fragments(list_sources([str(path)]).files) for _, _, row in read_fragment(each).rows]


@pytest.mark.parametrize(
    ("array", "value"),
    [
        (pa.array(['{"a": null, "b": [1, 2.5]}'], JSON), {"a": None, "b": [1, 2.5]}),
        (pa.array(['"Be brief."'], JSON), "Be brief."),
        (pa.array([["{}", None]]).cast(pa.list_(JSON)), [{}, None]),
        (pa.array([[("a", 1), ("b", None)]], pa.map_(pa.string(), pa.int64())), {"a": 1, "b": None}),
        (
            pa.array([[(1, [("b", Decimal("2.50"))])]], pa.map_(pa.int8(), pa.map_(pa.string(), pa.decimal128(5, 2)))),
            {"1": {"b": 2.5}},
        ),
        (pa.array([{"a": None, "b": {"c": None}}]), {"b": {}}),
        (pa.array([[{"a": None, "b": 1}]]), [{"b": 1}]),
        (pa.array(["x"]).dictionary_encode(), "x"),
        (pa.array([["x", None]], pa.list_view(pa.string_view())), ["x", None]),
        (pa.array([Decimal("9007199254740993.00")], pa.decimal128(20, 2)), 2**53 + 1),
        (pa.array([Decimal("0.5")], pa.decimal256(50, 3)), 0.5),
        (pa.array([2**64 - 1], pa.uint64()), 2**64 - 1),
        (pa.array([SOME.bytes], pa.uuid()), str(SOME)),
        (pa.array([1], pa.bool8()), True),
        (pa.array([0.5], pa.float16()), 0.5),
        (pa.array([19_358], pa.date32()), "2023-01-01"),
        (pa.array([1_672_531_200], pa.timestamp("s")), "2023-01-01T00:00:00"),
        (pa.array([1_672_531_200_500], pa.timestamp("ms", "Europe/Oslo")), "2023-01-01T00:00:00.500Z"),
        (pa.array([1_672_531_200_000_000_001], pa.timestamp("ns")), "2023-01-01T00:00:00.000000001"),
        (pa.array([{"at": 3_600_000}], pa.struct([("at", pa.time32("ms"))])), {"at": "01:00:00"}),
        (
            pa.StructArray.from_arrays(
                [pa.array(["null"], JSON), pa.array([0], pa.time32("s")), pa.nulls(1)], ["a", "b", "c"]
            ),
            {"a": None, "b": "00:00:00"},
        ),
        (pa.array([1_500], pa.duration("ms")), 1.5),
        (
            pa.FixedShapeTensorArray.from_storage(
                pa.fixed_shape_tensor(pa.int8(), [2]), pa.array([[1, 2]], pa.list_(pa.int8(), 2))
            ),
            [1, 2],
        ),
        (pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array([{"a": 1, "b": None}])), {"a": 1}),
        (
            pa.UnionArray.from_dense(
                pa.array([1], pa.int8()), pa.array([0], pa.int32()), [pa.array([1]), pa.array(['{"a": 1}'], JSON)]
            ),
            {"a": 1},
        ),
    ],
    ids=lambda each: str(each.type)[:60] if isinstance(each, pa.Array) else "",
)
def test_a_type_is_read_as_json_has_it(array: pa.Array, value: Any) -> None:
    """Fails when a value is handed on as Arrow's Python object, rounded, or with keys that the row did not have."""
    found = value_of(array)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (pa.array(["{"], JSON), "x holds a value that cannot be read (Expecting property name"),
        (pa.array([2**62], pa.timestamp("us")), "x holds a value that cannot be read"),
        (pa.array([pa.MonthDayNano([1, 2, 3])]), "an interval of months, days and seconds cannot be written as JSON"),
    ],
)  # fmt: skip
def test_what_json_cannot_hold_is_its_own_rows_reject(array: pa.Array, reason: str) -> None:
    """Fails when one value ends the job, or the reject does not name the column."""
    rows = TableRows(pa.table({"x": pa.concat_arrays([array, pa.nulls(1, array.type)])}))
    assert isinstance(rows.row(0), DocumentError)
    assert reason in str(rows.row(0))
    assert rows.row(1) == {}


def test_columns_of_json_are_what_datasets_reads(tmp_path: Path) -> None:
    """Fails when what ``datasets`` writes where messages' keys differ is read as text, or the form is not found."""
    image, text = {"type": "image", "image": "r.jpg"}, {"type": "text", "text": "What colour?"}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}
    rows: list[dict[str, Any]] = [
        {"id": "1", "messages": [{"role": "user", "content": [image, text]}, {"role": "assistant", "content": "Red."}]},
        {
            "id": "2",
            "messages": [{"role": "user", "content": "Hm?"}, {"role": "assistant", "content": "Blue."}],
        },
    ]
    rows[1]["tools"] = [tool]
    (tmp_path / "s.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cache = str(tmp_path / "cache")
    loaded = datasets.load_dataset("json", data_files=str(tmp_path / "s.jsonl"), split="train", cache_dir=cache)
    loaded.to_parquet(str(tmp_path / "t.parquet"))
    assert "arrow.json" in str(pq.read_schema(tmp_path / "t.parquet"))
    again = datasets.load_dataset("parquet", data_files=str(tmp_path / "t.parquet"), split="train", cache_dir=cache)
    assert rows_of(tmp_path / "t.parquet") == rows
    assert [{key: value for key, value in row.items() if value is not None} for row in again] == rows


def test_lists_of_json_objects_are_turns(tmp_path: Path) -> None:
    """Fails when the form of a file is decided by the type of its text, not by what the text spells."""
    turns = ['{"user": "What is this?", "assistant": "A cat."}']
    table = pa.table({"images": pa.array([["a.png"]]), "texts": pa.array([turns]).cast(pa.list_(JSON))})
    pq.write_table(table, tmp_path / "f.parquet")
    with ipc.new_file(str(tmp_path / "g.arrow"), table.schema) as out:
        out.write_table(table)
    assert {file.form for file in list_sources([str(tmp_path)]).files} == {"cauldron"}


def test_messages_may_be_maps(tmp_path: Path) -> None:
    """Fails when messages as Spark writes them are lists of pairs."""
    turns = [[("role", "user"), ("content", "Two and two?")], [("role", "assistant"), ("content", "Four.")]]
    pq.write_table(
        pa.table({"messages": pa.array([turns], pa.list_(pa.map_(pa.string(), pa.string())))}), tmp_path / "f.parquet"
    )
    assert rows_of(tmp_path / "f.parquet") == [{"messages": [dict(turn) for turn in turns]}]
