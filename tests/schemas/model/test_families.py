"""A family is one file on each side and an entry of one list."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from syntax import parse

from preshard.packer_service.demo.families import FAMILIES as WRITTEN
from preshard.packer_service.ingest.families.folder import load_module
from preshard.schemas.model.families import FAMILIES, INPUTS
from preshard.schemas.model.languages import LANGUAGES
from preshard.trainer.families.family import ModelFamily, load_family

ROOT = Path(__file__).parents[3]
SIDES = ("packer_service/ingest/families", "trainer/families")

SHARED = ({"family", "folder", "settings", "tiny", "qwen_sizes"}, {"family", "pictures"})
"""Files of each side that are no family's."""

ALLOWED = {
    "schemas/model/families.py": "the list",
    "schemas/model/encoders.py": "the sizes of encoders, which packing and an estimate of memory take",
    "schemas/model/languages.py": "their language models",
    "packer_service/ingest/families/qwen_sizes.py": "the sizes that several files of families take",
    "packer_service/demo/families.py": "the tiny model of text, which is of no family",
    "packer_service/demo/model.py": "the same",
    "packer_service/verify/independent/model.py": "what a folder says, derived a second time",
    "packer_service/verify/independent/marks.py": "how units are written, likewise",
    "trainer/integrations/torchtitan_model.py": "torchtitan's own models",
    "trainer/extra/bridge.py": "Megatron Bridge's",
}
"""Files besides a family's own that may name one, and why."""


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_has_its_file_on_both_sides(name: str) -> None:
    """Fails when a family is on the list and one half does not know it, or a file knows one that is not listed."""
    packs, trains = load_module(name), load_family(name)
    alike = {other for other, facts in FAMILIES.items() if facts.file == FAMILIES[name].file}
    assert callable(packs.read_family)
    assert packs.TINY.keys() == alike
    assert isinstance(trains, ModelFamily)
    assert name in WRITTEN


def test_every_file_is_a_familys_or_shared() -> None:
    """Fails when a file is left behind by a family that is gone, or one is not on the list."""
    files = {facts.file for facts in FAMILIES.values()}
    for side, shared in zip(SIDES, SHARED, strict=True):
        assert {path.stem for path in (ROOT / side).glob("*.py")} == files | shared | {"__init__"}


def named_in(path: Path) -> Iterator[str]:
    """Names of families in a file's code: as words of strings that are no docstrings, of modules and of variables."""
    text = path.read_text(encoding="utf-8")
    if not FILE.search(text) and not NAME.search(text) and not any(name in text for name in LANGUAGES):
        return  # parsing all files takes longer than most tests
    tree = parse(text)
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield from NAME.findall(node.value)
            yield from {node.value} & LANGUAGES.keys()
        elif isinstance(node, ast.ImportFrom | ast.Import):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names]
            yield from (part for module in modules for part in module.split(".") if FILE.match(part))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from ([node.name] if FILE.match(node.name.strip("_")) else [])
        elif isinstance(node, ast.Name):
            yield from ([node.id] if FILE.match(node.id.strip("_")) else [])


FILES = "|".join(sorted({facts.file for facts in FAMILIES.values()}))
FILE = re.compile(rf"(?i)({FILES})")
NAME = re.compile(rf"\b({'|'.join(sorted({*FAMILIES, *INPUTS}, key=len, reverse=True))})\b")


def test_a_familys_name_stands_nowhere_else() -> None:
    """Fails when code outside a family's own files asks which family it has: the next one would have to touch it."""
    own = {f"{side}/{facts.file}.py" for side in SIDES for facts in FAMILIES.values()}
    found = {
        path.relative_to(ROOT).as_posix(): sorted(set(named_in(path)))
        for room in ("schemas", "packer_service", "trainer", "preshard")
        for path in sorted((ROOT / room).rglob("*.py"))
    }
    assert all(found[path] for path in {*own, *ALLOWED}), "nothing is found where names certainly stand"
    assert {path: names for path, names in found.items() if names and path not in {*own, *ALLOWED}} == {}
