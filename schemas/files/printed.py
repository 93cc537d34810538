"""Text as it is printed: without secrets, without what a terminal obeys, in lines that end."""

from __future__ import annotations

import re
import unicodedata

LONGEST_LINE = 1000
"""Characters of a line that is printed."""

TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction of the text behind them."""

_OBEYED = ("Cc", "Cs", "Zl", "Zp")
"""Kinds of characters that a terminal obeys, or cannot be given: controls, halves of pairs, ends of lines."""


def plain(text: str) -> str:
    """Text in which the characters that a terminal would obey, other than line breaks and tabs, are spelled out."""
    if text.isascii() and text.isprintable():
        return text
    obeyed = {letter for letter in set(text) if unicodedata.category(letter) in _OBEYED} - {"\n", "\t"}
    return text.translate({ord(letter): ascii(letter)[1:-1] for letter in obeyed | (TURNING & set(text))})


def cut(text: str, most: int = LONGEST_LINE) -> str:
    """Text whose lines have at most so many characters."""
    if len(text) <= most:
        return text
    return "\n".join(line if len(line) <= most else f"{line[: most - 3]}..." for line in text.split("\n"))


def printable(text: str) -> str:
    """Text as errors and reports say it: spelled out, and cut line by line."""
    return cut(plain(cut(text)))


def several(number: int, what: str) -> str:
    """A number of things, in the singular or the plural."""
    ending = "es" if what.endswith(("s", "ch")) else "s"
    return f"{number:,} {what}" + ("" if number == 1 else ending)


HIDDEN = "…"
"""Stands for the value of an option."""

SHOWN_OPTIONS = (
    *("region", "scheme", "endpoint_override", "allow_bucket_creation", "allow_bucket_deletion", "enable_tls"),
    *("force_virtual_addressing", "tls_ca_file_path", "retry_limit_seconds", "default_bucket_location"),
    *("blob_storage_authority", "dfs_storage_authority", "blob_storage_scheme", "dfs_storage_scheme", "replication"),
)
"""Options of ``pyarrow.fs`` whose values say where a store is. The value of any other option may be a secret."""

_LONGEST_SEARCHED = 16_384
"""Characters of a line in which secrets are looked for, many more than are shown."""

NAMED_BY_USER = ("abfs", "abfss")
"""Schemes whose URIs name a container or account before the ``@``; only a password behind it is a secret."""

_USER_INFO = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]{0,30})://(?:/*(?=[^\s/@:]+:[^\s/@]*@))?"
    # The second alternative: a raw slash in a secret, which ends the authority for a parser. Not a port.
    r"(?P<user>(?:[^\s/@]*@)+|[^\s/@:]*:(?![0-9]*(?:[\s/?#]|$))[^\s@]+@)"
)

_OPTION = re.compile(r"([?&;])([^=&;?\s]{1,80})=([^&\s'\"]+)")

_BARE_QUERY = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]{0,30}://[^\s?]*\?)[^\s=&'\"]+(?=$|[\s'\"])")


def without_secrets(text: str) -> str:
    """A location, or any text with locations in it, without what may be a secret.

    Of every URI the user info is left out (``s3://key:secret@bucket`` becomes ``s3://bucket``). The values of options
    that pyarrow does not know as harmless are hidden, in paths as well: ``x.jpg?X-Amz-Signature=…``.
    """
    if "://" in text:
        text = _BARE_QUERY.sub(rf"\1{HIDDEN}", _USER_INFO.sub(_without_user, text))
    return _OPTION.sub(_with_known_value, text) if "=" in text else text


def shown(text: str) -> str:
    """Text as it is said to a user: without secrets, without what a terminal obeys, in lines that end."""
    return printable(without_secrets(cut(text, _LONGEST_SEARCHED)))


def _without_user(found: re.Match[str]) -> str:
    user, _, password = found["user"].rstrip("@").partition(":")
    keeps = found["scheme"].lower() in NAMED_BY_USER and "@" not in user + password
    return f"{found['scheme']}://{user}@" if keeps else f"{found['scheme']}://"


def _with_known_value(found: re.Match[str]) -> str:
    return found[0] if found[2] in SHOWN_OPTIONS else f"{found[1]}{found[2]}={HIDDEN}"
