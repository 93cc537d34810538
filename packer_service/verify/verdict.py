"""Result of verifying: one fault for each broken rule and place, and how much was checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from preshard.schemas.errors import FORMAT_RULES, FormatError
from preshard.schemas.files.printed import plain, several

Finding = tuple[type[FormatError], str]
"""A broken rule, and the value found with the value that the rule asks for. The caller knows file and sample."""

MOST_LISTED = 20
"""Faults of one rule in one file that are listed; the others are only counted."""

LONGEST_DETAIL = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One broken rule in one place. ``sample`` is a pack's key, None where the whole file is meant."""

    rule: str
    name: str
    file: str
    sample: str | None
    detail: str

    @classmethod
    def of(cls, error: type[FormatError], file: str, detail: str, sample: str | None = None) -> Fault:
        text, place = (plain(" ".join(each.split())) for each in (detail, file))
        text = text if len(text) <= LONGEST_DETAIL else f"{text[:LONGEST_DETAIL]}..."
        return cls(rule=error.rule, name=error.__name__, file=place, sample=sample, detail=text)

    @property
    def where(self) -> str:
        return self.file if self.sample is None else f"{self.file} {self.sample}"

    def error(self) -> FormatError:
        """The exception of the broken rule."""
        return FORMAT_RULES[self.rule](self.where, self.detail)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(kw_only=True)
class Faults:
    """Faults as they are found: at most :data:`MOST_LISTED` of one rule in one file, and the number of the others."""

    listed: list[Fault] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, fault: Fault) -> None:
        self.counts[fault.rule, fault.file] += 1
        if self.counts[fault.rule, fault.file] <= MOST_LISTED:
            self.listed.append(fault)

    def extend(self, findings: Iterable[Finding], file: str, sample: str | None = None) -> None:
        for error, detail in findings:
            self.add(Fault.of(error, file, detail, sample))

    def merge(self, other: Faults) -> None:
        """Adds the faults of another place, including those that it only counted."""
        for fault in other.listed:
            self.add(fault)
        for (rule, file), unlisted in other.unlisted().items():
            self.counts[rule, file] += unlisted

    def unlisted(self) -> dict[tuple[str, str], int]:
        """Numbers of faults that are not listed, by rule and file."""
        listed = Counter((fault.rule, fault.file) for fault in self.listed)
        return {key: n - listed[key] for key, n in self.counts.items() if n > listed[key]}


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The outcome of verifying a dataset.

    ``checked`` counts what was read from the bytes; ``unlisted`` the faults beyond those in ``broken``, by rule and
    file.
    """

    dataset: str
    checked: dict[str, int]
    broken: list[Fault]
    unlisted: dict[tuple[str, str], int]

    @property
    def sound(self) -> bool:
        return not self.broken

    def as_json(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "sound": self.sound,
            "checked": self.checked,
            "broken": [fault.as_json() for fault in self.broken],
            "unlisted": [{"rule": rule, "file": file, "count": n} for (rule, file), n in self.unlisted.items()],
        }

    def as_lines(self) -> list[str]:
        """Returns lines for a person: one line per fault, and what it comes to."""
        lines = [f"{fault.rule} {fault.name}: {fault.where}: {fault.detail}" for fault in self.broken]
        lines += [
            f"{rule} {FORMAT_RULES[rule].__name__}: {file}: {n} more" for (rule, file), n in self.unlisted.items()
        ]
        checked = ", ".join(self._checked()) or "nothing more"
        rules = len({fault.rule for fault in self.broken})
        total = len(self.broken) + sum(self.unlisted.values())
        outcome = "sound" if self.sound else f"not sound, faults: {total:,}, broken rules: {rules}"
        return [*lines, f"{self.dataset}: {outcome} (checked {checked})"]

    def _checked(self) -> Iterator[str]:
        for what, n in self.checked.items():
            yield f"{n:,} of them independently" if what == "independent" else several(n, what.removesuffix("s"))
