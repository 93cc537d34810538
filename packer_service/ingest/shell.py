"""Parts of commands that messages propose, which can be pasted whatever a file is called."""

from __future__ import annotations

import glob
import posixpath
import shlex


def file_argument(name: str) -> str:
    """A file's name that no program takes for an option, and no shell for more than one word."""
    return shlex.quote(f"./{name}" if name.startswith("-") else name)


def ignore_option(path: str) -> str:
    """The option by which a job leaves out the files of this name, and no others."""
    return f"--ignore {quoted(glob.escape(posixpath.basename(path)))}"


def set_option(setting: str) -> str:
    """The option that sets a configuration value, as ``key=value`` with the value in YAML."""
    return f"--set {quoted(setting)}"


def quoted(text: str) -> str:
    """A text as one word, in single quotes whether or not the shell asks for them."""
    return shlex.quote(text) if "'" in text else f"'{text}'"
