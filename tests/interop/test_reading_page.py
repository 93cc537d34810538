"""The programs of the pages on reading and attention run as they are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PROGRAMS = [
    (f"{page}-{number}", program)
    for page in ("reading", "attention")  # that of training needs a model, tests/trainer/training/test_page.py
    for number, program in enumerate(
        re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)
    )
]
GUARD = 'if __name__ == "__main__":'
IN_PROCESS = (" workers=2", " workers=0")
"""Workers of ours import the program and torch, which takes them ten seconds: tests/trainer/data/test_loader.py has
some. Here the program reads the same batches itself."""
OF_RAY = [pytest.param(program, id=name) for name, program in PROGRAMS if "import ray" in program]
OTHERS = [
    pytest.param(program, id=name, marks=[pytest.mark.slow] * ("import webdataset" in program))
    for name, program in PROGRAMS
    if "import ray" not in program
]


def test_the_pages_have_programs() -> None:
    """Fails when the pattern no longer finds any, and nothing below would run."""
    assert len(PROGRAMS) >= 8
    assert OF_RAY


@pytest.mark.parametrize("program", OTHERS)
def test_a_program_of_the_page(
    program: str, tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a page names what is not there any more, or a library no longer takes what the page gives it."""
    demo_in(tmp_path, tiny_dataset)
    monkeypatch.chdir(tmp_path)
    run_to_its_end(program)


def test_a_program_whose_workers_import_it_is_guarded() -> None:
    """Fails when a program, as it is written, would start workers again in each of its workers."""
    with_workers = [program for _, program in PROGRAMS if IN_PROCESS[0] in program]
    assert with_workers
    assert all(GUARD in program.partition(IN_PROCESS[0])[0] for program in with_workers)


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("program", OF_RAY)
def test_a_program_of_the_page_that_uses_ray(
    program: str, tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails as the one above. Apart from it, since the other programs fork, which a process with Ray must not."""
    demo_in(tmp_path, tiny_dataset)
    monkeypatch.chdir(tmp_path)
    run_to_its_end(program)


def demo_in(folder: Path, dataset: Path) -> None:
    """The place of the demo's dataset, which the pages name."""
    (folder / "demo").mkdir()
    (folder / "demo" / "dataset").symlink_to(dataset)


def run_to_its_end(program: str) -> None:
    defined: dict[str, object] = {"__name__": "__main__" if GUARD in program else "program"}
    exec(compile(program.replace(*IN_PROCESS), "program", "exec"), defined)
    results = {
        "answers",
        "device_mesh",
        "resume_from",
        "embedded",
        "step",
        "crops",
        "packs",
        "exchange",
        "out",
        "reads",
        "state",
    }
    assert (results | {"batch"} if GUARD in program else results) & defined.keys(), "it came to its last line's result"
