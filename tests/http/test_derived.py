"""What was derived of a dataset gives the same answers as its tables."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fastapi.testclient import TestClient

from preshard.packer_service.http.answers.derive import derive
from preshard.packer_service.http.dataset.derived import DerivedFolder, folder_name
from preshard.packer_service.http.dataset.reader import Dataset
from tests.support.served import served

Start = Callable[..., TestClient]
LARGE = 1 << 30


def dataset_of(client: TestClient, name: str = "one") -> Dataset:
    app: Any = client.app
    found: Dataset = app.state.service.catalog.dataset(name)
    return found


def questions(client: TestClient) -> list[str]:
    """Everything that what was derived may answer, and the ids of some documents, packed and rejected."""
    items = client.get("/v1/datasets/one/documents?limit=1000").json()["items"]
    sorts = ("attention", "-gather_path", "ring_path", "-traffic", "images", "-pooled_tokens", "image_load", "-cost")
    return [
        "", "/balance", "/balance?ring=2&layout=zigzag&cp=2", "/compared", "/rejects", "/advice?gpus=2",
        "/documents?source=text&limit=3",
        "/documents?contains=e", "/documents?prefix=text&offset=1", "/documents?limit=7&offset=5", "/documents/none",
        *(f"/shards?sort={sort}&ring={ring}" for sort in sorts for ring in (1, 2)),
        *(f"/packs?sort={sort}&ring={ring}&limit=3&offset=1" for sort in sorts for ring in (1, 2)),
        "/packs?sort=-pack_id", "/packs?sort=-n_images&shard=preshard-000001.tar",
        *sorted({f"/documents/{item['doc_id']}" for item in items})[::4], "/documents/bad-empty",
    ]  # fmt: skip


def answers(client: TestClient, asked: list[str]) -> dict[str, Any]:
    return {question: client.get(f"/v1/datasets/one{question}").json() for question in asked}


def without_ids(answer: Any) -> Any:
    """An answer but for the id of its request."""
    return {k: v for k, v in answer.items() if k != "request_id"} if isinstance(answer, dict) else answer


def test_answers_are_the_same_from_tables_row_groups_and_what_was_derived(
    root: Path, tmp_path: Path, start: Start
) -> None:
    """Fails when a figure, a value or an index that was derived differs from what the tables say, or is not used."""
    plain = start(root)
    asked = questions(plain)
    wanted = answers(plain, asked)
    grouped = start(root)
    dataset_of(grouped).whole_rows = 0
    found = answers(grouped, asked)
    assert {q: without_ids(found[q]) for q in asked} == {q: without_ids(wanted[q]) for q in asked}

    kept = start(root, derived_folder=str(tmp_path / "derived"))
    dataset = dataset_of(kept)
    dataset.whole_rows = 0
    derive(dataset, DerivedFolder(str(tmp_path / "derived"), LARGE))
    time.sleep(1.1)  # until it is looked for again
    assert dataset.derived is not None
    found = answers(kept, asked)
    assert {q: without_ids(found[q]) for q in asked} == {q: without_ids(wanted[q]) for q in asked}


def test_what_was_derived_is_what_answers(root: Path, tmp_path: Path, start: Start) -> None:
    """Fails when figures, values or the index are there and the tables are read all the same."""
    folder = tmp_path / "derived"
    client = start(root, derived_folder=str(folder))
    dataset = dataset_of(client)
    worst = client.get("/v1/datasets/one/packs?sort=attention&ring=2").json()["items"]
    derive(dataset, DerivedFolder(str(folder), LARGE))
    own = folder / folder_name(dataset.tag)
    figures = json.loads((own / "figures.json").read_bytes())
    figures["overview"]["fill"] = 0.125
    (own / "figures.json").write_text(json.dumps(figures), encoding="utf-8")
    for name in ("attention-balanced_ring-2", "id-hashes"):
        values = np.load(own / f"{name}.npy")
        np.save(own / f"{name}.npy", -values if name != "id-hashes" else np.zeros_like(values))
    fresh = start(root, derived_folder=str(folder))
    assert fresh.get("/v1/datasets/one").json()["fill"] == 0.125
    turned = fresh.get("/v1/datasets/one/packs?sort=-attention&ring=2").json()["items"]
    assert [pack["pack_id"] for pack in turned] == [pack["pack_id"] for pack in worst]
    plain = start(root)
    (known, *_) = plain.get("/v1/datasets/one/documents").json()["items"]
    assert plain.get(f"/v1/datasets/one/documents/{known['doc_id']}").status_code == 200
    assert fresh.get(f"/v1/datasets/one/documents/{known['doc_id']}").status_code == 404


def test_what_was_derived_is_of_one_state_of_a_dataset(root: Path, tmp_path: Path, start: Start) -> None:
    """Fails when a dataset that has changed is answered by what was derived of it before."""
    folder = str(tmp_path / "derived")
    client = start(root, derived_folder=folder)
    before = dataset_of(client)
    derive(before, DerivedFolder(folder, LARGE))
    os.utime(root / "one/packs.parquet", (1, 1))
    assert dataset_of(client).tag != before.tag
    assert dataset_of(client).derived is None


def test_the_oldest_makes_room_and_a_folder_of_others_is_not_used(root: Path, tmp_path: Path, start: Start) -> None:
    """Fails when the folder grows without a limit, or when half of something is taken for all of it."""
    folder = tmp_path / "derived"
    client = start(root, derived_folder=str(folder))
    one, two = dataset_of(client, "one"), dataset_of(client, "two")
    derive(one, DerivedFolder(str(folder), LARGE))
    assert (folder.stat().st_mode & 0o777) == 0o700
    derive(two, DerivedFolder(str(folder), 1))
    kept = DerivedFolder(str(folder), 1)
    assert (kept.has(one.tag), kept.has(two.tag)) == (False, True)
    (folder / folder_name(two.tag) / "figures.json").write_text("{", encoding="utf-8")
    assert kept.open(two.tag) is None
    assert kept.open("none") is None
    assert not DerivedFolder(None, 1).is_writable()
    (tmp_path / "file").touch()
    assert not DerivedFolder(str(tmp_path / "file" / "below"), 1).is_writable()


def test_the_service_derives_by_itself_what_is_large(served_root: Path, tmp_path: Path) -> None:
    """Fails when nothing is derived as soon as a large dataset is seen."""
    folder, told = tmp_path / "derived", dict[int, bytes]()
    with served(served_root, derived_folder=str(folder), derived_packs=1, rescan_seconds=0.2) as (_, port):
        deadline = time.monotonic() + 240
        while not list(folder.glob("[!.]*/figures.json")) and time.monotonic() < deadline:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                connection.request("GET", "/v1/datasets")
                answer = connection.getresponse()
                told[answer.status] = answer.read()[:300]
            time.sleep(0.2)
    assert len(list(folder.glob("[!.]*"))) == 1, told
