"""Messages about imports that cannot be made: of packages that an extra would bring, and by a folder's own name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

IMPORTERS = {"importlib", "_frozen_importlib", "_frozen_importlib_external"}
"""Modules whose frames lie between an import and what is imported."""


@contextmanager
def needed(program: str, what: str, extra: str) -> Iterator[None]:
    """Ends the process, with one line and exit status 2, where a package of others that is imported here is missing.

    Args:
        program: the word before the line's colon.
        what: what the package is needed for, the line's subject.
        extra: the extra of ours that brings it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "preshard":
            raise
        remedy = f"pip install 'preshard[{extra}]'"
        print(f"{program}: {what} needs the package {error.name}, which is not installed: {remedy}", file=sys.stderr)
        sys.exit(2)


def refuse_import(folder: str) -> None:
    """Refuses a folder of a checkout as a top-level package, unless it is ``python -m`` that asks, for its command.

    A module that is imported by two names is there twice, and an exception of one is not caught as the other's.

    Raises:
        ImportError: says which name to use.
    """
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in IMPORTERS:
        frame = frame.f_back
    if frame.f_globals.get("__name__") != "runpy":
        raise ImportError(f"{folder} is preshard.{folder}: import it by that name", name=folder)
