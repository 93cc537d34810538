"""Puts a mutant into a process that has already imported the file it changes."""

from __future__ import annotations

import gc
import inspect
import sys
from pathlib import Path
from types import CodeType, FunctionType


def changed_functions(before: str, after: str, path: str) -> list[tuple[CodeType, CodeType]] | None:
    """The functions and methods that differ between two texts of a file, each as it was and as it is.

    None where something else differs as well: what runs when the module is imported cannot be replaced afterwards.
    """
    old, new = (compile(text, path, "exec", dont_inherit=True) for text in (before, after))
    found: list[tuple[CodeType, CodeType]] = []
    return found if _collect(old, new, found) else None


def _collect(old: CodeType, new: CodeType, found: list[tuple[CodeType, CodeType]]) -> bool:
    """Whether two bodies of a module or class are the same but for functions, which go to ``found``."""
    if _without_functions(old) != _without_functions(new):
        return False
    for one, other in zip(_inner(old), _inner(new), strict=True):
        if not one.co_flags & inspect.CO_OPTIMIZED:  # the body of a class
            if not _collect(one, other, found):
                return False
        elif one != other:
            found.append((one, other))
    return True


def _inner(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _without_functions(code: CodeType) -> CodeType:
    constants = tuple(None if isinstance(constant, CodeType) else constant for constant in code.co_consts)
    return code.replace(co_consts=constants, co_linetable=b"")


def replace_functions(path: Path, pairs: list[tuple[CodeType, CodeType]]) -> bool:
    """Gives the functions of this process their new code; whether all were found.

    A file that has not been imported yet will be imported as it is on disk, with the mutant.
    """
    if not any(getattr(module, "__file__", None) == str(path) for module in list(sys.modules.values())):
        return True
    gc.unfreeze()  # tests/conftest.py freezes what is imported, which would not be listed
    live = [each for each in gc.get_objects() if type(each) is FunctionType]  # isinstance wakes proxies
    for old, new in pairs:
        named = (str(path), old.co_qualname, old.co_firstlineno)
        functions = [
            each for each in live
            if (each.__code__.co_filename, each.__code__.co_qualname, each.__code__.co_firstlineno) == named
        ]  # fmt: skip
        if not functions or len(old.co_freevars) != len(new.co_freevars):
            return False
        for function in functions:
            function.__code__ = new
    return True
