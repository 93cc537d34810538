"""The shell blocks of the pages: their commands, and whether a command printed what stands below it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LANGUAGES = ("bash", "console")
"""`console` has prompts and what commands print, `bash` commands alone."""

SECONDS = re.compile(r"\d[\d,.]*(?= (?:s|tokens/s)\b)|\d[\d.]*(?= MB\b)")
"""Figures that no two runs share: times, and what follows from them."""

STAMP = re.compile(r"^\[ *[\d.]+ s\] ")
"""Stamp in front of a line of progress."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command, with the lines that the page shows below it."""

    text: str
    shown: tuple[str, ...] = ()

    @property
    def fails(self) -> bool:
        """Whether the page shows it ending with an error."""
        said = [line for line in self.shown if line.startswith(("preshard: ", "trainer: "))]
        return any(not line.startswith("preshard: serving ") for line in said)


@dataclass(frozen=True, kw_only=True)
class Block:
    """One block of a page, named by the beginning of its first command."""

    page: str
    commands: tuple[Command, ...]


def blocks(page: str) -> list[Block]:
    """The shell blocks of a page, in its order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(page=page, commands=tuple(_commands(*each))) for each in found if each[0] in LANGUAGES]


def _commands(language: str, code: str) -> Iterator[Command]:
    if language == "bash":
        lines = code.replace("\\\n", " ").splitlines()
        yield from (Command(text=re.sub(r"\s{2,}#.*$| +$", "", line)) for line in lines)
        return
    for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        command, *shown = re.sub(r"\\\n\s*", "", part).splitlines()
        yield Command(text=command, shown=tuple(shown))


def first_difference(shown: Sequence[str], printed: str) -> str | None:
    """The first line that a command did not print, None if it printed all.

    Lines follow one another, but where a line of the page is ``...``; inside of a line that stands for any text. Lines
    of progress may be left out. Times may differ.
    """
    lines = [(STAMP.match(line) is not None, _plain(line)) for line in printed.splitlines()]
    at, anywhere = 0, False
    for line in shown:
        if not line.strip(" │#.") and "..." in line:
            anywhere = True
            continue
        wanted = re.compile(re.escape(_plain(line)).replace(r"\.\.\.", ".*"))
        while at < len(lines) and not wanted.fullmatch(lines[at][1]) and (anywhere or lines[at][0]):
            at += 1
        if at == len(lines) or not wanted.fullmatch(lines[at][1]):
            return line
        at, anywhere = at + 1, False
    left = [] if anywhere or not shown else [line for is_progress, line in lines[at:] if not is_progress and line]
    return f"(and, not shown) {left[0]}" if left else None


def _plain(line: str) -> str:
    return SECONDS.sub("#", STAMP.sub("", line)).strip()
