"""Every way in which a call can break its process, and that nothing else breaks with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from types import ModuleType

import pytest

from preshard.packer_service.runtime import patience
from preshard.packer_service.runtime.workers import CallFailedError, Isolated, KilledError, Limits
from preshard.schemas.errors import DocumentError, PreshardError

BREAKS = {
    "aborts": "crashed (SIGABRT; its memory is limited to 256 MiB) in 2 of 2 tries",
    "segfaults": "crashed (SIGSEGV; its memory is limited to 256 MiB) in 2 of 2 tries",
    "eats": "needs more than its 256 MiB of memory in 2 of 2 tries",
    "eats_at_once": "needs more than its 256 MiB of memory in 2 of 2 tries",
    "eats_and_calls_it_damage": "needs more than its 256 MiB of memory in 2 of 2 tries",
    "eats_and_crashes": "crashed (SIGSEGV; its memory is limited to 256 MiB) in 2 of 2 tries",
    "exits": "ended its process (exit status 3) in 2 of 2 tries",
    "exits_at_once": "ended its process (exit status 0) in 2 of 2 tries",
    "raises": "failed (IndexError) in 2 of 2 tries",
    "raises_eof": "failed (EOFError) in 2 of 2 tries",
    "crashes_in_the_middle": "crashed (SIGABRT; its memory is limited to 256 MiB) in 2 of 2 tries",
    "claims_too_much": "gave an invalid answer in 2 of 2 tries",
    "writes_everywhere": "gave an invalid answer in 2 of 2 tries",
}


SLEEPS = ("sleeps", "stalls_in_the_middle", "closes_its_pipes")


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def assert_ends(pid: int, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while is_running(pid):
        assert time.monotonic() < until, f"process {pid} still runs"
        time.sleep(0.01)


@pytest.mark.parametrize("name", BREAKS)
def test_what_breaks_the_process_is_a_reason_after_two_tries(isolated: Isolated, broken: ModuleType, name: str) -> None:
    """Fails when a broken call gets a wrong reason, ends the caller, or leaves its process to the next call."""
    with pytest.raises(CallFailedError) as failed:
        isolated.call(getattr(broken, name))
    assert str(failed.value) == BREAKS[name]
    assert isolated.pid is None
    assert isolated.call(broken.counts, 3) == [0, 1, 2]


@pytest.mark.parametrize("name", SLEEPS)
def test_a_process_that_sleeps_is_ended(broken: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a call that waits for ever is waited for, before its answer, inside it, or without any pipe."""
    monkeypatch.setattr(patience, "LOOK_SECONDS", 0.3)
    helper = Isolated(Limits(asleep_seconds=2, tries=1))
    with pytest.raises(CallFailedError) as failed:
        helper.call(getattr(broken, name))
    assert str(failed.value) == "hung (it slept for 2 s) in 1 of 1 tries"
    assert helper.pid is None


def test_a_loop_that_gives_no_other_thread_a_turn_is_ended(broken: ModuleType) -> None:
    """Fails when a call that takes processor time for ever is not ended, or is taken for one that sleeps."""
    helper = Isolated(Limits(cpu_seconds=1, asleep_seconds=2, tries=1))
    with pytest.raises(CallFailedError) as failed:
        helper.call(broken.loops_in_c)
    assert str(failed.value) == "hung (no result in 1 s of processor time) in 1 of 1 tries"
    assert helper.call(broken.counts, 3) == [0, 1, 2]
    helper.close()


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("rejects", DocumentError, "photo.png: the file is cut short"),
        ("finds_no_file", FileNotFoundError, "[Errno 2] No such file or directory: 'clip.mp4'"),
        ("times_out", TimeoutError, "the object store did not answer"),
    ],
)
def test_an_error_that_was_foreseen_comes_as_it_is(
    isolated: Isolated, broken: ModuleType, name: str, kind: type[Exception], text: str
) -> None:
    """Fails when an outage becomes a document's fault, or each rejected file costs a new process."""
    pid = isolated.call(broken.pid_of)
    with pytest.raises(kind) as raised:
        isolated.call(getattr(broken, name))
    assert type(raised.value) is kind
    assert str(raised.value) == text
    assert getattr(raised.value, "code", "bad_image") == "bad_image"
    assert isolated.call(broken.pid_of) == pid


def test_damage_that_may_be_a_lack_of_memory_says_so(isolated: Isolated, broken: ModuleType, tmp_path: Path) -> None:
    """Fails when a decoder that hides the lack of memory hides it from the user too, or is not tried in a new process.

    Or when the hint is given though there was enough memory: the peak of an earlier call does not count.
    """
    pid = isolated.call(broken.pid_of)
    isolated.call(broken.eats_most)
    with pytest.raises(DocumentError) as plain:
        isolated.call(broken.rejects_below_the_limit)
    assert str(plain.value) == "clip.mp4: frame 7 cannot be decoded"
    assert isolated.call(broken.pid_of) == pid
    with pytest.raises(DocumentError) as hinted:
        isolated.call(broken.eats_and_knows_nothing)
    hint = " (its decoder came near its limit of 256 MiB of memory)"
    assert (hinted.value.code, str(hinted.value)) == ("decode_failed", str(plain.value) + hint)
    assert isolated.call(broken.pid_of) != pid


def test_a_process_that_is_killed_from_outside_is_no_documents_fault(isolated: Isolated, broken: ModuleType) -> None:
    """Fails when a machine short of memory rejects good documents."""
    with pytest.raises(KilledError, match=r"ended from outside \(SIGKILL\)"):
        isolated.call(broken.killed)
    assert issubclass(KilledError, OSError)


