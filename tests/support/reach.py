"""Size of what a reader of a module has to open: files and lines of code that its imports lead to.

``python tests/support/reach.py preshard.train preshard.data`` prints, for each module, files, lines and the longest
chain of imports. Lines are of code: without blanks, comments and docstrings. Imports inside functions count, and so do
those for types alone. What is imported by a name in a string, as a registry does, does not.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from syntax import parse

ROOT = Path(__file__).parents[2]
PACKAGE = "preshard"

_NOT_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Modules that imports lead to from one, itself included.

    Attributes:
        lines: lines of code of each module that is reached; files without a line are left out.
        chain: the longest chain of modules, each of which imports the next.
    """

    lines: dict[str, int]
    chain: list[str]


def measure(module: str, *, root: Path = ROOT) -> Reach:
    """Follows the imports of a module.

    Args:
        module: its whole name, such as ``preshard.train``.
        root: the folder that holds the package.
    """
    reached: set[str] = set()
    left = [module]
    while left:
        name = left.pop()
        if name not in reached:
            reached.add(name)
            left += [*imported(name, root), *_packages_of(name)]
    lines = {name: count_lines(found) for name in sorted(reached) if (found := file_of(name, root)) is not None}
    return Reach(lines={name: count for name, count in lines.items() if count}, chain=_longest_chain(module, root))


@cache
def file_of(module: str, root: Path = ROOT) -> Path | None:
    """The file of a module or package of ours; None if there is none of this name."""
    path = root.joinpath(*module.split("."))
    return next((each for each in (path / "__init__.py", path.with_suffix(".py")) if each.is_file()), None)


@cache
def imported(module: str, root: Path = ROOT) -> tuple[str, ...]:
    """Modules of ours that a module names in its import statements, wherever these stand."""
    found = file_of(module, root)
    tree = parse(found.read_text(encoding="utf-8")) if found is not None else ast.Module(body=[])
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= dict.fromkeys(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{module} has a relative import"
            parts = [f"{node.module}.{each.name}" for each in node.names]
            modules = [name for name in parts if file_of(name, root) is not None]
            names |= dict.fromkeys(modules if len(modules) == len(parts) else [node.module, *modules])
    return tuple(name for name in names if name.split(".")[0] == PACKAGE and file_of(name, root) is not None)


@cache
def count_lines(path: Path) -> int:
    """Lines of a file that hold code: no blanks, comments or docstrings."""
    text = path.read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOT_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            assert node.end_lineno is not None
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def _packages_of(module: str) -> Iterator[str]:
    """Packages around a module, whose ``__init__`` an import of it runs."""
    parts = module.split(".")
    yield from (".".join(parts[:count]) for count in range(1, len(parts)))


def _longest_chain(module: str, root: Path) -> list[str]:
    best: dict[str, list[str]] = {}

    def follow(name: str, above: tuple[str, ...]) -> list[str]:
        assert name not in above, f"modules import each other: {' -> '.join([*above, name])}"
        if name not in best:
            below = [follow(each, (*above, name)) for each in imported(name, root) if each != PACKAGE]
            best[name] = [name, *max(below, key=len, default=[])]
        return best[name]

    return follow(module, ())


EXTRA = "preshard.trainer.extra"
ALWAYS = ("meeting", "model_check", "outputs", "profile", "quantised", "sequences", "stored", "weights", "work")
"""Extras that every run asks for by name."""

STEP = (
    *("train", "core.step", "core.objective", "core.optimizer", "data.batch"),
    *("models.packed", "models.loss", "attention.bind", "attention.mask"),
)
"""Modules of the trainer that one step takes, from the top: below them are the reader, the features of images, and how
each kind of attention exchanges and computes.
"""


def main(modules: list[str]) -> None:
    """Prints the reach of modules; of the first of them, each file too."""
    for number, module in enumerate(modules):
        found = measure(module)
        print(f"{module}: {len(found.lines)} files, {sum(found.lines.values()):,} lines of code")
        print(f"  longest chain ({len(found.chain)}): {' -> '.join(found.chain)}")
        if module == "preshard.train":
            more = found.lines | {name: n for each in ALWAYS for name, n in measure(f"{EXTRA}.{each}").lines.items()}
            print(f"  with the extras of every run: {len(more)} files, {sum(more.values()):,} lines of code")
            step = [found.lines[f"preshard.trainer.{name}"] for name in STEP]
            print(f"  one step from the top: {len(step)} files, {sum(step):,} lines of code")
        for name, count in found.lines.items() if number == 0 else ():
            print(f"  {count:5} {name}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["preshard.train", "preshard.data", "preshard.attention"])
