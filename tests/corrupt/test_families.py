"""One dataset for a model of each family, corrupted in what its pictures, rows, marks and grids follow from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from preshard.packer_service.verify import Verdict

YOUNGER, TILED = ("qwen3_5", "glm4v", "glm46v", "gemma3", "gemma4"), ("molmo2", "internvl", "mistral3")
"""The second are those whose grids and rows follow from tiles."""

ONE_AXIS = ("exaone4_5", "kimi_k25")
"""Grids, each square of patches a row, under one axis of positions."""


def _seldom(family: str) -> list[Any]:
    return [pytest.mark.slow] * (family == "kimi_k25")


@pytest.fixture
def copy_for(
    packed_for: Callable[[str], Any], editable_of: Callable[[Path], Any], tmp_path: Path
) -> Callable[[str], Any]:
    """A copy of a family's dataset, to be corrupted."""
    return lambda family: editable_of(shutil.copytree(packed_for(family).path, tmp_path / "dataset"))


@pytest.mark.parametrize(
    "family", [*YOUNGER, *TILED, *(pytest.param(family, marks=_seldom(family)) for family in ONE_AXIS)]
)
def test_a_dataset_of_the_family_is_sound(
    family: str, packed_for: Callable[[str], Any], verify: Callable[[Path], Verdict]
) -> None:
    """Fails when a sound picture, tile, frame, position or group of the family is taken for a wrong one."""
    data = packed_for(family)
    verdict = verify(data.path)
    assert not verdict.broken, verdict.as_lines()
    kinds = [unit["kind"] for sample in data.samples() for unit in sample.head["units"]]
    assert len(kinds) >= 3
    if family in TILED and "frame" in kinds:
        assert _unit(data, "image", 3)["grid"][1:] != _unit(data, "frame")["grid"][1:]


def _shown(data: Any) -> Any:
    """A sample with a picture."""
    return data.sample_where(lambda sample: sample.head["units"])


def _first_row(sample: Any) -> int:
    return int(np.flatnonzero(sample.sequence["pool_ids"] >= 0)[0])


def _larger_load(data: Any) -> None:
    sample = _shown(data)
    unit = sample.head["units"][0]
    unit["load"] += 1
    sample.head["documents"][unit["document"]]["load"] += 1
    data.derive(sample)
    data.relist()


def _grid_of_more_patches(data: Any) -> None:
    _shown(data).head["units"][0]["grid"][2] += 2


def _row_on_another_token(data: Any) -> None:
    sample, rows = _shown(data), data.manifest["model"]["row_ids"]
    sample.sequence["tokens"][_first_row(sample)] = next(number for number in range(9) if number not in rows)


def _still_on_the_token_of_videos(data: Any) -> None:
    sample = data.sample_where(lambda s: s.head["units"] and s.head["units"][0]["kind"] == "image")
    sample.sequence["tokens"][sample.sequence["pool_ids"] >= 0] = data.manifest["model"]["row_ids"][1]


def _shifted_position(data: Any) -> None:
    sample = _shown(data)
    sample.sequence["position_ids"][0, _first_row(sample)] += 1


def _other_group(data: Any) -> None:
    """A row outside of its picture's group, or in a group of a model that has none."""
    sample = _shown(data)
    groups, row = sample.sequence["group_ids"], _first_row(sample)
    groups[row] = -1 if groups[row] >= 0 else groups.max() + 1
    data.derive(sample)


def _unit(data: Any, kind: str, crops: int = 1) -> dict[str, Any]:
    """A unit of the kind, of at least so many crops; any of a family that takes only images, and cuts none."""
    if data.manifest["model"]["settings"]["inputs"] == "pixtral":
        kind, crops = "image", 1
    for sample in data.samples():
        bounds = [0, *sample.head["cum_image_bounds"]]
        for number, unit in enumerate(sample.head["units"]):
            if unit["kind"] == kind and bounds[number + 1] - bounds[number] >= crops:
                found: dict[str, Any] = unit
                return found
    raise AssertionError(f"no {kind} of {crops} crops")


