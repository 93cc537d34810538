"""A source in several partitions is planned as one: every document once, steps as even, and nothing lost by a kill."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preshard.packer_service.config import load_config
from preshard.packer_service.ingest.source.file import Fragment, SourceFile
from preshard.packer_service.job.pack import pack
from preshard.packer_service.job.plan import PLAN_FOLDER, Planned
from preshard.packer_service.job.planning import runs
from preshard.packer_service.job.planning.measured import (
    MEASURED,
    KeptFragment,
    Measured,
    find_measured,
    keep_measured,
)
from preshard.packer_service.job.planning.partition import Partition, count_partitions
from preshard.packer_service.job.planning.partitions import PartitionPlanner
from preshard.packer_service.job.planning.runs import cut_runs
from preshard.packer_service.job.preview.lengths import plan_lengths
from preshard.packer_service.job.writing.read import read_shard
from preshard.packer_service.plan.order import straggler_ratio
from preshard.packer_service.report.planned.what_if import plan_table
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.runtime.progress import Progress
from preshard.packer_service.shards.store import Folder
from preshard.packer_service.verify import verify_dataset
from preshard.schemas.config import PackConfig

N_FRAGMENTS, ROWS_EACH = 8, 125
SETTINGS = ["seq_len=1024", "block_size=32", "max_images=24", "order.window=4", "packs_per_shard=3"]

Bytes = dict[str, bytes]


def configured(*settings: str) -> PackConfig:
    return load_config(None, [*SETTINGS, *settings])


def fragments() -> list[Fragment]:
    """Four files of two fragments each."""
    files = [
        SourceFile(label=f"{name}.jsonl", uri=f"/{name}.jsonl", kind="jsonl", size=1, mtime_ns=0) for name in "abcd"
    ]
    return [Fragment(file=files[i // 2], start=i, end=i + 1) for i in range(N_FRAGMENTS)]


def measured(number: int) -> Measured:
    """Documents of two sources, most of them without an id; in every fragment one rejected row, and one of an id that
    all have: every other fragment has the same row.
    """
    rng = np.random.default_rng(number)
    rows = []
    for row in range(ROWS_EACH):
        tokens, images = int(rng.integers(30, 700)), int(rng.integers(0, 9)) if row % 2 else 0
        where = {"row": row + row // 9, "offset": 10 * row, "size": 9, "source": "web" if row % 3 else "books"}
        doc_id = "again" if row == 7 else f"named-{number}-{row}" if row % 4 == 0 else None
        if row == 11:
            rows.append({**where, "doc_id": doc_id, "stage": "read", "code": "empty", "message": "holds nothing"})
            continue
        sizes = {"tokens": tokens, "images": images, "patches": images * 16, "load": images * 99}
        found = {
            **where,
            **sizes,
            "doc_id": doc_id,
            "piece": 0,
            "area": tokens * tokens // 2 + 1,
            "truncated": int(row == 5),
            "content": number // 2,
        }
        rows.append({**found, "loss_weight": 1.0})
    return Measured(
        pa.Table.from_pylist(rows, schema=MEASURED), ROWS_EACH + ROWS_EACH // 9, ["extra", f"x{number // 3}"]
    )


def measure(work: Folder) -> dict[int, KeptFragment]:
    return {i: keep_measured(work, i, measured(i), 0.5).kept for i in range(N_FRAGMENTS)}


def planned(folder: Path, config: PackConfig, progress: Progress, rows: int, executor: Any = None) -> Planned:
    planner = PartitionPlanner(
        work=Folder(str(folder)),
        config=config,
        executor=executor or PlainExecutor(),
        progress=progress,
        partition_rows=rows,
    )
    files = list(dict.fromkeys(each.file for each in fragments()))
    found = planner.kept(files)
    if found is None:
        kept = find_measured(planner.work, range(N_FRAGMENTS))
        missing = [i for i in range(N_FRAGMENTS) if i not in kept]
        kept |= {i: keep_measured(planner.work, i, measured(i), 0.5).kept for i in missing}
        planner.merge(fragments(), kept)
        found = planner.plan(files, {"column": 2})
    return found


def all_rows(plan: Planned, *more: str) -> list[dict[str, Any]]:
    columns = ["doc_id", "piece", "copy_number", "epoch", "pack_id", "start", "length", "aligned_length", *more]
    return [row for table in plan.rows(columns) for row in table.to_pylist()]


def files_below(folder: Path) -> Bytes:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_few_rows_are_planned_like_many(tmp_path: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when the database that a process keeps answers otherwise than one that a task opens."""
    segments = []
    for most in (0, 10_000):
        monkeypatch.setattr(runs, "FEW_ROWS", most)
        planned(tmp_path / str(len(segments)), configured(), progress, 10_000)
        segments.append(files_below(tmp_path / str(len(segments)) / PLAN_FOLDER))
    assert segments[0] == segments[1] != {}


