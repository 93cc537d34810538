"""What was asked for last is kept, and no more than the limit."""

from __future__ import annotations

from packer_service.ingest.recent import Recent


def test_the_longest_unused_goes_first() -> None:
    """Fails when a value in use is dropped, or the limit is exceeded."""
    recent = Recent[str](5, len)
    recent.keep("a", "aa")
    recent.keep("b", "bb")
    assert recent.get("a") == "aa"
    recent.keep("c", "cc")
    assert [recent.get(key) for key in "abc"] == ["aa", None, "cc"]


def test_the_last_value_is_kept_whatever_it_weighs() -> None:
    """Fails when something large is made again each time it is asked for, or keeps what it displaced alive."""
    recent = Recent[str](3, len)
    recent.keep("small", "x")
    recent.keep("large", "xxxxxxxx")
    assert recent.get("large") == "xxxxxxxx"
    assert len(recent) == 1
