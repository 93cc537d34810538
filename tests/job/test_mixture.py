"""Mixtures and epochs through a whole job: what is packed, what is left out, and what is said of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from preshard.data import PackedDataset
from preshard.packer_service.job.pack import pack
from preshard.packer_service.job.preview.source import plan_sources
from preshard.packer_service.job.resolve import resolve
from preshard.packer_service.report.console import mixture_lines
from preshard.packer_service.report.dataset import report_dataset
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.runtime.progress import Progress
from preshard.packer_service.verify import verify_dataset
from preshard.schemas.config import PackConfig, parse_config
from preshard.schemas.errors import ConfigError


@pytest.fixture(scope="module")
def mixed_config(tiny_config: PackConfig) -> PackConfig:
    """Some texts twice, no annotations, and everything in two epochs."""
    mixture = {"text": 1.5, "annotated": 0}
    return parse_config({**tiny_config.model_dump(mode="json"), "mixture": mixture, "epochs": 2})


@pytest.fixture(scope="module")
def mixed_dataset(
    tmp_path_factory: pytest.TempPathFactory, tiny_source: Path, mixed_config: PackConfig, progress: Progress
) -> Path:
    out = tmp_path_factory.mktemp("mixed") / "dataset"
    pack([str(tiny_source)], str(out), mixed_config, PlainExecutor(), progress)
    return out


def test_a_mixture_is_packed_as_it_was_asked_for(
    mixed_dataset: Path, tiny_rejects: dict[str, str], progress: Progress
) -> None:
    """Fails when a source is taken more or less often, copies meet, or a document that is left out is a reject."""
    rows = pq.read_table(mixed_dataset / "documents.parquet").to_pylist()
    places = Counter((row["source"], row["doc_id"], row["epoch"]) for row in rows)
    assert {source for source, _, _ in places} == {"text", "images", "default"}
    assert {number for (source, _, _), number in places.items() if source != "text"} == {1}
    assert {number for (source, _, _), number in places.items() if source == "text"} == {1, 2}
    assert {epoch for _, _, epoch in places} == {0, 1}
    assert len({(row["doc_id"], row["pack_id"]) for row in rows}) == len(rows)
    counts = json.loads((mixed_dataset / "manifest.json").read_bytes())["counts"]
    assert (counts["left_out"], counts["rejected"]) == (4, len(tiny_rejects))
    assert counts["documents"] == len({row["doc_id"] for row in rows})
    verdict = verify_dataset(str(mixed_dataset), processes=1, progress=progress)
    assert not verdict.broken, verdict.as_lines()


def test_the_report_and_the_plan_say_what_each_source_got(
    mixed_dataset: Path, tiny_source: Path, mixed_config: PackConfig, progress: Progress
) -> None:
    """Fails when the figures beforehand are not those of the dataset, or not those of its table."""
    report = report_dataset(str(mixed_dataset))
    planned = plan_sources(resolve([str(tiny_source)], mixed_config), PlainExecutor(), progress)
    same = ("left_out", "shares", "packs", "padding", "tokens", "rejected", "documents", "source_documents", "limit")
    for name in same:
        assert getattr(planned, name) == getattr(report, name), name
    table = pq.read_table(mixed_dataset / "documents.parquet")
    for source, share in report.shares.items():
        lengths = [row["length"] for row in table.to_pylist() if row["source"] == source]
        assert (share.tokens, share.documents) == (sum(lengths), len(lengths))
    assert sum(share.share for share in report.shares.values()) == pytest.approx(1)
    assert sum(share.loss_share or 0 for share in report.shares.values()) == pytest.approx(1)
    assert report.shares["annotated"].asked == 0
    [head, *lines] = mixture_lines(report)
    assert "4 documents left out" in head
    assert len(lines) == len(report.shares)


def test_without_its_facts_a_report_says_what_the_table_says(mixed_dataset: Path, tmp_path: Path) -> None:
    """Fails when a dataset without run.json has no report, or invents what was asked."""
    copy = tmp_path / "dataset"
    copy.mkdir()
    for path in mixed_dataset.iterdir():
        if path.name != "run.json":
            (copy / path.name).symlink_to(path)
    found, whole = report_dataset(str(copy)), report_dataset(str(mixed_dataset))
    assert {name: share.tokens for name, share in found.shares.items()} == {
        name: share.tokens for name, share in whole.shares.items() if share.tokens
    }
    assert {share.asked for share in found.shares.values()} == {None}
    assert found.left_out == whole.left_out


def test_an_unknown_source_is_refused(tiny_source: Path, tiny_config: PackConfig, progress: Progress) -> None:
    """Fails when a name that is spelt wrongly weighs nothing without a word."""
    config = parse_config({**tiny_config.model_dump(mode="json"), "mixture": {"txt": 2}})
    with pytest.raises(ConfigError, match=r"no row has the source txt; the rows have annotated, default, images, text"):
        plan_sources(resolve([str(tiny_source)], config), PlainExecutor(), progress)


@pytest.mark.parametrize("given", [{"text": -1}, {"text": "much"}, {"text": True}, {"text": 1e9}, {3: 1}, ["text"], 5])
def test_a_mixture_that_is_none_is_refused(given: object) -> None:
    """Fails when a weight that cannot be followed is taken, or is refused by another name than its own."""
    with pytest.raises(ConfigError, match=r"^mixture: .*give "):
        parse_config({"mixture": given})


def test_a_document_that_fails_is_rejected_once_for_all_its_copies(
    tiny_config: PackConfig, tmp_path: Path, progress: Progress
) -> None:
    """Fails when each copy of a document that cannot be decoded is a reject of its own, which no dataset may hold."""
    source = tmp_path / "source"
    source.mkdir()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 90, 3), np.uint8)).save(source / "cut.png")
    whole = (source / "cut.png").read_bytes()
    at = len(whole) // 2  # the file begins and ends as it should, which is all that measuring looks at
    (source / "cut.png").write_bytes(whole[:at] + bytes(200) + whole[at + 200 :])
    shown = [{"type": "image", "image": "cut.png"}, {"type": "text", "text": "?"}]
    turns = [{"role": "user", "content": shown}, {"role": "assistant", "content": "x"}]
    rows = [{"id": "cut", "messages": turns}, *({"id": f"text-{i}", "text": "some text " * 20} for i in range(3))]
    (source / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    config = parse_config({**tiny_config.model_dump(mode="json"), "mixture": {"default": 2}, "epochs": 2})
    out = tmp_path / "dataset"
    counts = pack([str(source)], str(out), config, PlainExecutor(), progress).manifest.counts
    assert (counts.documents, counts.rejected, counts.pieces) == (3, 1, 12)
    assert [row["stage"] for row in pq.read_table(out / "rejects.parquet").to_pylist()] == ["write"]
    verdict = verify_dataset(str(out), processes=1, progress=progress)
    assert verdict.sound, verdict.as_lines()


def test_a_curriculum_is_packed_reported_and_read_in_its_phases(
    tmp_path: Path, tiny_source: Path, tiny_config: PackConfig, progress: Progress
) -> None:
    """Fails when phases are lost between plan, manifest, report and reader, or several partitions mix them."""
    phases = [{"until": 0.5, "weights": {"text": 8}}, {"until": 1.0}]
    order = {**tiny_config.model_dump(mode="json")["order"], "window": 1}
    config = parse_config(
        {**tiny_config.model_dump(mode="json"), "curriculum": phases, "epochs": 4, "order": order, "packs_per_shard": 4}
    )
    for rows in (1000, 30):
        out = tmp_path / str(rows)
        pack([str(tiny_source)], str(out), config, PlainExecutor(), progress, partition_rows=rows)
        verdict = verify_dataset(str(out), processes=1, progress=progress)
        assert not verdict.broken, verdict.as_lines()
        manifest = json.loads((out / "manifest.json").read_bytes())
        assert sum(manifest["phases"]) == manifest["counts"]["packs"]
        report = report_dataset(str(out))
        assert [phase.until for phase in report.phases] == [0.5, 1.0]
        table = pq.read_table(out / "documents.parquet").to_pylist()
        packs = [pack for batch in PackedDataset(str(out), layout="contiguous") for pack in [batch.pack_id]]
        edge = manifest["phases"][0]
        assert {pack < edge for pack in packs[:edge]} == {True}
        assert packs[:edge] != sorted(packs[:edge])
        for number, phase in enumerate(report.phases):
            own = [row for row in table if (row["pack_id"] >= edge) == bool(number)]
            tokens = Counter[str]()
            for row in own:
                tokens[row["source"]] += row["length"]
            for source, share in phase.shares.items():
                assert tokens[source] / tokens.total() == pytest.approx(share)
                assert share == pytest.approx(phase.asked[source], abs=0.1)
        odds = [phase.shares["text"] / (1 - phase.shares["text"]) for phase in report.phases]
        assert odds[0] > 2 * odds[1]
        assert any(line.startswith("  until 0.5: ") for line in mixture_lines(report))
