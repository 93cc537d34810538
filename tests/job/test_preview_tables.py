"""Preview of packing a dataset again, from its tables alone, beside what packing it again gives."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from preshard.packer_service.config import load_config
from preshard.packer_service.job.pack import pack
from preshard.packer_service.job.preview.source import plan_tables
from preshard.packer_service.job.resolve import resolve
from preshard.packer_service.report.dataset import open_dataset, report_dataset
from preshard.packer_service.report.planned.plan_keys import stored_lengths
from preshard.packer_service.report.planned.what_if import plan_table
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.runtime.progress import Progress
from preshard.schemas.dataset.manifest_parts import stored_config
from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import ManifestHead

SMALL = ("block_size=16", "ring_degrees=[1,2]", "cp_sizes=[1,2]", "layouts=[contiguous,zigzag]")

EXACT = (
    "packs",
    "documents",
    "rejected",
    "source_documents",
    "tokens",
    "padding",
    "fill",
    "truncated_tokens",
    "left_out",
)


@pytest.mark.parametrize(
    "settings",
    [
        ["seq_len=2048", "ring_degrees=[1,2]", "max_images=40"],
        ["seq_len=512", "mixture={text: 1.5, images: 0}", "epochs=2", "order.seed=5"],
    ],
)
def test_the_tables_answer_as_packing_does(
    settings: list[str], tiny_dataset: Path, tmp_path: Path, progress: Progress
) -> None:
    """Fails when the answer in seconds is another one than packing again gives, also where documents no longer fit."""
    config = load_config(None, settings, [str(tiny_dataset)])
    planned = plan_tables(resolve([str(tiny_dataset)], config), progress)
    assert planned is not None
    pack([str(tiny_dataset)], str(tmp_path / "again"), config, PlainExecutor(), progress)
    given = report_dataset(str(tmp_path / "again"))
    assert {name: getattr(planned, name) for name in EXACT} == {name: getattr(given, name) for name in EXACT}
    assert {name: (share.share, share.asked) for name, share in planned.shares.items() if share.tokens} == {
        name: (share.share, share.asked) for name, share in given.shares.items() if share.tokens
    }


def test_tables_are_planned_in_partitions(tmp_path: Path, progress: Progress) -> None:
    """Fails when parts of a table give other figures than the whole, or pieces that lie far apart are not joined.

    The dataset's documents are split and taken in two epochs, so that a document has its pieces in several packs and
    each of them twice.
    """
    rows = [{"text": "a few words " * (1 + number * 7 % 90)} for number in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    own = [*SMALL, "seq_len=128", "oversize=split", "epochs=2", "order.window=2"]
    pack([str(tmp_path / "rows.jsonl")], str(tmp_path / "split"), load_config(None, own), PlainExecutor(), progress)
    sources = [str(tmp_path / "split")]
    documents = pq.read_table(tmp_path / "split" / "documents.parquet")
    assert pc.max(documents["piece"]).as_py() > 0
    for settings in (["seq_len=512"], ["seq_len=256", "oversize=reject", "epochs=1"]):
        config = load_config(None, settings, sources)
        whole = plan_table(stored_lengths(documents, stored_config(manifest_at(sources[0]))), config, (2,))
        one = plan_tables(resolve(sources, config), progress, (2,))
        assert one is not None
        assert one.model_dump(exclude={"plan_seconds"}) == whole.model_dump(exclude={"plan_seconds"})
        assert bool(one.rejects) == ("oversize=reject" in settings)
        five = plan_tables(resolve(sources, config), progress, (2,), partition_rows=10)
        assert five is not None
        assert five.packs != one.packs or five.straggler_ratio != one.straggler_ratio
        same = ("documents", "tokens", "rejected", "rejects_by_source", "truncated_tokens", "shares")
        assert [getattr(five, name) for name in same] == [getattr(one, name) for name in same]


def manifest_at(location: str) -> ManifestHead:
    return open_dataset(location)[1]


def test_what_tables_do_not_tell_is_measured(tiny_dataset: Path, tiny_source: Path, progress: Progress) -> None:
    """Fails when a document that would be cut, an id in two datasets or a row is answered for by lengths alone."""
    one, fresh = str(tiny_dataset), str(tiny_source)
    small = load_config(None, ["seq_len=512", "oversize=split"], [one])
    assert plan_tables(resolve([one], small), progress) is None
    same = load_config(None, [], [one])
    assert plan_tables(resolve([one, one + "/."], same), progress) is None
    assert plan_tables(resolve([one, fresh], same), progress) is None


def test_a_key_that_needs_the_source_is_refused(tiny_dataset: Path, progress: Progress) -> None:
    """Fails when the lengths of one frame rate are given as those of another."""
    config = load_config(None, ["video.fps=1"], [str(tiny_dataset)])
    with pytest.raises(ConfigError, match=r"video.fps: 1.0 is not possible for dataset, .*frames are not"):
        plan_tables(resolve([str(tiny_dataset)], config), progress)
