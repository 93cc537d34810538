"""Datasets that appear, change, are damaged and become whole again while they are served."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from preshard.packer_service.http import listing
from preshard.schemas.tables import TABLES

QUESTIONS = ("", "/balance", "/shards", "/packs", "/packs/0/layout", "/documents/text-0", "/rejects")


def states(client: TestClient) -> dict[str, str]:
    return {entry["name"]: entry["state"] for entry in client.get("/v1/datasets").json()["items"]}


def statuses(client: TestClient, name: str) -> set[int]:
    return {client.get(f"/v1/datasets/{name}{question}").status_code for question in QUESTIONS}


def shard(root: Path, name: str = "one") -> Path:
    return root / name / "shards" / "preshard-000000.tar"


def delete_shard(root: Path) -> None:
    shard(root).unlink()


def cut_shard(root: Path) -> None:
    with shard(root).open("r+b") as file:
        file.truncate(700)


def delete_index(root: Path) -> None:
    shard(root).with_name("preshard-000000.tar.idx").unlink()


def half_manifest(root: Path) -> None:
    manifest = root / "one" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:300])


def manifest_of_another_version(root: Path) -> None:
    manifest = root / "one" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"format_version":3', b'"format_version":9'))


def flipped_bit_in_the_manifest(root: Path) -> None:
    manifest = root / "one" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"fps":2.0', b'"fps":3.0'))


def empty_manifest(root: Path) -> None:
    (root / "one" / "manifest.json").write_bytes(b"")


def delete_table(root: Path) -> None:
    (root / "one" / "packs.parquet").unlink()


def cut_table(root: Path) -> None:
    with (root / "one" / "measures.parquet").open("r+b") as file:
        file.truncate(1000)


def folder_for_a_table(root: Path) -> None:
    delete_table(root)
    (root / "one" / "packs.parquet").mkdir()


def replaced_table(root: Path) -> None:
    """Another table of the same size: only its hash differs."""
    table = root / "one" / "packs.parquet"
    data = bytearray(table.read_bytes())
    data[len(data) // 3] ^= 1
    table.write_bytes(data)


def delete_figures(root: Path) -> None:
    (root / "one" / "figures.json").unlink()


def replaced_figures(root: Path) -> None:
    """Other figures of the same size."""
    figures = root / "one" / "figures.json"
    figures.write_bytes(figures.read_bytes().replace(b'"p95":1', b'"p95":2'))


SEEN_AT_ONCE = (
    delete_shard, delete_index, half_manifest, manifest_of_another_version, flipped_bit_in_the_manifest, empty_manifest,
    delete_table, cut_table, folder_for_a_table, delete_figures,
)  # fmt: skip


def test_damage_is_one_datasets_and_ends_when_it_is_whole_again(
    root: Path, start: Callable[..., TestClient], tmp_path: Path
) -> None:
    """Fails when damage while serving crashes a request, hides or stops another dataset, or outlives the repair."""
    client = start(root)
    shutil.copytree(root / "one", tmp_path / "kept")
    for damage in (*SEEN_AT_ONCE, cut_shard, replaced_table, replaced_figures):
        assert states(client) == {"one": "whole", "two": "whole"}
        assert statuses(client, "one") == {200}
        damage(root)
        if damage in SEEN_AT_ONCE:
            assert states(client) == {"one": "damaged", "two": "whole"}, damage
        elif damage is cut_shard:
            os.utime(root / "one" / "shards")  # a folder does not show that a file in it was cut: see the next test
        answered = statuses(client, "one")
        assert answered == {409} or (damage in (replaced_table, replaced_figures) and 409 in answered), damage
        entry = client.get("/v1/datasets").json()["items"][0]
        assert entry["state"] == "damaged", damage
        assert entry["reason"]
        assert str(root) not in entry["reason"]
        assert client.get("/v1/datasets/two/packs").status_code == 200
        shutil.rmtree(root / "one")
        shutil.copytree(tmp_path / "kept", root / "one")
    assert states(client) == {"one": "whole", "two": "whole"}
    assert statuses(client, "one") == statuses(client, "two") == {200}


def test_a_shard_cut_in_place_is_a_problem_and_not_a_crash(root: Path, start: Callable[..., TestClient]) -> None:
    """Fails when reading past a shard's end is answered with what is there, or with a server's error."""
    client = start(root)
    assert client.get("/v1/datasets/one/packs/0").status_code == 200
    whole = shard(root).read_bytes()
    cut_shard(root)
    answer = client.get("/v1/datasets/one/packs/1")
    assert (answer.status_code, answer.json()["title"]) == (409, "Dataset damaged")
    assert "bytes" in answer.json()["detail"]
    assert states(client) == {"one": "damaged", "two": "whole"}
    shard(root).write_bytes(whole)
    assert client.get("/v1/datasets/one/packs/1").status_code == 200
    assert states(client) == {"one": "whole", "two": "whole"}


@pytest.mark.parametrize("at", [0, 600, 3000])
def test_a_sample_that_breaks_the_format_is_that_packs_problem(
    root: Path, start: Callable[..., TestClient], at: int
) -> None:
    """Fails when garbage in a shard ends in a 5xx, or takes away what is sound."""
    client = start(root)
    data = bytearray(shard(root).read_bytes())
    data[at : at + 400] = bytes(range(256)) + bytes(144)
    shard(root).write_bytes(data)
    answers = {client.get(f"/v1/datasets/one/packs/0{part}").status_code for part in ("", "/layout", "/mask", "/text")}
    assert answers == {409}
    assert client.get("/v1/datasets/one/packs/1").status_code == 200
    assert client.get("/v1/datasets/one/balance").status_code == 200


def test_an_image_that_is_not_where_its_head_says(root: Path, start: Callable[..., TestClient]) -> None:
    """Fails when bytes of something else are sent as an image."""
    client = start(root)
    pack = next(row for row in client.get("/v1/datasets/one/packs").json()["items"] if row["n_images"])
    place = client.get(f"/v1/datasets/one/packs/{pack['pack_id']}").json()
    path = root / "one" / "shards" / place["shard"]
    data = bytearray(path.read_bytes())
    data[place["offset"] + place["header_size"]] ^= 1
    path.write_bytes(data)
    assert client.get(place["images"][0]["url"]).status_code == 409
    if len(place["images"]) > 1:
        assert client.get(place["images"][1]["url"]).status_code == 200


def test_new_and_removed_datasets_need_no_restart(
    root: Path, start: Callable[..., TestClient], tiny_dataset: Path
) -> None:
    """Fails when the list is read once."""
    client = start(root)
    assert client.get("/v1/datasets/three").status_code == 404
    shutil.copytree(tiny_dataset, root / "three")
    assert client.get("/v1/datasets/three").status_code == 200
    shutil.rmtree(root / "one")
    assert set(states(client)) == {"two", "three"}
    assert client.get("/v1/datasets/one").status_code == 404


def test_the_root_is_not_scanned_for_every_request(root: Path, start: Callable[..., TestClient]) -> None:
    """Fails when each question lists the folders again, which an object store would make slow."""
    client = start(root, rescan_seconds=3600)
    assert len(states(client)) == 2
    shutil.rmtree(root / "two")
    assert len(states(client)) == 2


def test_a_job_at_work_is_unfinished_with_what_is_known(root: Path, start: Callable[..., TestClient]) -> None:
    """Fails when a half-written dataset is hidden, taken for whole, or answered with a crash."""
    (root / "one" / "manifest.json").unlink()
    shutil.rmtree(root / "two")
    job = root / "one" / ".work"
    job.mkdir()
    client = start(root)
    (entry,) = client.get("/v1/datasets").json()["items"]
    n_shards = len(list((root / "one" / "shards").glob("*.tar")))
    assert (entry["state"], entry["shards_done"], entry["shards_total"]) == ("unfinished", n_shards, None)
    (job / "planned.json").write_text(json.dumps({"shards": 9}))
    (root / "one" / "shards" / ".tmp-1-preshard-000009.tar").write_bytes(b"half")
    (entry,) = client.get("/v1/datasets").json()["items"]
    assert (entry["shards_done"], entry["shards_total"]) == (n_shards, 9)
    assert f"{n_shards} of 9" in entry["reason"]
    answer = client.get("/v1/datasets/one")
    assert (answer.status_code, answer.json()["title"]) == (409, "Dataset unfinished")
    assert statuses(client, "one") == {409}


def test_packing_writes_down_how_many_shards_there_will_be(
    tmp_path: Path, tiny_source: Path, tiny_config: Any, progress: Any, start: Callable[..., TestClient]
) -> None:
    """Fails when a job under way is listed without the number of its shards."""
    from preshard.packer_service.job.pack import pack
    from preshard.packer_service.runtime.executors import PlainExecutor

    class StoppedError(Exception):
        pass

    class Stop(PlainExecutor):
        written = 0

        def run(self, function: Any, items: Any) -> Any:
            for done in super().run(function, items):
                yield done
                if "build" in getattr(function, "func", function).__name__:
                    raise StoppedError

    with pytest.raises(StoppedError):
        pack([str(tiny_source)], str(tmp_path / "root" / "job"), tiny_config, Stop(), progress)
    (entry,) = start(tmp_path / "root").get("/v1/datasets").json()["items"]
    assert (entry["name"], entry["state"], entry["shards_done"], entry["shards_total"]) == ("job", "unfinished", 1, 2)


def test_a_copy_was_packed_when_its_first_was(root: Path, start: Callable[..., TestClient]) -> None:
    """Fails when a dataset is dated by its files, whose times are those of the last copy, or a bad date is an error."""
    finished = json.loads((root / "one" / "run.json").read_text())["finished"]
    os.utime(root / "one" / "manifest.json", (2_000_000_000, 2_000_000_000))
    client = start(root)
    packed = client.get("/v1/datasets").json()["items"][0]["packed"]
    assert packed == client.get("/v1/datasets/one").json()["packed"] == finished.replace("Z", "+00:00")
    for run in ('{"finished": 7}', '{"finished": "soon"}', "[]", "{"):
        (root / "two" / "run.json").write_text(run)
        answer = client.get("/v1/datasets/two")
        assert (answer.status_code, answer.json()["packed"]) == (200, None), run


def test_names_are_paths_in_one_segment(tmp_path: Path, start: Callable[..., TestClient], tiny_dataset: Path) -> None:
    """Fails when two folders share a name, or a nested or oddly named one cannot be asked for."""
    names = {"a/b": "a:b", "a:b": "a~1b", "a~b/c": "a~0b:c", "with space/100%": "with space:100%", "ünï": "ünï"}
    for path in names:
        shutil.copytree(tiny_dataset, tmp_path / "root" / path)
    client = start(tmp_path / "root")
    assert set(states(client)) == set(names.values())
    for name in names.values():
        answer = client.get(f"/v1/datasets/{name.replace('%', '%25')}")
        assert (answer.status_code, answer.json()["name"]) == (200, name)
        page = client.get(f"/v1/datasets/{name.replace('%', '%25')}/packs?limit=1").json()
        assert client.get(page["next"]).json()["offset"] == 1
        images = client.get(f"/v1/datasets/{name.replace('%', '%25')}/packs/0").json()["images"]
        assert all(client.get(image["url"]).status_code == 200 for image in images[:1])


def test_the_root_itself_may_be_the_dataset(root: Path, start: Callable[..., TestClient]) -> None:
    """Fails when a dataset can only be served from the folder above it."""
    assert states(start(root / "one")) == {"one": "whole"}


def test_a_root_too_deep_or_wide_is_listed_in_part_and_says_so(
    root: Path, start: Callable[..., TestClient], tiny_dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a whole disk given as root is walked through without a bound."""
    shutil.copytree(tiny_dataset, root / "a" / "b" / "c")
    for name, most in (("MAX_DEPTH", 2), ("MAX_DATASETS", 2), ("MAX_FOLDERS", 4)):
        with monkeypatch.context() as patch:
            patch.setattr(listing, name, most)
            page = start(root).get("/v1/datasets").json()
        assert (page["complete"], page["total"]) == (False, 2)
    page = start(root).get("/v1/datasets").json()
    assert (page["complete"], page["total"]) == (True, 3)