@pytest.mark.parametrize(("rows", "parts"), [(10_000, 1), (500, 2), (200, 5)])
def test_every_document_lies_in_one_pack_of_one_partition(
    tmp_path: Path, progress: Progress, rows: int, parts: int
) -> None:
    """Fails when a document is lost between runs and partitions, a pack overflows, or an id of two fragments is taken
    twice because its rows never met."""
    config = configured()
    plan = planned(tmp_path, config, progress, rows)
    assert len(plan.partitions) == parts
    found = all_rows(plan, "images")
    per_file = ROWS_EACH + ROWS_EACH // 9
    wanted, again, empty = {f"again#{number}" for number in (2, 3, 4)}, list[str](), list[str]()
    for number, fragment in enumerate(fragments()):
        for row in measured(number).table.to_pylist():
            place = fragment.file.location(row["row"] + 1 + number % 2 * per_file)
            if row["doc_id"] == "again":
                again.append(place)
            (empty.append if row["code"] else wanted.add)(row["doc_id"] or place)
    assert Counter(row["doc_id"] for row in found) == Counter(wanted)
    rejects = [row for part in plan.rejects() for row in part.to_pylist()]
    assert sorted(row["location"] for row in rejects if row["code"] == "duplicate_row") == sorted(again[1::2])
    assert sorted(row["doc_id"] for row in rejects if row["code"] == "empty") == sorted(empty)
    assert plan.n_rows == N_FRAGMENTS * ROWS_EACH == len(found) + len(rejects) == plan.n_documents + plan.n_rejected
    tokens, images = Counter[int](), Counter[int]()
    for row in found:
        assert row["start"] == tokens[row["pack_id"]]
        tokens[row["pack_id"]] += row["aligned_length"]
        images[row["pack_id"]] += row["images"]
    assert [row["pack_id"] for row in found] == sorted(row["pack_id"] for row in found)
    assert set(tokens) == set(range(plan.n_packs))
    assert max(tokens.values()) <= config.seq_len
    assert max(images.values()) <= (config.max_images or 0)
    # only what fills no group of a partition can be uneven
    whole = sum(sum(part.groups) for part in plan.partitions)
    assert whole > plan.n_packs - parts * config.order.window
    assert straggler_ratio(plan.costs()[:whole], config.order.window) < 1.01
    assert plan.unused_columns == {"column": 2, "extra": 4, "x0": 2, "x1": 2, "x2": 1}
    assert plan.measure_seconds == 0.5 * N_FRAGMENTS


def test_partitions_are_ranges_that_meet() -> None:
    """Fails when a hash lies in no partition or in two, or when their number depends on more than the source."""
    for of in (1, 3, 7, 1000):
        parts = [Partition(number, of) for number in range(of)]
        assert [part.low for part in parts[1:]] == [part.high for part in parts[:-1]]
        assert (parts[0].low, parts[-1].high) == (0, 2**64)
    weighted = configured('mixture={"web": 0.5, "books": 3}', "epochs=2")
    counts = {"web": 100, "books": 10, "none": 0}
    assert [count_partitions(counts, weighted, rows) for rows in (1, 79, 80, 160, 161)] == [160, 3, 2, 1, 1]
    assert count_partitions({}, weighted, 1) == 1


