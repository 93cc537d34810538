"""Building of a pack: crops are decoded beside the layouts, and never two packs' at a time."""

from __future__ import annotations

import gc
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from preshard.packer_service.ingest.fetch import started
from preshard.packer_service.job.pack import pack
from preshard.packer_service.job.writing import contents
from preshard.packer_service.job.writing.contents import ShardContents
from preshard.packer_service.job.writing.read import ShardDocument
from preshard.packer_service.job.writing.write import BESIDE
from preshard.packer_service.packs import pack as built
from preshard.packer_service.packs.crop import Crop
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.verify.dataset import verify_dataset
from preshard.schemas.config import PackConfig

LONG = 60.0
"""Seconds until a test gives up."""


def test_no_pixels_of_two_packs_are_in_memory(
    tiny_source: Path, tiny_config: PackConfig, tmp_path: Path, progress: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when the next pack is decoded while crops of the one before still wait to be written."""
    found: list[tuple[str, set[str]]] = []
    decode_crops = contents.decode_crops
    gc.collect()
    # Crops that other tests of this process still hold; held here, too, so that no new one gets the id of an old one.
    others = {id(thing): thing for thing in gc.get_objects() if isinstance(thing, Crop)}
    solving, solve_layouts = threading.Lock(), built.solve_layouts

    def solve_alone(*given: Any, **options: Any) -> Any:
        with solving:  # a tuple that compiled code is filling may not be listed
            return solve_layouts(*given, **options)

    def watched(rendered: RenderedDocument, *given: Any, **options: Any) -> Iterator[Crop]:
        for thread in threading.enumerate():  # one that has given its crops away may not have let go of them yet
            if thread.name == BESIDE and thread is not threading.current_thread():
                thread.join(LONG)
        gc.collect()
        with solving:
            alive = {thing.doc_id for thing in gc.get_objects() if isinstance(thing, Crop) and id(thing) not in others}
        found.append((options["doc_id"], alive))
        return decode_crops(rendered, *given, **options)

    monkeypatch.setattr(built, "solve_layouts", solve_alone)
    monkeypatch.setattr(contents, "decode_crops", watched)
    config = tiny_config.model_copy(update={"packs_per_shard": 1000})
    pack([str(tiny_source)], str(tmp_path / "out"), config, PlainExecutor(), progress)
    documents = pq.read_table(tmp_path / "out" / "documents.parquet").to_pylist()
    pack_of = {row["doc_id"]: row["pack_id"] for row in documents}
    assert any(alive for _, alive in found)
    assert len({pack_of[doc_id] for doc_id, _ in found}) >= 2
    for doc_id, alive in found:
        assert {pack_of[other] for other in alive} <= {pack_of[doc_id]}


def test_a_pack_that_loses_a_document_late_is_sound(
    tiny_source: Path, tiny_config: PackConfig, tmp_path: Path, progress: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when units, loads or layouts still count a document whose image could not be decoded after all."""
    source = shutil.copytree(tiny_source, tmp_path / "tiny")
    decode_crops, broken = contents.decode_crops, set[str]()

    def breaking(rendered: RenderedDocument, *given: Any, **options: Any) -> Iterator[Crop]:
        if len(broken) < 2:
            broken.add(options["doc_id"])
            (source / "0.png").rename(tmp_path / "away.png")
            try:
                return iter(list(decode_crops(rendered, *given, **options)))
            finally:
                (tmp_path / "away.png").rename(source / "0.png")
        return decode_crops(rendered, *given, **options)

    monkeypatch.setattr(contents, "decode_crops", breaking)
    out = tmp_path / "out"
    manifest = pack([str(source)], str(out), tiny_config, PlainExecutor(), progress).manifest
    late = [row for row in pq.read_table(out / "rejects.parquet").to_pylist() if row["stage"] == "write"]
    assert late
    assert {row["doc_id"] for row in late} <= broken
    assert manifest.counts.documents == 29 - len(late)
    assert verify_dataset(str(out), processes=1, progress=progress).as_json()["broken"] == []


def test_what_fails_beside_is_raised_where_its_result_is_awaited() -> None:
    """Fails when an outage of the file system ends only the thread, and the job waits for ever."""

    def outage() -> None:
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        started(outage, BESIDE).result(timeout=LONG)


def test_nothing_more_is_read_or_decoded_when_nobody_waits(tiny_config: PackConfig) -> None:
    """Fails when a stopped job goes on decoding a whole pack in a thread that nobody sees."""
    ended = threading.Event()
    ended.set()
    contents_of_none = ShardContents([], tiny_config, ended)
    document = ShardDocument(row={}, file=None, source="")  # type: ignore[arg-type]
    contents_of_none.read([document])
    contents_of_none.decode([document])
    assert document.rendered is document.error is None
    assert not document.crops
