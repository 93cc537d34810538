"""The demo's text: Python's reference topics, the docstrings of its library, and packages' descriptions."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, metadata
from importlib.util import find_spec
from pathlib import Path

PART_CHARACTERS = 40_000
"""Longest text of one document: some 10,000 to 15,000 tokens, well below the default length of a sequence."""

MODULES = (
    "abc", "argparse", "array", "ast", "asyncio.tasks", "base64", "bisect", "calendar", "collections", "configparser",
    "contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "difflib", "enum", "fileinput", "fractions",
    "functools", "getopt", "glob", "graphlib", "gzip", "hashlib", "heapq", "html.parser", "http.client", "imaplib",
    "inspect", "ipaddress", "json", "logging", "mailbox", "mimetypes", "numbers", "optparse", "os", "pathlib", "pdb",
    "pickle", "pickletools", "platform", "pprint", "queue", "random", "re", "sched", "secrets", "selectors", "shelve",
    "shlex", "shutil", "smtplib", "socket", "sqlite3.dbapi2", "statistics", "string", "subprocess", "tarfile",
    "tempfile", "textwrap", "threading", "timeit", "tokenize", "trace", "traceback", "turtle", "typing",
    "unittest.mock", "urllib.parse", "uuid", "warnings", "weakref", "xml.etree.ElementTree", "zipfile",
)  # fmt: skip

PACKAGES = ("av", "click", "fastapi", "mistral-common", "numba", "numpy", "pillow", "pydantic", "ray", "webdataset")

_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
"""Fields of nodes in which definitions can stand, in the order in which nodes have them."""


def demo_texts() -> dict[str, str]:
    """Text by document id, long ones in parts. The same versions of Python and the packages give the same text."""
    texts = {f"topic-{name}": text for name, text in _topics()}
    texts |= {f"module-{name}": text for name, text in _modules()}
    texts |= {f"package-{name}": text for name, text in _descriptions()}
    return {
        name if part == 0 else f"{name}-part-{part + 1}": text
        for name, whole in texts.items()
        for part, text in enumerate(_parts(whole))
    }


def reference_text(characters: int) -> str:
    """The first so many characters of Python's reference, as one text."""
    return "\n\n".join(text for _, text in _topics())[:characters]


def _topics() -> Iterator[tuple[str, str]]:
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    return ((name, text.strip()) for name, text in sorted(topics.items()) if text.strip())


def _modules() -> Iterator[tuple[str, str]]:
    """Docstrings of a module and all it defines, read from its source, since importing some modules opens windows."""
    for name in MODULES:
        spec = find_spec(name)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            continue
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        parts = [(getattr(node, "name", name), ast.get_docstring(node)) for node in _documented(tree)]
        text = "\n\n".join(f"{owner}\n{doc}" for owner, doc in parts if doc)
        if text:
            yield name, text


def _documented(tree: ast.Module) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """What can have a docstring, in the order of ``ast.walk``, which looks into all expressions as well."""
    left: deque[ast.AST] = deque([tree])
    while left:
        node = left.popleft()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        for block in _BLOCKS:
            left.extend(getattr(node, block, ()))


def _descriptions() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        try:
            found = metadata(name)
        except PackageNotFoundError:
            continue
        text = str(found.get("Description") or found.get_payload()).strip()  # type: ignore[attr-defined]
        if text:
            yield name, text


def _parts(text: str) -> list[str]:
    """A text cut at ends of paragraphs, or of lines where a paragraph is too long."""
    parts = []
    while len(text) > PART_CHARACTERS:
        cut = max(text.rfind("\n\n", 0, PART_CHARACTERS), 0) or text.rfind("\n", 0, PART_CHARACTERS)
        cut = cut if cut > 0 else PART_CHARACTERS
        parts.append(text[:cut].strip())
        text = text[cut:].strip()
    return [*parts, text] if text else parts
