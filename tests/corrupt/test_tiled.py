"""Datasets of the families with one axis of positions, corrupted in what their grids and rows follow from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from preshard.packer_service.verify import Verdict


@pytest.fixture(scope="module", params=["molmo2", "internvl", "mistral3"])
def tiled(request: Any, packed_for: Callable[[str], Any]) -> Any:
    """A sound dataset of images and a clip for a model of the family. Read only."""
    return packed_for(request.param)


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


def test_tiled_units_are_derived_again(tiled: Any, verify: Callable[[Path], Verdict]) -> None:
    """Fails when a sound image of several tiles, or a frame, is taken for a wrong one."""
    verdict = verify(tiled.path)
    assert not verdict.broken, verdict.as_lines()
    kinds = {unit["kind"] for sample in tiled.samples() for unit in sample.head["units"]}
    if "frame" in kinds:
        assert _unit(tiled, "image", 3)["grid"][1:] != _unit(tiled, "frame")["grid"][1:]


def _turned(data: Any) -> None:
    """As many tiles, which would lie otherwise: a tower of tiles for a row of them has rows for other patches."""
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


def _other_inputs(data: Any) -> None:
    data.manifest["model"]["settings"]["inputs"] = "patches"


@pytest.mark.parametrize("change", [_turned, _one_tile_more, _a_frame_of_two_tiles, _two_moments, _other_inputs])
def test_a_wrong_grid_is_named(
    change: Callable[[Any], None],
    tiled: Any,
    editable_of: Callable[[Path], Any],
    tmp_path: Path,
    assert_breaks: Callable[..., Verdict],
) -> None:
    """Fails when the grid of a unit with one axis of positions is taken as it stands."""
    data = editable_of(shutil.copytree(tiled.path, tmp_path / "dataset"))
    change(data)
    data.save()
    assert_breaks(data, "P19")


@pytest.mark.parametrize("wrong", [None, [2], [0, 2], [True, 2], [4, 4]])
def test_settings_that_the_rows_do_not_follow_from_are_named(
    wrong: Any,
    tiled: Any,
    editable_of: Callable[[Path], Any],
    tmp_path: Path,
    assert_breaks: Callable[..., Verdict],
) -> None:
    """Fails when verifying ends with a traceback over a manifest's settings, or takes any rows without them."""
    data = editable_of(shutil.copytree(tiled.path, tmp_path / "dataset"))
    settings = data.manifest["model"]["settings"]
    if settings["inputs"] == "pixtral":
        settings["pooling"] = wrong
    elif settings["inputs"] == "molmo2":
        settings |= {"image_pooling": wrong, "video_pooling": wrong}
    else:
        settings["overlap_margins"] = wrong
    data.save()
    assert_breaks(data, "P19")
