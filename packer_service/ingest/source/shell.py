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
    pattern = glob.escape(posixpath.basename(path))
    quoted = shlex.quote(pattern) if "'" in pattern else f"'{pattern}'"
    return f"--ignore {quoted}"
