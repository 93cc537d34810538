"""A video that a shard shows more than once: one pass, the same bytes, and nothing lost beside what is broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from preshard.packer_service.ingest.media import isolated
from preshard.packer_service.job.pack import pack
from preshard.packer_service.job.writing import contents
from preshard.packer_service.report.dataset import dataset_thinned, report_dataset, thinned_warnings
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig
from preshard.schemas.sections import VideoConfig

CLIPS: list[tuple[float, float]] = [(0, 3), (1, 4), (20, 22), (1, 4), (2.5, 6), (27, 29), (20.5, 21.5), (9, 11)]
"""Seconds of the film that each document shows, of which many overlap."""

ANSWER = {"role": "assistant", "content": "a film"}
SETTINGS: dict[str, Any] = {"seq_len": 256, "max_images": 8, "packs_per_shard": 1000}
FRAMES, STEP = 150, 200
BROKEN = range(7 * 5, 18 * 5)
"""Frames whose packets are damaged in a broken film: the last document alone needs some of them."""


def write_film(path: Path) -> None:
    y, x = np.mgrid[:64, :96]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"threads": "1", "bf": "2", "g": "12"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for number in range(FRAMES):
            pixels = np.stack([(x * 3 + 7 * number) % 256, (y * 5 + number) % 256, (x + y) % 256], -1).astype(np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuv420p")
            frame.pts, frame.time_base = number * STEP, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def damage(path: Path) -> None:
    """Overwrites the payload of packets in the middle."""
    with av.open(str(path)) as container:
        packets = [(p.pos, p.size, p.pts * p.time_base) for p in container.demux(video=0) if p.size]
    data = bytearray(path.read_bytes())
    for place, size, seconds in packets:
        if BROKEN.start * STEP <= seconds * 1000 < BROKEN.stop * STEP:
            data[place : place + size] = b"\xff" * size
    path.write_bytes(bytes(data))


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A film and a broken one, each of them once for all documents, and once more for each document."""
    folder = tmp_path_factory.mktemp("films")
    write_film(folder / "film.mp4")
    (folder / "broken.mp4").write_bytes((folder / "film.mp4").read_bytes())
    damage(folder / "broken.mp4")
    for name in ("film", "broken"):
        for number in range(len(CLIPS)):
            (folder / f"{name}{number}.mp4").write_bytes((folder / f"{name}.mp4").read_bytes())
    return folder


Packed = tuple[Path, list[int]]
"""A dataset, and how many pictures each pass was asked for."""


@pytest.fixture(scope="module")
def packed(
    films: Path, tiny_config: PackConfig, tmp_path_factory: pytest.TempPathFactory, progress: object
) -> Callable[[Callable[[int], str]], Packed]:
    """Packs one document per clip, of films that are named by its number."""

    def make(name: Callable[[int], str]) -> Packed:
        out, source = tmp_path_factory.mktemp("packed") / "dataset", films / "rows.jsonl"
        rows = [
            {
                "id": f"clip-{number}",
                "messages": [
                    {"role": "user", "content": [_video(f"{name(number)}.mp4", start, end)]},
                    {"role": "assistant", "content": f"answer {number}"},
                ],
            }
            for number, (start, end) in enumerate(CLIPS)
        ]
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        asked, original = list[int](), isolated.pictures

        def pictures(keep: Any, medium: Any, base: Any, shown: Any, config: PackConfig) -> Any:
            asked.append(len(shown))
            return original(keep, medium, base, shown, config)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(isolated, "pictures", pictures)
            pack([str(source)], str(out), tiny_config.model_copy(update=SETTINGS), PlainExecutor(), progress)
        return out, asked

    return make


@pytest.fixture(scope="module")
def alone(packed: Callable[[Callable[[int], str]], Packed]) -> Packed:
    """Each document shows a copy of the film that no other shows."""
    return packed(lambda number: f"film{number}")


def _video(name: str, start: float, end: float) -> dict[str, Any]:
    return {"type": "video", "video": name, "start": start, "end": end}


def shards(dataset: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((dataset / "shards").iterdir())]


def rejected(dataset: Path) -> dict[str, str]:
    return {row["doc_id"]: row["code"] for row in pq.read_table(dataset / "rejects.parquet").to_pylist()}


def test_clips_of_one_film_are_decoded_in_one_pass(
    packed: Callable[[Callable[[int], str]], Packed], alone: Packed
) -> None:
    """Fails when a film is decoded again for each pack, or a clip's bytes depend on what else shows the film."""
    together, passes = packed(lambda _: "film")
    documents = pq.read_table(together / "documents.parquet").to_pylist()
    n_pictures = sum(row["n_images"] for row in documents)
    assert len({row["pack_id"] for row in documents}) >= 3
    assert alone[1] == []
    assert len(passes) == 1
    assert passes[0] < n_pictures
    assert shards(together) == shards(alone[0])
    assert rejected(together) == {}


@pytest.mark.parametrize("limit", ["AHEAD_TOKENS", "AHEAD_PIXELS"])
def test_little_room_takes_several_passes(
    packed: Callable[[Callable[[int], str]], Packed], alone: Packed, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Fails when documents that are read ahead, or pictures that wait, have no bound, or a bound changes bytes."""
    monkeypatch.setattr(contents, limit, 50 if limit == "AHEAD_TOKENS" else 20_000)
    together, passes = packed(lambda _: "film")
    assert len(passes) > 1
    assert shards(together) == shards(alone[0])


def test_a_broken_place_rejects_the_documents_that_show_it(packed: Callable[[Callable[[int], str]], Packed]) -> None:
    """Fails when a film that breaks in the middle takes documents along that show other parts of it."""
    other, _ = packed(lambda number: f"broken{number}")
    together, passes = packed(lambda _: "broken")
    assert passes
    assert rejected(together) == rejected(other) == {"clip-7": "decode_failed"}
    assert shards(together) == shards(other)


def test_a_full_disk_is_no_reason_to_lose_a_document(
    packed: Callable[[Callable[[int], str]], Packed], alone: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when pictures that find no room on the disk end the job, or reject their documents."""

    class Full:
        def seek(self, *_: int) -> int:
            return 0

        def write(self, _: bytes) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None: ...

    monkeypatch.setattr(contents.tempfile, "TemporaryFile", Full)
    together, passes = packed(lambda _: "film")
    assert passes
    assert shards(together) == shards(alone[0])


def test_a_film_that_max_frames_thins_is_said(
    films: Path, tmp_path: Path, tiny_config: PackConfig, progress: object
) -> None:
    """Fails when a dataset does not say that a long film shows a frame in many seconds, or counts short clips."""
    rows = [
        {"id": f"clip-{number}", "messages": [{"role": "user", "content": [_video("film.mp4", *clip)]}, ANSWER]}
        for number, clip in enumerate([(0, 30), (4, 5), (10, 20)])
    ]
    source, out = films / "long.jsonl", tmp_path / "out"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = tiny_config.model_copy(update=SETTINGS | {"video": VideoConfig(fps=2, max_frames=4)})
    pack([str(source)], str(out), config, PlainExecutor(), progress)
    [said] = [line for line in report_dataset(str(out)).warnings if "max_frames" in line]
    assert said.startswith("video.max_frames 4 thins the videos of 2 documents, down to one frame in 7.5 s where ")
    assert thinned_warnings(dataset_thinned(Folder(str(out))), config) == [said]
