"""Everything that opens a dataset, run on one in a forked process with limits, and how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CPU_SECONDS, WALL_SECONDS = 20, 300
"""Seconds of the processor for one entry, and of the clock, which others on the machine take as well."""

ADDRESS_BYTES, RESIDENT_BYTES = 6 << 30, 1 << 30
"""Address space and memory that a process may take beyond what the process had before."""

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e]")
NAMES = re.compile(
    r"\.json|\.parquet|\.tar|\.idx|\.npz|\.jpg|\.jpeg|\.jinja|model/|shards|config\.|\.work|\.nv-meta|README|DATASET|SOURCE"
)
LONGEST = 1000

Entry = Callable[[str, Path], None]
"""Opens a dataset, given a scratch folder; what is wrong is an error of ours, or one of the operating system."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Outcome of an entry.

    ``what`` is ``ok``, ``one line``, or what is wrong: ``traceback``, ``signal N``, ``hung``, ``gone``, ``memory``,
    ``vague``, ``long``, ``control characters``.
    """

    what: str
    line: str

    @property
    def is_right(self) -> bool:
        return self.what in ("ok", "one line")


def command(*words: str) -> Entry:
    """A command line, as its entry point runs it."""

    def run(dataset: str, scratch: Path) -> None:
        from preshard.packer_service.cli.run import main

        given = [word.replace("{dataset}", dataset).replace("{scratch}", str(scratch)) for word in words]
        main(given)

    return run


def opened(dataset: str, _: Path) -> None:
    """``preshard.open``, as the README does."""
    import preshard

    data = preshard.open(dataset)
    assert repr(data)
    assert data.report is not None
    assert min(table.num_rows for table in (data.packs, data.documents, data.rejects)) >= 0
    for number in range(min(len(data), 4)):
        pack = data[number]
        assert pack.documents is not None
        assert pack.layouts is not None
        if number == 0:
            pack.text(0), pack.svg()


def read(dataset: str, _: Path) -> None:
    """A rank's packs, as a trainer takes them."""
    from preshard.data import PackedDataset

    for number, batch in enumerate(PackedDataset(dataset)):
        batch.tokens.sum(), batch.pictures, batch.units
        if number == 4:
            break


def repacked(dataset: str, _: Path) -> None:
    """A dataset as the source of a job: its rows, and its documents."""
    from preshard.packer_service.ingest.packed.dataset import PackedDatasetSource
    from preshard.packer_service.ingest.packed.manifest import dataset_file, dataset_manifest
    from preshard.schemas.errors import ConfigError, DocumentError

    sealed = dataset_manifest(dataset)
    if sealed is None:
        raise ConfigError(f"SOURCE {dataset}: is no dataset")
    source = PackedDatasetSource.of(dataset_file(dataset, dataset, sealed, annotated=True))
    source.reject_codes()
    for row in source.rows(0, min(source.n_packs, 8)):
        with contextlib.suppress(DocumentError):  # a row of rejects.parquet
            source.pack(row.reference.offset).document(row.reference.size)


def served(dataset: str, _: Path) -> None:
    """A look of the service, and what it keeps of a dataset."""
    from preshard.packer_service.http.dataset.cache import Cache
    from preshard.packer_service.http.dataset.catalog import examine, whole_or_refuse
    from preshard.packer_service.http.dataset.folder import ServedFolder
    from preshard.packer_service.http.problems import ProblemError
    from preshard.packer_service.http.worker import look_at
    from preshard.schemas.errors import ConfigError

    root, _, name = dataset.rpartition("/")
    look_at(root, name, None, True)
    try:
        found = whole_or_refuse(name, examine(name, ServedFolder(root, name), Cache(64 << 20), is_thorough=True))
        assert found.figures is not None
        assert found.run is not None
        found.rows("documents.parquet", [0], ["doc_id", "source"])
    except ProblemError as problem:
        raise ConfigError(f"DATASET {problem.detail}") from None


ENTRIES: dict[str, Entry] = {
    "verify": command("verify", "{dataset}", "--num-cpus", "1"),
    "report": command("report", "{dataset}"),
    "advise": command("advise", "{dataset}", "--gpus", "8"),
    "show": command("show", "{dataset}"),
    "annotate": command("annotate", "{dataset}", "{scratch}/columns.jsonl"),
    "energon": command("energon", "{dataset}"),
    "card": command("card", "{dataset}", "--name", "forged"),
    "open": opened,
    "read": read,
    "source": repacked,
    "serve": served,
}
"""Entries to probe; those that write into the dataset come last but for what reads it again."""


