"""What has cost a process waits before it is read again."""

from __future__ import annotations

import pytest

from preshard.packer_service.http.pool import FIRST_SECONDS, FORGET_SECONDS, MOST_SECONDS, Cooling
from preshard.packer_service.http.problems import ProblemError


def test_the_wait_doubles_up_to_a_bound_and_is_the_keys_own() -> None:
    """Fails when a hopeless dataset is read over and over, a wait never ends, or another dataset waits with it."""
    now = 0.0
    cooling = Cooling(lambda: now)
    for times in range(12):
        cooling.fail("one", "it hung")
        wait = min(FIRST_SECONDS * 2**times, MOST_SECONDS)
        now += wait - 0.5
        with pytest.raises(ProblemError) as refused:
            cooling.require("one", "NAME")
        assert (refused.value.status, refused.value.headers["Retry-After"]) == (503, "1")
        assert "NAME: it hung" in refused.value.detail
        cooling.require("two", "OTHER")
        now += 0.5
        cooling.require("one", "NAME")
    now += FORGET_SECONDS + 1
    cooling.fail("one", "it hung")
    assert "once" in str(cooling.reason("one"))
