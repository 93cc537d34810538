"""What a command says when a package that its extra would bring is not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


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
