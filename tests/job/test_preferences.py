"""Rows of preferences: both answers become branches of one prompt, each with what it has alone; pairs are never cut."""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from packed_models import VOCABULARY
from PIL import Image
from stored import documents

from preshard.packer_service.config import load_config
from preshard.packer_service.demo.model import write_model_folder
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.verify.dataset import verify_dataset

# This build of torchvision has operators for CUDA alone, and trl imports it.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))

pytestmark = pytest.mark.process  # packing decodes media in a process of its own

SETTINGS = [
    "seq_len=512",
    "block_size=32",
    "cp_sizes=[1,2]",
    "ring_degrees=[1,2]",
    "image_format=png",
    "order.window=1",
]

Row = dict[str, Any]


def said(role: str, content: Any) -> Row:
    return {"role": role, "content": content}


def rows() -> dict[str, list[Row]]:
    """Rows of TRL's forms, by what they test."""
    asked = [said("user", [{"type": "image"}, {"type": "text", "text": "What is this?"}])]
    explicit, implicit = [], []
    for number in range(4):
        answers = [said("assistant", f"It is noise {number}. " * (2 + number)), said("assistant", "A cat. " * 9)]
        explicit.append({"prompt": asked, "chosen": answers[:1], "rejected": answers[1:], "images": [f"{number}.png"]})
        question = [said("system", "Be brief."), said("user", f"{number}: Why? " * (1 + number))]
        implicit.append(
            {name: [*question, answer] for name, answer in zip(("chosen", "rejected"), answers, strict=True)}
        )
    plain = [
        {"prompt": "The sky is", "chosen": " blue.", "rejected": " green, as far as anybody can tell."},
        {"chosen": "The sun is in the sky.", "rejected": "The sun is in the sea, or so."},
    ]
    return {"explicit": explicit, "implicit": implicit, "plain": plain}


