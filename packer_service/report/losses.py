"""What was lost: rejected documents and truncated tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from preshard.packer_service.report.reasons import Reasons
from preshard.packer_service.report.records import Losses


def losses(rejects: pa.Table, documents: pa.Table, truncated: str) -> Losses:
    """Rejects by code and source, and truncated tokens by source.

    Args:
        rejects: the columns of ``rejects.parquet`` but ``stage``.
        documents: ``source`` of each packed document, and the tokens that it lost.
        truncated: the column of ``documents`` that holds those tokens.
    """
    summed = documents.group_by("source", use_threads=False).aggregate([(truncated, "sum")]).to_pylist()
    return losses_of([rejects], {row["source"]: row[f"{truncated}_sum"] for row in summed if row[f"{truncated}_sum"]})


def losses_of(rejects: Iterable[pa.Table], truncated_tokens: dict[str, int]) -> Losses:
    """The same from rejects that come in parts, one of which is in memory at a time, and from sums by source."""
    counts, reasons = Counter[tuple[str, str]](), Reasons()
    for part in rejects:
        counts.update({(source, code): number for source, code, number in count_by(part, "source", "code")})
        reasons.add(part)
    by_code, by_source = Counter[str](), dict[str, dict[str, int]]()
    for (source, code), number in sorted(counts.items()):
        by_source.setdefault(source, {})[code] = number
        by_code[code] += number
    return Losses(
        rejects=dict(sorted(by_code.items())),
        rejects_by_source=by_source,
        reject_reasons=reasons.most(),
        truncated_tokens=dict(sorted(truncated_tokens.items())),
    )


def count_by(table: pa.Table, *columns: str) -> Sequence[tuple[Any, ...]]:
    """The values that columns have together in a table's rows, each with its number of rows, sorted."""
    counted = table.group_by(list(columns), use_threads=False).aggregate([([], "count_all")]).to_pylist()
    return sorted(tuple(row.values()) for row in counted)
