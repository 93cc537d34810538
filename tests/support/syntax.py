"""Syntax trees of Python files."""

from __future__ import annotations

import ast


def parse(source: str) -> ast.Module:
    """Syntax tree of ``source``.

    CPython before 3.11.8 and 3.12.2 counts the depth of all trees of a process in one place, so it can take what
    another thread compiles meanwhile for an error (https://github.com/python/cpython/issues/106905).
    """
    try:
        return ast.parse(source)
    except SystemError:
        return ast.parse(source)
