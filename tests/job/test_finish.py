"""Finishing and resuming from records alone: every row of the tables, their counts, and what is held while it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from counting_executor import Counting
from made_records import CONFIG, TARGET, MadeRecords, finished

from preshard.packer_service.job import finish as finishing
from preshard.packer_service.job.finish import finish
from preshard.packer_service.job.stages import kept_shards
from preshard.packer_service.job.writing.records import GROUP, record_name
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.shards.store import Folder
from preshard.packer_service.tables.rows import WorkError
from preshard.schemas.dataset.identity import dataset_id
from preshard.schemas.dataset.measures import MeasureOrder
from preshard.schemas.dataset.read_manifest import decode_manifest
from preshard.schemas.manifest import FIGURES, MANIFEST, WORK
from preshard.schemas.tables import TABLES


@pytest.mark.parametrize("n_packs", [0, 1, 9])
def test_tables_hold_the_rows_of_all_records(n_packs: int, tmp_path: Path, progress: Any) -> None:
    """Fails when a row of a record is lost, doubled or out of order, or a total is not that of the rows."""
    made = MadeRecords(n_packs)
    found = finished(made, tmp_path, progress)
    records = [made.record(shard) for shard in range(made.n_shards)]
    for name in ("packs.parquet", "documents.parquet"):
        wanted = pa.concat_tables([record.tables[name] for record in records]) if records else []
        assert pq.read_table(tmp_path / name).to_pylist() == (wanted.to_pylist() if records else [])
    balance = list(MeasureOrder.of(CONFIG, n_packs).by_table(record.tables["measures.parquet"] for record in records))
    read = pq.read_table(tmp_path / "measures.parquet").to_pylist()
    assert read == [row for part in balance for row in part.to_pylist()]
    manifest = decode_manifest((tmp_path / MANIFEST).read_bytes(), MANIFEST)
    assert manifest.shards == [record.entry for record in records]
    counts = manifest.counts
    assert (counts.documents, counts.pieces, counts.packs) == (3 * n_packs, 3 * n_packs, n_packs)
    assert counts.tokens == sum(range(n_packs))
    assert counts.truncated_tokens == 3 * n_packs
    assert manifest.dataset_id == dataset_id(CONFIG, TARGET.tokenizer, None, made.rows())
    assert found.seconds == 0.25 * made.n_shards


@pytest.mark.parametrize(
    ("lost", "documents"),
    [
        ((), 3 * 8 - 4),
        ([(0, 0)], 3 * 8 - 4),  # the first piece; the second one is still there
        ([(1, 0)], 3 * 8 - 4),  # the second piece
        ([(0, 0), (1, 0)], 3 * 8 - 5),
        ([(2, 1), (3, 2), (4, 0), (5, 0)], 3 * 8 - 4 - 3),
    ],
)
def test_a_document_counts_once(lost: Any, documents: int, tmp_path: Path, progress: Any) -> None:
    """Fails when pieces are counted as documents, or a document that lost a piece in writing twice or not at all."""
    made = MadeRecords(8, pieces=True, lost=frozenset(lost))
    counts = finished(made, tmp_path, progress).head.counts
    assert (counts.documents, counts.pieces) == (documents, 24 - len(lost))
    assert len(set(pq.read_table(tmp_path / "documents.parquet")["doc_id"].to_pylist())) == documents
    assert counts.rejected == 20 - documents
    assert pq.read_table(tmp_path / "rejects.parquet").num_rows == len(lost)


def test_many_groups_are_joined_by_tasks_to_the_same_bytes(
    tmp_path: Path, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when the bytes depend on who joins the records, or this process joins those of a large dataset."""
    config = CONFIG.model_copy(update={"packs_per_shard": 1})
    made = MadeRecords(GROUP + 5, each=1, config=config)
    names, executor = [*TABLES, FIGURES, MANIFEST], Counting()
    finished(made, tmp_path, progress, executor)
    assert not executor.tasks
    here = [(tmp_path / name).read_bytes() for name in names]
    monkeypatch.setattr(finishing, "FEW_GROUPS", 1)
    finished(made, tmp_path, progress, executor)
    assert executor.tasks == {"join_group": 2}
    assert here == [(tmp_path / name).read_bytes() for name in names]
    assert max(len(list(folder.iterdir())) for folder in (tmp_path / WORK).rglob("*") if folder.is_dir()) <= GROUP + 1
    assert pq.ParquetFile(tmp_path / "packs.parquet").num_row_groups == 1, "a row group per shard grows the footer"


