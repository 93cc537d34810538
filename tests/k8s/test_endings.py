"""Commands as a pod runs them, and their exit statuses on the way to whoever decides whether to try again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from confined import WRITABLE, confined
from manifests import K8S, Object, arguments, of_kind, pods
from scripts import load_script
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

SCRIPT = K8S / "components" / "pack" / "pack.sh"


def packed(tmp_path: Path, statuses: Sequence[int]) -> tuple[int, int]:
    """The script's exit status and attempts, where ``preshard`` ends with one of the statuses after the other."""
    program, count = tmp_path / "preshard", tmp_path / "count"
    cases = " ".join(f"{number}) exit {status};;" for number, status in enumerate(statuses, start=1))
    program.write_text(f"#!/bin/sh\necho >> {count}\ncase $(wc -l < {count}) in {cases} esac\n", encoding="utf-8")
    program.chmod(0o755)
    places = {
        "SOURCE": "/a b",
        "DATASET": "s3://a?b&c",
        "PRESHARD_PAUSE": "0",
        "MAX_REJECTS": "0.05",
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    done = subprocess.run(["sh", str(SCRIPT)], env={**os.environ, **places}, check=False)
    return done.returncode, len(count.read_text().splitlines())


@pytest.mark.parametrize(
    ("statuses", "ends"),
    [
        ([0], (0, 1)),
        ([2], (2, 1)),
        ([3], (3, 1)),
        ([1, 2], (2, 2)),
        ([1, 0], (0, 2)),
        ([1, 1, 1], (1, 3)),
        ([143], (143, 1)),
    ],
)
def test_packing_is_tried_again_only_after_an_outage(
    tmp_path: Path, statuses: list[int], ends: tuple[int, int]
) -> None:
    """Fails when a wrong configuration is tried again, an outage is not, or the attempts have no end."""
    assert packed(tmp_path, statuses) == ends


@pytest.fixture(scope="module")
def launch() -> ModuleType:
    return load_script(K8S / "images" / "launch.py")


def failure(tmp_path: Path, exitcode: int, after: int) -> ProcessFailure:
    path = tmp_path / f"{after}.json"
    path.write_text(f'{{"message": {{"message": "gone", "extraInfo": {{"timestamp": {after}}}}}}}', encoding="utf-8")
    return ProcessFailure(local_rank=after, pid=after + 1, exitcode=exitcode, error_file=str(path))


def test_the_rank_that_failed_first_decides(
    launch: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a refused command looks like a failure that may pass, or the other way round."""
    refused = ChildFailedError("train", {0: failure(tmp_path, 2, 1), 1: failure(tmp_path, -6, 2)})
    lost = ChildFailedError("train", {0: failure(tmp_path, 2, 4), 1: failure(tmp_path, -9, 3)})
    assert launch.exit_status(refused) == 2
    assert launch.exit_status(lost) == 1
    monkeypatch.setenv("RETRY_STATUS", "138")
    assert launch.exit_status(refused) == 2
    assert launch.exit_status(lost) == 138


@pytest.fixture
def served(can_confine: None, rendered: Callable[[str], list[Object]]) -> Iterator[tuple[Object, int, str]]:
    """The manifest's own service, confined, with its port and its token."""
    objects = rendered("local/serve")
    [pod] = pods(of_kind(objects, "Deployment"))
    [container] = pod.containers
    words = [*arguments(container, objects), "--port=0"]
    words[1] = str(K8S)  # any folder: one without datasets does
    process = confined([sys.executable, "-m", "preshard.packer_service", *words], PRESHARD_TOKEN="secret")
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "serving" in line, line + process.stderr.read()
    yield container, int(line.rstrip().rstrip("/").rpartition(":")[2]), "secret"
    process.terminate()
    assert process.wait(120) in (0, 143)


def answer(port: int, path: str, token: str = "") -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=60) as found:
            return int(found.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_the_service_runs_and_answers_its_probes_as_in_a_pod(served: tuple[Object, int, str]) -> None:
    """Fails when the service writes outside /tmp, needs root, or a probe asks for a path that wants a token."""
    container, port, token = served
    until = time.monotonic() + 120
    while answer(port, container["startupProbe"]["httpGet"]["path"]) != 200 and time.monotonic() < until:
        time.sleep(0.2)
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert answer(port, container[kind]["httpGet"]["path"]) == 200
    assert answer(port, "/metrics") == 401
    assert answer(port, "/metrics", token) == 200
    assert answer(port, "/v1/datasets", token) == 200


@pytest.mark.usefixtures("can_confine")
def test_a_wrong_source_ends_with_2_as_in_a_pod() -> None:
    """Fails when packing needs to write before it can say what is wrong, or says it with another status."""
    process = confined(
        [sys.executable, "-m", "preshard.packer_service", "pack", "/nowhere", "--out", f"{WRITABLE}/out"]
    )
    _, said = process.communicate(timeout=240)
    assert (process.returncode, "no such file" in said) == (2, True), said
