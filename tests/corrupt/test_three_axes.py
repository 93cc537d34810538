"""Datasets for a model with three axes of positions and groups over marks, made from sound ones, and corrupted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from preshard.packer_service.packs.rendered import grid_positions
from preshard.packer_service.verify import Verdict
from preshard.schemas.members import crc32c

MERGE = 2
"""A crop of the tiny configuration has 4 x 4 patches and four rows."""

PATCH = 14
PER_SECOND = 2

BREAK, END = "[IMG_BREAK]", "[IMG_END]"


@pytest.fixture(scope="module")
def for_a_model(packed: Callable[..., Path], editable_of: Callable[[Path], Any], tmp_path_factory: Any) -> Any:
    """A sound dataset as if it had been packed for a model. Read only."""
    data = editable_of(shutil.copytree(packed("image_format=png"), tmp_path_factory.mktemp("model") / "dataset"))
    marks = sorted({int(s.sequence["tokens"][unit["end"] - 1]) for s in data.samples() for unit in s.head["units"]})
    image_id = data.manifest["tokenizer"]["image_id"]
    assert len(marks) == 1, "units end with a mark"
    assert marks != [image_id], "units end with a mark"
    data.manifest["model"] = {
        "model_type": "three_axes",
        "files": {"config.json": "0" * 64},
        "axes": 3,
        "merge": MERGE,
        "row_ids": [image_id],
        "group_ids": [image_id, *marks],
        "settings": {
            "inputs": "qwen_vl",
            "encoder": _encoder(data.manifest["config"]["cost"]),
            "tokens_per_second": PER_SECOND,
        },
    }
    for sample in data.samples():
        for unit in sample.head["units"]:
            unit["kind"] = unit["kind"].replace("frame", "frames")
        _set_time_steps(sample)
        _with_three_axes(sample, [image_id, *marks])
        data.derive(sample)
    data.save()
    return data


def _encoder(cost: dict[str, int]) -> dict[str, Any]:
    """Dimensions under which a crop of 4 x 4 patches and four rows is as much work as in the generic way."""
    h, f, layers = (cost[f"vision_{name}"] for name in ("hidden_size", "intermediate_size", "num_layers"))
    return {
        **{"patch_size": [PATCH, PATCH], "temporal_patch_size": 1, "hidden_size": h, "intermediate_size": f},
        **{"mlp_matrices": 2, "layers": layers, "windowed_layers": 0, "window_size": 0},
        "patch_inputs": 3 * PATCH**2 + 2 + 4 * h,
        "row_inputs": 3 * h**2 + cost["intermediate_size"] * (2 * h + cost["hidden_size"]),
        **{"row_hidden": 1, "row_outputs": 0},
    }


def _set_time_steps(sample: Any) -> None:
    times: dict[tuple[int, int], list[float]] = {}
    units, images = sample.head["units"], sample.head["images"]
    for image in images:
        unit = units[image["unit"]]
        times.setdefault((unit["document"], unit["medium"]), []).append(image["timestamp"] or 0.0)
    for unit in units:
        own = times[unit["document"], unit["medium"]]
        seconds = (own[-1] - own[0]) / (len(own) - 1) if len(own) > 1 else 0
        unit["time_step"] = PER_SECOND * seconds or 1.0


def _with_three_axes(sample: Any, in_groups: list[int]) -> None:
    arrays, units = sample.sequence, sample.head["units"]
    bounds = np.array(sample.head["cum_token_pooling_bounds"])
    rows = np.where(arrays["pool_ids"] >= 0, np.searchsorted(bounds, arrays["pool_ids"], side="right"), -1)
    grids, media = np.array([unit["grid"] for unit in units]).reshape(-1, 3), [unit["medium"] for unit in units]
    positions = np.zeros((3, len(rows)), np.int32)
    for number, span in enumerate(sample.head["documents"]):
        inside = np.flatnonzero(arrays["doc_ids"] == number)
        branch = arrays["branch_ids"][inside]
        for which in range(branch.max() + 1):
            alone = inside[(branch == 0) | (branch == which)]
            steps = np.zeros(len(units), np.float32)
            positions[:, alone] = grid_positions(rows[alone].astype(np.int32), grids, np.array(media), steps, MERGE)
        assert span["length"] == len(inside)
    arrays["position_ids"] = positions
    grouped = np.isin(arrays["tokens"], in_groups) & (arrays["doc_ids"] >= 0)
    arrays["group_ids"][:] = -1
    arrays["group_ids"][grouped] = np.unique(arrays["doc_ids"][grouped], return_inverse=True)[1]


def test_a_dataset_of_three_axes_is_sound(for_a_model: Any, verify: Callable[[Path], Verdict]) -> None:
    """Fails when verifying reads positions or groups of a model as those of the generic way."""
    for_a_model.figure()
    verdict = verify(for_a_model.path)
    assert not verdict.broken, verdict.as_lines()
    heights = np.concatenate(
        [s.sequence["position_ids"][0] - s.sequence["position_ids"][1] for s in for_a_model.samples()]
    )
    assert (heights < 0).any(), "rows lie below each other"
    grouped = np.concatenate([s.sequence["group_ids"][s.sequence["pool_ids"] < 0] for s in for_a_model.samples()])
    assert (grouped >= 0).any(), "groups cover marks"


def _time(data: Any) -> None:
    sample = data.sample_where(lambda s: (s.sequence["pool_ids"] >= 0).any())
    sample.sequence["position_ids"][0, np.flatnonzero(sample.sequence["pool_ids"] >= 0)[0]] += 1


def _text_after_an_image(data: Any) -> None:
    """Text that goes on from the number of rows instead of the larger side."""
    sample = data.sample_where(lambda s: s.head["units"])
    unit = sample.head["units"][0]
    span = sample.head["documents"][unit["document"]]
    sample.sequence["position_ids"][:, unit["end"] : span["start"] + span["length"]] += 1


def _padding(data: Any) -> None:
    sample = data.sample_where(lambda s: (s.sequence["doc_ids"] < 0).any())
    sample.sequence["position_ids"][2, np.flatnonzero(sample.sequence["doc_ids"] < 0)[-1]] = 1


def _one_axis(data: Any) -> None:
    sequence = data.samples()[0].sequence
    sequence["position_ids"] = sequence["position_ids"][:1]


def _mark_without_its_group(data: Any) -> None:
    sample = data.sample_where(lambda s: ((s.sequence["group_ids"] >= 0) & (s.sequence["pool_ids"] < 0)).any())
    arrays = sample.sequence
    arrays["group_ids"][np.flatnonzero((arrays["group_ids"] >= 0) & (arrays["pool_ids"] < 0))[0]] = -1
    data.derive(sample)


def _row_on_another_token(data: Any) -> None:
    sequence = data.sample_where(lambda s: (s.sequence["pool_ids"] >= 0).any()).sequence
    sequence["tokens"][np.flatnonzero(sequence["pool_ids"] >= 0)[0]] = data.manifest["model"]["group_ids"][1]


def _grid_of_other_rows(data: Any) -> None:
    data.sample_where(lambda s: s.head["units"]).head["units"][0]["grid"] = [1, 4, 6]


def _grid_turned(data: Any) -> None:
    """Lays as many rows otherwise."""
    data.sample_where(lambda s: s.head["units"]).head["units"][0]["grid"] = [1, 2, 8]


def _and_its_document(data: Any, field: str, total: str) -> None:
    sample = data.sample_where(lambda s: s.head["units"])
    unit = sample.head["units"][0]
    unit[field] += 1
    sample.head["documents"][unit["document"]][total] += 1
    data.derive(sample)
    data.relist()


def _load_of_another_encoder(data: Any) -> None:
    _and_its_document(data, "load", "load")


def _patch_more(data: Any) -> None:
    _and_its_document(data, "patches", "n_patches")


def _frames(data: Any) -> list[dict[str, Any]]:
    """The units of a video of several frames."""
    sample = data.sample_where(lambda s: any(unit["kind"] == "frames" for unit in s.head["units"]))
    first = next(unit for unit in sample.head["units"] if unit["kind"] == "frames")
    video = (first["document"], first["medium"])
    units = [unit for unit in sample.head["units"] if (unit["document"], unit["medium"]) == video]
    assert len(units) > 2
    return units


def _time_step_of_another_rate(data: Any) -> None:
    for unit in _frames(data):
        unit["time_step"] *= 2


def _time_step_of_one_unit(data: Any) -> None:
    _frames(data)[1]["time_step"] += 0.25


def _time_step_of_a_still_image(data: Any) -> None:
    sample = data.sample_where(lambda s: any(unit["kind"] == "image" for unit in s.head["units"]))
    next(unit for unit in sample.head["units"] if unit["kind"] == "image")["time_step"] = 0.0


def _encoder_left_out(data: Any) -> None:
    del data.manifest["model"]["settings"]["encoder"]


def _size_that_the_picture_has_not(data: Any) -> None:
    data.sample_where(lambda s: s.crops).head["images"][0]["width"] += 14


def _id_outside_of_the_vocabulary(data: Any) -> None:
    data.manifest["model"]["group_ids"].append(data.manifest["tokenizer"]["vocab_size"])


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (_time, "P6"),
        (_text_after_an_image, "P6"),
        (_padding, "P4"),
        (_one_axis, "P2"),
        (_mark_without_its_group, "P10"),
        (_row_on_another_token, "P9"),
        (_grid_of_other_rows, "P19"),
        (_grid_turned, "P19"),
        (_load_of_another_encoder, "P19"),
        (_patch_more, "P19"),
        (_time_step_of_another_rate, "P19"),
        (_time_step_of_one_unit, "P19"),
        (_time_step_of_a_still_image, "P19"),
        (_encoder_left_out, "P19"),
        (_size_that_the_picture_has_not, "P16"),
        (_id_outside_of_the_vocabulary, "D2"),
    ],
)
def test_a_broken_rule_is_named(
    change: Callable[[Any], None],
    rule: str,
    for_a_model: Any,
    editable_of: Callable[[Path], Any],
    tmp_path: Path,
    assert_breaks: Callable[..., Verdict],
) -> None:
    """Fails when positions, groups or units of a model are not derived again."""
    data = editable_of(shutil.copytree(for_a_model.path, tmp_path / "dataset"))
    change(data)
    data.save()
    assert_breaks(data, rule, *(["P19"] if rule == "P16" else []))


def test_settings_that_units_cannot_be_derived_from_are_named(
    for_a_model: Any, editable_of: Callable[[Path], Any], tmp_path: Path, assert_breaks: Callable[..., Verdict]
) -> None:
    """Fails when a manifest's encoder or time is taken as it is, so that a check of units fails by itself later."""
    data = editable_of(shutil.copytree(for_a_model.path, tmp_path / "dataset"))
    settings = data.manifest["model"]["settings"]
    for wrong in (
        {**settings, "encoder": {**settings["encoder"], "layers": -1}},
        {**settings, "encoder": {name: value for name, value in settings["encoder"].items() if name != "layers"}},
        {**settings, "tokens_per_second": "2"},
    ):
        data.write_manifest({**data.manifest, "model": {**data.manifest["model"], "settings": wrong}})
        [fault] = assert_breaks(data, "D2").broken
        assert "layers" in fault.detail or "tokens_per_second" in fault.detail


