"""The programs of the pages on reading, training and attention run as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PROGRAMS = [
    pytest.param(program, id=f"{page}-{number}")
    for page in ("reading", "training", "attention")
    for number, program in enumerate(
        re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)
    )
]


def test_the_pages_have_programs() -> None:
    """Fails when the pattern no longer finds any, and nothing below would run."""
    assert len(PROGRAMS) >= 8


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_the_page(
    program: str, tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a page names what is not there any more, or a library no longer takes what the page gives it."""
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "dataset").symlink_to(tiny_dataset)
    if "__main__" in program:  # it starts processes, which import it
        script = tmp_path / "program.py"
        script.write_text(program, encoding="utf-8")
        subprocess.run([sys.executable, str(script)], cwd=tmp_path, check=True, timeout=240)
        return
    monkeypatch.chdir(tmp_path)
    defined: dict[str, object] = {"__name__": "program"}
    exec(compile(program, "program", "exec"), defined)
    results = {"resume_from", "embedded", "step", "crops", "packs", "exchange", "out"}
    assert results & defined.keys(), "the program came to its last line's result"
