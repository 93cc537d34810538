"""``docs/format.md`` and the code name the same rules."""

from __future__ import annotations

import re
from pathlib import Path

from preshard.schemas.errors import FORMAT_RULES, REJECT_CODES
from preshard.schemas.header import DocumentSpan, SampleHead, StoredImage, Unit
from preshard.schemas.manifest import Counts, Manifest, ModelEntry
from preshard.schemas.sequence import SEQUENCE_DTYPES
from preshard.schemas.tables import TABLES

TEXT = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")


def test_every_rule_is_one_must_line_and_every_must_line_a_rule() -> None:
    """Fails when a rule is checked that no reader of the format knows of, or promised and not checked."""
    lines = re.findall(r"^- \*\*([A-Z]\d+)\*\* (\w+): ((?:.|\n  )*)", TEXT, re.MULTILINE)
    assert sorted(code for code, *_ in lines) == sorted(FORMAT_RULES)
    for code, name, text in lines:
        assert FORMAT_RULES[code].__name__ == name
        assert text.count("MUST") >= 1, code
    assert TEXT.count("MUST") == sum(text.count("MUST") for *_, text in lines)


def test_every_field_column_and_array_is_named() -> None:
    """Fails when something is stored that the format does not describe."""
    names = [*SEQUENCE_DTYPES, *REJECT_CODES]
    names += [column for schema in TABLES.values() for column in schema.names]
    for record in (Manifest, ModelEntry, Counts, SampleHead, DocumentSpan, Unit, StoredImage):
        names += list(record.model_fields)
    missing = [name for name in names if f"`{name}`" not in TEXT]
    assert not missing
