"""Rows that ``where`` leaves out: of every kind of source, counted by source, and expressions that are refused."""

from __future__ import annotations

import csv
import datetime
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc
from repacked import Listener, packed, rejects

from preshard.packer_service.cli import main
from preshard.packer_service.config import load_config
from preshard.packer_service.ingest.source.files import list_fragments, read_fragment
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.packer_service.job.planning import column_types
from preshard.packer_service.job.planning.where import asking, check_where, filtered_rows
from preshard.packer_service.report.dataset import report_dataset
from preshard.packer_service.verify import verify_dataset
from preshard.schemas.dataset.read_manifest import decode_manifest
from preshard.schemas.errors import ConfigError, DocumentError

SETTINGS = ["seq_len=128", "block_size=16", "cp_sizes=[1]", "ring_degrees=[1]", "max_images=null"]
KEEP = "keep_columns={quality: float, licence: string}"
Row = dict[str, Any]
ROWS: list[Row] = [
    {
        "id": f"r{i:03}",
        "text": f"text number {i}",
        "source": "web" if i % 2 else "books",
        "quality": None if i % 10 == 9 else i / 200,
        "licence": "CC-BY" if i % 3 else "proprietary",
    }
    for i in range(200)
]
WHERE = "quality > 0.5 and Licence like 'CC%'"
GOOD = {row["id"] for row in ROWS if row["quality"] is not None and row["quality"] > 0.5 and row["licence"] == "CC-BY"}
LEFT_OUT = {
    name: sum(row["source"] == name and row["id"] not in GOOD for row in ROWS) for name in ("books", "web")
}  # fmt: skip


def ids(dataset: Path) -> set[str]:
    return set(pq.read_table(dataset / "documents.parquet")["doc_id"].to_pylist())


def check(dataset: Path) -> None:
    assert not verify_dataset(str(dataset), processes=1, progress=Listener()).broken
    assert ids(dataset) == GOOD
    assert not rejects(dataset)
    manifest = decode_manifest((dataset / "manifest.json").read_bytes(), "manifest.json")
    assert manifest.filtered == report_dataset(str(dataset)).filtered == LEFT_OUT
    assert manifest.counts.source_documents == len(GOOD)


def written(folder: Path, kind: str = "jsonl", rows: list[Row] = ROWS) -> Path:
    folder.mkdir(parents=True)
    if kind == "jsonl":
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet", row_group_size=50)
    else:
        with (folder / "rows.csv").open("w", newline="") as file:
            to = csv.DictWriter(file, list(rows[0]))
            to.writeheader()
            to.writerows(rows)
    return folder


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv"])
def test_rows_are_chosen_in_every_container(tmp_path: Path, kind: str) -> None:
    """Fails when a row is kept or left out wrongly, is called a reject, or is not counted for its source."""
    out = packed(written(tmp_path / "rows", kind), tmp_path / "out", [*SETTINGS, f"where={json.dumps(WHERE)}"])
    check(out)


def test_documents_of_a_dataset_are_chosen_by_its_tables(tmp_path: Path) -> None:
    """Fails when a packed dataset is not chosen from by what its documents keep, or hands its own choice on."""
    everything = packed(written(tmp_path / "rows"), tmp_path / "out", [*SETTINGS, KEEP])
    chosen = packed(everything, tmp_path / "chosen", [f"where={json.dumps(WHERE)}"])
    check(chosen)
    again = packed(chosen, tmp_path / "again", ["seq_len=256"])
    assert ids(again) == GOOD
    assert json.loads((again / "manifest.json").read_text())["config"]["where"] is None
    by_length = packed(everything, tmp_path / "long", ["where=n_images = 0 and doc_id < 'r010'"])
    assert ids(by_length) == {f"r{i:03}" for i in range(10)}


def test_the_command_takes_the_expression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails when --where is not what the configuration's key is, or the counts are not said."""
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    source, out = written(tmp_path / "rows"), tmp_path / "out"
    with pytest.raises(SystemExit, match="0"):
        main(["pack", str(source), "--out", str(out), "--where", WHERE, *settings])
    check(out)
    said = f"rows left out by --where, by source: web ({LEFT_OUT['web']}), books ({LEFT_OUT['books']})"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("qualty > 0.5", 'Referenced column "qualty" not found'),
        ("quality >", "syntax error"),
        ("quality > (SELECT count(*) FROM read_csv('/etc/passwd'))", "disabled by configuration"),
        ("text IN (SELECT content FROM read_text('http://127.0.0.1/x'))", "disabled by configuration"),
        ("count(*) > 3", "GROUP BY"),
        ("random() < 0.5", "random changes from run to run"),
        ("quality > 0.5 and now() > '2020-01-01'", "now changes from run to run"),
        ("current_date > '2020-01-01'", "current_date changes from run to run"),
    ],
)
def test_an_expression_that_cannot_be_asked_is_one_line(tmp_path: Path, where: str, words: str) -> None:
    """Fails when an expression reaches a file or the network, changes from run to run, or ends in a traceback."""
    with pytest.raises(ConfigError) as refused:
        packed(written(tmp_path / "rows"), tmp_path / "out", [*SETTINGS, f"where={json.dumps(where)}"])
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "changes from run to run" in str(refused.value) or str(refused.value).endswith(
        "rows.jsonl has id, text, source, quality, licence"
    )


