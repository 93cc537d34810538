"""`preshard serve` as a process: says where it is, answers, logs, and ends when it is told to."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from preshard.packer_service.cli import main
from tests.support.served import descendants

LONG = 240.0
"""Seconds until a test gives up."""


def listed(request: urllib.request.Request) -> list[dict[str, Any]]:
    """The datasets of a service, asked for until the first look through its root has found some."""
    until = time.monotonic() + LONG
    items: list[dict[str, Any]] = []
    while not items and time.monotonic() < until:
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=LONG) as answer:
            items = json.load(answer)["items"]
    return items


def packages_of(pid: int) -> set[str]:
    """Installed packages whose libraries a process has in its memory."""
    lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    return {line.partition("/site-packages/")[2].partition("/")[0] for line in lines}


def test_it_serves_until_it_is_stopped(served_root: Path) -> None:
    """Fails when it does not listen, keeps a token's secret badly, logs no line, leaves by a traceback, or loads what
    only packing and training need."""
    process = subprocess.Popen(
        [sys.executable, "-m", "preshard.packer_service", "serve", str(served_root), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PRESHARD_TOKEN": "secret"},
    )
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert "serving" in said
        assert "secret" not in said
        request = urllib.request.Request(f"{said.split()[-1]}v1/datasets", headers={"Authorization": "Bearer secret"})
        assert listed(request)[0]["name"] == "tiny"
        itself, template = map(packages_of, descendants(process.pid)[:2])  # readers are forked from the template
        assert "numpy" in itself & template
        assert not (itself | template) & {"ray", "torch", "av", "PIL"}
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=LONG)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert err.strip() == ""
    *waited, line = map(json.loads, out.splitlines())
    assert (line["path"], line["status"]) == ("/v1/datasets", 200)
    assert {each["path"] for each in waited} <= {"/v1/datasets"}


def test_what_cannot_be_served_is_said_in_one_line(
    served_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails when a wrong root, host or port ends in a traceback or another status."""
    monkeypatch.delenv("PRESHARD_TOKEN", raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        tried = [
            ([str(tmp_path / "nowhere")], 2, "no such folder"),
            ([str(served_root), "--host", "0.0.0.0"], 2, "PRESHARD_TOKEN"),
            ([str(served_root), "--port", port], 1, "another --port"),
            ([str(served_root), "--port", "-1"], 2, "--port"),
        ]
        for arguments, status, told in tried:
            with pytest.raises(SystemExit) as ended:
                main(["serve", *arguments])
            said = capsys.readouterr().err
            assert (ended.value.code, len(said.splitlines())) == (status, 1)
            assert told in said
