"""Tables of every Arrow type at every depth of a row: JSON Lines, JSON, Parquet, Arrow, CSV and TSV, also compressed.

A row is drawn as JSON together with a type for each of its values. What is read of every file must be that row, a
document made of it the same document, and ``where`` must keep the rows that DuckDB keeps of the same file. ``datasets``
and DuckDB say what they read of the tables. One case of :data:`PACKED` is packed as a whole.
"""

from __future__ import annotations

import csv
import datetime
import gzip
import json
import math
import random
import re
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import datasets
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from files import Case
from pyarrow import ipc

from preshard.packer_service.config import load_config
from preshard.packer_service.ingest.source.files import list_fragments, read_fragment, read_row
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.packer_service.ingest.source.rows import parse_row
from preshard.packer_service.job.pack import pack
from preshard.packer_service.job.planning.where import check_where, filtered_rows
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.runtime.progress import NoProgress
from preshard.schemas.errors import ConfigError, DocumentError

PACKED = 100
DEPTH = 3
SETTINGS = ["seq_len=1024", "layouts=[contiguous]", "cp_sizes=[1]", "ring_degrees=[1]"]
WORDS = ("", "a", "null", "{}", "[1]", "true", "3.0", "2023-01-01", 'say "x"', "a,b", "tab\tend", "ø 二", "-", "a\nb")
MOMENT = datetime.datetime(2023, 1, 1)
UNITS = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
Draw = Callable[[random.Random], tuple[Any, Any]]


@dataclass(frozen=True)
class Kind:
    """A type, and how a value of it is drawn: as JSON, and as Arrow takes it."""

    type: pa.DataType
    draw: Draw


def same(value: Any) -> tuple[Any, Any]:
    return value, value


def _integer(rng: random.Random, kind: pa.DataType) -> int:
    bits, signed = kind.bit_width, pa.types.is_signed_integer(kind)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return rng.choice([low, high, 0, 1, high - 1, rng.randint(low, high)])


def _decimal(rng: random.Random, digits: int, scale: int) -> tuple[Any, Decimal]:
    most = 10**digits - 1
    whole = rng.randint(-most, most)
    if rng.random() < 0.3:
        whole -= whole % 10**scale if whole >= 0 else 0
    value = Decimal((int(whole < 0), tuple(map(int, str(abs(whole)))), -scale))
    return (int(value) if value == value.to_integral_value() else float(value)), value


def _fraction(count: int, unit: str) -> str:
    digits = f"{count * (1_000_000_000 // UNITS[unit]):09d}"
    return next((f".{digits[:n]}" if n else "" for n in (0, 3, 6) if not digits[n:].strip("0")), f".{digits}")


def _moment(rng: random.Random, unit: str, zone: str | None) -> tuple[str, int]:
    seconds, part = rng.randint(-(10**9), 2 * 10**9), rng.choice([0, 0, rng.randrange(UNITS[unit])])
    text = (datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)).isoformat()
    return f"{text}{_fraction(part, unit)}{'Z' if zone else ''}", seconds * UNITS[unit] + part


def _clock(rng: random.Random, unit: str) -> tuple[str, int]:
    seconds, part = rng.randrange(86_400), rng.choice([0, rng.randrange(UNITS[unit])])
    text = (MOMENT + datetime.timedelta(seconds=seconds)).time().isoformat()
    return f"{text}{_fraction(part, unit)}", seconds * UNITS[unit] + part


def _day(rng: random.Random) -> tuple[str, datetime.date]:
    day = MOMENT.date() + datetime.timedelta(days=rng.randint(-9000, 9000))
    return day.isoformat(), day


def _uuid(rng: random.Random) -> tuple[str, bytes]:
    value = uuid.UUID(int=rng.getrandbits(128))
    return str(value), value.bytes


