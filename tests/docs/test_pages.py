"""The documentation says what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pygments.lexers import get_lexer_by_name
from pygments.token import Error
from scripts import load_script
from sphinx.search.en import SearchEnglish

from preshard.packer_service.report.dataset import report_dataset
from preshard.schemas.errors import REJECT_CODES

ROOT = Path(__file__).parents[2]

BUILD = "import gc, sys; gc.disable(); from sphinx.cmd.build import main; sys.exit(main(sys.argv[1:]))"
"""Sphinx in a process that ends soon: looking for garbage in its trees would take a sixth of its time."""

AS_READ = [
    *("-b", "dummy"),
    *("-D", "smartquotes=0"),
    *("-D", "autodoc_typehints=none"),
    *("-D", "toc_object_entries=0"),
    *("-D", "extensions=myst_parser,sphinx.ext.autodoc,sphinx.ext.napoleon"),
]
"""Writes nothing, leaves quotes as they are typed, and makes neither links of types nor lists of names for the margin
nor pages of code: none of these gives a warning, and each takes its time."""


def test_the_tables_of_keys_and_options_are_made_from_the_configurations() -> None:
    """Fails when a key, an option, a default or a meaning changes and `python docs/configuration.py` was not run."""
    module = load_script(ROOT / "docs" / "configuration.py")
    pages = {path: path.read_text(encoding="utf-8") for path, _, _ in module.MADE}
    stale = [
        (path.name, name) for path, name, table in module.MADE if module.page(pages[path], name, table()) != pages[path]
    ]
    assert stale == []
    texts = {path.name: text for path, text in pages.items()}
    assert "| `video.fps` | 2.0 |" in texts["packing.md"]
    assert "| `--ring` | 1 |" in texts["training.md"]
    assert "| `degree` | int64 | at most 4,096 |" in texts["format.md"]


def test_every_reject_code_is_documented() -> None:
    """Fails when a code is added without a word for the user."""
    page = (ROOT / "docs" / "packing.md").read_text(encoding="utf-8")
    assert [code for code in REJECT_CODES if f"`{code}`" not in page] == []


def test_every_figure_of_the_report_is_documented(tiny_dataset: Path) -> None:
    """Fails when a key of `report --json` is added or renamed, and the page still names what is not there."""
    page = (ROOT / "docs" / "format.md").read_text(encoding="utf-8").partition("## What the commands print as JSON")[2]
    figures = report_dataset(str(tiny_dataset)).model_dump(mode="json")
    layout = figures["balance"]["zigzag"]["2"]
    rows = layout | layout["tiles"] | layout["traffic"] | figures["images"]["2"] | figures["padding"]
    assert [key for key in {**figures, **rows} if not re.search(rf"\b{key}\b", page)] == []


def test_the_readme_has_five_commands_that_a_release_can_run() -> None:
    """Fails when `make release` would run other commands than the README's, or look for the Hub or for eight GPUs."""
    script = load_script(ROOT / "tests/docs/first_commands.py")
    shown = script.commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert [re.findall(r"\w[\w.]*", command)[:2] for command in shown] == [
        *(["hf", "download"], ["preshard", "suggest"], ["preshard", "pack"], ["preshard", "serve"]),
        ["torchrun", "nproc"],
    ]
    run = list(map(script.here, shown))
    assert run[0] == "preshard demo-model model --family qwen3_vl"
    assert run[-1] == (
        "torchrun --nproc-per-node 1 -m preshard.train --data dataset --model model --from-scratch --steps 2"
        " --export trained"
    )


@pytest.mark.parametrize(
    "asked",
    [
        *("image root", "image folder", "multi node", "out of memory", "resume", "video fps", "wandb", "license"),
        *("how long", "tools", "captions", "weights & biases"),
    ],
)
def test_the_search_finds_a_recipe(asked: str) -> None:
    """Fails when what people search for is in no heading of the recipes, by which the built pages' search ranks.

    It compares stems of words, and those of headings weigh three times as much.
    """
    search = SearchEnglish({})

    def stems(text: str) -> set[str]:
        return {search.stem(word.lower()) for word in search.split(text) if search.word_filter(word.lower())}

    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    assert stems(asked)
    assert stems(asked) <= stems(" ".join(headings))


def test_a_page_begins_with_whom_it_is_for() -> None:
    """Fails when someone has to read half of a page to learn that it is for somebody else."""
    pages = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")}
    assert len(pages) > 20
    assert [name for name, text in pages.items() if not re.match(r"# .+\n\nFor \w", text)] == []
    assert [name for name, text in pages.items() if len(re.findall(r"^For who", text, re.MULTILINE)) > 1] == []


def test_links_between_pages_lead_somewhere() -> None:
    """Fails when a page or a heading is renamed and a link to it is not."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    links = [
        (page, link) for page in pages for link in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text("utf-8"))
    ]
    assert any("#" in link for _, link in links)
    assert [f"{page.name}: {link}" for page, link in links if not leads_somewhere(page, link)] == []


@pytest.mark.slow  # as `make docs` does
def test_the_pages_and_the_reference_build_without_a_warning(tmp_path: Path) -> None:
    """Fails when a page is in no table of contents, a link is dead, or a docstring is no valid markup.

    Everything is read and every reference is resolved; only writing HTML in its theme is left to ``make docs``.
    """
    command = [sys.executable, "-c", BUILD, "-q", "-W", "--keep-going", *AS_READ, str(ROOT / "docs"), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.stderr == ""
    assert built.returncode == 0
    assert (
        b"preshard.trainer.data.dataset.PackedDataset"
        in (tmp_path / ".doctrees/reference/trainer.doctree").read_bytes()
    )


def test_code_on_the_pages_reads_as_its_language() -> None:
    """Fails when a block of code is marked as a language that it is not, which HTML would show without colours."""
    blocks = [
        (page.name, *block)
        for page in (ROOT / "docs").rglob("*.md")
        for block in re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    ]
    assert len(blocks) > 10
    unread = [
        (name, language, text)
        for name, language, code in blocks
        for kind, text in get_lexer_by_name(language).get_tokens(code)
        if kind in Error
    ]
    assert unread == []


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether a link's file is there, and has the heading that stands behind its ``#``."""
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    if not anchor:
        return target.exists()
    headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE)
    return anchor in {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_table_of_trainers_has_the_versions_and_tests_that_there_are() -> None:
    """Fails when the table names a version that nothing installs, or a test that was renamed."""
    page = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    table = page.partition("## What works")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    installed = (ROOT / "constraints.txt").read_text() + (ROOT / "tests/matrix/versions.toml").read_text()
    intro = table.partition("\n| ")[0]
    versions = {tuple(found) for found in re.findall(r"([\w-]+) (\d+\.\d+\.\d+)", intro)}
    versions |= {(name, version) for row in rows for name, version in re.findall(r"([\w-]+) (\d+\.\d+\.\d+)", row)}
    assert len(rows) > 9
    assert len(versions) > 9
    assert [pair for pair in versions if not re.search(rf"[-=]{re.escape(pair[1])}\b", installed)] == []
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, row
        assert all((ROOT / "tests/trainer/integrations" / f"{name}.py").exists() for name in named)
