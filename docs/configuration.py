"""Writes the table of configuration keys into ``packing.md``, from the configuration itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from packer_service.config import PackConfig

PAGE = Path(__file__).with_name("packing.md")
BEGIN, END = "<!-- configuration -->", "<!-- end of configuration -->"


def table() -> str:
    """Every key with its default and meaning, as Markdown."""
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *_rows(PackConfig(), "")])


def _rows(section: BaseModel, path: str) -> list[str]:
    rows = []
    for name, field in type(section).model_fields.items():
        value: Any = getattr(section, name)
        if isinstance(value, BaseModel):
            rows += _rows(value, f"{path}{name}.")
        else:
            shown = (
                "null"
                if value is None
                else "[" + ", ".join(map(str, value)) + "]"
                if isinstance(value, tuple)
                else value
            )
            rows.append(f"| `{path}{name}` | {shown} | {field.description} |")
    return rows


def page(text: str) -> str:
    """A page with its table made anew."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2] if END in rest else rest
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
