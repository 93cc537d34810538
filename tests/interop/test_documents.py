"""Documents of packs for each kind of model, taken out without any code of ours, beside what ``transformers`` makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compared_documents import FAMILIES, SETTINGS, compared, conversations, differences, media_of
from made_by_transformers import Transformers
from mixed_source import IMAGES_ONLY, TEXT_ONLY, Row, write_source
from taken_documents import taken_documents

from preshard.packer_service.config import load_config
from preshard.packer_service.demo.model import write_model_folder
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.verify import verify_dataset
from preshard.trainer.data.dataset import PackedDataset

VOCABULARY = 1500
"""Enough of Qwen's vocabulary for words to be several tokens, and few enough to be written at once."""


OFTEN = {"qwen3", "molmo2"}


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] * (name not in OFTEN)) for name in FAMILIES]
)
def test_every_document_of_a_pack_is_what_transformers_makes_of_it_alone(
    tmp_path: Path, progress: Any, family: str
) -> None:
    """Fails when packing, storing or numbering changes a token, label, position, pair of the mask, grid or pixel, or
    when verifying derives other loads, patches or time steps of a family's units than packing gives."""
    source, model, dataset = tmp_path / "source", tmp_path / "model", tmp_path / "dataset"
    source.mkdir()
    rows = write_source(source, 7, takes=FAMILIES[family], largest=160)
    write_model_folder(model, family, vocabulary=VOCABULARY)
    config = load_config(None, [f"model={model}", *SETTINGS])
    pack([str(source)], str(dataset), config, PlainExecutor(), progress)
    verdict = verify_dataset(str(dataset), processes=1, progress=progress)
    assert not verdict.broken, verdict.as_lines()
    oracle = Transformers(model)
    found = dict(compared(dataset, source, rows, oracle))
    assert {what: words for what, words in found.items() if words} == {}
    assert len(found) == (7 if family == "qwen3" else 9), "one of the rows has three annotations"
    kinds = {unit["kind"] for taken in taken_documents(dataset) for unit in taken.units}
    assert len(kinds) == {TEXT_ONLY: 0, IMAGES_ONLY: 1}.get(FAMILIES[family], 2), "the packs hold images and a video"
    if family != "qwen3":
        _check_inputs_of_batches(dataset, source, rows, oracle)
        _check_that_changes_are_found(dataset, source, rows, oracle)


def _check_inputs_of_batches(dataset: Path, source: Path, rows: dict[str, Row], oracle: Transformers) -> None:
    """Checks that the trainer rebuilds from stored PNGs what the processor makes of the files that were packed."""
    theirs: dict[str, list[np.ndarray]] = {}
    for taken in taken_documents(dataset):
        row = rows[taken.doc_id]
        for messages in conversations(row)[:1]:
            for name, array in oracle.conversation(messages, list(media_of(taken, row, source))).inputs.items():
                theirs.setdefault(name, []).append(array)
    ours: dict[str, list[np.ndarray]] = {}
    for batch in sorted(PackedDataset(str(dataset)), key=lambda batch: batch.pack_id):
        for name, tensor in batch.model_inputs().items():
            ours.setdefault(name, []).append(tensor.numpy())
    assert ours.keys() == theirs.keys()
    for name in theirs:
        if name.startswith("pixel_values"):
            np.testing.assert_array_equal(*(_joined(parts, name) for parts in (ours, theirs)))


def _joined(inputs: dict[str, list[np.ndarray]], name: str) -> np.ndarray:
    """Parts of an input one after the other; of images that have zeros around them, the images."""
    if "image_sizes" not in inputs:
        return np.concatenate(inputs[name])
    images = [image for part in inputs[name] for image in part]
    sizes = np.concatenate(inputs["image_sizes"]).tolist()
    return np.concatenate([image[:, :high, :wide].ravel() for image, (high, wide) in zip(images, sizes, strict=True)])


def _check_that_changes_are_found(dataset: Path, source: Path, rows: dict[str, Row], oracle: Transformers) -> None:
    [taken] = [taken for taken in taken_documents(dataset) if taken.doc_id == "document 0"]
    row = rows[taken.doc_id]
    made = oracle.conversation(row["messages"], list(media_of(taken, row, source)))
    first_row = int(np.argmax(taken.arrays["pool_ids"] >= 0))
    for name, word in {
        **{"tokens": "tokens", "labels": "labels", "loss_weights": "weights", "position_ids": "positions"},
        **{"branch_ids": "mask", "pool_ids": "tokens of a unit"},
    }.items():
        values = taken.arrays[name].copy()
        values[..., first_row] += -values[first_row] - 1 if name == "pool_ids" else 1
        [first, *_] = differences(replace(taken, arrays=taken.arrays | {name: values}), made, oracle)
        assert first.startswith(word)
    taken.crops[-1][-1].pixels = taken.crops[-1][-1].pixels ^ 1
    [found] = differences(taken, made, oracle)
    assert found.startswith("pixel_values: ")
