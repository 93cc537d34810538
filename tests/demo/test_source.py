"""The demo source is real, is the same every time, and holds what EXPECTED.json says."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import av
import pyarrow.parquet as pq
import pytest

from preshard.packer_service.demo import media, source
from preshard.packer_service.demo.media import RECIPES, Clips, encode
from preshard.packer_service.demo.source import EXPECTED, INLINE_ROWS, ROWS, write_demo_source
from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.media.video import probe_video
from preshard.packer_service.ingest.source.files import list_fragments
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.packer_service.job.planning.measure import measure_fragment
from preshard.packer_service.job.planning.measured import keep_measured
from preshard.packer_service.job.planning.partitions import PartitionPlanner
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.runtime.progress import ConsoleProgress
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DUPLICATES, REJECT_CODES, ConfigError, PreshardError


@pytest.fixture(scope="module")
def measured(
    demo: tuple[Path, dict[str, int], list[str]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Good rows and rejects, as the packer measures them with the default configuration."""
    fragments = list_fragments(list_sources([str(demo[0])]).files)
    tables = [measure_fragment(fragment, PackConfig()) for fragment in fragments]
    work = Folder(str(tmp_path_factory.mktemp("work")))
    planner = PartitionPlanner(work=work, config=PackConfig(), executor=PlainExecutor(), progress=ConsoleProgress())
    kept = [keep_measured(work, number, found, 0.0).kept for number, found in enumerate(tables)]
    planner.merge(fragments, {each.number: each for each in kept})
    planned = planner.plan(list(dict.fromkeys(fragment.file for fragment in fragments)), {})
    rejects = [reject for part in planned.rejects() for reject in part.to_pylist()]
    rejected_rows = {(reject["doc_id"], reject["location"]) for reject in rejects}
    good = [row for found in tables for row in found.table.to_pylist() if row["code"] is None]
    assert len(rejected_rows) == len(rejects)
    return good, rejects


def test_it_is_small_and_says_what_it_does(demo: tuple[Path, dict[str, int], list[str]]) -> None:
    # Fails when the demo grows too large to be made on a laptop, or is made without a word.
    folder, counts, said = demo
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert size < 20e6
    assert counts["documents"] >= 300
    assert len(said) >= 3


def test_what_is_measured_is_what_was_expected(demo: tuple[Path, dict[str, int], list[str]], measured: Any) -> None:
    # Fails when a bad document passes, a good one does not, or one gets another code than it is there to show.
    expected = json.loads((demo[0] / EXPECTED).read_text())
    good, rejects = measured
    found: dict[str, list[str]] = {}
    for reject in rejects:
        found.setdefault(reject["code"], []).append(reject["doc_id"].removeprefix("source/"))
    when_decoded = expected["rejects"].pop("decode_failed")
    assert {code: sorted(ids) for code, ids in found.items()} == expected["rejects"]
    # The first of two duplicates is good; what only the decoder finds is measured as good.
    assert len(good) - 1 - len(when_decoded) == expected["documents"] == demo[1]["documents"]
    others = {"too_many_images", "too_many_patches", "unreachable_media", "lost_rows", *DUPLICATES}
    assert {*found, "decode_failed"} == set(REJECT_CODES) - others


def test_the_documents_are_of_many_kinds_and_sizes(measured: Any) -> None:
    # Fails when a kind of document is missing, so that the demo would not exercise it.
    good, _ = measured
    assert set(Counter(row["source"] for row in good)) == {
        "docs_text", "image_qa", "inline_qa", "multi_qa", "video_qa",
    }  # fmt: skip
    images = [row["images"] for row in good if row["source"] == "video_qa"]
    assert min(images) == 1
    assert max(images) >= 30
    assert max(row["tokens"] for row in good) < PackConfig().seq_len


