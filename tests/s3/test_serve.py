"""The service over a bucket of which parts never answer."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from s3_server import BUCKET, Store

from tests.support.served import descendants, is_running, served
from tests.support.slow_store import NEVER, NEVER_LISTED, slow_store

HANGING = 40
"""Folders that never answer: more than a client has connections by itself, and fewer than threads that look."""

NEVER_GIVEN_UP = 300.0
"""Seconds for which a folder is looked at: more than the test takes, so that what waits for it fails."""


def ask(port: int, path: str) -> tuple[int, Any]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


@pytest.mark.slow
def test_a_sound_dataset_answers_while_folders_beside_it_hang(store: Store, tiny_dataset: Path) -> None:
    """Fails when folders of a bucket are looked at one after the other, or when those that never answer, which come
    first, take all threads or connections.
    """
    for name in (NEVER, NEVER_LISTED, "sound"):
        store.upload(tiny_dataset, f"served/{name}")
    for number in range(HANGING):
        with store.filesystem.open_output_stream(f"{BUCKET}/served/{NEVER_LISTED}-{number:02}/file") as file:
            file.write(b"x")
    endpoint = re.search(r"127\.0\.0\.1:(\d+)", store.query)
    assert endpoint is not None
    with slow_store(int(endpoint[1])) as port:
        root = store.uri("served").replace(endpoint[0], f"127.0.0.1:{port}")
        with served(root, scan_seconds=NEVER_GIVEN_UP) as (process, own):
            deadline, status = time.monotonic() + NEVER_GIVEN_UP / 2, 0
            while status != 200 and time.monotonic() < deadline:
                status, told = ask(own, "/v1/datasets/sound/packs")
            assert status == 200, told
            assert told["total"] > 0
            _, listed = ask(own, "/v1/datasets")
            assert [entry["name"] for entry in listed["items"] if entry["state"] == "whole"] == ["sound"]
            assert not listed["complete"]
            assert ask(own, f"/v1/datasets/{NEVER}")[0] == 503
            processes = descendants(process.pid)
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            while any(map(is_running, processes)) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert not any(map(is_running, processes))
