"""Places that a run cannot write to are named before its first step."""

from __future__ import annotations

from pathlib import Path

import pytest

from preshard.trainer.core.config import make_config
from preshard.trainer.extra.outputs import unwritable_here

PLACES = {
    "export": ("file/model", "which cannot be written (a file is in its way); give a path in a folder that can"),
    "metrics": ("file/deep/metrics.jsonl", "which cannot be written (Not a directory)"),
    "report_dir": ("file", "which cannot be written (a file is in its way)"),
    "profile": ("file", "which cannot be written (a file is in its way)"),
}


def problem_of(rank: int = 0, after: int = 0, **given: object) -> str | None:
    config = make_config({"data": "data", "model": "model", "steps": 2, **given})
    return unwritable_here(config, rank, after)


@pytest.mark.parametrize(("name", "place", "said"), [(name, *each) for name, each in PLACES.items()], ids=PLACES)
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, name: str, place: str, said: str) -> None:
    """Fails when a run trains for days and then cannot write its model, or ends in an error without the option."""
    (tmp_path / "file").write_text("")
    more: dict[str, object] = {"report_to": ("tensorboard",)} if name == "report_dir" else {}
    found = problem_of(**{name: tmp_path / place}, **more)
    assert found is not None
    assert found.startswith(f"--{name.replace('_', '-')} is {tmp_path / place}, {said}")
    assert problem_of(**{name: tmp_path / "new" / place}, **more) is None
    assert (problem_of(rank=1, **{name: tmp_path / place}, **more) is None) == (name != "profile")


def test_metrics_are_a_file_of_steps(tmp_path: Path) -> None:
    """Fails when a resumed run meets another file's lines in a traceback, or a new one is refused because of them."""
    file = tmp_path / "metrics.jsonl"
    assert "which is a folder; give a file, such as" in (problem_of(metrics=tmp_path) or "")
    for text, resumes in (("hello\n", False), ('["step"]\n', False), ('{"step": 1}\n{"st', True), ("", True)):
        file.write_text(text)
        assert problem_of(metrics=file) is None
        found = problem_of(metrics=file, after=1)
        assert (found is None) == resumes
        assert resumes or "holds other lines than those of steps; give another file" in str(found)
