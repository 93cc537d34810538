"""Spreads and sums of what comes in parts, against NumPy on the whole."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.packer_service.report.document_sums import SUMMED, DocumentSums, LengthCounts
from preshard.packer_service.report.spreads import PartedSpread, spread, spreads


@settings(deadline=None)
@given(
    values=st.lists(st.one_of(st.integers(0, 9).map(float), st.floats(0, 1e9), st.just(float("nan"))), max_size=130),
    cuts=st.lists(st.integers(0, 130), max_size=4),
    more=st.integers(0, 50),
)
def test_parts_have_the_spread_of_the_whole(values: list[float], cuts: list[int], more: int) -> None:
    """Fails when a value that the 95% needs is dropped with the small ones, or a nan counts."""
    whole = np.array(values, np.float64)
    parts = PartedSpread(len(values) + more)
    for part in np.split(whole, sorted(min(cut, len(values)) for cut in cuts)):
        parts.add(part)
    found, ordered = parts.spread(), np.sort(whole[~np.isnan(whole)])
    assert found.packs == len(ordered)
    if len(ordered):
        assert (found.p95, found.max) == (ordered[-(-len(ordered) * 95 // 100) - 1], ordered[-1])
        assert found.mean == pytest.approx(ordered.mean(), rel=1e-12)
        assert spread(whole).mean == whole[~np.isnan(whole)].mean()


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(1, 30), max_size=20), min_size=1, max_size=5))
def test_counts_of_lengths_have_the_percentiles_of_the_lengths(parts: list[list[int]]) -> None:
    """Fails when a percentile is another document's length, or a part replaces one before it."""
    found, lengths = LengthCounts.of(np.array(part, np.int64) for part in parts), np.sort(list(chain(*parts)))
    assert len(found) == len(lengths)
    if len(lengths):
        assert found.mean() == lengths.mean()
        assert [found.percentile(p) for p in (0, 5, 50, 95, 100)] == [
            lengths[(len(lengths) - 1) * p // 100] for p in (0, 5, 50, 95, 100)
        ]


def test_sums_of_parts_add_up_by_source() -> None:
    """Fails when a source of a later part replaces its sums of an earlier one, or one without a loss is named."""
    rows = pa.table({"source": ["a", "b", "a", "c"], **{name: [1, 20, 300, 4000] for name in SUMMED}})
    rows = rows.set_column(rows.schema.get_field_index("truncated_tokens"), "truncated_tokens", pa.array([0, 2, 5, 0]))
    sums = DocumentSums.of([rows.slice(0, 2), rows.slice(2)])
    assert tuple(sums.totals) == (4, 4321, 4321, 4321, 4321)
    assert (dict(sums.documents), sums.lost_tokens) == ({"a": 2, "b": 1, "c": 1}, {"a": 5, "b": 2})
    assert DocumentSums.of([]).totals.documents == 0


def test_spreads_of_several_are_those_of_each() -> None:
    """Fails when several at once differ from one at a time in the last bit, with nan among them or unequal lengths."""
    rng = np.random.default_rng(3)
    for packs in (1, 2, 7, 8, 16, 19, 20, 21, 130):
        parts = list(rng.random((5, packs)) * 1e3)
        assert spreads(parts) == [spread(part) for part in parts]
        parts[2] = np.where(rng.random(packs) < 0.5, np.nan, parts[2])
        assert spreads(parts) == [spread(part) for part in parts]
        assert spreads([*parts[:2], parts[3][: packs // 2]]) == [
            *map(spread, parts[:2]),
            spread(parts[3][: packs // 2]),
        ]
    assert spreads([]) == []
    assert spreads([np.zeros(0)]) == [spread(np.zeros(0))]
