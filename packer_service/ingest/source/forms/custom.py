"""A form of the user's own: ``--form package.module:function``, called with each row where the tasks run."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from preshard.packer_service.ingest.document import Document
from preshard.packer_service.ingest.source.forms.dialogues import parse_messages
from preshard.packer_service.ingest.source.forms.fields import bad, kind_of
from preshard.schemas.errors import ConfigError, DocumentError

SHOWN_REASON = 200
"""Most characters of a function's own error that a reject repeats."""


def is_custom(name: str) -> bool:
    """Whether a form is named by module and function."""
    return ":" in name


def parse_by(name: str) -> Callable[[dict[str, Any]], Document]:
    """Returns the function that parses rows, named by ``package.module:function``.

    The function gets the row with all of its columns, and returns a ``Document`` or a row of the form ``messages``. An
    error that it raises rejects the row.

    Raises:
        ConfigError: there is no such module or function.
    """
    function = _imported(name)
    return lambda row: _called(function, name, row)


def source_hash(name: str) -> str:
    """SHA-256 of the file that holds the function: part of the job's identity, since it decides the documents.

    Raises:
        ConfigError: there is no such module or function, or its source is not there.
    """
    try:
        path = inspect.getsourcefile(inspect.unwrap(_imported(name)))
        return hashlib.sha256(Path(path or "").read_bytes()).hexdigest()
    except (OSError, TypeError):
        raise ConfigError(f"--form {name}: its source cannot be read; name a function in a file of Python") from None


def _imported(name: str) -> Callable[[dict[str, Any]], Any]:
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # importing runs code of the user's own, which can raise anything
        reason = " ".join(str(error).split())[:SHOWN_REASON]
        remedy = "give package.module:function that Python can import here and where the tasks run"
        raise ConfigError(f"--form {name}: {type(error).__name__}: {reason}; {remedy}") from None
    if not callable(function):
        raise ConfigError(f"--form {name}: is {kind_of(function)}, not a function")
    found: Callable[[dict[str, Any]], Any] = function
    return found


def _called(function: Callable[[dict[str, Any]], Any], name: str, row: dict[str, Any]) -> Document:
    try:
        made = function(row)
    except DocumentError:
        raise
    except Exception as error:  # the user's own code: what it raises is a reject of the row
        reason = " ".join(str(error).split())[:SHOWN_REASON]
        bad(f"{name} raised {type(error).__name__}: {reason}")
    if isinstance(made, dict):
        return parse_messages({key: value for key, value in made.items() if value is not None})
    if not isinstance(made, Document):
        bad(f"{name} returned {kind_of(made)}, not a Document or a row of the form messages")
    return made
