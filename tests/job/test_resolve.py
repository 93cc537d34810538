"""The configuration of a job is resolved once, and is not handed to and fro behind that."""

from __future__ import annotations

from configuration_way import returns, way

MOST, MOST_RETURNS = 22, 5


def test_the_configuration_goes_one_way() -> None:
    """Fails when a stage hands the whole configuration on where a part of it would do, or asks a file twice."""
    rooms = way("packer_service/job/pack.py", "pack")
    assert "packer_service/report/stored.py" in rooms, "the way ends before the job does"
    assert len(rooms) <= MOST, "\n".join(rooms)
    assert returns(rooms) <= MOST_RETURNS, "\n".join(rooms)