def probe(entries: Sequence[str], dataset: Path, ids: Sequence[str]) -> dict[str, Outcome]:
    """Outcome of each of some entries on a dataset, one after the other.

    One process asks them all, since a fork costs more than most of them. Each that did not end rightly there is asked
    again in a process of its own, which says what becomes of it.
    """
    found = _asked(entries, dataset, ids)
    return {
        name: found[name] if name in found and found[name].is_right else _asked([name], dataset, ids)[name]
        for name in entries
    }


def _asked(entries: Sequence[str], dataset: Path, ids: Sequence[str]) -> dict[str, Outcome]:
    """Outcomes of entries in one process. An entry in which it is stopped, or stops itself, is the last."""
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:
        scratch = Path(folder)
        (scratch / "columns.jsonl").write_text("".join(json.dumps({"doc_id": each, "note": 1}) + "\n" for each in ids))
        before = _resident()
        pid = os.fork()
        if pid == 0:
            _child(entries, str(dataset), scratch)
        signalled = _wait(pid)
        found = dict[str, Outcome]()
        for name in entries:
            said, ended = scratch / f"{name}.said", scratch / f"{name}.ended"
            lines = said.read_bytes().decode(errors="replace") if said.exists() else ""
            if not ended.exists():
                found[name] = Outcome(what={None: "gone", 0: "hung"}.get(signalled, f"signal {signalled}"), line="")
                break
            status, most = map(int, ended.read_text().split())
            judged = _judged(status, lines, verify=name == "verify", grown=most - before)
            found[name] = Outcome(what=judged, line=_last(lines))
    return found


def _child(entries: Sequence[str], dataset: str, scratch: Path) -> None:
    """Runs entries and ends the process."""
    os.setsid()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESS_BYTES, resource.RLIM_INFINITY))
    try:
        for name in entries:
            spent = int(time.process_time())
            resource.setrlimit(resource.RLIMIT_CPU, (spent + CPU_SECONDS, resource.RLIM_INFINITY))
            status = _run(name, dataset, scratch)
            most = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
            (scratch / f"{name}.ended").write_text(f"{status} {most * 1024}")
    finally:
        os._exit(0)


def _run(name: str, dataset: str, scratch: Path) -> int:
    """Exit status of an entry, which says what it says into a file."""
    output = os.open(scratch / f"{name}.said", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1), os.dup2(output, 2)
    os.close(output)
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(scratch)
    status = 0
    try:
        ENTRIES[name](dataset, scratch)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        from preshard.schemas.errors import PreshardError

        status = 2 if isinstance(error, PreshardError | OSError) else 70
        print(error if status == 2 else "".join(traceback.format_exception(error)))
    with contextlib.suppress(OSError):
        sys.stdout.flush(), sys.stderr.flush()
    return status


def _wait(pid: int) -> int | None:
    """Signal by which a process ended, 0 where time was up; None if it ended by itself."""
    until = time.monotonic() + WALL_SECONDS
    pause = 0.002
    while time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 0


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _lines(said: str) -> Iterator[str]:
    return (line for line in said.split("\n") if line.strip() and not re.match(r"^\[ *[\d.]+ s\] ", line))


def _last(said: str) -> str:
    last = ""
    for last in _lines(said):  # noqa: B007
        pass
    return last


def _judged(status: int, said: str, *, verify: bool, grown: int) -> str:
    lines = list(_lines(said))
    names_a_file = len(lines) == 1 and NAMES.search(lines[0]) is not None
    judged = {
        "traceback": status == 70 or "Traceback (most recent call last)" in said,
        "memory": grown > RESIDENT_BYTES,
        "control characters": CONTROL.search(said) is not None,
        "long": any(len(line) > LONGEST for line in lines),
        "ok": status == 0,
        "one line": names_a_file or (verify and status == 1),
        "vague": True,
    }
    return next(what for what, holds in judged.items() if holds)


def warm(dataset: Path, ids: Sequence[str]) -> None:
    """Loads, and compiles, what the entries need, so that no forked process does it again."""
    from preshard.packer_service.cli import datasets, sources  # noqa: F401
    from preshard.packer_service.report.dataset import report_dataset
    from preshard.packer_service.runtime.progress import NoProgress
    from preshard.packer_service.verify import verify_dataset

    verify_dataset(str(dataset), processes=1, progress=NoProgress())
    report_dataset(str(dataset))
    with tempfile.TemporaryDirectory(prefix="probe-") as scratch:
        for entry in (opened, read, repacked, served):
            entry(str(dataset), Path(scratch))
