"""The configuration of a job is resolved once, and is not handed to and fro behind that."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from configuration_way import returns, way

from preshard.packer_service.api import pack as api
from preshard.schemas.errors import ConfigError

MOST, MOST_RETURNS = 25, 8


def test_the_configuration_goes_one_way() -> None:
    """Fails when a stage hands the whole configuration on where a part of it would do, or asks a file twice."""
    rooms = way("packer_service/job/pack.py", "pack")
    assert "packer_service/report/stored.py" in rooms, "the way ends before the job does"
    assert len(rooms) <= MOST, "\n".join(rooms)
    assert returns(rooms) <= MOST_RETURNS, "\n".join(rooms)


def test_nothing_starts_before_a_job_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when processes or Ray are started for a job whose sources or model do not hold."""

    def start(*_: object, **__: object) -> NoReturn:
        raise AssertionError("an executor was chosen")

    monkeypatch.setattr(api, "choose_executor", start)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "one"}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^SOURCE "):
        api.pack(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(ConfigError, match=r"^model"):
        api.pack(rows, tmp_path / "out", model=tmp_path)
    with pytest.raises(AssertionError):
        api.pack(rows, tmp_path / "out")
