"""The service over a bucket of which parts never answer."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from pyarrow import fs
from s3_server import BUCKET, Store

from tests.support.served import descendants, is_running, served

NEVER, NEVER_LISTED = "answers-never", "lists-never"
"""A dataset whose objects never come, and one whose folder cannot even be listed."""

HANGING = 40
"""Folders that never answer: more than a client has connections by itself, and fewer than threads that look."""

NEVER_GIVEN_UP = 300.0
"""Seconds for which a folder is looked at: more than the test takes, so that what waits for it fails."""


def ask(port: int, path: str) -> tuple[int, Any]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


@pytest.fixture
def hanging() -> Iterator[tuple[Store, threading.Event]]:
    """A store in this process, which never answers about some names once the event is set."""
    # here, since every process that runs tests reads this file
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app, hangs, is_over = DomainDispatcherApplication(create_backend_app), threading.Event(), threading.Event()

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        asked = unquote(f"{environ['PATH_INFO']}?{environ['QUERY_STRING']}")
        of_an_object = NEVER in asked and "list-type=2" not in asked and "manifest.json" not in asked
        if hangs.is_set() and (NEVER_LISTED in asked or of_an_object):
            is_over.wait()
        found: Iterable[bytes] = app(environ, start)
        return found

    server = make_server("127.0.0.1", 0, answer, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = {"endpoint_override": f"127.0.0.1:{server.port}", "scheme": "http", "region": "us-east-1"}
    filesystem = fs.S3FileSystem(**place, allow_bucket_creation=True)
    filesystem.create_dir(BUCKET)
    yield Store(filesystem=filesystem, query="&".join(map("=".join, place.items()))), hangs
    is_over.set()
    server.shutdown()


@pytest.mark.slow
def test_a_sound_dataset_answers_while_folders_beside_it_hang(
    hanging: tuple[Store, threading.Event], tiny_dataset: Path
) -> None:
    """Fails when folders of a bucket are looked at one after the other, or when those that never answer, which come
    first, take all threads or connections.
    """
    store, hangs = hanging
    for name in (NEVER, NEVER_LISTED, "sound"):
        store.upload(tiny_dataset, f"served/{name}")
    for number in range(HANGING):
        with store.filesystem.open_output_stream(f"{BUCKET}/served/{NEVER_LISTED}-{number:02}/file") as file:
            file.write(b"x")
    hangs.set()
    with served(store.uri("served"), scan_seconds=NEVER_GIVEN_UP) as (process, own):
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