def write(folder: Path, name: str, given: list[Row]) -> Path:
    lines = [json.dumps({"id": f"{name}-{number}", **row}) for number, row in enumerate(given)]
    (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder / f"{name}.jsonl"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ``model``, images, and a file of each kind of rows. Read only."""
    folder = tmp_path_factory.mktemp("preferences")
    write_model_folder(folder / "model", "qwen3_vl", vocabulary=VOCABULARY)
    noise = np.random.default_rng(0)
    for number in range(4):
        Image.fromarray(noise.integers(0, 255, (70 + 30 * number, 90, 3), np.uint8)).save(folder / f"{number}.png")
    for name, given in rows().items():
        write(folder, name, given)
    return folder


def packed(source: list[Path], out: Path, settings: list[str], progress: Any) -> Path:
    config = load_config(None, settings, [str(path) for path in source])
    pack([str(path) for path in source], str(out), config, PlainExecutor(), progress)
    return out


@pytest.fixture(scope="module")
def dataset(source: Path, tmp_path_factory: pytest.TempPathFactory, progress: Any) -> Path:
    """All rows, packed. Read only."""
    files = [source / f"{name}.jsonl" for name in rows()]
    return packed(files, tmp_path_factory.mktemp("packed") / "out", [*SETTINGS, f"model={source / 'model'}"], progress)


def test_each_answer_has_the_tokens_that_it_has_alone(
    dataset: Path, source: Path, tmp_path: Path, progress: Any
) -> None:
    """Fails when an answer is written otherwise than as a completion of its prompt, loses the label of its first token,
    or has other positions; when the prompt of the implicit form is another one than TRL's, or is stored twice.
    """
    from trl import extract_prompt

    verdict = verify_dataset(str(dataset), processes=1, progress=progress)
    assert verdict.sound, verdict.as_lines()
    alone: list[Row] = []
    for name, given in rows().items():
        for number, row in enumerate(given):
            both = row if "prompt" in row else {**row, **extract_prompt(row)}
            alone += [
                {"id": f"{name}-{number} {side}", "prompt": both["prompt"], "completion": both[side]}
                | {key: row[key] for key in ("images",) if key in row}
                for side in ("chosen", "rejected")
            ]
    (source / "alone").mkdir(exist_ok=True)
    lines = "\n".join(map(json.dumps, alone))
    (source / "alone.jsonl").write_text(lines, encoding="utf-8")
    settings = [*SETTINGS, f"model={source / 'model'}"]
    right = {
        span["doc_id"]: arrays
        for span, arrays in documents(packed([source / "alone.jsonl"], tmp_path / "alone", settings, progress))
    }
    pairs = {span["doc_id"]: (span, arrays) for span, arrays in documents(dataset)}
    assert len(pairs) == sum(map(len, rows().values()))
    shared = 0
    for name, (span, arrays) in pairs.items():
        assert span["preference"] is True
        branch = arrays["branch_ids"]
        assert set(branch.tolist()) == {0, 1, 2}
        for number, side in enumerate(("chosen", "rejected"), start=1):
            own, expected = (branch == 0) | (branch == number), right[f"{name} {side}"]
            for array in ("tokens", "labels", "loss_weights", "position_ids"):
                np.testing.assert_array_equal(arrays[array][..., own], expected[array], err_msg=f"{name} {array}")
            np.testing.assert_array_equal(arrays["pool_ids"][own] >= 0, expected["pool_ids"] >= 0)
        shared += int((branch == 0).sum())
    assert shared > 0.3 * sum(span["length"] for span, _ in pairs.values())
    images = sum(span["n_images"] for span, _ in pairs.values())
    assert images == len(rows()["explicit"]), "each image is stored once"


def test_a_pair_is_shown_as_one(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails when nobody can see before packing which answer is taken for the better one."""
    from preshard.packer_service.cli import main

    with pytest.raises(SystemExit) as stopped:
        main(["show", str(source / "implicit.jsonl"), "--row", "1", "--set", f"model={source / 'model'}"])
    assert not stopped.value.code
    shown = capsys.readouterr().out
    assert "chosen and rejected after " in shown
    before, chosen, rejected = re.split(r"-- chosen, from .*|-- rejected, from .*", shown)
    assert "0: Why?" in before
    assert ("It is noise 0." in chosen, "A cat." in rejected) == (True, True)


def test_a_pair_is_never_cut_or_parted(dataset: Path, source: Path, tmp_path: Path, progress: Any) -> None:
    """Fails when ``oversize`` cuts an answer or gives each a pack of its own, at once or where a dataset is packed
    again; or when packing again forgets which answer is preferred.
    """
    longest = max(span["length"] for span, _ in documents(dataset))
    short = [f"seq_len={longest // 64 * 64}", "oversize=split", "max_images=null"]
    files = [source / f"{name}.jsonl" for name in rows()]
    at_once = packed(files, tmp_path / "once", [*SETTINGS, f"model={source / 'model'}", *short], progress)
    again = packed([dataset], tmp_path / "again", short, progress)
    for found in (at_once, again):
        rejected = pq.read_table(found / "rejects.parquet").to_pylist()
        assert {row["code"] for row in rejected} == {"too_long"}
        assert "with both answers, which are never cut" in rejected[0]["message"]
        kept = [span for span, _ in documents(found)]
        assert len(kept) + len(rejected) == sum(map(len, rows().values()))
        assert all(span["preference"] and span["piece"] == 0 for span in kept)
    first, second = ({p.name: p.read_bytes() for p in (each / "shards").iterdir()} for each in (at_once, again))
    assert first == second


def test_turns_and_weights_of_annotations_do_not_touch_a_pair(
    dataset: Path, source: Path, tmp_path: Path, progress: Any
) -> None:
    """Fails when ``turns: each`` makes branches of the answers' turns, or a pair counts by its number of branches."""
    settings = [*SETTINGS, f"model={source / 'model'}", "turns=each", "annotation_weight=sqrt"]
    found = packed([source / f"{name}.jsonl" for name in rows()], tmp_path / "each", settings, progress)
    for (span, arrays), (own_span, own_arrays) in zip(documents(found), documents(dataset), strict=True):
        assert span == own_span
        assert all(np.array_equal(arrays[name], own_arrays[name]) for name in arrays)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "chosen and rejected have the same tokens"),
        ({"prompt": "a", "chosen": "b"}, "has no rejected; a preference needs chosen and rejected"),
        ({"prompt": "a", "chosen": [said("assistant", "b")], "rejected": "c"}, "prompt is a string.* chosen a list"),
        ({"prompt": "a", "chosen": "b", "rejected": " "}, "rejected is empty"),
        (
            {"chosen": [said("user", "a"), said("assistant", "b")], "rejected": [said("user", "a")]},
            "rejected has no messages after the prompt",
        ),
        (
            {"prompt": "<image>", "chosen": "b", "rejected": "c", "images": ["0.png"]},
            "ends the prompt; put it into the prompt, before text",
        ),
        (
            {"prompt": "a", "chosen": "b <image>", "rejected": "c <image>", "images": ["0.png"]},
            "an image or video lies in chosen or rejected",
        ),
        (
            {
                "prompt": [said("user", "a")],
                "chosen": [{**said("assistant", "b"), "weight": 0.5}],
                "rejected": [said("assistant", "c")],
            },
            "a preference counts each token of an answer once",
        ),
    ],
)
def test_what_is_no_pair_is_rejected(source: Path, tmp_path: Path, progress: Any, row: Row, reason: str) -> None:
    """Fails when a row that shows no preference, or media that only one answer shows, is packed."""
    file = write(source, "bad", [row, {"prompt": "a", "chosen": "b", "rejected": "c"}])
    settings = [*SETTINGS, f"model={source / 'model'}"]
    found = packed([file], tmp_path / "bad", settings, progress)
    [rejected] = pq.read_table(found / "rejects.parquet").to_pylist()
    assert re.search(reason, rejected["message"]), rejected["message"]
