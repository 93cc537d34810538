"""Limits that keep packs from being fuller: the limit is named that does, with a value that planning proves."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

from preshard.packer_service.plan.cost import causal_area
from preshard.packer_service.plan.limits import GOOD_FILL, fill_limit, rejected_when_written
from preshard.packer_service.plan.make import plan_documents
from preshard.schemas.config import PackConfig, parse_config
from preshard.schemas.manifest import Counts

SMALL = {"seq_len": 1024, "cp_sizes": [1], "ring_degrees": [1], "block_size": 64, "max_images": None}


def columns_of(tokens: np.ndarray, images: np.ndarray, patches_each: int = 4) -> dict[str, np.ndarray]:
    nothing = np.zeros(len(tokens), np.int64)
    columns = {"tokens": tokens, "images": images, "patches": images * patches_each, "load": images}
    return {**columns, "area": causal_area(tokens), **dict.fromkeys(("source_number", "pass_number", "stage"), nothing)}


def fill_and_packs(columns: dict[str, np.ndarray], config: PackConfig) -> tuple[float, int]:
    plan = plan_documents(columns, config)
    return plan.length.sum() / (plan.n_packs * config.seq_len), plan.n_packs


def drawn(least: int, most: int, n: int = 2000, *, images: tuple[int, int] = (0, 1)) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return columns_of(rng.integers(least, most, n), rng.integers(*images, n))


CASES = {
    "max_images": (drawn(20, 60, images=(4, 12)), {"max_images": 16}),
    "max_patches": (drawn(20, 60, images=(4, 12)), {"max_patches": 64, "max_images": 10_000}),
    "both": (drawn(20, 60, images=(4, 12)), {"max_images": 16, "max_patches": 64}),
    "halves of max_images": (columns_of(np.full(300, 200), np.full(300, 9)), {"max_images": 16}),
    "layouts": (drawn(10, 30), {"cp_sizes": [1, 16], "ring_degrees": [1, 16], "seq_len": 4096}),
    "seq_len": (drawn(530, 600), {}),
    "documents": (drawn(20, 60, 5), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_limit_that_binds_is_named_with_a_value_that_fills_packs(name: str) -> None:
    """Fails when another limit is blamed, or when the fill that is promised is not that of a plan."""
    columns, settings = CASES[name]
    config = parse_config({**SMALL, **settings})
    fill, packs = fill_and_packs(columns, config)
    assert fill < 0.75, "packs are not nearly full"
    limit = fill_limit(columns, config, packs)
    assert limit is not None
    assert limit.key == {"both": "max_images", "halves of max_images": "max_images"}.get(name, name)
    assert limit.setting is not None
    changed = {key: yaml.safe_load(value) for key, value in (each.split("=") for each in _settings(limit.setting))}
    assert ("max_patches" in changed) == (name in ("max_patches", "both"))
    reached, _ = fill_and_packs(columns, parse_config({**SMALL, **settings, **changed}))
    assert limit.fill == pytest.approx(reached, abs=0.001)
    assert reached > max(fill + 0.2, 0.75)
    assert f"{reached:.1%}" in limit.message


def _settings(text: str) -> list[str]:
    return text.split(" ") if "[" not in text else [text]


def test_the_value_is_not_much_larger_than_it_has_to_be() -> None:
    """Fails when the search ends at no limit at all: a pack then holds more crops than its memory may take."""
    columns, settings = CASES["max_images"]
    config = parse_config({**SMALL, **settings})
    limit = fill_limit(columns, config, fill_and_packs(columns, config)[1])
    assert limit is not None
    assert limit.setting is not None
    value = int(limit.setting.removeprefix("max_images="))
    less, _ = fill_and_packs(columns, parse_config({**SMALL, "max_images": value * 9 // 10}))
    assert less < limit.fill - 0.02  # type: ignore[operator]


def test_full_packs_and_no_packs_have_no_limit() -> None:
    """Fails when a user is told to change what fills packs."""
    columns = drawn(20, 60)
    fill, packs = fill_and_packs(columns, parse_config(SMALL))
    assert fill > GOOD_FILL
    assert fill_limit(columns, parse_config(SMALL), packs) is None
    assert fill_limit(drawn(20, 60, 0), parse_config(SMALL), 0) is None


def test_places_of_documents_that_failed_when_written_are_no_limit_of_the_plan() -> None:
    """Fails when a dataset that lost its videos while they were decoded is said to need another configuration."""
    zeros = dict.fromkeys(Counts.model_fields, 0)
    failed = Counts(**{**zeros, "packs": 4, "tokens": 1000, "padding_tokens": 3096})
    found = rejected_when_written(None, 4000, failed)
    assert found is not None
    assert (found.key, found.setting) == ("rejects", None)
    assert "73.2%" in found.message
    whole = Counts(**{**zeros, "packs": 4, "tokens": 4000, "padding_tokens": 96})
    assert rejected_when_written(None, 4000, whole) is None