def _turned(data: Any) -> None:
    """Lays as many tiles otherwise: a tower of tiles for a row of them has rows for other patches."""
    unit = _unit(data, "image", 3)
    unit["grid"] = [1, unit["grid"][1] + 1, unit["grid"][2]]


def _one_tile_more(data: Any) -> None:
    unit, frame = _unit(data, "image", 3), _unit(data, "frame")
    margin = sum(data.manifest["model"]["settings"].get("overlap_margins", [0, 0]))
    unit["grid"][2] += frame["grid"][2] - margin


def _a_frame_of_two_tiles(data: Any) -> None:
    frame = _unit(data, "frame")
    margin = sum(data.manifest["model"]["settings"].get("overlap_margins", [0, 0]))
    frame["grid"][1] += frame["grid"][1] - margin


def _two_moments(data: Any) -> None:
    _unit(data, "frame")["grid"][0] = 2


def _a_step_of_time(data: Any) -> None:
    _shown(data).head["units"][0]["time_step"] = 1


def _a_frame_alone(data: Any) -> None:
    """Calls all frames of videos as those of tiles are called."""
    for sample in data.samples():
        for unit in sample.head["units"]:
            unit["kind"] = unit["kind"].removesuffix("s")


def _other_inputs(data: Any) -> None:
    data.manifest["model"]["settings"]["inputs"] = "patches"


Case = tuple[Callable[[Any], None], str, tuple[str, ...]]
OF_ALL: list[Case] = [
    (_larger_load, "P19", ()),
    (_grid_of_more_patches, "P19", ()),
    (_row_on_another_token, "P9", ()),
    (_shifted_position, "P6", ()),
    (_other_group, "P10", ("S6",)),  # groups are part of the mask, and the pack's cost follows from it
]
OF_TILES: list[Case] = [
    *((change, "P19", ()) for change in (_turned, _one_tile_more, _a_frame_of_two_tiles, _two_moments)),
    (_other_inputs, "P19", ("D14",)),
]
OF_ONE_AXIS: list[Case] = [*OF_ALL, (_a_step_of_time, "P19", ())]


@pytest.mark.parametrize(
    ("family", "case"),
    [
        *(
            (family, case)
            for names, cases in ((YOUNGER, OF_ALL), (TILED, OF_TILES))
            for family in names
            for case in cases
        ),
        *(pytest.param(family, case, marks=_seldom(family)) for family in ONE_AXIS for case in OF_ONE_AXIS),
        ("exaone4_5", (_a_frame_alone, "P19", ())),
        *((family, (_still_on_the_token_of_videos, "P9", ())) for family in ("qwen3_5", "gemma4")),
    ],
)
def test_a_broken_rule_of_the_family_is_named(
    family: str, case: Case, copy_for: Callable[[str], Any], assert_breaks: Callable[..., Verdict]
) -> None:
    """Fails when what a family's pictures lead to is taken as it is stored."""
    change, rule, also = case
    data = copy_for(family)
    change(data)
    data.save()
    assert_breaks(data, rule, *also)


@pytest.mark.parametrize("family", TILED)
@pytest.mark.parametrize("wrong", [None, [2], [0, 2], [True, 2], [4, 4]])
def test_settings_that_the_rows_do_not_follow_from_are_named(
    family: str, wrong: Any, copy_for: Callable[[str], Any], assert_breaks: Callable[..., Verdict]
) -> None:
    """Fails when verifying ends with a traceback over a manifest's settings, or takes any rows without them."""
    data = copy_for(family)
    settings = data.manifest["model"]["settings"]
    if settings["inputs"] == "pixtral":
        settings["pooling"] = wrong
    elif settings["inputs"] == "molmo2":
        settings |= {"image_pooling": wrong, "video_pooling": wrong}
    else:
        settings["overlap_margins"] = wrong
    data.save()
    assert_breaks(data, "P19", "D14")
