"""A packed document as it is read, beside what `preshard show` says of its row."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from preshard.packer_service.job.preview.show import show_document
from preshard.schemas.config import PackConfig
from tests.support.scripts import load_script


def get(client: TestClient, path: str, **parameters: Any) -> Any:
    answer = client.get(f"/v1/datasets/tiny{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("doc_id", ["text-3", "question-9", "annotated-2"])
def test_a_packed_document_reads_as_its_row_was_shown(
    client: TestClient, tiny_source: Path, tiny_config: PackConfig, doc_id: str
) -> None:
    """Fails when what was looked at before packing is not what was packed, or a picture stands in another place."""
    [place] = get(client, f"/documents/{doc_id}")["pieces"]
    answer = get(client, f"/packs/{place['pack_id']}/documents/{place['number']}")
    [piece] = show_document([str(tiny_source)], tiny_config, doc_id=doc_id).model_dump(mode="json")["pieces"]
    assert answer["doc_id"] == doc_id
    assert (answer["length"], answer["loss_tokens"]) == (piece["tokens"], piece["loss_tokens"])
    assert answer["annotations"] == piece["annotations"]
    assert answer["spans"] == piece["spans"]
    assert [unit["rows"] for unit in answer["units"]] == [unit["rows"] for unit in piece["units"]]
    for unit, shown in zip(answer["units"], piece["units"], strict=True):
        for name in ("number", "medium", "kind", "start", "end", "grid", "patches"):
            assert unit[name] == shown[name]
        assert [[crop["width"], crop["height"]] for crop in unit["crops"]] == shown["crops"]
        assert client.get(unit["crops"][0]["url"]).status_code == 200
    first = sum(row["n_images"] for row in get(client, f"/packs/{place['pack_id']}")["documents"][: place["number"]])
    shown_crops = [crop["index"] for unit in answer["units"] for crop in unit["crops"]]
    assert shown_crops == list(range(first, first + place["n_images"]))


def test_a_part_of_a_document_is_the_same_part_of_the_whole(client: TestClient) -> None:
    """Fails when the first token of a part is marked without the label before the part."""
    [place] = get(client, "/documents/annotated-3")["pieces"]
    path = f"/packs/{place['pack_id']}/documents/{place['number']}"
    whole = get(client, path)
    for at in (0, 7, whole["length"] // 2, whole["length"] - 2):
        part = get(client, path, start=at, end=at + 2)
        for span in part["spans"]:
            [around] = [s for s in whole["spans"] if s["start"] <= span["start"] and span["end"] <= s["end"]]
            assert (span["loss"], span["branch"], span["unit"]) == (around["loss"], around["branch"], around["unit"])
        assert [unit["number"] for unit in part["units"]] == sorted({span["unit"] for span in part["spans"]} - {None})
    assert get(client, path, start=whole["length"])["spans"] == []
    for wrong in ({"start": whole["length"] + 1}, {"start": 2, "end": 1}):
        assert client.get(f"/v1/datasets/tiny{path}", params=wrong).status_code == 422
    assert client.get(f"/v1/datasets/tiny/packs/{place['pack_id']}/documents/999").status_code == 404


def test_ids_that_no_token_has_are_a_problem_of_their_dataset(
    start: Callable[..., TestClient], root: Path, tiny_dataset: Path
) -> None:
    """Fails when the service takes damaged tokens for an error of its own."""
    forged = load_script(Path(__file__).parents[1] / "hostile/forged.py")
    shutil.copytree(tiny_dataset, root / "wild")
    members, _ = forged._first_sample(root / "wild")
    arrays = forged.decode_arrays(members["sequence.npz"], lambda _: 1 << 40)
    arrays["tokens"][:] = -1
    forged._put_sample(root / "wild", members | {"sequence.npz": forged.encode_arrays(arrays)})
    answer = start(root).get("/v1/datasets/wild/packs/0/documents/0")
    assert answer.status_code == 409
    assert "tekken.json: no token has the id -1" in answer.json()["detail"]