def test_every_form_of_row_is_there(demo: tuple[Path, dict[str, int], list[str]]) -> None:
    # Fails when a form that the source may have (system turn, several turns, annotations, inline bytes) is not shown.
    lines = (demo[0] / ROWS).read_text().splitlines()
    with pytest.raises(json.JSONDecodeError):
        json.loads(lines[-1])
    rows = [json.loads(line) for line in lines[:-1]]
    chats = [row["messages"] for row in rows if "messages" in row]
    assert any(chat[0]["role"] == "system" for chat in chats)
    assert any(sum(turn["role"] == "assistant" for turn in chat) > 1 for chat in chats)
    assert max(json.dumps(chat).count('"type": "image"') for chat in chats) >= 9
    assert max(len(row.get("annotations", [])) for row in rows) >= 4
    inline = pq.read_table(demo[0] / INLINE_ROWS).to_pylist()
    assert sum(row["annotations"] is not None for row in inline) > 5
    assert sum(row["messages"] is not None for row in inline) > 5


def test_the_answers_are_true(demo: tuple[Path, dict[str, int], list[str]]) -> None:
    # Fails when what an answer says of a clip is not what is in the file.
    rows = {row["id"]: row for row in map(json.loads, (demo[0] / ROWS).read_text().splitlines()[:-1])}
    said = rows["multi-bikes-mp4-1"]["annotations"][1][1]["content"]
    part = rows["multi-bikes-mp4-1"]["media"][0]
    medium = Medium(kind="video", uri=part["video"], start=part["start"], end=part["end"])
    assert (
        said
        == f"It has {probe_video(medium, MediaReach.of(str(demo[0])), fps=1000.0, max_frames=9999).n_frames} frames."
    )
    assert rows["image-coffee-size"]["messages"][1]["content"].startswith("600 x 400 pixels")
    assert rows["video-bikes-mp4"]["messages"][2]["content"].endswith("for 10.0 seconds.")
    turned = rows["video-bunny_turned-mp4"]["messages"][4]["content"]
    assert turned == "144 x 256 pixels."


def test_encoding_gives_the_same_bytes(demo: tuple[Path, dict[str, int], list[str]], tmp_path: Path) -> None:
    # Fails when a clock, a thread count or a random number enters a file: no two demos would pack alike.
    videos, names = demo[0] / "videos", ("bikes_b_frames.mp4", "bikes_uneven.mkv", "bunny_five.webm", "car_twelve.avi")
    chosen = [recipe for recipe in RECIPES if recipe.name in names]
    assert len(chosen) == len(names)
    clips = Clips(videos)
    for recipe in chosen:
        encode(tmp_path / recipe.name, clips.pictures(recipe), recipe)
        assert (tmp_path / recipe.name).read_bytes() == (videos / recipe.name).read_bytes(), recipe.name
    with av.open(str(videos / "bikes_b_frames.mp4")) as container:
        ticks = [packet.pts for packet in container.demux(video=0) if packet.size]
    assert ticks != sorted(ticks), "no frame is stored out of order"


def test_a_source_that_is_written_again_is_the_same_file(tmp_path: Path) -> None:
    # Fails when `preshard demo-source` in a folder that was packed makes the next `make demo` refuse its dataset.
    for content, changed in ((b"rows", True), (b"rows", False), (b"others", True)):
        os.utime(tmp_path / ROWS, (0, 0)) if (tmp_path / ROWS).exists() else None
        source._put(tmp_path / ROWS, content)
        assert ((tmp_path / ROWS).read_bytes(), (tmp_path / ROWS).stat().st_mtime > 0) == (content, changed)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Fails when a demo without its packages ends in a traceback.
    monkeypatch.setattr(media, "find_spec", lambda _: None)
    with pytest.raises(PreshardError, match=r"skimage.*pip install 'preshard\[demo\]'"):
        write_demo_source(tmp_path, log=lambda _: None)


def test_a_folder_that_cannot_be_made_is_a_users_mistake(tmp_path: Path) -> None:
    # Fails when a wrong path ends in a traceback, or in exit status 1.
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_demo_source(tmp_path / "file/inside", log=lambda _: None)
