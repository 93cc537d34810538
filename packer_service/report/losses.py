"""Losses: rejected documents and truncated tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from preshard.packer_service.report.records import Losses, RejectReason

LISTED = 10
"""Reasons that a report names; a source with more than that has one fault after another in its rows."""

MEDIA_CODES = ("missing_media", "unreachable_media", "bad_image", "bad_video", "decode_failed")
"""Their messages begin with the name of a file and a colon."""

VALUES = (
    (r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", "'…'"),
    (r"-?\b\d+(?:[.,]\d+)*(?:e[+-]?\d+)?\b", "N"),
)
"""Quoted text and numbers: what differs between messages of one reason. Patterns of RE2."""


class Reasons:
    """The most frequent reasons, most frequent first; equally frequent ones in the order of their first reject.

    Messages of one code that differ only in the values they quote are one reason. Rejects come in parts, which are not
    kept: only one example for each reason is.
    """

    def __init__(self) -> None:
        self.counts = Counter[tuple[str, str]]()
        self.examples = dict[tuple[str, str], dict[str, Any]]()

    def add(self, rejects: pa.Table) -> None:
        """Adds rejects with ``doc_id``, ``location``, ``code`` and ``message``."""
        messages = pc.fill_null(rejects["message"], "")
        grouped = pa.table(
            {
                "code": rejects["code"],
                "pattern": _patterns(rejects["code"], messages),
                "row": pa.array(np.arange(len(rejects))),
            }
        ).group_by(["code", "pattern"], use_threads=False)
        counted = grouped.aggregate([("row", "count"), ("row", "min")]).sort_by("row_min")
        keys = list(zip(counted["code"].to_pylist(), counted["pattern"].to_pylist(), strict=True))
        self.counts.update(dict(zip(keys, counted["row_count"].to_pylist(), strict=True)))
        new = [i for i, key in enumerate(keys) if key not in self.examples]
        rows = counted["row_min"].take(pa.array(new, pa.int64()))
        examples = rejects.select(["doc_id", "location", "code", "message"]).take(rows).to_pylist()
        self.examples |= {keys[i]: example for i, example in zip(new, examples, strict=True)}

    def most(self) -> list[RejectReason]:
        ranked = sorted(self.examples, key=lambda key: -self.counts[key])[:LISTED]
        return [RejectReason(documents=self.counts[key], **self.examples[key]) for key in ranked]


def _patterns(codes: pa.ChunkedArray, messages: pa.ChunkedArray) -> pa.ChunkedArray:
    """Messages with their values replaced."""
    of_media = pc.is_in(codes, pa.array(MEDIA_CODES))
    unnamed = pc.replace_substring_regex(messages, "^.*?: ", "…: ", max_replacements=1)
    patterns = pc.if_else(of_media, unnamed, messages)
    for pattern, replacement in VALUES:
        patterns = pc.replace_substring_regex(patterns, pattern, replacement)
    return patterns


def losses_of(rejects: Iterable[pa.Table], truncated_tokens: dict[str, int]) -> Losses:
    """Rejects by code and source, and truncated tokens by source.

    Args:
        rejects: columns of ``rejects.parquet`` but ``stage``, in parts of which one is in memory at a time.
        truncated_tokens: of each source that lost any.
    """
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
