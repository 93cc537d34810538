"""The programs of docs/reading.md run as they are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "reading.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("program", PROGRAMS, ids=["one_rank", "resume", "webdataset", "ray"])
def test_a_program_of_the_page(
    program: str, tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when the page names what is not there any more, or a library no longer takes what the page gives it."""
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "dataset").symlink_to(tiny_dataset)
    monkeypatch.chdir(tmp_path)
    defined: dict[str, object] = {"__name__": "program"}
    exec(compile(program, str(PAGE), "exec"), defined)
    results = {"resume_from", "step", "crops", "packs"}
    assert results & defined.keys(), "the program came to its last line's result"
