"""One dataset for a model of each younger family, corrupted in what its pictures, rows and marks follow from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from preshard.packer_service.verify import Verdict


@pytest.fixture(scope="module", params=["qwen3_5", "glm4v", "glm46v", "gemma3", "gemma4"])
def of_family(request: Any, packed_for: Callable[[str], Any]) -> Any:
    """Read only."""
    return packed_for(request.param)


def test_a_dataset_of_the_family_is_sound(of_family: Any, verify: Callable[[Path], Verdict]) -> None:
    """Fails when a sound picture, frame, position or group of the family is taken for a wrong one."""
    verdict = verify(of_family.path)
    assert not verdict.broken, verdict.as_lines()
    assert sum(len(sample.head["units"]) for sample in of_family.samples()) >= 3


def _first_row(sample: Any) -> int:
    return int(np.flatnonzero(sample.sequence["pool_ids"] >= 0)[0])


def _larger_load(data: Any, sample: Any) -> None:
    unit = sample.head["units"][0]
    unit["load"] += 1
    sample.head["documents"][unit["document"]]["load"] += 1
    data.derive(sample)
    data.relist()


def _grid_of_more_patches(_: Any, sample: Any) -> None:
    sample.head["units"][0]["grid"][2] += 2


def _row_on_another_token(data: Any, sample: Any) -> None:
    rows = data.manifest["model"]["row_ids"]
    sample.sequence["tokens"][_first_row(sample)] = next(number for number in range(9) if number not in rows)


def _shifted_position(_: Any, sample: Any) -> None:
    sample.sequence["position_ids"][0, _first_row(sample)] += 1


def _other_group(data: Any, sample: Any) -> None:
    """A row outside of its picture's group, or in a group of a model that has none."""
    groups, row = sample.sequence["group_ids"], _first_row(sample)
    groups[row] = -1 if groups[row] >= 0 else groups.max() + 1
    data.derive(sample)


@pytest.mark.parametrize(
    ("change", "rule", "also"),
    [
        (_larger_load, "P19", ()),
        (_grid_of_more_patches, "P19", ()),
        (_row_on_another_token, "P9", ()),
        (_shifted_position, "P6", ()),
        (_other_group, "P10", ("S6",)),  # groups are part of the mask, and the pack's cost follows from it
    ],
)
def test_a_broken_rule_of_the_family_is_named(
    change: Callable[[Any, Any], None],
    rule: str,
    also: tuple[str, ...],
    of_family: Any,
    editable_of: Callable[[Path], Any],
    tmp_path: Path,
    assert_breaks: Callable[..., Verdict],
) -> None:
    """Fails when what a family's pictures lead to is taken as it is stored."""
    data = editable_of(shutil.copytree(of_family.path, tmp_path / "dataset"))
    change(data, data.sample_where(lambda sample: sample.head["units"]))
    data.save()
    assert_breaks(data, rule, *also)
