"""Parquet files whose columns have every wrong type, and tables and indexed datasets whose bytes are damaged."""

from __future__ import annotations

import io
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from indexed_files import write_indexed

TEXT = pa.array(["one word", "two words", None, ""])
_PART = pa.struct([("type", pa.string()), ("text", pa.string()), ("image", pa.string()), ("bytes", pa.binary())])
_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.list_(_PART))]))


def typed_tables() -> Iterator[tuple[str, pa.Table, int]]:
    """Name, table of four rows or none, and how many of them must be packed."""
    for name, kind in (("string", pa.string()), ("large", pa.large_string()), ("view", pa.string_view())):
        yield name, pa.table({"text": TEXT.cast(kind)}), 2
    yield "dictionary", pa.table({"text": TEXT.dictionary_encode()}), 2
    wrong: dict[str, pa.Array] = {
        "bytes": TEXT.cast(pa.binary()),
        "bytes_view": TEXT.cast(pa.binary_view()),
        "numbers": pa.array([1, 2, None, 2**62]),
        "floats": pa.array([0.5, float("nan"), None, float("inf")]),
        "booleans": pa.array([True, False, None, True]),
        "decimals": pa.array([Decimal("1.5"), None, Decimal("2.5"), Decimal("3.5")]),
        "times": pa.array([0, 2**62, None, -(2**62)], pa.timestamp("us")),
        "nulls": pa.nulls(4),
        "lists": pa.array([["a"], [], None, [None]]),
        "objects": pa.array([{"a": 1}, None, {"a": None}, {"a": 2}]),
        "maps": pa.array([[("a", 1)], [], None, [("b", None)]], pa.map_(pa.string(), pa.int64())),
    }
    for name, column in wrong.items():
        read = 1 if name == "times" else 0  # the one in reach of a calendar is text, as in JSON
        yield f"text_{name}", pa.table({"text": column}), read
        yield f"messages_{name}", pa.table({"messages": column}), 0
        yield f"annotations_{name}", pa.table({"annotations": column, "media": column}), 0
        strange = 4 if name == "nulls" else column.null_count + read
        named = 4 if name == "numbers" else strange  # a whole number is an id
        yield f"id_{name}", pa.table({"id": column, "text": ["some text"] * 4}), named
        yield f"source_{name}", pa.table({"source": column, "text": ["some text"] * 4}), strange
    yield "no_rows", pa.table({"text": pa.array([], pa.string())}), 0
    yield "no_fields", pa.table({"prompt": pa.nulls(4)}), 0
    yield "chats", pa.table({"messages": pa.array(_chats(), _MESSAGES)}), 1
    yield "twice", pa.Table.from_arrays([TEXT, TEXT], ["text", "text"]), 2  # the last counts, as in JSON


def _chats() -> list[Any]:
    """Conversations with nulls at every depth; only the first is whole."""
    answer = {"role": "assistant", "content": [{"type": "text", "text": "An answer."}]}
    return [
        [{"role": "user", "content": [{"type": "text", "text": "A question?"}]}, answer],
        [None, answer],
        [{"role": None, "content": None}, answer],
        [{"role": "user", "content": [None, {"type": None}]}, answer],
    ]


def parquet(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def whole_files() -> list[bytes]:
    """Files of 40 rows in four row groups, in several encodings."""
    texts = pa.table({"id": [f"t{i}" for i in range(40)], "text": [f"The words of {i}. " * 20 for i in range(40)]})
    chats = pa.table({"messages": pa.array([_chats()[0]] * 40, _MESSAGES)})
    options: list[dict[str, Any]] = [
        {"compression": "snappy"},
        {"compression": "zstd", "use_dictionary": False, "data_page_version": "2.0"},
        {"compression": "none", "write_page_checksum": True},
        {"compression": "gzip", "use_dictionary": False, "store_schema": False},
    ]
    return [parquet(table, row_group_size=10, **each) for table in (texts, chats) for each in options]


def damaged_parquet(count: int, seed: int) -> Iterator[bytes]:
    """Whole files with some bytes changed: half of them in the footer, the others anywhere."""
    rng, whole = np.random.default_rng(seed), whole_files()
    for number in range(count):
        data = bytearray(whole[number % len(whole)])
        footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        low, high = (footer, len(data) - 8) if rng.random() < 0.5 else (0, len(data))
        for place in rng.integers(low, high, int(2 ** rng.uniform(0, 4))).tolist():
            data[place] = int(rng.choice([0, 1, 127, 128, 255, rng.integers(256)]))
        yield bytes(data)


def damaged_indexes(folder: Path, count: int, seed: int) -> Iterator[tuple[bytes, bytes]]:
    """Index and tokens of whole datasets, with some bytes of the index changed, or one of both cut short."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        sizes = rng.integers(0, 4, 40).tolist()
        documents = [[rng.integers(100, 120, rng.integers(0, 9)).tolist() for _ in range(size)] for size in sizes]
        modes = [0] * sum(sizes) if number % 3 == 0 else None
        path = write_indexed(folder / "f.bin", documents, ("int32", "uint16", "int64")[number % 3], modes)
        index, tokens = bytearray(path.with_suffix(".idx").read_bytes()), path.read_bytes()
        low, high = (0, 34) if rng.random() < 0.2 else (34, len(index))
        for place in rng.integers(low, high, int(2 ** rng.uniform(0, 4))).tolist():
            index[place] = int(rng.choice([0, 1, 127, 128, 255, rng.integers(256)]))
        cut = rng.random()
        yield (
            bytes(index[: rng.integers(len(index))] if cut < 0.05 else index),
            tokens[: rng.integers(len(tokens))] if cut > 0.95 else tokens,
        )
