"""Every figure of the service against `preshard report --json`, or against the shards' own bytes."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from preshard.packer_service.http.routers.documents import _rows_of_id, mark_ids
from preshard.packer_service.job.pack import pack
from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.measures import measure_layout
from preshard.packer_service.report.dataset import report_dataset
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.schemas.config import PackConfig
from preshard.schemas.header import SampleHead, decode_head
from preshard.schemas.layout import TokenLayout, rank_positions, slice_positions
from preshard.schemas.mask import dense_mask
from preshard.schemas.members import decode_layouts, decode_sequence
from preshard.schemas.sequence import PackedSequence

BASE = "/v1/datasets/tiny"
SEQ_LEN = 1024
BLOCK_SIZE = 32


@cache
def members(path: Path) -> dict[str, dict[str, bytes]]:
    """Every member of the dataset's shards by sample and extension, read as whole tars."""
    found: dict[str, dict[str, bytes]] = {}
    for shard in sorted(path.glob("shards/*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar.getmembers():
                key, _, extension = member.name.partition(".")
                file = tar.extractfile(member)
                assert file is not None
                found.setdefault(key, {})[extension] = file.read()
    return found


def sample(path: Path, pack_id: int) -> tuple[SampleHead, PackedSequence, dict[str, TokenLayout]]:
    parts = members(path)[f"{pack_id:010d}"]
    return (
        decode_head(parts["json"], ""),
        decode_sequence(parts["sequence.npz"], SEQ_LEN, "", axes=1),
        decode_layouts(parts["layouts.npz"], SEQ_LEN, BLOCK_SIZE, ""),
    )


@pytest.fixture(scope="module")
def path(served_root: Path) -> Path:
    return served_root / "tiny"


@pytest.fixture(scope="module")
def report(path: Path) -> dict[str, Any]:
    return report_dataset(str(path)).model_dump(mode="json")


@pytest.fixture(scope="module")
def n_packs(path: Path) -> int:
    return len(pq.read_table(path / "packs.parquet"))


def get(client: TestClient, where: str, **parameters: Any) -> Any:
    answer = client.get(BASE + where, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_overview_is_the_report(client: TestClient, report: dict[str, Any], path: Path) -> None:
    """Fails when the service and the report count differently: fill, padding, losses, stragglers."""
    detail = get(client, "")
    names = ("dataset_id", "seq_len", "fill", "padding", "packs_for_tokens", "packs_for_images", "rejects", "seconds")
    names += (
        "rejects_by_source",
        "truncated_tokens",
        "straggler_ratio",
        "cost_percentiles",
        "plan_seconds",
        "shards",
        "limit",
    )
    assert report["limit"] is not None
    assert {name: detail[name] for name in names} == {name: report[name] for name in names}
    assert detail["counts"]["packs"] == report["packs"]
    assert get(client, "/encoder") == {"encoder_straggler": report["encoder_straggler"]}
    assert len(report["encoder_straggler"]) > 1
    documents, rejects = (pq.read_table(path / f"{name}.parquet").to_pylist() for name in ("documents", "rejects"))
    for source in detail["sources"]:
        own = [row for row in documents if row["source"] == source["source"]]
        assert source["documents"] == len({row["doc_id"] for row in own})
        assert source["tokens"] == sum(row["length"] for row in own)
        assert source["images"] == sum(row["n_images"] for row in own)
        assert source["rejected"] == sum(row["source"] == source["source"] for row in rejects)
    assert sum(source["rejected"] for source in detail["sources"]) == len(rejects) > 0


def test_histograms_count_every_value_once(client: TestClient, path: Path) -> None:
    """Fails when a bar's edge loses or doubles a value."""
    histograms = get(client, "")["histograms"]
    packs, documents = (pq.read_table(path / f"{name}.parquet") for name in ("packs", "documents"))
    columns = {"pack_cost": packs["cost"], "pack_tokens": packs["n_tokens"], "pack_images": packs["n_images"]}
    columns |= {"pack_documents": packs["n_documents"], "document_tokens": documents["length"]}
    columns |= {"document_images": documents["n_images"]}
    assert set(columns) == set(histograms)
    for name, column in columns.items():
        edges, values = histograms[name]["edges"], column.to_pylist()
        assert edges == sorted(set(edges))
        assert len(edges) == len(histograms[name]["counts"]) + 1
        last = len(edges) - 2
        for bar, count in enumerate(histograms[name]["counts"]):
            inside = [v for v in values if edges[bar] <= v < edges[bar + 1] or (bar == last and v == edges[-1])]
            assert count == len(inside)
        assert sum(histograms[name]["counts"]) == len(values)


def test_balance_is_the_report(client: TestClient, report: dict[str, Any]) -> None:
    """Fails when the service and the report disagree in any figure of any layout or CP size."""
    balance = get(client, "/balance")
    said = [row for degrees in report["balance"].values() for row in degrees.values()]
    assert balance["layouts"] == said
    assert balance["images"] == list(report["images"].values())
    assert balance["preferred"] == report["preferred"]
    assert len(said) == 16
    assert len(balance["images"]) == 4


def measured(path: Path, pack_id: int, layout: str, ring: int) -> dict[str, float | None]:
    """A pack's measures from its shard."""
    head, sequence, layouts = sample(path, pack_id)
    found = measure_layout(sequence.mask, layouts[f"{layout}.ring{ring}"])
    ranks = head.image_shard_boundaries[str(ring)].values()
    crops = [part["end_image_idx"] - part["start_image_idx"] for part in ranks]
    pooled = [part["end_pool_idx"] - part["start_pool_idx"] for part in ranks]
    return {
        "attention": found.area.max() / found.area.mean() if found.area.any() else None,
        "gather_path": found.gather_path / found.tile_floor if found.whole_tiles else None,
        "ring_path": found.ring_path / found.tile_floor if found.whole_tiles else None,
        "traffic": found.kv_traffic,
        "images": max(crops) / (sum(crops) / ring) if sum(crops) else None,
        "pooled_tokens": max(pooled) / (sum(pooled) / ring) if sum(pooled) else None,
    }


def test_a_measure_without_a_meaning_is_null(
    start: Callable[..., TestClient], tiny_config: PackConfig, tmp_path: Path, progress: Any
) -> None:
    """Fails when a pack without images is given a number for how evenly they are shared."""
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "text": "no image at all"}\n')
    pack([str(tmp_path / "rows.jsonl")], str(tmp_path / "root" / "tiny"), tiny_config, PlainExecutor(), progress)
    [row] = get(start(tmp_path / "root"), "/packs", cp=2)["items"]
    assert (row["images"], row["pooled_tokens"], row["image_load"]) == (None, None, None)
    assert row["attention"] >= 1


@pytest.mark.parametrize(("layout", "ring"), [("contiguous", 4), ("zigzag", 8), ("balanced_gather", 2)])
def test_packs_have_the_measures_of_their_bytes(
    client: TestClient, path: Path, n_packs: int, layout: str, ring: int
) -> None:
    """Fails when a pack is given another pack's loads, or a measure of another layout."""
    page = get(client, "/packs", layout=layout, ring=ring)
    assert page["chosen"] == {"layout": layout, "ring_degree": ring, "cp_size": ring}
    assert [row["pack_id"] for row in page["items"]] == list(range(n_packs))
    for row in page["items"]:
        for name, value in measured(path, row["pack_id"], layout, ring).items():
            assert row[name] == (None if value is None else pytest.approx(value, rel=1e-12))
    assert any(row["attention"] > 1 for row in page["items"])


@pytest.mark.parametrize(
    "sort", ["cost", "-cost", "-n_tokens", "attention", "-attention", "-images", "ring_path", "-pack_id"]
)
def test_packs_are_sorted_with_those_without_a_value_last(client: TestClient, n_packs: int, sort: str) -> None:
    """Fails when a sort loses packs, turns round, or puts a pack without images before the worst."""
    rows = get(client, "/packs", sort=sort)["items"]
    values = [row[sort.removeprefix("-")] for row in rows]
    real = [value for value in values if value is not None]
    assert values == sorted(real, reverse=sort.startswith("-")) + [None] * (len(values) - len(real))
    assert sorted(row["pack_id"] for row in rows) == list(range(n_packs))


def test_pages_join_to_the_whole_list(client: TestClient, n_packs: int) -> None:
    """Fails when pages overlap or leave a gap, or the links lead elsewhere."""
    where: str | None = f"{BASE}/packs?sort=-cost&limit=3&layout=zigzag"
    found: list[int] = []
    while where:
        answer = client.get(where)
        page = answer.json()
        assert page["total"] == n_packs
        found += [row["pack_id"] for row in page["items"]]
        where = page["next"]
        assert ('rel="next"' in answer.headers.get("link", "")) == (where is not None)
    assert found == [row["pack_id"] for row in get(client, "/packs", sort="-cost")["items"]]
    last = client.get(f"{BASE}/packs?offset=4&limit=3").json()
    assert last["previous"] == f"{BASE}/packs?offset=1&limit=3"


def test_shards_are_their_packs(client: TestClient, path: Path) -> None:
    """Fails when the worst shard is not the one whose packs are worst, or its worst pack is another shard's."""
    packs = {row["pack_id"]: row for row in get(client, "/packs", layout="zigzag", ring=4, cp=8)["items"]}
    page = get(client, "/shards", layout="zigzag", ring=4, cp=8, sort="-gather_path")
    means = []
    for shard in page["items"]:
        own = [packs[i] for i in range(shard["first_pack"], shard["first_pack"] + shard["packs"])]
        assert {row["shard"] for row in own} == {shard["name"]}
        values = [row["gather_path"] for row in own]
        means.append(np.mean(values))
        assert shard["gather_path"]["mean"] == pytest.approx(np.mean(values))
        assert (shard["gather_path"]["max"], shard["worst"]["value"]) == (max(values), max(values))
        assert packs[shard["worst"]["pack_id"]]["gather_path"] == max(values)
        assert shard["fill"] == pytest.approx(np.mean([row["fill"] for row in own]))
        images = [row["images"] for row in own if row["images"] is not None]
        assert shard["image_imbalance"]["packs"] == len(images)
        assert shard["bytes"] == (path / "shards" / shard["name"]).stat().st_size
    assert means == sorted(means, reverse=True)
    assert len(set(means)) > 1


def test_why_a_pack_is_worst_comes_from_its_mask(client: TestClient, path: Path) -> None:
    """Fails when another document is blamed, or its share is not that of the mask."""
    shard = get(client, "/shards", cp=8)["items"][0]["name"]
    answer = get(client, f"/shards/{shard}/balance", layout="zigzag", ring=8)
    packs = [row for row in get(client, "/packs", layout="zigzag", ring=8)["items"] if row["shard"] == shard]
    assert [row["value"] for row in answer["worst"]] == sorted((row["attention"] for row in packs), reverse=True)
    for worst in answer["worst"]:
        head, sequence, _ = sample(path, worst["pack_id"])
        areas = [int(dense_mask(sequence.mask)[span.start : span.start + span.length].sum()) for span in head.documents]
        heaviest = head.documents[int(np.argmax(areas))]
        assert worst["heaviest"]["doc_id"] == heaviest.doc_id
        assert worst["heaviest"]["share_of_attention"] == pytest.approx(max(areas) / sum(areas))
        assert heaviest.doc_id in worst["why"]
    one = next(row for row in answer["layouts"] if (row["layout"], row["ring_degree"]) == ("zigzag", 8))
    assert one["attention"]["imbalance"]["mean"] == pytest.approx(np.mean([row["attention"] for row in packs]))
    assert one["packs"] == len(packs)


def test_a_pack_is_what_its_head_says(client: TestClient, path: Path, n_packs: int) -> None:
    """Fails when documents, images or boundaries of a pack are not those of its sample."""
    with_images = 0
    for pack_id in range(n_packs):
        head, sequence, _ = sample(path, pack_id)
        pack = get(client, f"/packs/{pack_id}")
        spans = [span.model_dump() for span in head.documents]
        assert [{name: row[name] for name in spans[0]} for row in pack["documents"]] == spans
        allowed = dense_mask(sequence.mask)
        for row, span in zip(pack["documents"], head.documents, strict=True):
            inside = slice(span.start, span.start + span.length)
            assert row["attention_area"] == allowed[inside].sum()
            assert row["branches"] == sequence.branch_ids[inside].max()
        assert pack["attention_area"] == allowed.sum()
        assert pack["loss_tokens"] == (sequence.labels >= 0).sum()
        pooled = 0
        for row, image in zip(pack["images"], head.images, strict=True):
            assert (row["doc_id"], row["bytes"], row["unit"]) == (image.doc_id, image.size, image.unit)
            filled = np.flatnonzero((sequence.pool_ids >= pooled) & (sequence.pool_ids < pooled + 4))
            assert (row["start"], row["end"]) == (filled[0], filled[-1] + 1)
            pooled += 4
            with_images += 1
        for size, ranks in head.image_shard_boundaries.items():
            starts = [part["start_image_idx"] for part in ranks.values()]
            assert [row["start_image"] for row in pack["boundaries"][size]] == starts
        assert (pack["previous"], pack["next"]) == (
            pack_id - 1 if pack_id else None,
            pack_id + 1 if pack_id + 1 < n_packs else None,
        )
    assert with_images > 20


@pytest.mark.parametrize(
    ("layout", "ring", "ulysses"), [("zigzag", 4, 2), ("balanced_ring", 8, 1), ("contiguous", 1, 4)]
)
def test_a_layout_is_measured_from_the_pack(
    client: TestClient, path: Path, layout: str, ring: int, ulysses: int
) -> None:
    """Fails when owners, ring steps, needs or paths are not those of the stored runs and mask."""
    pack_id = 1
    head, sequence, layouts = sample(path, pack_id)
    stored = layouts[f"{layout}.ring{ring}"]
    found = measure_layout(MaskIndex.of(sequence.mask), stored)
    answer = get(client, f"/packs/{pack_id}/layout", layout=layout, ring=ring, ulysses=ulysses)
    assert answer["runs"] == stored.runs.tolist()
    assert answer["tiles"] == found.tiles.tolist()
    assert (answer["gather_path_tiles"], answer["ring_path_tiles"]) == (found.gather_path, found.ring_path)
    assert answer["gather_path"] == found.gather_path / found.tile_floor
    assert answer["ring_path"] == found.ring_path / found.tile_floor
    assert answer["tile_floor"] == found.tile_floor
    assert [step["most"] for step in answer["steps"]] == found.ring_steps.tolist()
    for step in answer["steps"]:
        assert step["tiles"] == [found.tiles[r, (r - step["step"]) % ring] for r in range(ring)]
        assert step["tiles"][step["slowest"]] == step["most"]
    for rank in answer["ranks"]:
        own = slice_positions(stored.runs, rank["ring_rank"])
        needed = np.zeros(stored.needs.shape[1], bool)
        for start, end in rank["needs"]:
            needed[start:end] = True
        assert np.array_equal(needed, stored.needs[rank["ring_rank"]])
        assert rank["padding"] == (sequence.doc_ids[own] < 0).sum()
        assert rank["attention_area"] == dense_mask(sequence.mask)[own].sum()
    assert sum(rank["loss_tokens"] for rank in answer["ranks"]) == (sequence.labels >= 0).sum()
    for rank in answer["cp_ranks"]:
        own = rank_positions(
            stored.runs, ring_rank=rank["ring_rank"], ulysses_degree=ulysses, ulysses_rank=rank["ulysses_rank"]
        )
        assert [t for start, length in rank["runs"] for t in range(start, start + length)] == own.tolist()
        part = head.image_shard_boundaries[str(ring * ulysses)][str(rank["cp_rank"])]
        assert (rank["first_image"], rank["end_image"]) == (part["start_image_idx"], part["end_image_idx"])


@pytest.mark.parametrize("size", [1, 7, 50])
def test_the_mask_picture_is_the_dense_mask_in_cells(client: TestClient, path: Path, n_packs: int, size: int) -> None:
    """Fails when a cell's share is a guess, or branches, groups and padding are drawn wrongly."""
    for pack_id in range(n_packs):
        _, sequence, layouts = sample(path, pack_id)
        answer = get(client, f"/packs/{pack_id}/mask", size=size, layout="balanced_ring", ring=4)
        cell, n = answer["cell"], answer["size"]
        assert (n - 1) * cell < SEQ_LEN <= n * cell
        allowed = dense_mask(sequence.mask)
        edges = [min(i * cell, SEQ_LEN) for i in range(n + 1)]
        owner = np.zeros(SEQ_LEN, int)
        for rank, start, length in layouts["balanced_ring.ring4"].runs.tolist():
            owner[start : start + length] = rank
        for i in range(n):
            rows = slice(edges[i], edges[i + 1])
            expected = [allowed[rows, edges[j] : edges[j + 1]].mean() for j in range(n)]
            assert np.allclose(answer["share"][i], expected, rtol=0, atol=6e-5)
            assert answer["owners"][i] == np.bincount(owner[rows]).argmax()
            assert answer["documents"][i] == np.bincount(sequence.doc_ids[rows] + 1).argmax() - 1


def test_text_is_what_the_tokens_spell_and_marks_carries_loss(client: TestClient, path: Path, n_packs: int) -> None:
    """Fails when a span mixes kinds, the loss is marked one token off, or images name another crop."""
    from preshard.packer_service.ingest.text.load import load_tokenizer
    from preshard.schemas.sections import SpecialTokensConfig

    tokenizer = load_tokenizer("tekken", SpecialTokensConfig())
    spelled: list[str] = []
    for pack_id in range(n_packs):
        _, sequence, _ = sample(path, pack_id)
        answer = get(client, f"/packs/{pack_id}/text", start=0, end=SEQ_LEN)
        assert answer["tokens"] == sequence.tokens.tolist()
        assert answer["labels"] == sequence.labels.tolist()
        at = 0
        for span in answer["spans"]:
            assert span["start"] == at < span["end"]
            at = span["end"]
            inside = slice(span["start"], span["end"])
            docs = set(sequence.doc_ids[inside].tolist())
            assert docs == {span["document"]}
            before = sequence.labels[np.arange(span["start"], span["end"]) - 1]
            assert (span["start"] > 0 and (before >= 0).all()) == span["loss"]
            if span["loss"]:
                assert np.array_equal(before, sequence.tokens[inside])
            if span["kind"] == "image":
                assert (sequence.pool_ids[inside] // 4 == span["image"]).all()
            assert (span["kind"] == "padding") == (docs == {-1})
            if span["kind"] == "text":
                assert span["text"] == tokenizer.decode(sequence.tokens[inside].tolist())
                spelled.append(span["text"])
        assert at == SEQ_LEN
    assert any("answer 2 answer 2" in text for text in spelled)


def test_a_piece_of_text_is_the_same_piece_of_the_whole(client: TestClient) -> None:
    """Fails when the first token of a range is marked without the label before the range."""
    whole, part = get(client, "/packs/0/text", end=SEQ_LEN), get(client, "/packs/0/text", start=100, end=160)
    assert part["tokens"] == whole["tokens"][100:160]

    def losses(answer: Any) -> dict[int, bool]:
        return {token: span["loss"] for span in answer["spans"] for token in range(span["start"], span["end"])}

    assert losses(part) == {token: loss for token, loss in losses(whole).items() if 100 <= token < 160}
    assert get(client, "/packs/0/text", start=5, end=5)["spans"] == []


def test_images_are_the_bytes_of_the_tar(client: TestClient, path: Path, n_packs: int) -> None:
    """Fails when a crop is read from a wrong offset."""
    seen = 0
    for pack_id in range(n_packs):
        for image in get(client, f"/packs/{pack_id}")["images"]:
            answer = client.get(image["url"])
            assert answer.headers["content-type"] == "image/jpeg"
            assert answer.content == members(path)[f"{pack_id:010d}"][f"{image['index']:04d}.jpg"]
            seen += 1
    assert seen > 20


def test_every_document_is_found_where_it_lies_or_why_it_does_not(
    client: TestClient, path: Path, tiny_rejects: dict[str, str]
) -> None:
    """Fails when a document's pack, place, owners or crops are another's, or a reject loses its reason."""
    for row in pq.read_table(path / "documents.parquet").to_pylist():
        answer = get(client, f"/documents/{row['doc_id']}", layout="zigzag", ring=4)
        (piece,) = answer["pieces"]
        assert {name: piece[name] for name in row} == row
        head, _, layouts = sample(path, row["pack_id"])
        owner = np.zeros(SEQ_LEN, int)
        for rank, start, length in layouts["zigzag.ring4"].runs.tolist():
            owner[start : start + length] = rank
        held = np.bincount(owner[row["start"] : row["start"] + row["length"]], minlength=4)
        assert {rank["ring_rank"]: rank["tokens"] for rank in piece["ranks"]} == {
            rank: number for rank, number in enumerate(held.tolist()) if number
        }
        first, end = piece["images"]
        assert {image.doc_id for image in head.images[first:end]} <= {row["doc_id"]}
        assert end - first == row["n_images"]
    for doc_id, code in tiny_rejects.items():
        answer = get(client, f"/documents/{doc_id}")
        assert [row["code"] for row in answer["rejects"]] == [code]
        assert code in answer["summary"]
        assert bool(answer["pieces"]) == (code == "duplicate_row")


@pytest.mark.parametrize("most", [0, 10_000])
def test_documents_of_one_mark_are_told_apart(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when an id is taken for another of its length and end, or a row of a later part is taken for another."""
    monkeypatch.setattr("preshard.packer_service.http.routers.documents.MOST_MARKED", most)
    ids = [*(f"{number}-0123456789abcdef" for number in range(5)), "short", "", "short", "longer"]
    rows = pa.table({"doc_id": ids})
    assert len({*mark_ids(rows["doc_id"])}) == 4, "five of them share a mark"
    dataset = SimpleNamespace(
        kept=lambda _key, make, _size: make(),
        of_parts=lambda _table, _names, work: [work(rows.slice(0, 3)), work(rows.slice(3))],
        rows=lambda _table, places, _names: rows.take(places).to_pylist(),
    )
    for doc_id in (*ids, "9-0123456789abcdef", "none"):
        assert _rows_of_id(dataset, doc_id).tolist() == [at for at, each in enumerate(ids) if each == doc_id]  # type: ignore[arg-type]


def test_documents_and_rejects_are_found_by_their_columns(client: TestClient, path: Path) -> None:
    """Fails when a filter is left out, or the counts are those of the page instead of all that were found."""
    rows = pq.read_table(path / "documents.parquet").to_pylist()
    found = get(client, "/documents", prefix="question-1", limit=2)
    assert found["total"] == sum(row["doc_id"].startswith("question-1") for row in rows) > 2
    assert len(found["items"]) == 2
    assert get(client, "/documents", contains="tion-", source="images")["total"] == sum(
        "tion-" in row["doc_id"] and row["source"] == "images" for row in rows
    )
    lost = pq.read_table(path / "rejects.parquet").to_pylist()
    answer = get(client, "/rejects", limit=1)
    assert answer["items"] == lost[:1]
    assert answer["total"] == sum(answer["by_code"].values()) == sum(answer["by_stage"].values()) == len(lost)
    assert get(client, "/rejects", source="images", code="bad_image")["items"] == [
        row for row in lost if (row["source"], row["code"]) == ("images", "bad_image")
    ]
    assert get(client, "/rejects", stage="write")["by_stage"] == {}


def test_a_shard_may_be_asked_for_its_packs(client: TestClient) -> None:
    """Fails when the packs of a shard are cut from the wrong place of a sorted list."""
    shard = get(client, "/shards", sort="first_pack")["items"][1]
    page = get(client, "/packs", shard=shard["name"], sort="-cost")
    assert page["total"] == shard["packs"]
    own = range(shard["first_pack"], shard["first_pack"] + shard["packs"])
    assert {row["pack_id"] for row in page["items"]} == set(own)


def test_lists_of_datasets_are_read_with_the_bytes_that_are_there(client: TestClient, path: Path) -> None:
    """Fails when the list names another size, count or fill than the dataset has."""
    (entry,) = client.get("/v1/datasets").json()["items"]
    assert (entry["name"], entry["state"], entry["reason"]) == ("tiny", "whole", None)
    assert entry["bytes"] == sum(shard.stat().st_size for shard in path.glob("shards/*.tar"))
    assert entry["fill"] == get(client, "")["fill"]
    assert entry["shards_done"] == entry["shards_total"] == len(list(path.glob("shards/*.tar")))
