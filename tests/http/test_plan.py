"""Plans over REST: the figures of the command, within bounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from preshard.packer_service.http import pool
from preshard.packer_service.http.routers.plan import MOST_DOCUMENTS
from preshard.packer_service.job.preview.lengths import plan_lengths
from preshard.packer_service.report.planned.plan_keys import UNANSWERED
from preshard.packer_service.runtime.progress import ConsoleProgress
from preshard.schemas.config import PackConfig, parse_config

TOKENS = [40, 900, 260, 512, 700, 33, 5000, 0]
IMAGES = [0, 3, 1, 0, 2, 0, 0, 0]


def without_time(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in figures.items() if name != "plan_seconds"}


@pytest.fixture
def overrides(tiny_config: PackConfig) -> dict[str, Any]:
    asked = tiny_config.model_dump(mode="json", exclude=set(UNANSWERED))
    return {**asked, "order": {"seed": 3, "window": 2}, "vision": {**asked["vision"], "max_crops": 1}}


def test_a_plan_is_that_of_the_command(client: TestClient, overrides: dict[str, Any], tmp_path: Path) -> None:
    """Fails when the service plans otherwise than `preshard plan --lengths`, or loses a document or source."""
    sources = ["a", "b"] * 4
    lengths = {"doc_id": [str(i) for i in range(8)], "tokens": TOKENS, "images": IMAGES, "source": sources}
    pq.write_table(pa.table(lengths), tmp_path / "lengths.parquet")
    report = plan_lengths(tmp_path / "lengths.parquet", parse_config(overrides), ConsoleProgress(), (2,))
    said = report.model_dump(mode="json")
    asked = {"lengths": {"tokens": TOKENS, "images": IMAGES, "source": sources}, "config": overrides, "dp": [2]}
    answer = client.post("/v1/plan", json=asked)
    assert answer.status_code == 200, answer.text
    assert without_time(answer.json()) == without_time(said)
    assert answer.json()["rejects"] == {"empty": 1, "too_long": 1}


def test_a_datasets_documents_are_planned_again(client: TestClient) -> None:
    """Fails when the dataset's own configuration gives another plan than the one it was packed by."""
    packed = client.get("/v1/datasets/tiny").json()
    answer = client.post("/v1/plan", json={"dataset": "tiny"}).json()
    same = ("fill", "padding", "packs_for_tokens", "packs_for_images")  # costs are those of causal masks
    assert {name: answer[name] for name in same} == {name: packed[name] for name in same}
    assert answer["packs"] == packed["counts"]["packs"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, "lengths or dataset"),
        ({"dataset": "tiny", "lengths": {"tokens": [1]}}, "lengths or dataset"),
        ({"lengths": {"tokens": [1, 2], "images": [0]}}, "images has 1 values"),
        ({"lengths": {"tokens": [-1]}}, "greater than or equal to 0"),
        ({"lengths": {"tokens": [1]}, "config": {"seq_len": 1000}}, "seq_len 1000 is not a multiple of 1024"),
        ({"lengths": {"tokens": [1]}, "config": {"speed": 9}}, "speed"),
        ({"dataset": "tiny", "config": {"vision": {"image_size": 0}}}, "vision.image_size"),
        ({"dataset": "tiny", "config": {"video": {"fps": 1.0}}}, "video.fps: 1.0 is not possible for tiny"),
        ({"dataset": "tiny", "config": {"tokenizer": "other"}}, "tokenizer: 'other' is not possible for tiny"),
        ({"dataset": "tiny", "config": {"bidirectional": "none"}}, "bidirectional: 'none' is not possible for tiny"),
        ({"dataset": "tiny", "config": {"packs_per_shard": 9}}, "packs_per_shard: a plan cannot say what 9 changes"),
        (
            {"lengths": {"tokens": [1]}, "config": {"video": {"fps": 1.0}}},
            "video.fps: a plan cannot say what 1.0 changes",
        ),
        ({"lengths": {"tokens": [1]}, "more": 1}, "more"),
        ({"lengths": {"tokens": [1]}, "dp": [0]}, "dp"),
        ({"dataset": "tiny", "dp": [3]}, "dp: "),
    ],
)
def test_what_cannot_be_planned_is_refused(client: TestClient, asked: dict[str, Any], told: str) -> None:
    """Fails when the fault of a request is not named."""
    answer = client.post("/v1/plan", json=asked)
    assert (answer.status_code, told in answer.json()["detail"]) == (422, True), answer.text


def test_a_plan_has_bounds(root: Path, start: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a plan takes more documents, seconds or memory than it may, or a second one queues."""
    client = start(root)
    many = {"lengths": {"tokens": [5] * (MOST_DOCUMENTS + 1)}}
    answer = client.post("/v1/plan", json=many)
    assert (answer.status_code, answer.json()["title"]) == (413, "Request too large")
    assert client.post("/v1/plan", json={"dataset": "nobody"}).status_code == 404
    many["lengths"]["tokens"].pop()
    with monkeypatch.context() as patch:
        patch.setattr(pool, "PROCESS_MEMORY", 1 << 20)
        assert client.post("/v1/plan", json=many).status_code == 503
    answer = start(root, request_seconds=0.5, plan_seconds=0.5).post("/v1/plan", json=many)
    assert (answer.status_code, answer.json()["title"]) == (504, "Request took too long")
    (root / "one" / "packs.parquet").unlink()
    assert client.post("/v1/plan", json={"dataset": "one"}).status_code == 409


def test_keys_come_with_the_values_of_the_dataset(client: TestClient, tiny_config: PackConfig) -> None:
    """Fails when a form begins with another dataset's values, or offers a key that the plan then refuses."""
    asked = {key["key"]: key for key in client.get("/v1/plan/keys", params={"dataset": "tiny"}).json()["keys"]}
    assert (asked["seq_len"]["value"], asked["seq_len"]["default"]) == (tiny_config.seq_len, PackConfig().seq_len)
    assert asked["order.window"]["most"] == 2**20
    assert asked["video.fps"]["refused"] == "frames are not sampled again"
    assert client.get("/v1/plan/keys").json()["keys"][0]["value"] == PackConfig().seq_len
    assert client.get("/v1/plan/keys", params={"dataset": "nobody"}).status_code == 404
