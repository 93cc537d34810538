"""Installs what ``pip install`` would, with uv, which takes a quarter of the time, and with pip where uv cannot.

    .venv/bin/python tests/support/install.py -c constraints.txt -e '.[dev]'

Started by path from the Makefile, in an environment that holds nothing but pip. uv reads none of pip's settings, so
those that say where packages come from are handed on to it.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys

PIP = [sys.executable, "-m", "pip"]
SETTINGS = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "),
    "cert": ("SSL_CERT_FILE", " "),
}
"""Settings of pip, the variable in which uv takes each, and what stands between two values there."""


def translated(lines: list[str]) -> dict[str, str]:
    """Variables for uv that say what ``pip config list`` printed; a variable of the environment comes last there."""
    found = {}
    for line in sorted(lines, key=lambda line: not line.startswith("global.")):
        name, is_setting, value = line.partition("=")
        key = name.rpartition(".")[2]
        if is_setting and key in SETTINGS:
            variable, between = SETTINGS[key]
            found[variable] = between.join(str(ast.literal_eval(value)).split())
    return found


def main(arguments: list[str]) -> int:
    """Installs, and gives pip's or uv's exit status."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-compile"]
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=False).stdout.splitlines()
    made = subprocess.run([*PIP, "install", *quiet, *_only_places(arguments), "uv"], check=False)
    if made.returncode == 0:
        # as pip chooses: the best version of all places, where uv would stop at the first that knows the name
        uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--index-strategy", "unsafe-best-match"]
        given = {**translated(listed), **os.environ}
        if subprocess.run([*uv, "--python", sys.executable, *arguments], env=given, check=False).returncode == 0:
            return 0
    print("uv could not install this; pip does it, which takes some minutes", file=sys.stderr)
    return subprocess.run([*PIP, "install", *quiet, *arguments], check=False).returncode


def _only_places(arguments: list[str]) -> list[str]:
    """Arguments to install uv itself: constraints and places, and not the project or a list of packages."""
    named = {"-e", "-r"}
    return [one for before, one in zip(["", *arguments], arguments, strict=False) if named.isdisjoint((before, one))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
