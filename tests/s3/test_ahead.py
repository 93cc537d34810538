"""Reading of a source in a store: several requests at a time, with the result of reading it from a disk."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from range_server import served_ranges
from stored import file_bytes

from preshard.packer_service.config import load_config
from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media import stores
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.media.stores import ImagesAhead
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.schemas.config import PackConfig

TOGETHER = 4
"""Requests that wait for each other."""
LONG = 60.0
"""Seconds after which a server answers all the same."""
PATIENCE = 1.0
"""Seconds after which a request has waited in vain for others; a client asks again after three."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve images, one of them broken, and rows that show them, two of them an image that is not there."""
    made = tmp_path / "source"
    made.mkdir()
    rows = []
    for number in range(12):
        Image.new("RGB", (40 + number, 30), (number * 20, 90, 10)).save(made / f"{number}.png")
        rows.append({"id": f"row {number}", "images": [f"{number}.png"], "text": "<image> and a word"})
    (made / "7.png").write_bytes(b"not an image")
    rows[3]["images"] = rows[8]["images"] = ["gone.png"]
    (made / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return made


class Gate:
    """Holds requests for images until several are there, and counts them for each time that an image is read.

    An image is asked for its size and for its bytes when it is measured, probed again and decoded.
    """

    def __init__(self) -> None:
        self.most = [0, 0, 0]
        self._there, self._asked, self._change = [0, 0, 0], Counter[str](), threading.Condition()

    def __call__(self, name: str) -> None:
        if not name.endswith(".png"):
            return
        with self._change:
            time = min(self._asked[name] // 2, 2)
            self._asked[name] += 1
            self._there[time] += 1
            self.most[time] = max(self.most[time], self._there[time])
            self._change.notify_all()
            self._change.wait_for(lambda: self.most[time] >= TOGETHER, PATIENCE)
            self._there[time] -= 1


def test_images_are_read_several_at_a_time(
    folder: Path, tiny_config: PackConfig, progress: Any, tmp_path: Path
) -> None:
    """Fails when each image waits for the one before it, or when a document is other than from a disk."""
    gate = Gate()
    with served_ranges(folder, before=gate) as server:
        uri = server.uri.replace("?", "/rows.jsonl?")
        outcome = pack([uri], str(tmp_path / "far"), tiny_config, PlainExecutor(), progress)
    assert min(gate.most) >= TOGETHER, gate.most
    assert outcome.manifest.counts.rejected == 3
    assert outcome.manifest.counts.documents == 9
    pack([str(folder / "rows.jsonl")], str(tmp_path / "near"), tiny_config, PlainExecutor(), progress)
    assert file_bytes(tmp_path / "far") == file_bytes(tmp_path / "near")


def test_rows_are_asked_for_together(folder: Path, tiny_settings: list[str], progress: Any, tmp_path: Path) -> None:
    """Fails when each row of a pack is a request when it is written."""
    text = "".join(json.dumps({"id": str(number), "text": "word " * 40}) + "\n" for number in range(30))
    (folder / "rows.jsonl").write_text(text, encoding="utf-8")
    with served_ranges(folder) as server:
        uri = server.uri.replace("?", "/rows.jsonl?")
        outcome = pack([uri], str(tmp_path / "far"), load_config(None, tiny_settings), PlainExecutor(), progress)
        assert outcome.manifest.counts.documents == 30
        assert server.requests["rows.jsonl"] < 20


def test_rows_of_many_bytes_are_read_one_after_the_other(
    folder: Path, tiny_config: PackConfig, progress: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when the rows beyond those that are loaded are lost or mixed up."""
    monkeypatch.setattr("preshard.packer_service.ingest.source.files.LOADED_BYTES", 200)
    with served_ranges(folder) as server:
        uri = server.uri.replace("?", "/rows.jsonl?")
        pack([uri], str(tmp_path / "far"), tiny_config, PlainExecutor(), progress)
        assert server.requests["rows.jsonl"] > 9, "more rows than that many bytes hold were read together"
    pack([str(folder / "rows.jsonl")], str(tmp_path / "near"), tiny_config, PlainExecutor(), progress)
    assert file_bytes(tmp_path / "far") == file_bytes(tmp_path / "near")


def test_whatever_is_taken_is_what_was_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when an image gets the bytes of another, where some are not taken, taken twice, or out of their order."""
    names = ["gone.png", "clip.mp4", *(f"{number}.png" for number in range(12))]
    large = max((folder / f"{number}.png").stat().st_size for number in range(12))
    monkeypatch.setattr(stores, "WHOLE", large - 1)
    media = {name: Medium(kind="video" if name == "clip.mp4" else "image", uri=name) for name in names}
    drawn = random.Random(3)
    with served_ranges(folder) as server:
        images = ImagesAhead()
        for _ in range(20):
            images.forget()
            expected = [media[drawn.choice(names)] for _ in range(drawn.randrange(40))]
            n_ahead = [images.expect([each], MediaReach.of(server.uri)) for each in expected]
            assert n_ahead == [int(each.kind == "image") for each in expected]
            taken = [each for each in expected if drawn.random() < 0.8]
            for medium in [*taken, *taken[:2], media["0.png"]]:
                found = images.take(medium, MediaReach.of(server.uri))
                assert found.uri == medium.uri
                if found.data is not None:
                    assert found.data == (folder / str(medium.uri)).read_bytes()
                    assert len(found.data) < large
        images.forget()
        assert images.expect([media["1.png"]], MediaReach.of(server.uri)) == 1
        assert images.take(media["1.png"], MediaReach.of(server.uri)).data == (folder / "1.png").read_bytes()
        assert images.take(media["1.png"], MediaReach.of(server.uri)).data is None
    assert images.expect([media["1.png"]], MediaReach.of(str(folder))) == 0
    assert images.expect([Medium(kind="image", data=b"inline")], MediaReach.of(server.uri)) == 0


def held(answers: threading.Event) -> None:
    answers.wait(LONG)


def test_a_store_that_hangs_is_left_to_the_decoder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a task waits for ever for an image that it wanted to have early."""
    monkeypatch.setattr(stores, "PATIENCE", 0.01)
    answers, medium = threading.Event(), Medium(kind="image", uri="1.png")
    with served_ranges(folder, before=lambda _: held(answers)) as server:
        images = ImagesAhead()
        assert images.expect([medium], MediaReach.of(server.uri)) == 1
        assert images.take(medium, MediaReach.of(server.uri)) is medium
        answers.set()
