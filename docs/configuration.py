"""Writes the tables of keys, options, figures, columns and tested versions into their pages, from the code itself."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
from annotated_types import Le
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from preshard.packer_service.report.figures import FIGURES
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.table import LARGEST, Column
from preshard.schemas.tables import DECLARED
from preshard.trainer.core.config import TrainConfig, option


def keys() -> str:
    """Every key of a packing job with its default, its largest value and its meaning, as Markdown."""
    return "\n".join(["| key | default | at most | meaning |", "|---|---|---|---|", *_rows(PackConfig(), "")])


def _rows(section: BaseModel, path: str) -> list[str]:
    rows = []
    for name, field in type(section).model_fields.items():
        value: Any = getattr(section, name)
        if isinstance(value, BaseModel):
            rows += _rows(value, f"{path}{name}.")
        else:
            shown = _shown(section.model_dump(mode="json")[name])
            rows.append(f"| `{path}{name}` | {shown} | {_most(field)} | {field.description} |")
    return rows


def _shown(value: Any) -> Any:
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    return "null" if value is None else value


def _most(field: FieldInfo) -> str:
    """The largest legal value, for a list that of its items; nothing where there is none."""
    limits = [limit.le for limit in field.metadata if isinstance(limit, Le)]
    items = TypeAdapter(field.annotation).json_schema().get("items", {})
    known = [*limits, *([items["maximum"]] if "maximum" in items else [])]
    return f"{known[0]:,}" if known else ""


def options() -> str:
    """Every option of the trainer with its default and meaning, as Markdown."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for name, field in TrainConfig.model_fields.items():
        default = "must be given" if field.is_required() else field.default
        shown = "" if default is None or default is False or default == () else default
        rows.append(f"| `{option(name)}` | {shown} | {field.description} |")
    return "\n".join(rows)


def figures() -> str:
    """Every figure of balance, as Markdown."""
    rows = ["| key | of | form | unit | meaning |", "|---|---|---|---|---|"]
    return "\n".join([*rows, *(f"| `{f.key}` | {f.of} | {f.kind} | {f.unit} | {f.words} |" for f in FIGURES)])


def columns(table: str) -> str:
    """Every column of a table of the format; neighbours that are described together share a row."""
    rows = ["| column | type | values | holds |", "|---|---|---|---|"]
    for (kind, legal, means), group in groupby(DECLARED[table], key=_described):
        rows.append(f"| {', '.join(f'`{column.name}`' for column in group)} | {kind} | {legal} | {means} |")
    return "\n".join(rows)


def _described(column: Column) -> tuple[str, str, str]:
    """Type, legal values and meaning of a column."""
    of_numbers = column.type == pa.int64() or bool(column.length)
    kind = f"list of int64, `{column.length}` long" if column.length else str(column.type)
    kind = "string in an int32 dictionary" if pa.types.is_dictionary(column.type) else kind
    legal = [f"at most {column.most:,}"] if of_numbers and column.most < LARGEST else []
    legal += [", ".join(f"`{value}`" for value in column.legal)] if column.legal else []
    legal += ["finite"] if pa.types.is_floating(column.type) else []
    legal += [f"null in {column.nulls}"] if column.nulls else []
    return kind.replace("double", "float64"), "; ".join(legal), column.means


def versions() -> str:
    """Every version that `make test-matrix` runs, as Markdown."""
    matrix = tomllib.loads(Path(__file__).parents[1].joinpath("tests/matrix/versions.toml").read_text("utf-8"))
    rows = ["| what | version | with |", "|---|---|---|"]
    rows += [f"| Python | 3.11, {', '.join(matrix['pythons']['versions'])} | |"]
    rows += [f"| {name} | {', '.join(matrix[name])} | |" for name in ("torch", "transformers")]
    for trainer, table in matrix["trainers"].items():
        name, _, version = trainer.rpartition("-")
        given = [pin.replace("==", " ") for pin in table["pins"] if pin.partition("==")[0] in ("torch", "transformers")]
        rows.append(f"| {name} | {version} | {', '.join(given)} |")
    return "\n".join(rows)


def _page(name: str) -> Path:
    return Path(__file__).with_name(name)


MADE: tuple[tuple[Path, str, Callable[[], str]], ...] = (
    (_page("packing.md"), "configuration", keys),
    (_page("training.md"), "configuration", options),
    (_page("format.md"), "configuration", figures),
    *((_page("format.md"), f"columns of {table}", partial(columns, table)) for table in DECLARED),
    (_page("versions.md"), "configuration", versions),
)
"""The page, the name of the table in it, and what makes the table."""


def page(text: str, name: str, table: str) -> str:
    """A page with one of its tables made anew."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, found, rest = text.partition(begin)
    assert found, f"the page has no line {begin}"
    after = rest.partition(end)[2] if end in rest else rest
    return f"{before}{begin}\n{table}\n{end}{after}"


if __name__ == "__main__":
    for path, name, make_table in MADE:
        path.write_text(page(path.read_text(encoding="utf-8"), name, make_table()), encoding="utf-8")