def test_runs_hold_neighbours_up_to_a_limit() -> None:
    """Fails when a fragment is left out, or a run outgrows the memory of a task."""
    assert cut_runs([4, 4, 9, 1, 1, 0], 8) == [range(2), range(2, 3), range(3, 6)]


def test_copies_lie_apart_and_epochs_follow_each_other(tmp_path: Path, progress: Progress) -> None:
    """Fails when the copies of a document share a pack or are counted as documents, an epoch begins before another
    ends, or shares are off."""
    config = configured('mixture={"web": 0.5, "books": 2}', "epochs=3")
    plan = planned(tmp_path, config, progress, 700)
    assert len(plan.partitions) > 2
    found = all_rows(plan, "source_number")
    packs = Counter((row["doc_id"], row["pack_id"]) for row in found)
    assert max(packs.values()) == 1
    whole = sum(sum(part.groups) for part in plan.partitions)
    epochs = [row["epoch"] for row in found if row["pack_id"] < whole]
    assert epochs == sorted(epochs)
    assert set(epochs) == {0, 1, 2}
    copies = Counter((row["doc_id"], row["epoch"]) for row in found if row["source_number"] == 0)
    assert set(copies.values()) == {2}, "the first source by name, books, is taken twice"
    share = plan.mixture.shares["web"]
    assert share.documents == sum(row["source_number"] == 1 for row in found)
    assert 0.4 < share.documents / 3 / (N_FRAGMENTS * 82) < 0.6
    ids = {row["doc_id"] for row in found}
    assert sum(part.n_documents for part in plan.partitions) == len(ids)
    assert plan.mixture.left_out == plan.n_rows - plan.n_rejected - len(ids)


def test_a_plan_is_the_same_after_a_kill_behind_every_task(tmp_path: Path, progress: Progress, stopping: Any) -> None:
    """Fails when a later run takes a run or partition for whole that is not, plans one twice, or counts lines anew."""
    config = configured("epochs=2")
    whole = planned(tmp_path / "whole", config, progress, 400)
    tasks = 0
    while True:
        try:
            again = planned(tmp_path / "killed", config, progress, 400, stopping(1))
            break
        except stopping.Stopped:
            tasks += 1
    assert tasks == len(whole.partitions) + 2, "a kill behind each of two runs and each partition"
    assert files_below(tmp_path / "killed") == files_below(tmp_path / "whole")
    assert (again.sections, again.mixture, again.unused_columns) == (
        whole.sections,
        whole.mixture,
        whole.unused_columns,
    )
    assert {path.name for path in (tmp_path / "killed").iterdir()} == {"plan"}


def test_shards_refer_to_the_rows_of_the_plan(tmp_path: Path, progress: Progress) -> None:
    """Fails when a shard that begins in one segment and ends in another loses a pack or a reference."""
    plan = planned(tmp_path, configured(), progress, 200)
    found = all_rows(plan, "file", "line", "offset", "truncated", "source_number")
    shards = plan.shards(3)
    assert any(len(shard.parts) > 1 for shard in shards)
    assert sum(shard.n_packs for shard in shards) == plan.n_packs
    documents = list[Any]()
    for number, shard in enumerate(shards):
        packs = read_shard(shard, plan.folder, plan.files, plan.sources)
        assert (shard.name, shard.first_pack) == (f"preshard-{number:06d}.tar", 3 * number)
        documents += [(shard.first_pack + i, each) for i, pack in enumerate(packs) for each in pack]
    assert [
        (pack_id, *(each.row[name] for name in ("doc_id", "start", "length")), each.location, each.reference.offset,
         each.source)
        for pack_id, each in documents
    ] == [
        (row["pack_id"], row["doc_id"], row["start"], row["length"], plan.files[row["file"]].location(row["line"]),
         row["offset"], plan.sources[row["source_number"]])
        for row in found
    ]  # fmt: skip