TWEET = 1_767_000_000_000_000_000
TYPED: list[Row] = [
    {
        "id": f"r{i}",
        "text": f"text {i}",
        "tweet": TWEET + i,
        "score": [0.5, 1, None, 10.25][i % 4],
        "day": f"2023-01-{i + 1:02}",
        "made": f"2023-01-01T0{i}:00:00",
        "odd": f"{i + 13}-01-2023",
        "tags": ["a"] * i,
        "meta": {"lang": "no", "n": i} if i % 2 else {"lang": "en"},
        "either": i if i % 2 else f"x{i}",
        "good": i > 3,
    }
    for i in range(8)
]
ASKED = [
    f"tweet = {TWEET + 3}",
    "score > 0.75",
    "score = 0.5",
    "day >= DATE '2023-01-04' and day < '2023-01-06'",
    "made > TIMESTAMP '2023-01-01 03:30:00'",
    "dayofmonth(odd) = 16",
    "len(tags) > 2 and tags[1] = 'a'",
    "meta.lang = 'no' and meta.n > 2",
    "meta.n is null",
    "either::VARCHAR like '%x%'",
    "good and Tweet % 2 = 0",
]


def duckdb_ids(read: str, where: str) -> set[str]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return {name for (name,) in connection.execute(f"SELECT id FROM {read} WHERE {where}").fetchall()}


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same rows in every container."""
    folder = tmp_path_factory.mktemp("typed")
    files = {kind: folder / f"rows.{kind}" for kind in ("jsonl", "json", "csv", "parquet", "arrow")}
    files["jsonl"].write_text("".join(json.dumps(row) + "\n" for row in TYPED))
    files["json"].write_text(json.dumps(TYPED))
    with files["csv"].open("w", newline="") as file:
        to = csv.DictWriter(file, list(TYPED[0]))
        to.writeheader()
        to.writerows(TYPED)
    table = pa.Table.from_pylist([{**row, "either": str(row["either"])} for row in TYPED])
    types: dict[str, pa.DataType] = {"day": pa.date32(), "made": pa.timestamp("us"), "score": pa.decimal128(6, 2)}
    for name, kind in types.items():
        column = table[name].cast(kind) if name != "score" else pa.array(map(decimal_or_null, TYPED), kind)
        table = table.set_column(table.column_names.index(name), name, column)
    odd = pa.array([datetime.date(2023, 1, i + 13) for i in range(8)])
    half = table.set_column(table.column_names.index("odd"), "odd", odd).append_column(
        "half", pa.array(range(8), pa.float16())
    )
    pq.write_table(half, files["parquet"], row_group_size=3)
    with ipc.new_file(str(files["arrow"]), half.schema) as out:
        out.write_table(half, max_chunksize=3)
    return files


def decimal_or_null(row: Row) -> Decimal | None:
    return None if row["score"] is None else Decimal(str(row["score"]))


def kept_rows(path: Path, where: str) -> set[str]:
    """Ids of the rows that ``where`` leaves of a file, without packing it."""
    config = load_config(None, [*SETTINGS, f"where={json.dumps(where)}"])
    files = check_where(config.where, list_sources([str(path)], config).files)
    kept = set[str]()
    for fragment in list_fragments(files):
        for *_, row in filtered_rows(read_fragment(fragment).rows, fragment.file, config, Counter()):
            assert not isinstance(row, DocumentError), str(row)
            kept.add(row["id"])
    return kept


@pytest.mark.parametrize("where", ASKED)
@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet", "arrow"])
def test_the_answer_is_that_of_duckdb_on_the_file(typed: dict[str, Path], kind: str, where: str) -> None:
    """Fails when numbers are rounded, or text is cast to something else than DuckDB's type of the column."""
    if kind == "csv" and any(name in where for name in ("tags", "meta", "odd")):
        pytest.skip("CSV has no lists, and dates of one form alone")
    read = f"'{typed['parquet' if kind == 'arrow' else kind]}'"
    expected = duckdb_ids(read, where)
    assert 0 < len(expected) < len(TYPED)
    assert kept_rows(typed[kind], where) == expected


