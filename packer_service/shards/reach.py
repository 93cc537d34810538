"""Whether anything answers where a source or a dataset should be, before work begins there."""

from __future__ import annotations

from preshard.packer_service.runtime.patience import NoAnswerError, answer
from preshard.schemas.errors import ConfigError
from preshard.schemas.filesystem import is_uri, locate
from preshard.schemas.secrets import without_secrets

ANSWER_SECONDS = 30.0
"""Longest wait for the first answer of a store. One that is there answers within seconds, while the clients of some
try for a quarter of an hour, or for ever."""


def require_answer(what: str, location: str, seconds: float = ANSWER_SECONDS) -> None:
    """Asks a store whether a location exists, whatever the answer; a local path is not asked about.

    Args:
        what: how the error names the location: ``SOURCE``, ``DATASET``, ``--out`` or ``ROOT``.
        location: a path or URI.
        seconds: longest wait.

    Raises:
        ConfigError: the store did not answer, or its client failed.
    """
    if not is_uri(location):
        return

    def ask() -> None:
        filesystem, path = locate(location)
        filesystem.get_file_info(path)

    try:
        answer(ask, seconds)
    except NoAnswerError:
        remedy = "check its address, the network and the credentials"
        raise ConfigError(f"{what} {location}: nothing answered in {seconds:g} s; {remedy}") from None
    except ImportError as error:
        raise ConfigError(f"{what} {location}: needs a package that is not installed ({error})") from None
    except Exception as error:  # filesystems of fsspec raise what the library that they send requests with raises
        reason = (
            " ".join(str(error).split()).removeprefix(f"{without_secrets(location)}: ")[:300] or type(error).__name__
        )
        raise ConfigError(f"{what} {location}: {reason}") from None
