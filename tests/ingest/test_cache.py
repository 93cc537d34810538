"""What was used last is kept, and no more than the limit."""

from __future__ import annotations

from preshard.packer_service.ingest.fetch import recent_values


def test_the_least_recently_used_goes_first() -> None:
    """Fails when a value in use is dropped, or the limit is exceeded."""
    recent = recent_values(5, len)
    recent["a"] = "aa"
    recent["b"] = "bb"
    assert recent["a"] == "aa"
    recent["c"] = "cc"
    assert [recent.get(key) for key in "abc"] == ["aa", None, "cc"]


def test_the_newest_value_is_kept_whatever_it_weighs() -> None:
    """Fails when something large is made again each time it is asked for, or keeps what it displaced alive."""
    for limit in (0, 3):
        recent = recent_values(limit, len)
        recent["small"] = "x"
        recent["large"] = "xxxxxxxx"
        assert recent["large"] == "xxxxxxxx"
        assert len(recent) == 1
        recent["empty"] = ""
        assert list(recent) == ["empty"]