def json_value(rng: random.Random, depth: int = 0) -> Any:
    """Any value of JSON."""
    leaf: list[Callable[[], Any]] = [
        lambda: None,
        lambda: rng.choice(WORDS),
        lambda: rng.choice([True, 2**53 + 1, -(2**63), 0.5, -0.25]),
    ]
    if depth >= DEPTH or rng.random() < 0.5:
        return rng.choice(leaf)()
    if rng.random() < 0.5:
        return [json_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {name: json_value(rng, depth + 1) for name in rng.sample(["a", "b", "type", "ø"], rng.randrange(3))}


def _spelled(rng: random.Random) -> tuple[Any, str]:
    value = json_value(rng)
    return value, json.dumps(value)


def leaves() -> list[Kind]:
    """Every type that holds no other."""
    found = [
        Kind(kind, lambda rng, kind=kind: same(_integer(rng, kind)))  # type: ignore[misc]
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    ]
    found += [
        Kind(kind, lambda rng: same(rng.choice([0.5, -2.0, 64.25])))
        for kind in (pa.float16(), pa.float32(), pa.float64())
    ]
    found += [
        Kind(kind, lambda rng: same(rng.choice(WORDS))) for kind in (pa.string(), pa.large_string(), pa.string_view())
    ]
    found += [
        Kind(make(digits, scale), lambda rng, d=digits, s=scale: _decimal(rng, d, s))  # type: ignore[misc]
        for make, digits, scale in (
            (pa.decimal32, 7, 2),
            (pa.decimal64, 16, 0),
            (pa.decimal128, 20, 2),
            (pa.decimal128, 5, 5),
            (pa.decimal256, 50, 3),
        )
    ]
    found += [
        Kind(pa.timestamp(unit, zone), lambda rng, u=unit, z=zone: _moment(rng, u, z))  # type: ignore[misc]
        for unit in UNITS
        for zone in (None, "UTC", "Europe/Oslo")
    ]
    found += [Kind(pa.time32(unit), lambda rng, u=unit: _clock(rng, u)) for unit in ("s", "ms")]  # type: ignore[misc]
    found += [Kind(pa.time64(unit), lambda rng, u=unit: _clock(rng, u)) for unit in ("us", "ns")]  # type: ignore[misc]
    found += [
        Kind(pa.bool_(), lambda rng: same(rng.random() < 0.5)),
        Kind(pa.bool8(), lambda rng: rng.choice([(True, 1), (False, 0)])),
        Kind(pa.date32(), _day),
        Kind(pa.date64(), _day),
        Kind(pa.uuid(), _uuid),
        Kind(pa.duration("ms"), lambda rng: rng.choice([(1.5, 1500), (-2, -2000), (0, 0)])),
        Kind(pa.json_(pa.string()), _spelled),
        Kind(pa.dictionary(pa.int8(), pa.string()), lambda rng: same(rng.choice(WORDS))),
        Kind(pa.run_end_encoded(pa.int32(), pa.string()), lambda rng: same(rng.choice(WORDS))),
        Kind(pa.run_end_encoded(pa.int16(), pa.int64()), lambda rng: same(rng.choice([2**53 + 1, -1]))),
        Kind(pa.null(), lambda _: (None, None)),
    ]  # fmt: skip
    return found


LEAVES = leaves()


def nullable(kind: Kind, rng: random.Random) -> tuple[Any, Any, bool]:
    """A value or none: as JSON, as Arrow has it, and whether it is there."""
    if pa.types.is_null(kind.type) or rng.random() < 0.15:
        return None, None, False
    return *kind.draw(rng), True


def drawn_kind(rng: random.Random, depth: int = 0) -> Kind:
    """A type, with others inside of it."""
    if depth >= DEPTH or rng.random() < 0.35:
        return rng.choice(LEAVES)
    shape = rng.choice(["list", "large_list", "struct", "struct", "map", "fixed", "list_view", "large_list_view"])
    inner = [drawn_kind(rng, depth + 1) for _ in range(rng.randint(1, 3) if shape == "struct" else 1)]
    if shape == "struct":
        return struct(dict(zip("abc", inner, strict=False)))
    [item] = inner
    if shape == "map":
        return mapping(item)
    size = rng.randint(1, 3)
    types = {
        "list": pa.list_(item.type),
        "large_list": pa.large_list(item.type),
        "fixed": pa.list_(item.type, size),
        "list_view": pa.list_view(item.type),
        "large_list_view": pa.large_list_view(item.type),
    }

    def listed(rng: random.Random) -> tuple[Any, Any]:
        each = [nullable(item, rng) for _ in range(size if shape == "fixed" else rng.randrange(4))]
        return [value for value, _, _ in each], [value for _, value, _ in each]

    return Kind(types[shape], listed)


def struct(fields: dict[str, Kind]) -> Kind:
    def made(rng: random.Random) -> tuple[Any, Any]:
        each = {name: nullable(kind, rng) for name, kind in fields.items()}
        return {n: value for n, (value, _, there) in each.items() if there}, {
            n: value for n, (_, value, _) in each.items()
        }

    return Kind(pa.struct([(name, kind.type) for name, kind in fields.items()]), made)


def mapping(item: Kind) -> Kind:
    def made(rng: random.Random) -> tuple[Any, Any]:
        each = {name: nullable(item, rng) for name in rng.sample(["a", "b", "ø", ""], rng.randrange(4))}
        return {n: value for n, (value, _, _) in each.items()}, [(n, value) for n, (_, value, _) in each.items()]

    return Kind(pa.map_(pa.string(), item.type), made)


def array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Values of a type: Arrow itself makes no extension of JSON inside of others."""
    missing = pa.array([value is None for value in values], pa.bool_())
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    if pa.types.is_run_end_encoded(kind):
        runs = [(len(list(same)), value) for value, same in groupby(values)]
        ends = pa.array(accumulate(length for length, _ in runs), kind.run_end_type)
        return pa.RunEndEncodedArray.from_arrays(ends, pa.array([value for _, value in runs], kind.value_type))
    if pa.types.is_struct(kind):
        children = [array(field.type, [None if v is None else v[field.name] for v in values]) for field in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)
    if pa.types.is_fixed_size_list(kind):
        rows = [value or [None] * kind.list_size for value in values]
        flat = array(kind.value_type, [each for row in rows for each in row])
        return pa.FixedSizeListArray.from_arrays(flat, type=kind, mask=missing)
    return _listed(kind, values, missing) if kind.num_fields else pa.array(values, kind)


def _listed(kind: pa.DataType, values: list[Any], missing: pa.Array) -> pa.Array:
    is_large, is_map = str(kind).startswith("large"), pa.types.is_map(kind)
    wide, lengths = pa.int64() if is_large else pa.int32(), [len(value or ()) for value in values]
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        # The lists lie one behind the other from the last to the first.
        flat = array(kind.value_type, [each for value in reversed(values) for each in value or ()])
        offsets, sizes = (pa.array(each, wide) for each in ([len(flat) - end for end in accumulate(lengths)], lengths))
        make = pa.LargeListViewArray if is_large else pa.ListViewArray
        return make.from_arrays(offsets, sizes, flat, mask=missing)
    ends = list(accumulate(lengths, initial=0))
    starts = [None if value is None else at for value, at in zip(values, ends, strict=False)]
    offsets, each = pa.array([*starts, ends[-1]], wide), [each for value in values for each in value or ()]
    if is_map:
        keys, items = array(kind.key_type, [k for k, _ in each]), array(kind.item_type, [v for _, v in each])
        return pa.MapArray.from_arrays(offsets, keys, items)
    return (pa.LargeListArray if is_large else pa.ListArray).from_arrays(offsets, array(kind.value_type, each))


@dataclass(frozen=True)
class Facts:
    """The rows of a case as JSON, the table, and the expression that chooses some."""

    rows: list[dict[str, Any]]
    table: pa.Table
    where: str
    seed: int


NUMBERS = [
    kind
    for kind in LEAVES
    if pa.types.is_integer(kind.type) or pa.types.is_floating(kind.type) or pa.types.is_decimal(kind.type)
]
TIMES = [kind for kind in LEAVES if pa.types.is_timestamp(kind.type) or pa.types.is_date(kind.type)]
TEXTS = [
    kind
    for kind in LEAVES
    if pa.types.is_string(kind.type)
    or pa.types.is_large_string(kind.type)
    or pa.types.is_string_view(kind.type)
    or pa.types.is_dictionary(kind.type)
]


def draw(seed: int, folder: Path) -> Case:
    rng = random.Random(seed)
    n_rows = rng.randint(1, 12)
    arguments = rng.choice([mapping(drawn_kind(rng, 1)), struct({name: drawn_kind(rng, 1) for name in "ab"})])
    text = rng.choice(TEXTS).type
    columns: dict[str, Kind] = {
        "id": Kind(text, lambda _: ("", "")),
        "payload": drawn_kind(rng),
        "score": _neighbours(rng) if rng.random() < 0.4 else rng.choice(NUMBERS),
        "made": rng.choice(TIMES),
        "calls": arguments,
    }
    rows, values = list[dict[str, Any]](), {name: list[Any]() for name in (*columns, "messages")}
    for i in range(n_rows):
        each = {name: nullable(kind, rng) for name, kind in columns.items()} | {"id": (f"r{i}", f"r{i}", True)}
        call, stored, there = each.pop("calls")
        call, stored = (call, stored) if there else arguments.draw(rng)
        words = rng.choice(["What?", 'Say "it".', "Lines\nof text"])
        answer = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f"}}]}
        answer["tool_calls"][0]["function"]["arguments"] = call  # type: ignore[index]
        turns = [{"role": "user", "content": words}, answer]
        stored_turns = [
            {"role": "user", "content": words, "tool_calls": None},
            {**answer, "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": stored}}]},
        ]
        rows.append({name: value for name, (value, _, there) in each.items() if there} | {"messages": turns})
        for name, (_, value, _) in each.items():
            values[name].append(value)
        values["messages"].append(stored_turns)
    call_type = pa.struct([("type", text), ("function", pa.struct([("name", text), ("arguments", arguments.type)]))])
    message = pa.struct([("role", text), ("content", text), ("tool_calls", pa.list_(call_type))])
    types = {name: kind.type for name, kind in columns.items() if name != "calls"} | {"messages": pa.list_(message)}
    table = pa.table({name: array(kind, values[name]) for name, kind in types.items()})
    table = table.append_column(
        "own", pa.array([b"\xff"] * n_rows, rng.choice([pa.binary(), pa.binary(1), pa.binary_view()]))
    )
    files = written(rng, folder, rows, table)
    return Case(
        kind="+".join(sorted({"".join(path.suffixes) for path in files})),
        files=files,
        facts=Facts(rows, table, asked(rng, rows), seed),
    )


def _neighbours(rng: random.Random) -> Kind:
    """Integers that no float tells apart."""
    kind = rng.choice([pa.int64(), pa.int64(), pa.uint64(), pa.decimal128(20, 0)])
    base = rng.randrange(2**53, 2**63 - 4)
    as_arrow = Decimal if pa.types.is_decimal(kind) else int

    def drawn(rng: random.Random) -> tuple[Any, Any]:
        value = base + rng.randrange(4)
        return value, as_arrow(value)

    return Kind(kind, drawn)


def asked(rng: random.Random, rows: list[dict[str, Any]]) -> str:
    """An expression over a column of which DuckDB knows the same in every container."""
    row = rng.choice(rows)
    number = row.get("score", 1)
    literal = repr(number) if isinstance(number, int) else f"{number!r}::DOUBLE"
    return rng.choice(
        [
            *(f"score {sign} {literal}" for sign in rng.sample([">", "=", "<=", "<>"], 3)),
            "score is null",
            f"id <= '{row['id']}'",
            f"made >= TIMESTAMP '{row.get('made', '2020-01-01')[:10]}'",
            f"made <> '{row.get('made', '2020-01-01')[:19].replace('T', ' ')}{rng.choice(['', '.0001'])}'",
            "len(messages[2].tool_calls) = 1 and id <> 'r1'",
        ]
    )


def written(rng: random.Random, folder: Path, rows: list[dict[str, Any]], table: pa.Table) -> tuple[Path, ...]:
    """The same rows in every container that takes their types."""
    lines = b"".join(json.dumps(row, ensure_ascii=rng.random() < 0.5).encode() + b"\n" for row in rows)
    cut = rng.randrange(len(lines))
    members = (
        gzip.compress(lines[:cut])
        + bytes(rng.choice([0, 512]))
        + gzip.compress(lines[cut:])
        + bytes(rng.choice([0, 700]))
    )
    codec = pa.Codec("zstd")
    frames = b"".join(codec.compress(part, asbytes=True) for part in (lines[:cut], lines[cut:]) if part)
    data = {
        "f.jsonl": lines,
        "f.json": json.dumps(rows, indent=rng.choice([None, 1])).encode(),
        "f.jsonl.gz": members,
        "f.jsonl.zst": frames,
    }
    for name, content in data.items():
        (folder / name).write_bytes(content)
    files = [folder / name for name in data]
    with suppress(pa.ArrowNotImplementedError):
        pq.write_table(
            table,
            folder / "f.parquet",
            row_group_size=rng.randint(1, 5),
            compression=rng.choice(["snappy", "zstd", "none"]),
            data_page_version=rng.choice(["1.0", "2.0"]),
            use_dictionary=rng.random() < 0.5,
        )
        files.append(folder / "f.parquet")
    for name, make in (("f.arrow", ipc.new_file), ("stream.arrow", ipc.new_stream)):
        with make(str(folder / name), table.schema) as out:
            out.write_table(table, max_chunksize=rng.randint(1, 5))
        files.append(folder / name)
    for name, delimiter in (("f.csv", ","), ("f.tsv", "\t")):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            to = csv.writer(file, delimiter=delimiter, lineterminator=rng.choice(["\n", "\r\n"]))
            to.writerow(["id", "text", "score"])
            to.writerows([row["id"], row["messages"][0]["content"], row.get("score")] for row in rows)
        files.append(folder / name)
    return tuple(files)


def judge(case: Case) -> list[str]:
    facts: Facts = case.facts
    wrong = list[str]()
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for path in case.files:
            wrong += judged(path, facts, connection)
        wrong += by_datasets(facts) + by_duckdb(case, connection)
    return wrong + (packed(case) if facts.seed % PACKED == 0 else [])


def judged(path: Path, facts: Facts, connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Differences in one file from the rows that were drawn, and from DuckDB's answer."""
    wrong, is_text = list[str](), path.suffix in (".csv", ".tsv")
    expected = [text_row(row) for row in facts.rows] if is_text else facts.rows
    found = read(path, all_columns=True)
    found = [{k: v for k, v in row.items() if k != "own"} if isinstance(row, dict) else row for row in found]
    if (fault := first_difference(found, expected)) is not None:
        wrong.append(f"{path.name}: {fault}")
    elif not is_text and [parse_row(row) for row in found] != [parse_row(row) for row in facts.rows]:
        wrong.append(f"{path.name}: another document")
    return wrong + asked_otherwise(path, facts, connection, is_text=is_text)


def text_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row as CSV has it: text, and nothing where it is empty."""
    found = {"id": row["id"], "text": row["messages"][0]["content"], "score": row.get("score")}
    return {name: str(value) for name, value in found.items() if value is not None}


def read(path: Path, *, all_columns: bool, where: str | None = None) -> list[Any]:
    config = load_config(None, [*SETTINGS, *([f"where={json.dumps(where)}"] if where else [])])
    files = check_where(config.where, list_sources([str(path)], config).files)
    rows = list[Any]()
    for fragment in list_fragments(files):
        if all_columns:
            object.__setattr__(fragment.file, "columns", None)
        source = read_fragment(fragment).rows
        for _, reference, row in filtered_rows(source, fragment.file, config, Counter()):
            rows.append(row)
            if isinstance(row, dict) and read_row(fragment.file, reference) != row:
                rows.append("another row when read again")
    return rows


def first_difference(found: list[Any], expected: list[Any]) -> str | None:
    if len(found) != len(expected):
        return f"{len(found)} rows of {len(expected)}"
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        if isinstance(one, DocumentError) or spelled(one) != spelled(other):
            return f"row {number}: {apart(one, other)}"
    return None


def apart(one: Any, other: Any, place: str = "") -> str:
    """The first place at which two values differ, and both there."""
    inner: list[Any] = []
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        inner = list(one)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        inner = list(range(len(one)))
    for key in inner:
        if spelled(one[key]) != spelled(other[key]):
            return apart(one[key], other[key], f"{place}[{key!r}]")
    return f"{place} is {str(one)[:200]}, not {str(other)[:200]}"


def spelled(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def asked_otherwise(path: Path, facts: Facts, connection: duckdb.DuckDBPyConnection, *, is_text: bool) -> list[str]:
    """Compares the rows that ``where`` keeps with DuckDB's on the same file; of Arrow, on the table."""
    where = facts.where
    if path.suffix in (".json", ".zst") or (is_text and ("made" in where or "messages" in where)):
        return []
    read_from = f"'{path}'"
    if path.suffix == ".tsv":
        read_from = f"read_csv('{path}', delim='\t', quote='\"', escape='\"', header=true)"
    elif path.suffix == ".csv":
        read_from = f"read_csv('{path}', delim=',', quote='\"', escape='\"', header=true)"
    elif path.suffix == ".gz":
        read_from = f"'{path.with_suffix('')}'"  # DuckDB takes no zero bytes behind a member
    try:
        if path.suffix == ".arrow":
            read_from = "given"
            named = [name for name in ("id", "score", "made", "messages") if name in where or name == "id"]
            connection.register("given", facts.table.select(named))
        asked = connection.execute(f"SELECT id FROM {read_from} WHERE {where}").fetchall()
    except duckdb.Error:  # what DuckDB refuses of this file needs no answer
        return []
    try:
        rows = read(path, all_columns=False, where=where)
    except ConfigError as error:
        return [f"{path.name}: where {where}: {error}"]
    found = sorted(row["id"] if isinstance(row, dict) else str(row) for row in rows)
    expected = sorted(name for (name,) in asked)
    return [] if found == expected else [f"{path.name}: where {where}: {found} is not {expected}"]


def by_datasets(facts: Facts) -> list[str]:
    """Compares the payload with what ``datasets`` makes of it, where it knows the type and JSON has the same."""
    kind = facts.table.schema.field("payload").type
    if any(
        word in str(kind)
        for word in (
            "map",
            "timestamp",
            "time",
            "date",
            "decimal",
            "duration",
            "uuid",
            "bool8",
            "view",
            "dictionary",
            "halffloat",
            "run_end",
        )
    ):
        return []
    column = facts.table.select(["payload"])
    found = [row["payload"] for row in datasets.Dataset(datasets.table.InMemoryTable(column))]
    if "arrow.json" not in str(kind):
        found = [without_nulls(value) for value in found]
    else:
        return [] if len(found) == len(facts.rows) else ["datasets has another number of rows"]
    expected = [row.get("payload") for row in facts.rows]
    return (
        [] if spelled(found) == spelled(expected) else [f"datasets reads {str(found)[:200]}, not {str(expected)[:200]}"]
    )


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def by_duckdb(case: Case, connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Compares the payload of the Parquet file with what DuckDB makes of it, where JSON has the same."""
    path = next((path for path in case.files if path.suffix == ".parquet"), None)
    kind = str(case.facts.table.schema.field("payload").type)
    if path is None or any(word in kind for word in ("arrow.json", "duration", "halffloat", "decimal256", "map")):
        return []
    try:
        texts = connection.execute(f"SELECT to_json(payload)::VARCHAR FROM '{path}'").fetchall()
    except duckdb.Error:
        return []
    found = [without_nulls(None if text is None else json.loads(text)) for (text,) in texts]
    expected = [row.get("payload") for row in case.facts.rows]
    same = len(found) == len(expected) and all(map(alike, found, expected))
    return [] if same else [f"DuckDB reads {str(found)[:200]}, not {str(expected)[:200]}"]


def alike(one: Any, other: Any) -> bool:
    """Whether two values differ in no more than how a time or a fraction is written."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float | int) and isinstance(other, float | int):
        return one == other if isinstance(one, int) else math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
    if isinstance(one, str) and isinstance(other, str):
        plain = [re.sub(r"[+]00$", "Z", text).replace(" ", "T") for text in (one, other)]
        return (
            one == other or len({re.sub(r"[.]?0*(Z?)$", r"\1", text) if "." in text else text for text in plain}) == 1
        )
    return one is other


def packed(case: Case) -> list[str]:
    """A whole job of every file, each under ids of its own."""
    folder, rows = case.files[0].parent, len(case.facts.rows)
    out, config = folder.parent / f"{folder.name}-out", load_config(None, [*SETTINGS, "ignore_columns=[id]"])
    pack(
        [str(path) for path in case.files if path.suffix in (".csv", ".tsv", ".gz")],
        str(out),
        config,
        PlainExecutor(),
        NoProgress(),
    )  # type: ignore[arg-type]
    n_files = sum(path.suffix in (".csv", ".tsv", ".gz") for path in case.files)
    counts = json.loads((out / "manifest.json").read_bytes())["counts"]
    lost = counts["documents"] + counts["rejected"] - rows * n_files
    return [f"packed and rejected {lost:+} rows of {rows * n_files}"] if lost else []
