"""What was lost: rejected documents and truncated tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from packer_service.report.figures import Losses
from packer_service.report.reasons import reject_reasons


def losses(rejects: pa.Table, documents: pa.Table, truncated: str) -> Losses:
    """Rejects by code and source, and truncated tokens by source.

    Args:
        rejects: the columns of ``rejects.parquet`` but ``stage``.
        documents: ``source`` of each packed document, and the tokens that it lost.
        truncated: the column of ``documents`` that holds those tokens.
    """
    by_source: dict[str, dict[str, int]] = {}
    for source, code, number in count_by(rejects, "source", "code"):
        by_source.setdefault(source, {})[code] = number
    return Losses(
        rejects=dict(count_by(rejects, "code")),
        rejects_by_source=by_source,
        reject_reasons=reject_reasons(rejects),
        truncated_tokens=_truncated_by_source(documents, truncated),
    )


def count_by(table: pa.Table, *columns: str) -> Sequence[tuple[Any, ...]]:
    """The values that columns have together in a table's rows, each with its number of rows, sorted."""
    counted = table.group_by(list(columns), use_threads=False).aggregate([([], "count_all")]).to_pylist()
    return sorted(tuple(row.values()) for row in counted)


def _truncated_by_source(documents: pa.Table, column: str) -> dict[str, int]:
    """Truncated tokens of each source that lost any."""
    summed = documents.group_by("source", use_threads=False).aggregate([(column, "sum")]).to_pylist()
    return dict(sorted((row["source"], row[f"{column}_sum"]) for row in summed if row[f"{column}_sum"]))