def test_links_inside_the_root_are_followed_and_others_are_not(
    root: Path, start: Callable[..., TestClient], tmp_path: Path, tiny_dataset: Path
) -> None:
    """Fails when a link makes a dataset outside of the root readable, or hides it, or a circle of links hangs."""
    shutil.copytree(tiny_dataset, tmp_path / "outside")
    (root / "out").symlink_to(tmp_path / "outside")
    (tmp_path / "photos").mkdir()
    (root / "photos").symlink_to(tmp_path / "photos")
    (root / "circle").symlink_to(root)
    (root / "again").symlink_to(root / "one")
    client = start(root)
    found = states(client)
    assert {name: state for name, state in found.items() if not name.startswith("circle")} == {
        **dict.fromkeys(("one", "two", "again"), "whole"),
        "out": "damaged",
    }
    assert client.get("/v1/datasets/again").status_code == 200
    answer = client.get("/v1/datasets/out")
    assert (answer.status_code, "a link leads out of the root" in answer.json()["detail"]) == (409, True)
    assert str(tmp_path) not in answer.text
    pq.read_table(tmp_path / "outside" / "packs.parquet")  # it is a dataset, only not one to serve


def test_figures_of_all_packs_are_read_from_their_file(root: Path, start: Callable[..., TestClient]) -> None:
    """Fails when a question about the whole dataset reads a table: here none can be read any more."""
    of_all = ("", "/balance", "/balance?layout=zigzag&ring=4&cp=2", "/compared")
    whole = start(root)
    wanted = [whole.get(f"/v1/datasets/one{question}").json() for question in of_all]
    for name in TABLES:
        path = root / "one" / name
        path.write_bytes(bytes(path.stat().st_size))
    client = start(root)
    answers = [client.get(f"/v1/datasets/one{question}") for question in of_all]
    assert [answer.status_code for answer in answers] == [200] * len(of_all)
    assert [answer.json() for answer in answers] == wanted
    assert client.get("/v1/datasets/one/packs?sort=-attention").status_code == 409, "the table is still there"
