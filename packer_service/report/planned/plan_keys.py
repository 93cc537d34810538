"""Keys that can be asked of a plan, with meanings and ranges, or the reason why not, and a dataset's documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from preshard.packer_service.plan.records import Figures
from preshard.schemas.config import KEYS, PackConfig
from preshard.schemas.dataset.changes import NAMES_FILES, NEEDS_SOURCE, leaves
from preshard.schemas.errors import ConfigError

UNANSWERED = {name: fact.plan for name, fact in KEYS.items() if fact.plan}
"""Keys (or sections) that no figure of a plan depends on, and why."""

Kind = Literal["integer", "number", "text", "choice", "choices", "integers", "names", "weights", "types", "phases"]

_ONE: dict[str, Kind] = {"string": "text", "integer": "integer", "number": "number"}
_MAPPINGS: dict[str, Kind] = {
    "mixture": "weights",
    "token_columns": "types",
    "keep_columns": "types",
    "rename_columns": "types",
    "curriculum": "phases",
}
_LISTS: dict[str, Kind] = {"integer": "integers", "string": "names"}


class ConfigurationKey(Figures):
    """One key of a configuration."""

    key: str = Field(description="Its name, with the section in front.", examples=["order.window"])
    meaning: str
    kind: Kind = Field(
        description="What its value is; `weights` maps sources to numbers, and `types` columns to their types."
    )
    choices: list[str] = Field(description="Legal values, or members of a list; empty where any will do.")
    least: int | float | None = Field(description="Smallest legal value, for a list of its members.")
    above: int | float | None = Field(description="The value must be greater than this.")
    most: int | float | None = Field(description="Largest legal value, for a list of its members.")
    nullable: bool = Field(description="Whether null is legal.")
    default: Any = Field(description="The default.")
    value: Any = Field(description="The dataset's own value; the default where no dataset was named.")
    refused: str | None = Field(description="Why a plan cannot answer for it; null where it can.")


def plan_keys(present: PackConfig, *, of_dataset: bool) -> list[ConfigurationKey]:
    """Every key of a configuration, in its order.

    Args:
        present: the values to begin with.
        of_dataset: whether these are of a packed dataset, whose documents cannot be rendered again.
    """
    default, value = PackConfig().model_dump(mode="json"), present.model_dump(mode="json")
    schema, reasons = PackConfig.model_json_schema(), unanswered(present, of_dataset=of_dataset)
    return [
        ConfigurationKey(
            key=key,
            meaning=described["description"],
            default=_at(default, key),
            value=_at(value, key),
            refused=reasons.get(key, reasons.get(key.partition(".")[0])),
            **_legal(key, described),
        )
        for key, described in _described(schema, schema["$defs"])
    ]


def unanswered(present: PackConfig, *, of_dataset: bool) -> dict[str, str]:
    """Keys (or sections) whose change no plan can answer for, and why."""
    reasons = dict(UNANSWERED)
    if of_dataset:
        reasons |= NEEDS_SOURCE | NAMES_FILES
    if of_dataset and present.model is not None:
        reasons |= {name: fact.stored for name, fact in KEYS.items() if fact.stored}
    return reasons


def refuse_unanswered(config: PackConfig, present: PackConfig, *, of_dataset: bool) -> None:
    """Refuses a configuration that differs from the present one in what a plan cannot answer for.

    Raises:
        ConfigError: names the key, and says why.
    """
    now, before = config.model_dump(mode="json"), present.model_dump(mode="json")
    for name, reason in unanswered(present, of_dataset=of_dataset).items():
        for key, value, old in leaves(name, _at(now, name), _at(before, name)):
            if value != old:
                raise ConfigError(f"{key}: a plan cannot say what {value!r:.200} changes: {reason}; leave the key out")


def _described(schema: Mapping[str, Any], sections: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its own part of the JSON schema."""
    for name, described in schema["properties"].items():
        section = described.get("$ref", "").rpartition("/")[2]
        if section:
            yield from _described(sections[section], sections, f"{path}{name}.")
        else:
            yield f"{path}{name}", described


def _legal(key: str, described: Mapping[str, Any]) -> dict[str, Any]:
    """Values that a key may have."""
    options = described.get("anyOf", [described])
    one = next(option for option in options if option.get("type") != "null")
    items = one.get("items", {})
    limits = items or one
    choices = limits.get("enum", [])
    if key in _MAPPINGS:
        kind = _MAPPINGS[key]
    elif one["type"] == "array":
        kind = "choices" if choices else _LISTS[items["type"]]
    else:
        kind = "choice" if choices else _ONE[one["type"]]
    return {
        "kind": kind,
        "choices": choices,
        "least": limits.get("minimum"),
        "above": limits.get("exclusiveMinimum"),
        "most": limits.get("maximum"),
        "nullable": len(options) > 1,
    }


def _at(values: Mapping[str, Any], name: str) -> Any:
    """A key's value, by its name with dots."""
    value: Any = values
    for part in name.split("."):
        value = value[part]
    return value


STORED_SIZES = {
    "length": "tokens",
    "n_images": "images",
    "n_patches": "patches",
    "load": "load",
    "truncated_tokens": "truncated",
}
"""Columns of ``documents.parquet`` that a plan needs, by what they are called there."""


PLACE = ("doc_id", "piece", "copy_number", "epoch", "source")
"""Columns of ``documents.parquet`` that say which document a row is of."""


def stored_lengths(documents: pa.Table, config: PackConfig) -> pa.Table:
    """Table that :func:`~preshard.packer_service.report.planned.what_if.plan_table` takes: one row a document.

    Args:
        documents: :data:`PLACE` and :data:`STORED_SIZES`, and every piece of a document that has one among them. Where
            there is a column ``line``, a document has the first of its pieces'.
        config: what the dataset was packed with. Where no model says what the encoder's work is, it follows from the
            configuration of the plan.
    """
    documents = documents.filter(_first_copies(documents))
    wanted = {"doc_id": "doc_id", "source": "source"} | STORED_SIZES
    if config.model is None:
        del wanted["load"]
    has_line = "line" in documents.column_names
    if pc.max(documents["piece"]).as_py():
        asked = [*((name, "sum") for name in STORED_SIZES), *([("line", "min")] if has_line else [])]
        documents = documents.group_by(["doc_id", "source"], use_threads=False).aggregate(asked)
        documents = documents.rename_columns([name.removesuffix("_sum") for name in documents.column_names])
        wanted |= {"line_min": "line"} if has_line else {}
    elif has_line:
        wanted["line"] = "line"
    return documents.select(list(wanted)).rename_columns(list(wanted.values()))


def _first_copies(documents: pa.Table) -> pa.ChunkedArray:
    """Whether a row is of the first copy of its document in the first epoch, which every document has."""
    return pc.and_(pc.equal(documents["copy_number"], 0), pc.equal(documents["epoch"], 0))
