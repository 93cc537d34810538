"""The inspection service over a bucket answers as over a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from preshard.packer_service.http.app import create_app
from preshard.packer_service.http.settings import ServiceSettings
from preshard.schemas.files.filesystem import split_query


def answers(root: str) -> dict[str, Any]:
    with TestClient(create_app(ServiceSettings(root=root)), raise_server_exceptions=False) as client:
        (entry,) = client.get("/v1/datasets").json()["items"]
        assert (entry["name"], entry["state"]) == ("dataset", "whole")
        paths = ("", "/balance", "/shards", "/packs?sort=-cost", "/packs/0", "/packs/1/layout", "/documents/question-3")
        found = {path: client.get(f"/v1/datasets/dataset{path}") for path in paths}
        assert {answer.status_code for answer in found.values()} == {200}
        crop = next(pack["images"] for i in range(4) if (pack := client.get(_pack(i)).json())["images"])[0]["url"]
        return {**{path: answer.json() for path, answer in found.items()}, "crop": client.get(crop).content}


def _pack(pack_id: int) -> str:
    return f"/v1/datasets/dataset/packs/{pack_id}"


@pytest.mark.parametrize("above", [True, False], ids=["below the root", "the root itself"])
def test_a_bucket_is_served_as_a_folder_is(remote_dataset: str, tiny_dataset: Path, above: bool) -> None:
    """Fails when listing, columns or ranges read an object store otherwise than a disk."""
    path, query = split_query(remote_dataset)
    remote = answers((path.rpartition("/")[0] if above else path) + query)
    assert remote == answers(str(tiny_dataset))
