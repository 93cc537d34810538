"""List of the mutants, and choice of those that a seed draws. The mutations are cosmic-ray's."""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

DECLARATIVE = ("dataclass", "compiled", "with_config", "overload")
"""Decorators that are not mutated: tests see no difference between a frozen dataclass and one that nobody changes, nor
between a compiled loop and the same loop interpreted."""

LEFT_OUT = ("core/ExceptionReplacer",)
"""Operators of cosmic-ray that fail on our code: this one does not expect a dot, as in ``pa.ArrowException``."""

Place = tuple[int, int]
"""Line, from 1, and column, from 0."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change of one file."""

    room: str
    file: str
    operator: str
    occurrence: int
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.operator}#{self.occurrence}"

    def apply(self, root: Path) -> str:
        """The file's text with the change."""
        text = mutate_code((root / self.file).read_text("utf-8"), get_operator(self.operator)(), self.occurrence)
        assert text is not None, f"{self}: the file has no such place"
        return text


def drawn(root: Path, rooms: dict[str, list[str]], count: int, seed: int) -> list[Mutant]:
    """``count`` mutants over all rooms, as many of each as it has a share of all places that can be mutated.

    Each place in a room is equally likely, whatever the number of mutations that fit there, and none is drawn twice.

    Args:
        root: the tree.
        rooms: files of each room, from the root.
        count: mutants of all rooms together.
        seed: draws the places, and one mutation at each.
    """
    places = {room: _places(root, room, files) for room, files in rooms.items()}
    total = sum(map(len, places.values()))
    edges, before = [0], 0
    for of_room in places.values():
        before += len(of_room)
        edges.append(round(count * before / total))
    chosen = []
    for (room, of_room), first, end in zip(places.items(), edges, edges[1:], strict=False):
        draw = random.Random(f"{seed} {room}")
        draw.shuffle(of_room)
        legal = (each for each in (draw.choice(mutants) for mutants in of_room) if _is_change(each, root))
        chosen += list(islice(legal, end - first))
    return chosen


def _is_change(mutant: Mutant, root: Path) -> bool:
    """Whether a mutant is Python, and its functions take the arguments that they took.

    Cosmic-ray takes the bare star before keyword arguments for a product.
    """
    try:
        after = ast.parse(mutant.apply(root))
    except SyntaxError:
        return False
    return _keyword_arguments(after) == _keyword_arguments(ast.parse((root / mutant.file).read_text("utf-8")))


def _keyword_arguments(tree: ast.AST) -> list[int]:
    return [len(node.kwonlyargs) for node in ast.walk(tree) if isinstance(node, ast.arguments)]


def _places(root: Path, room: str, files: list[str]) -> list[list[Mutant]]:
    """The mutants of each place of a room's files."""
    found: dict[tuple[str, Place], list[Mutant]] = defaultdict(list)
    for file in files:
        text = (root / file).read_text("utf-8")
        spared, nodes = list(_spared(ast.parse(text))), list(ast_nodes(get_ast(text)))
        for name in operator_names():
            if name in LEFT_OUT or get_operator(name).arguments():
                continue
            operator = get_operator(name)()
            positions = (position for node in nodes for position in operator.mutation_positions(node))
            for occurrence, (start, _) in enumerate(positions):
                if not any(first <= start < end for first, end in spared):
                    mutant = Mutant(room=room, file=file, operator=name, occurrence=occurrence, line=start[0])
                    found[file, start].append(mutant)
    return [found[key] for key in sorted(found)]


def _spared(tree: ast.AST) -> Iterator[tuple[Place, Place]]:
    """Stretches that run in no test or in none differently: annotations, which stay strings, and declarations."""
    for node in ast.walk(tree):
        spared: list[ast.expr | None] = []
        if isinstance(node, ast.FunctionDef):
            spared += [node.returns, *(a.annotation for a in ast.walk(node.args) if isinstance(a, ast.arg))]
        if isinstance(node, ast.AnnAssign):
            spared.append(node.annotation)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            spared += [each for each in node.decorator_list if _name(each) in DECLARATIVE]
        if isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING":
            spared.append(node.test)
        for part in spared:
            if part is not None:
                # A decorator's own place is its "@", one column before.
                yield (part.lineno, part.col_offset - 1), (part.end_lineno or 0, part.end_col_offset or 0)


def _name(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
