"""Half of the demo source, with all of its media, through the whole job with the defaults, as in `make demo`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from preshard.packer_service.report.dataset import report_dataset
from preshard.packer_service.verify import verify_dataset


def test_every_document_is_where_it_should_be(demo_dataset: Path) -> None:
    """Fails when a good document is rejected, or a bad one packed, or one has another code than it is there to show."""
    expected = json.loads((demo_dataset.parent / "source" / "EXPECTED.json").read_text())
    rejects = pq.read_table(demo_dataset / "rejects.parquet").to_pylist()
    found: dict[str, list[str]] = {}
    for reject in rejects:
        found.setdefault(reject["code"], []).append(reject["doc_id"].removeprefix("source/"))
    assert {code: sorted(ids) for code, ids in found.items()} == expected["rejects"]
    packed = pq.read_table(demo_dataset / "documents.parquet")["doc_id"].to_pylist()
    assert len(packed) == len(set(packed)) == expected["documents"] >= 200
    others = [reject["doc_id"] for reject in rejects if reject["code"] != "duplicate_row"]
    assert not set(packed) & set(others)
    assert max(Counter(others).values()) == 1


def test_it_is_sound(demo_dataset: Path, progress: object) -> None:
    """Fails when anything that the job writes from real media breaks a rule of the format."""
    verdict = verify_dataset(str(demo_dataset), processes=1, progress=progress)
    assert verdict.as_json()["broken"] == []
    assert verdict.as_json()["checked"]["images"] > 500


def test_the_header_part_of_a_video_pack_is_small(demo_dataset: Path) -> None:
    """Fails when what every rank reads of a pack full of video, of 384 frames, grows to 2% of it."""
    packs = pq.read_table(demo_dataset / "packs.parquet").to_pylist()
    fullest = max(packs, key=lambda pack: pack["n_images"])
    assert fullest["n_images"] > 150
    crops = (fullest["size"] - fullest["header_size"]) * 384 / fullest["n_images"]
    assert fullest["header_size"] < 0.02 * crops


def test_the_balanced_layouts_hold_their_promise_on_real_packs(demo_dataset: Path) -> None:
    """Fails when a change of the search or of the mask makes the balanced schemes worse than the ones they replace."""
    balance = report_dataset(str(demo_dataset)).balance
    for degree, most in ((2, 1.03), (4, 1.03), (8, 1.03)):
        assert balance["balanced_ring"][degree].ring_path.mean <= most
        assert balance["balanced_ring"][degree].ring_path.mean <= balance["zigzag"][degree].ring_path.mean
        assert balance["balanced_gather"][degree].gather_path.mean <= 1.02
        assert balance["balanced_gather"][degree].traffic.mean <= balance["zigzag"][degree].traffic.mean