def test_pictures_of_different_sizes_are_read(
    for_a_model: Any, editable_of: Callable[[Path], Any], tmp_path: Path
) -> None:
    """Fails when the reader takes every crop for a square, or gives a rank another rank's units."""
    import io

    from PIL import Image

    from preshard.trainer.data.dataset import PackedDataset

    data = editable_of(shutil.copytree(for_a_model.path, tmp_path / "dataset"))
    noise = np.random.default_rng(0)
    pixels: dict[tuple[int, int], np.ndarray] = {}
    for sample in data.samples():
        for number, image in enumerate(sample.head["images"]):
            image["width"], image["height"] = 28 + 14 * (number % 3), 42 + 14 * (number % 2)
            picture = noise.integers(0, 255, (image["height"], image["width"], 3), np.uint8)
            pixels[sample.head["pack_id"], number] = picture
            buffer = io.BytesIO()
            Image.fromarray(picture).save(buffer, "PNG")
            sample.crops[number] = buffer.getvalue()
            image["crc32c"] = crc32c(sample.crops[number])
    data.save()
    seen = 0
    for rank in (0, 1):
        for batch in PackedDataset(data.path, ulysses_degree=2, cp_rank=rank):
            assert batch.position_ids.shape == (3, 512)
            crops = range(batch.start_image_idx, batch.end_image_idx)
            assert [unit.rows for unit in batch.units] == [4] * len(crops)
            for number, picture in zip(crops, batch.pictures, strict=True):
                np.testing.assert_array_equal(picture.numpy(), pixels[batch.pack_id, number])
                seen += 1
    assert seen == len(pixels) > 20