ODD = {
    "empty lists of a dictionary": pa.ListArray.from_arrays(
        pa.array([0, 0, 1], pa.int32()), pa.array(["x"]).dictionary_encode()
    ),
    "an empty list of lists of a dictionary": pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()),
        pa.ListArray.from_arrays(pa.array([0, 0, 1], pa.int32()), pa.array(["x"]).dictionary_encode()),
    ),
    "a map of decimals of 256 bits": pa.MapArray.from_arrays(
        pa.array([0, 0, 1], pa.int32()), pa.array(["x"]), pa.array([1], pa.decimal256(50, 3))
    ),
    "dictionaries beside maps of nulls": pa.StructArray.from_arrays(
        [
            pa.array(["x", "y", "x"]).dictionary_encode(),
            pa.MapArray.from_arrays(pa.array([0, 2, 3, 4], pa.int32()), pa.array(list("abcd")), pa.nulls(4)),
        ],
        ["a", "b"],
    )[1:],
    "runs of text beside a dictionary": pa.StructArray.from_arrays(
        [pa.array(["x", "y"]).dictionary_encode(), pc.run_end_encode(pa.array(["x", "y"]))], ["a", "b"]
    ),
    "pairs of numbers of 16 bits": pa.FixedSizeListArray.from_arrays(pa.array([0, 0, 1, 1], pa.float16()), 2),
}