class StoppedError(Exception):
    """A kill, as far as one process can tell."""


def test_finishing_goes_on_from_between_any_two_files(
    tmp_path: Path, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when what a stopped run left of its tables or joined records goes into the next one's."""
    made, names = MadeRecords(5), [*TABLES, FIGURES, MANIFEST]
    finished(made, tmp_path / "whole", progress)
    whole = [(tmp_path / "whole" / name).read_bytes() for name in names]
    replace, done, most = Path.replace, list[Path](), [0]

    def stop(path: Path, target: Path) -> Path:
        if len(done) == most[0]:
            raise StoppedError
        done.append(target)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", stop)
    for most[0] in range(11):  # five joined files, four tables, their figures, the manifest
        done.clear()
        with pytest.raises(StoppedError):
            finished(made, tmp_path / "stopped", progress)
        assert not (tmp_path / "stopped" / MANIFEST).exists()
    most[0] = 11
    done.clear()
    finished(made, tmp_path / "stopped", progress)
    assert len(done) == 11
    assert [(tmp_path / "stopped" / name).read_bytes() for name in names] == whole


def test_row_groups_are_bounded(tmp_path: Path, progress: Any) -> None:
    """Fails when a table is one row group, which a reader would have to hold whole."""
    made = MadeRecords(4, each=40_000)
    finished(made, tmp_path, progress)
    metadata = pq.ParquetFile(tmp_path / "documents.parquet").metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [*[16_384] * 9, 12_544]


def test_a_damaged_record_is_named(tmp_path: Path, progress: Any) -> None:
    """Fails when damage in the work folder ends in a traceback, or goes into the dataset."""
    made = MadeRecords(9)
    made.write(tmp_path)
    path = tmp_path / WORK / record_name(1)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(WorkError, match=r"preshard-000001.tar.record: is damaged \(its bytes do not match its hash\)"):
        finish(
            Folder(str(tmp_path)), made, n_shards=3, config=CONFIG, target=TARGET, unread={}, carried=[],
            executor=PlainExecutor(), progress=progress,
        )  # type: ignore[arg-type] # fmt: skip


def test_only_shards_as_recorded_are_kept(tmp_path: Path, progress: Any) -> None:
    """Fails when a shard that changed is kept, one that did not is written again, or a million are listed at once."""
    config = CONFIG.model_copy(update={"packs_per_shard": 1})
    made, shards = MadeRecords(2 * GROUP + 3, each=1, config=config), tmp_path / "shards"
    made.write(tmp_path, range(GROUP - 2, GROUP + 2))
    made.write(tmp_path, range(2 * GROUP, 2 * GROUP + 3))
    (shards / "preshard-000255.tar").write_bytes(bytes(2047) + b"1")
    (shards / "preshard-000257.tar.idx").unlink()
    (tmp_path / WORK / record_name(2 * GROUP + 1)).write_bytes(b"half")
    (tmp_path / WORK / "shards" / "999999").mkdir()
    executor, folder = Counting(), Folder(str(tmp_path))
    kept = kept_shards(folder, made.n_shards, executor=executor, few_bytes=10**9, progress=progress)
    assert [int(number) for number in kept.nonzero()[0]] == [254, 256, 512, 514]
    assert executor.tasks == {"find_kept": 33}, "the records of a group are checked 16 at a time"
    assert not kept_shards(Folder(str(tmp_path / "none")), 5, executor=executor, few_bytes=1, progress=progress).any()


def test_the_work_folder_of_a_shard_is_one_file(tmp_path: Path) -> None:
    """Fails when a record needs several requests to be written or read."""
    made = MadeRecords(9)
    made.write(tmp_path)
    names = Folder(str(tmp_path / WORK)).names()
    assert names == [f"shards/000000/preshard-{i:06d}.tar.record" for i in range(3)]
    assert json.loads((tmp_path / WORK / names[0]).read_bytes().partition(b"\n")[0])["entry"]["packs"] == 4
