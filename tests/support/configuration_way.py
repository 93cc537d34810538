"""Way of a job's configuration through the code: the files into which it is handed on whole, call by call.

A function takes it whole if it has a parameter of the type ``PackConfig``, or of a class with a field of that type, or
is a method of such a class.
Calls are followed in the order of the code, branches one after the other, and no function twice. What takes a key's
value, or something made of it, takes a part. Tasks, which ``partial`` prepares, get a copy of their own: another way.

    python tests/support/configuration_way.py [ROOT]
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from syntax import parse

ROOT = Path(__file__).parents[2]
CONFIGURATION = "PackConfig"
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class File:
    """Contents of a file: functions by name (methods as ``Class.name``), classes that hold a configuration, and the
    module and name of what it imports.
    """

    path: str
    functions: dict[str, Function] = field(default_factory=dict)
    holders: set[str] = field(default_factory=set)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)


def read_files(root: Path) -> dict[str, File]:
    """Every file of the packer, by module."""
    found = {}
    for path in sorted((root / "packer_service").rglob("*.py")):
        file = File(path.relative_to(root).as_posix())
        for node in ast.walk(parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                fields = (each.annotation for each in node.body if isinstance(each, ast.AnnAssign))
                file.holders |= {node.name for each in fields if ast.unparse(each) == CONFIGURATION}
            if isinstance(node, ast.Module | ast.ClassDef):
                within = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                file.functions |= {f"{within}{each.name}": each for each in node.body if isinstance(each, Function)}
            elif isinstance(node, ast.ImportFrom) and node.module:
                file.imported |= {each.asname or each.name: (node.module, each.name) for each in node.names}
        found[f"preshard.{file.path.removesuffix('.py').replace('/', '.')}"] = file
    return found


def takes_whole(function: Function, name: str, whole: set[str]) -> bool:
    """Whether a function takes the configuration, given the types that are it or hold it."""
    spec = function.args
    types = [ast.unparse(each.annotation) for each in (*spec.args, *spec.kwonlyargs) if each.annotation is not None]
    return name.partition(".")[0] in whole or any(not whole.isdisjoint(each.split(" | ")) for each in types)


def way(file: str, function: str, root: Path = ROOT) -> list[str]:
    """The files that a function's configuration comes into, one after the other, from the function's own on."""
    files, passed, rooms = read_files(root), set[tuple[str, str]](), list[str]()
    whole = {CONFIGURATION}.union(*(each.holders for each in files.values()))
    methods = dict[str, list[tuple[File, str]]]()
    for each in files.values():
        for name in each.functions:
            methods.setdefault(name.partition(".")[2], []).append((each, name))

    def called(at: File, node: ast.expr) -> tuple[File, str] | None:
        if isinstance(node, ast.Attribute):
            known = methods.get(node.attr, [])  # one that several classes have is not followed
            return known[0] if len(known) == 1 else None
        if not isinstance(node, ast.Name):
            return None
        module, name = at.imported.get(node.id, ("", node.id))
        there = files.get(module) if module else at
        return (there, name) if there is not None and name in there.functions else None

    def enter(at: File, name: str) -> None:
        rooms.append(at.path)
        if (at.path, name) not in passed:
            passed.add((at.path, name))
            follow(at, at.functions[name])

    def follow(at: File, node: ast.AST) -> None:
        for part in ast.iter_child_nodes(node):
            follow(at, part)
        if isinstance(node, ast.Call):
            found = called(at, node.func)
            if found is not None and takes_whole(found[0].functions[found[1]], found[1], whole):
                enter(*found)

    enter(files[f"preshard.{file.removesuffix('.py').replace('/', '.')}"], function)
    return [room for room, _ in groupby(rooms)]


def returns(rooms: list[str]) -> int:
    """Number of times that a way comes back to a file that it had left."""
    return len(rooms) - len(set(rooms))


def main(root: Path) -> None:
    rooms = way("packer_service/job/pack.py", "pack", root)
    for number, room in enumerate(rooms, start=1):
        print(f"{number:3} {room}")
    print(
        f"handed on {len(rooms)} times through {len(set(rooms))} files, back {returns(rooms)} times to one it had left"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)