@pytest.mark.parametrize("values", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_type_that_duckdb_does_not_take_from_arrow_is_asked_about(
    tmp_path: Path, values: pa.Array, kind: str
) -> None:
    """Fails when rows become rejects, or the command ends, for a type that DuckDB reads in the file itself."""
    path, table = tmp_path / f"f.{kind}", pa.table({"id": ["a", "b"], "text": ["t", "u"], "odd": values})
    if kind == "parquet":
        if "run_end_encoded" in str(values.type):
            pytest.skip("Parquet has no runs")
        pq.write_table(table, path, row_group_size=1)
    else:
        with ipc.new_file(str(path), table.schema) as out:
            out.write_table(table, max_chunksize=1)
    assert kept_rows(path, "len(odd::VARCHAR) > 0 AND id = 'a'") == {"a"}
    assert kept_rows(path, "odd IS NOT NULL") == {"a", "b"}


def test_a_view_beside_a_dictionary_is_asked_about(tmp_path: Path) -> None:
    """Fails when the command ends because Arrow does not copy views, which are copied with what is not a view."""
    pair = [pa.array(["x", "y"], pa.string_view()), pa.array(["x", "y"]).dictionary_encode()]
    table = pa.table({"id": ["a", "b"], "text": ["t", "u"], "odd": pa.StructArray.from_arrays(pair, ["v", "d"])})
    with ipc.new_file(str(tmp_path / "f.arrow"), table.schema) as out:
        out.write_table(table)
    assert kept_rows(tmp_path / "f.arrow", "odd.v = 'y' AND odd.d = 'y'") == {"b"}


@pytest.mark.parametrize("name", ["t.jsonl", "t.csv"])
def test_a_number_of_another_kind_than_those_before_is_compared_as_it_is(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a value behind those that types are told by is rounded to them, or rejected."""
    monkeypatch.setattr(column_types, "ROWS", 4)
    path, scores = tmp_path / name, [1, 2, 3, 4, 0.5, 0.54, 12.3]
    if name.endswith("csv"):
        path.write_text("id,text,score\n" + "".join(f"{i},t,{score}\n" for i, score in enumerate(scores)))
    else:
        path.write_text(
            "".join(json.dumps({"id": str(i), "text": "t", "score": s}) + "\n" for i, s in enumerate(scores))
        )
    assert kept_rows(path, "score = 0.5") == {"4"}
    assert kept_rows(path, "score > 3.5") == {"3", "6"}


def test_a_row_that_cannot_be_compared_is_rejected(tmp_path: Path) -> None:
    """Fails when one value of another type ends the job, or decides about other rows."""
    rows = [*ROWS, {"id": "odd", "text": "words", "source": "web", "quality": "high", "licence": "CC-BY"}]
    where = "CAST(quality AS DOUBLE) > 0.5 and licence = 'CC-BY'"
    out = packed(written(tmp_path / "rows", rows=rows), tmp_path / "out", [*SETTINGS, f"where={json.dumps(where)}"])
    assert ids(out) == GOOD
    [reason] = rejects(out).values()
    assert "Could not convert string 'high' to DOUBLE" in reason


NUMBERS = [
    pa.array([Decimal("9.15E-10"), Decimal("0.1"), None], pa.decimal256(39, 12)),
    pa.array([Decimal("3.51"), Decimal(-3), None], pa.decimal256(50, 3)),
    pa.array([Decimal(66286567952301199819), Decimal(3), None], pa.decimal256(43, 0)),
    pa.array([0.1, 1.5, None], pa.float32()),
]


@pytest.mark.parametrize("numbers", NUMBERS, ids=lambda column: str(column.type))
def test_every_number_compares_as_duckdb_compares_it_in_the_file(tmp_path: Path, numbers: pa.Array) -> None:
    """Fails when a number is rounded on its way in another manner than DuckDB rounds it when it reads the file."""
    pairs = numbers.take(pa.array([0, 0, 1, 1, 2, 2]))
    table = pa.table(
        {"id": list("abc"), "text": ["t"] * 3, "n": numbers, "pair": pa.FixedSizeListArray.from_arrays(pairs, 2)}
    )
    pq.write_table(table, tmp_path / "f.parquet")
    with duckdb.connect() as connection:
        [(first,)] = connection.execute(f"SELECT n FROM '{tmp_path}/f.parquet' WHERE id = 'a'").fetchall()
    for value in (first, float(numbers[0].as_py())):
        for where in (f"n = {value!r}::DOUBLE", f"n < {value!r}::DOUBLE", f"pair[2] >= {value!r}::DOUBLE"):
            expected = duckdb_ids(f"'{tmp_path}/f.parquet'", where)
            assert kept_rows(tmp_path / "f.parquet", where) == expected, where


def test_columns_of_parquet_have_the_types_that_duckdb_reads(tmp_path: Path) -> None:
    """Fails when a column is asked about by its type in Arrow, which Parquet only notes."""
    made = pa.array([1_700_000_000_000, 0], pa.timestamp("ms"))
    table = pa.table(
        {
            "id": ["a", "b"],
            "text": ["t", "u"],
            "box": pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 3, 4]), 2),
            "took": pa.array([1500, 2], pa.duration("ms")),
            "made": made,
            "halves": pa.ListViewArray.from_arrays(
                pa.array([1, 0], pa.int32()), pa.array([1, 1], pa.int32()), pa.array([0.5, 2.0], pa.float16())
            ),
            "none": pa.nulls(2),
        }
    )
    pq.write_table(table, tmp_path / "f.parquet")
    for where, kept in {
        "box = [1, 2] and box <> [1, 2, 3]": {"a"},
        "took > 1000": {"a"},
        "made = '2023-11-14 22:13:20.0001'": set(),
        "made = '2023-11-14 22:13:20'": {"a"},
        "halves[1] = 2.0": {"a"},
        "none is null and id = 'b'": {"b"},
        "none = 3 or id = 'b'": {"b"},
    }.items():
        assert duckdb_ids(f"'{tmp_path}/f.parquet'", where) == kept, where
        assert kept_rows(tmp_path / "f.parquet", where) == kept, where


def test_a_time_that_no_query_takes_rejects_its_row_alone(tmp_path: Path) -> None:
    """Fails when the job ends, or rows beside it are rejected, for a time beyond those that DuckDB has."""
    made = pa.array([2**62, 5, 6], pa.timestamp("ms"))
    pq.write_table(pa.table({"id": list("abc"), "text": ["t"] * 3, "made": made}), tmp_path / "f.parquet")
    config = load_config(None, [*SETTINGS, "where=\"made < TIMESTAMP '2000-01-01'\""])
    files = check_where(config.where, list_sources([str(tmp_path / "f.parquet")], config).files)
    [fragment] = list_fragments(files)
    first, *others = (row for *_, row in filtered_rows(read_fragment(fragment).rows, fragment.file, config, Counter()))
    assert isinstance(first, DocumentError)
    assert [row["id"] for row in others] == ["b", "c"]


def test_each_expression_is_asked_in_utc_and_shut_in() -> None:
    """Fails when an expression has the time zone of this machine, may set another, or reads a file, also after the
    first one of a process: a setting of a database need not reach its connections.
    """
    row = pa.table({"n": [1]})
    for _ in range(2):
        with asking("current_setting('TimeZone') = 'UTC' AND NOT current_setting('enable_external_access')") as where:
            assert where.of_table(row).tolist() == [True]
        with asking("n = 1); SET TimeZone = 'Asia/Tokyo'; SELECT (1") as where, pytest.raises(duckdb.Error):
            where.of_table(row)
        with asking("(SELECT count(*) FROM read_text('/etc/hostname')) = 1") as where, pytest.raises(duckdb.Error):
            where.of_table(row)
