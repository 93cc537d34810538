"""A tiny source of every kind of document, datasets packed from it, and one Ray for the whole session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer_service.config import PackConfig, load_config

TINY_SETTINGS = [
    "seq_len=1024",
    "block_size=32",
    "vision.image_size=56",
    "vision.pool_size=2",
    "max_images=24",
    "packs_per_shard=2",
    "order.window=4",
]


class Silent:
    """A progress that says nothing."""

    def note(self, message: str) -> None: ...

    def step(self, what: str, done: int, total: int) -> None: ...


@pytest.fixture(scope="session")
def progress() -> Silent:
    return Silent()


@pytest.fixture(scope="session")
def tiny_config() -> PackConfig:
    return load_config(None, TINY_SETTINGS)


@pytest.fixture(scope="session")
def tiny_settings() -> list[str]:
    return list(TINY_SETTINGS)


def _turns(question: list[Any] | str, answer: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _image(name: str) -> dict[str, str]:
    return {"type": "image", "image": name}


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"id": f"text-{i}", "source": "text", "text": f"line {i}. " * (3 + 11 * i)} for i in range(12)
    ]
    rows += [
        {
            "id": f"question-{i}",
            "source": "images",
            "messages": _turns(
                [*(_image(f"{j % 4}.png") for j in range(1 + i % 5)), {"type": "text", "text": "?"}], f"{i}"
            ),
        }
        for i in range(12)
    ]
    rows += [
        {
            "id": f"annotated-{i}",
            "source": "annotated",
            "media": [_image("1.png"), _image("2.png")],
            "annotations": [_turns(f"question {k}", f"answer {k} " * (k + 1)) for k in range(1 + i)],
        }
        for i in range(4)
    ]
    rows += [
        {"text": "without an id"},
        {"id": "text-1", "text": "the same id again"},
        {"id": "bad-empty", "source": "text", "text": " "},
        {"id": "bad-missing", "source": "images", "messages": _turns([_image("nowhere.png")], "x")},
        {"id": "bad-image", "source": "images", "messages": _turns([_image("zero.png")], "x")},
        {"id": "bad-long", "source": "text", "text": "word " * 2000},
        {"id": "bad-many", "source": "images", "messages": _turns([_image("0.png")] * 25, "x")},
        {"id": "bad-part", "source": "images", "messages": _turns([{"type": "audio", "audio": "x.wav"}], "x")},
    ]
    return rows


TINY_REJECTS = {
    "text-1": "duplicate_id",
    "bad-empty": "empty",
    "bad-missing": "missing_media",
    "bad-image": "bad_image",
    "bad-long": "too_long",
    "bad-many": "too_many_images",
    "bad-part": "bad_row",
    "tiny/rows.jsonl:37": "bad_row",
}


@pytest.fixture(scope="session")
def tiny_rejects() -> dict[str, str]:
    """Code of every document of the tiny source that must be rejected."""
    return dict(TINY_REJECTS)


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a JSON Lines file and the images it names: 29 good documents and the rejects of TINY_REJECTS."""
    folder = tmp_path_factory.mktemp("source") / "tiny"
    folder.mkdir()
    noise = np.random.default_rng(0)
    for i in range(4):
        Image.fromarray(noise.integers(0, 255, (40 + 30 * i, 90, 3), np.uint8)).save(folder / f"{i}.png")
    (folder / "zero.png").write_bytes(b"")
    lines = [json.dumps(row) for row in _rows()]
    (folder / "rows.jsonl").write_text("\n".join([*lines, "{not json", ""]), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tiny_dataset(
    tmp_path_factory: pytest.TempPathFactory, tiny_source: Path, tiny_config: PackConfig, progress: Silent
) -> Path:
    """The tiny source packed in this process. Read only: copy it before changing anything."""
    from packer_service.job import PlainExecutor, pack

    out = tmp_path_factory.mktemp("packed") / "dataset"
    pack([str(tiny_source)], str(out), tiny_config, PlainExecutor(), progress)
    return out


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int], list[str]]:
    """The demo source: its folder, its counts, and what was said while it was made."""
    from packer_service.demo_source import write_demo_source

    folder = tmp_path_factory.mktemp("demo") / "source"
    said: list[str] = []
    return folder, write_demo_source(folder, log=said.append), said


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One Ray with two CPUs for all tests that need it."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()
