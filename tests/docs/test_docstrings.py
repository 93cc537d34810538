"""Openings of docstrings: a noun phrase, or a verb in the third person."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from syntax import parse

ROOT = Path(__file__).parents[2]
FOLDERS = ("preshard", "schemas", "packer_service", "trainer", "docs", "k8s", "tests")
CLAUSE = re.compile(
    r"\s*(What|Whatever|Which|Who|Whom|Whose|Where|When|Why|How|If|That|Those|They|It|There|Of|As|In|Into|By|For|From|To|At|On|"
    r"Over|Up|Under|About|Against|Among|Between|Through|With|Without|Within|Before|After|Since|Until|While|During|Because|So|"
    r"Not|Is)(?![\w-])"
)
"""Words that open a clause, or a phrase with a preposition, where a reader looks for the thing itself. Whether may open
what is true or false; before a hyphen they are parts of other words."""

PLACES = '''
"""What a module is."""
KEY = 1
"""Of a constant."""

class Thing:
    """How a class is used."""

    field: int = 0
    """In bytes."""

    def __init__(self) -> None:
        """As in the base class."""
        self.kept = 0
        """By a method."""
'''
PHRASES = '''
"""In-memory index."""
LIMIT = 1
"""Whether there is one."""
TEXT = """What is no docstring."""

def read() -> str:
    """Reads what is there.

    What follows may open as it likes.
    """
    return """What is returned."""
'''


def wrong_openings(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings that open with a :data:`CLAUSE`, by line; strings under constants and fields are docstrings, too."""
    for node in ast.walk(parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))) if CLAUSE.match(text):
                yield node.lineno, text.strip().partition("\n")[0]


def test_docstrings_open_with_a_noun_or_a_verb() -> None:
    """Fails when a docstring opens with a relative clause or a preposition."""
    files = {path.resolve() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    assert {path.relative_to(ROOT).parts[0] for path in files} == {*FOLDERS}
    assert [
        f"{path.relative_to(ROOT)}:{line}: {opening}"
        for path in sorted(files)
        for line, opening in wrong_openings(path.read_text(encoding="utf-8"))
    ] == []


def test_docstrings_are_found_wherever_they_stand() -> None:
    """Fails when the test above leaves a place of docstrings out, or takes other strings for docstrings."""
    assert len(list(wrong_openings(PLACES))) == PLACES.count('"""') // 2
    assert list(wrong_openings(PHRASES)) == []