def test_a_helper_killed_between_calls_is_replaced(isolated: Isolated, broken: ModuleType) -> None:
    """Fails when the death of an idle helper costs the next document."""
    [pid] = isolated.call(broken.pid_of)
    os.kill(pid, signal.SIGKILL)
    [other] = isolated.call(broken.pid_of)
    assert other != pid


def test_a_crash_in_the_first_try_leaves_no_trace_in_the_result(
    isolated: Isolated, broken: ModuleType, tmp_path: Path
) -> None:
    """Fails when values that came before the crash are kept, lost or doubled."""
    marker = tmp_path / "crashed"
    assert isolated.call(broken.crashes_once, str(marker), 10) == list(range(10))
    assert marker.exists()


def test_garbage_on_standard_output_is_no_answer(isolated: Isolated, broken: ModuleType) -> None:
    """Fails when what a library prints gets between the answers, or it can read the calls."""
    assert isolated.call(broken.prints) == ["good"]


def test_every_value_has_the_whole_time(broken: ModuleType) -> None:
    """Fails when a long video that makes progress is taken for one that hangs: 2.4 s in all, where the limit of 1 s
    ends a call after 2 s at most.
    """
    helper = Isolated(Limits(cpu_seconds=1, tries=1))
    assert helper.call(broken.counts, 1) == [0], "what is imported with the first call"
    assert helper.call(broken.counts_slowly, 4, 0.6) == list(range(4))
    helper.close()


def test_the_time_in_a_stopped_process_is_not_counted(
    isolated: Isolated, broken: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a suspended machine rejects the document that was being read."""
    monkeypatch.setattr(patience, "LOOK_SECONDS", 0.3)
    [pid] = isolated.call(broken.pid_of)
    os.kill(pid, signal.SIGSTOP)
    waker = Thread(target=lambda: (time.sleep(1.2), os.kill(pid, signal.SIGCONT)))
    waker.start()
    assert isolated.call(broken.pid_of) == [pid]
    waker.join()


def test_one_process_serves_all_calls(isolated: Isolated, broken: ModuleType) -> None:
    """Fails when each media costs the start of a process, or an error of the caller does."""
    pids = {isolated.call(broken.pid_of)[0] for _ in range(20)}
    with pytest.raises(AttributeError):
        isolated.call(lambda: 1)
    assert {*pids, isolated.call(broken.pid_of)[0]} == {isolated.pid}
    assert isolated.pid != os.getpid()


def test_large_arguments_and_values_travel(isolated: Isolated) -> None:
    """Fails when a message above a pipe's buffer is cut or blocks both sides."""
    data = bytes(range(256)) * (20 << 12)
    assert isolated.call(bytes.swapcase, data) == [data.swapcase()]


def test_arguments_above_the_memory_are_a_reason(isolated: Isolated) -> None:
    """Fails when inline media that the helper cannot hold end the job, or block it."""
    with pytest.raises(CallFailedError, match="needs more than its 256 MiB of memory"):
        isolated.call(len, bytes(300 << 20))


def test_threads_wait_for_each_other(isolated: Isolated, broken: ModuleType) -> None:
    """Fails when the answers of two threads' calls are mixed up."""
    found: list[list[int]] = []
    threads = [Thread(target=lambda n=n: found.append(isolated.call(broken.counts, n))) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found, key=len) == [list(range(n)) for n in range(1, 9)]


def test_a_forked_copy_has_a_helper_of_its_own(isolated: Isolated, broken: ModuleType) -> None:
    """Fails when a copy of the process reads the answers to the original, or ends its helper."""
    [pid] = isolated.call(broken.pid_of)
    copy = os.fork()
    if not copy:
        good = isolated.call(broken.pid_of) != [pid]
        isolated.close()
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 0
    assert isolated.call(broken.pid_of) == [pid]


PARENT = """
import sys
from threading import Thread
from preshard.packer_service.runtime.workers import Isolated
from preshard.packer_service.runtime.workers import Limits
import broken_decoders
isolated = Isolated(Limits())
print(*isolated.call(broken_decoders.pid_of), flush=True)
if sys.argv[1:]:
    Thread(target=isolated.call, args=(getattr(broken_decoders, sys.argv[1]),), daemon=True).start()
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("how", "doing"),
    [
        *((signal.SIGKILL, doing) for doing in ([], ["sleeps"], ["loops_in_c"])),
        *((signal.SIGTERM, doing) for doing in ([], ["loops_in_c"])),
        (None, []),
    ],
)
def test_the_helper_ends_with_its_caller(broken: ModuleType, doing: list[str], how: int | None) -> None:
    """Fails when a helper outlives a caller that was killed, or that ended, whatever the helper did just then."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", PARENT, *doing]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as caller:
        assert caller.stdout is not None
        assert caller.stdin is not None
        pid = int(caller.stdout.readline())
        assert is_running(pid)
        time.sleep(0.2)  # for the call to begin
        if how is None:
            caller.stdin.close()
        else:
            caller.send_signal(how)
        assert_ends(pid)


def test_a_helper_that_cannot_start_is_no_documents_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a broken installation rejects every document, or is waited for."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(KilledError, match=r"did not start: it ended its process \(exit status 1\)"):
        Isolated(Limits()).call(len, "x")


def test_a_function_that_the_helper_cannot_import_is_no_documents_fault(
    monkeypatch: pytest.MonkeyPatch, broken: ModuleType
) -> None:
    """Fails when a wrong path rejects every document."""
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if not folder.endswith("decoders")])
    helper = Isolated(Limits())
    with pytest.raises(PreshardError, match=r"cannot make the call \(ModuleNotFoundError"):
        helper.call(broken.counts, 3)
    helper.close()