def test_an_empty_source_has_a_plan(tmp_path: Path, progress: Progress) -> None:
    """Fails when no document at all is a partition that cannot be planned."""
    planner = PartitionPlanner(
        work=Folder(str(tmp_path)), config=configured(), executor=PlainExecutor(), progress=progress, partition_rows=5
    )
    planner.merge([], {})
    plan = planner.plan([], {})
    assert (plan.n_packs, plan.n_rows, list(plan.shards(4)), all_rows(plan)) == (0, 0, [], [])


def test_a_job_of_several_partitions_is_sound_and_resumes(tmp_path: Path, progress: Progress, stopping: Any) -> None:
    """Fails when a dataset of several partitions breaks a rule of the format, or a kill changes a byte of it."""
    source = tmp_path / "source"
    source.mkdir()
    rng = np.random.default_rng(0)
    rows = [{"text": "a few words " * int(rng.integers(1, 60))} for _ in range(60)] + [{"text": " "}]
    rows += [{"id": "x", "text": f"one of {5 + i % 5} words"} for i in range(7)] + [{"id": "x#2", "text": "its own id"}]
    for number in range(3):
        lines = "".join(json.dumps(row) + "\n" for row in rows[number::3])
        (source / f"{number}.jsonl").write_text(lines, encoding="utf-8")
    layouts = ["layouts=[contiguous]", "ring_degrees=[1,2]", "cp_sizes=[1,2]"]
    config = configured("seq_len=256", "order.window=2", "epochs=2", *layouts)
    whole, out = tmp_path / "whole", tmp_path / "out"
    counts = pack([str(source)], str(whole), config, PlainExecutor(), progress, partition_rows=50).manifest.counts
    assert (counts.documents, counts.rejected, counts.numbered, counts.pieces) == (66, 3, 4, 132)
    verdict = verify_dataset(str(whole), processes=1, progress=progress)
    assert verdict.sound, verdict.as_lines()
    for after in (1, 2, 2, 2, 3):
        with pytest.raises(stopping.Stopped):
            pack([str(source)], str(out), config, stopping(after), progress, partition_rows=50)
    pack([str(source)], str(out), config, PlainExecutor(), progress, partition_rows=50)
    assert {k: v for k, v in files_below(out).items() if k != "run.json"} == {
        k: v for k, v in files_below(whole).items() if k != "run.json"
    }


def test_lengths_of_a_file_are_planned_in_partitions(tmp_path: Path, progress: Progress) -> None:
    """Fails when figures of several partitions do not add up to those of the documents."""
    rng = np.random.default_rng(1)
    n = 300
    table = pa.table(
        {
            "doc_id": [f"d{i}" for i in range(n)],
            "tokens": rng.integers(0, 1500, n),
            "images": rng.integers(0, 6, n),
            "source": [("web", "books")[i % 2] for i in range(n)],
        }
    )
    pq.write_table(table, tmp_path / "lengths.parquet", row_group_size=50)
    small = ["vision.image_size=56", "vision.pool_size=2", "layouts=[contiguous,zigzag]", "ring_degrees=[1,2]"]
    for oversize in ("reject", "split"):
        config = configured(f"oversize={oversize}", *small)
        whole = plan_table(table, config, (2, 4))
        one = plan_lengths(tmp_path / "lengths.parquet", config, progress, (2, 4))
        assert one.model_dump(exclude={"plan_seconds"}) == whole.model_dump(exclude={"plan_seconds"})
        five = plan_lengths(tmp_path / "lengths.parquet", config, progress, (2, 4), partition_rows=75)
        same = ("documents", "tokens", "rejected", "rejects_by_source", "truncated_tokens", "shares")
        assert [getattr(five, name) for name in same] == [getattr(whole, name) for name in same]
        assert whole.packs <= five.packs < 1.1 * whole.packs
