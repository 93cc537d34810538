"""Values of Arrow columns by their types: a row of a table equals the row of JSON that it was made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.types as is_type

from preshard.schemas.errors import DocumentError

Convert = Callable[[Any], Any]

LISTS = tuple(
    getattr(is_type, f"is_{name}") for name in ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
)
_SCALARWISE = tuple(
    getattr(is_type, f"is_{name}") for name in ("timestamp", "time", "duration", "interval", "union", "date")
)
"""Types that Python's own cannot hold, or only rounded: they are read from their integers."""
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_EPOCH = datetime(1970, 1, 1)


class TableRows:
    """Rows of a table, each made when it is asked for."""

    def __init__(self, table: pa.Table) -> None:
        self.table, self.nbytes = table, table.nbytes
        self._columns = [
            (field.name, column, *_reading(field.type))
            for field, column in zip(table.schema, table.columns, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.table)

    def row(self, index: int) -> Any:
        """A row as JSON would give it, or why it cannot be read.

        A null in a row or a struct is a key that was not there, since all rows of a table have the same keys. Of two
        columns of one name the last counts, as in JSON.
        """
        row = dict[str, Any]()
        for name, column, scalarwise, convert in self._columns:
            try:
                scalar = column[index]
                value = _by_scalar(scalar) if scalarwise else scalar.as_py()
                if value is not None:
                    row[name] = value if convert is None else convert(value)
            except UnicodeDecodeError:
                # Arrow does not check that a file's strings are UTF-8.
                return DocumentError("bad_row", f"{name[:80]} holds a string that is not UTF-8")
            except (ValueError, OverflowError, RecursionError, pa.ArrowException) as error:
                reason = " ".join(str(error).split())[:100]
                return DocumentError("bad_row", f"{name[:80]} holds a value that cannot be read ({reason})")
        return row


def is_json(kind: pa.DataType) -> bool:
    """Whether a type is JSON text: of Arrow's extension, as ``datasets`` and DuckDB write it."""
    return isinstance(kind, pa.JsonType)


def is_list(kind: pa.DataType) -> bool:
    return any(test(kind) for test in LISTS)


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column's values without what is around them: dictionaries, runs, extensions but for JSON."""
    while True:
        if is_type.is_dictionary(kind) or is_type.is_run_end_encoded(kind):
            kind = kind.value_type
        elif isinstance(kind, pa.BaseExtensionType) and not is_json(kind):
            kind = pa.bool_() if isinstance(kind, pa.Bool8Type) else kind.storage_type
        else:
            return kind


@cache
def _reading(kind: pa.DataType) -> tuple[bool, Convert | None]:
    """Whether a column is read scalar by scalar, and else what is done with the Python value, if anything."""
    scalarwise = _holds_scalarwise(kind)
    return scalarwise, None if scalarwise else _conversion(kind)


def _holds_scalarwise(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.JsonType | pa.Bool8Type | pa.UuidType):
        return True
    kind = stored_type(kind)
    return any(test(kind) for test in _SCALARWISE) or any(map(_holds_scalarwise, _inner(kind)))


def _inner(kind: pa.DataType) -> list[pa.DataType]:
    if is_list(kind):
        return [kind.value_type]
    if is_type.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [field.type for field in kind] if is_type.is_struct(kind) else []


def _conversion(kind: pa.DataType) -> Convert | None:
    """Function that turns Arrow's Python value, which is not null, into JSON's; None where they are the same."""
    if isinstance(kind, pa.UuidType):
        return str
    kind = stored_type(kind)
    if is_json(kind) or is_type.is_decimal(kind):
        return json.loads if is_json(kind) else _number
    inner = [_conversion(each) for each in _inner(kind)]
    if is_type.is_struct(kind):
        return _of_struct({field.name: one for field, one in zip(kind, inner, strict=True) if one is not None})
    if is_type.is_map(kind):
        return _of_map(*inner)
    return _of_list(inner[0]) if inner and inner[0] is not None else None


def _of_list(item: Convert) -> Convert:
    return lambda values: [None if each is None else item(each) for each in values]


def _of_map(key: Convert | None, item: Convert | None) -> Convert:
    return lambda pairs: {
        _key(k if key is None else key(k)): v if v is None or item is None else item(v) for k, v in pairs
    }


def _of_struct(of_field: dict[str, Convert]) -> Convert:
    return lambda fields: {
        name: of_field[name](value) if name in of_field else value
        for name, value in fields.items()
        if value is not None
    }


def _by_scalar(scalar: pa.Scalar) -> Any:
    """The same of one scalar: slower, and exact for every type."""
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if isinstance(kind, pa.JsonType | pa.Bool8Type | pa.UuidType):
        return _converted(scalar)
    read = _extended if isinstance(kind, pa.BaseExtensionType) else None
    return (read or next((read for test, read in _READ if test(kind)), _converted))(scalar)


def _converted(scalar: pa.Scalar) -> Any:
    value, convert = scalar.as_py(), _conversion(scalar.type)
    return value if convert is None else convert(value)


def _extended(scalar: pa.Scalar) -> Any:
    return _by_scalar(scalar.value)


def _number(value: Decimal) -> int | float:
    """A whole number exactly, whatever its scale, as ids are."""
    return int(value) if value == value.to_integral_value() else float(value)


def _clock(scalar: pa.Scalar) -> str:
    """A time as ISO 8601 writes it, with the digits that it has; with a time zone it is that of UTC."""
    kind = scalar.type
    seconds, part = divmod(scalar.value, _PER_SECOND[kind.unit])
    text = (_EPOCH + timedelta(seconds=seconds)).isoformat()
    nanoseconds = f"{part * (1_000_000_000 // _PER_SECOND[kind.unit]):09d}"
    digits = next((n for n in (0, 3, 6) if not nanoseconds[n:].strip("0")), 9)
    text += f".{nanoseconds[:digits]}" if digits else ""
    return text[11:] if is_type.is_time(kind) else f"{text}Z" if kind.tz is not None else text


def _interval(scalar: pa.Scalar) -> Any:  # noqa: ARG001
    raise ValueError("an interval of months, days and seconds cannot be written as JSON")


def _key(value: Any) -> str:
    """A key of a map as JSON spells it."""
    return value if isinstance(value, str) else json.dumps(value)


_READ: tuple[tuple[Callable[[pa.DataType], bool], Convert], ...] = (
    (is_list, lambda scalar: [_by_scalar(each) for each in scalar.values]),
    (
        is_type.is_struct,
        lambda scalar: {name: _by_scalar(each) for name, each in scalar.items() if each.is_valid},
    ),
    (
        is_type.is_map,
        lambda scalar: {_key(_by_scalar(pair["key"])): _by_scalar(pair["value"]) for pair in scalar.values},
    ),
    *((test, _extended) for test in (is_type.is_dictionary, is_type.is_run_end_encoded, is_type.is_union)),
    (is_type.is_date, lambda scalar: scalar.as_py().isoformat()),
    *((test, _clock) for test in (is_type.is_timestamp, is_type.is_time)),
    (is_type.is_duration, lambda scalar: _number(Decimal(scalar.value) / _PER_SECOND[scalar.type.unit])),
    (is_type.is_interval, _interval),
)
