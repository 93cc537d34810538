"""Wording of the differences between two records of jobs."""

from __future__ import annotations

from typing import Any

import pytest

from preshard.packer_service.job.job_record import refuse_difference
from preshard.schemas.errors import ConfigError


def said(before: dict[str, Any], now: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        refuse_difference(before, now, "out")
    return str(caught.value).partition("(")[2].rpartition(")")[0]


def test_equal_records_are_one_job() -> None:
    """Fails when a job cannot go on in its own folder."""
    refuse_difference({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}, "out")


@pytest.mark.parametrize(("count", "more"), [(1, ""), (3, ""), (4, "; and 1 more"), (5, "; and 2 more")])
def test_three_differences_are_shown_and_the_others_counted(count: int, more: str) -> None:
    """Fails when a difference is neither shown nor counted."""
    before, now = ({f"k{i}": value for i in range(count)} for value in (1, 2))
    assert said(before, now) == "; ".join(f"k{i}: 1, now 2" for i in range(min(count, 3))) + more


def test_lists_of_other_lengths_differ_as_wholes() -> None:
    """Fails when lists are compared item by item though one of them has more, or is no list."""
    assert said({"a": [1, 2]}, {"a": [1]}) == "a: [1, 2], now [1]"
    assert said({"a": [1]}, {"a": [1, 2]}) == "a: [1], now [1, 2]"
    assert said({"a": [1]}, {"a": 1}) == "a: [1], now 1"
    assert said({"a": [1, 2]}, {"a": [1, 3]}) == "a[1]: 2, now 3"


def test_long_values_are_shown_from_a_little_before_where_they_differ() -> None:
    """Fails when the difference itself is cut away, or a value that is shown to its end seems to go on."""
    before, now = "a" * 30 + "b" * 100, "a" * 30 + "c"
    same = "a" * 20
    assert said({"text": before}, {"text": now}) == f"text: ...{same}{'b' * 60}..., now ...{same}c'"
