"""Writes the tables of keys, options, figures and tested versions into their pages, from the code itself."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from annotated_types import Le
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from preshard.packer_service.report.figures import FIGURES
from preshard.schemas.config import PackConfig
from preshard.trainer.core.config import TrainConfig, option

BEGIN, END = "<!-- configuration -->", "<!-- end of configuration -->"


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


def versions() -> str:
    """Every version that `make test-matrix` runs, as Markdown."""
    matrix = tomllib.loads(Path(__file__).parents[1].joinpath("tests/matrix/versions.toml").read_text("utf-8"))
    rows = ["| what | version | with |", "|---|---|---|"]
    rows += [f"| {name} | {', '.join(matrix[name])} | |" for name in ("torch", "transformers")]
    for trainer, table in matrix["trainers"].items():
        name, _, version = trainer.rpartition("-")
        given = [pin.replace("==", " ") for pin in table["pins"] if pin.partition("==")[0] in ("torch", "transformers")]
        rows.append(f"| {name} | {version} | {', '.join(given)} |")
    return "\n".join(rows)


PAGES: dict[Path, Callable[[], str]] = {
    Path(__file__).with_name("packing.md"): keys,
    Path(__file__).with_name("training.md"): options,
    Path(__file__).with_name("format.md"): figures,
    Path(__file__).with_name("versions.md"): versions,
}


def page(text: str, table: str) -> str:
    """A page with its table made anew."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2] if END in rest else rest
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


if __name__ == "__main__":
    for path, make_table in PAGES.items():
        path.write_text(page(path.read_text(encoding="utf-8"), make_table()), encoding="utf-8")
