"""The keys of a what-if form against the configuration that they describe, and against what plans depend on."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from preshard.packer_service.report.planned.plan_keys import plan_keys, refuse_unanswered
from preshard.packer_service.report.planned.what_if import plan_table
from preshard.schemas.config import PackConfig, parse_config
from preshard.schemas.errors import ConfigError

SMALL: dict[str, Any] = {
    "seq_len": 2048,
    "block_size": 128,
    "cp_sizes": [2],
    "ring_degrees": [4],
    "max_images": 4,
    "layouts": ["balanced_gather"],
    "order": {"window": 2},
}

OTHER = {
    "seq_len": 4096,
    "max_images": 3,
    "max_patches": 6000,
    "oversize": "truncate",
    "mixture": {"a": 2},
    "epochs": 2,
    "cp_sizes": [1, 2],
    "ring_degrees": [2, 4],
    "layouts": ["contiguous"],
    "block_size": 512,
    "bidirectional": "none",
    "order.seed": 1,
    "order.window": 4,
    "vision.image_size": 756,
    "vision.patch_size": 7,
    "vision.pool_size": 9,
}
"""Another value for each key, where half of the present one will not do."""


def figures(config: dict[str, Any]) -> dict[str, Any]:
    """Figures in a plan of some documents."""
    tokens = [200 + 37 * i for i in range(39)] + [2500]
    table = pa.table(
        {
            "doc_id": [str(i) for i in range(len(tokens))],
            "tokens": pa.array(tokens, pa.int64()),
            "images": pa.array([i % 4 for i in range(len(tokens))], pa.int64()),
            "source": ["a", "b"] * (len(tokens) // 2),
        }
    )
    return plan_table(table, parse_config(config)).model_dump(mode="json", exclude={"plan_seconds"})


def changed(key: str, value: Any) -> dict[str, Any]:
    section, _, name = key.rpartition(".")
    return {**SMALL, **({section: {**SMALL.get(section, {}), name: value}} if section else {name: value})}


def _half(value: Any) -> Any:
    return value // 2 if isinstance(value, int) else value / 2


def test_a_form_offers_what_changes_a_plan() -> None:
    """Fails when a key is offered on which no figure of a plan depends."""
    before = figures(SMALL)
    offered = [key for key in plan_keys(parse_config(SMALL), of_dataset=False) if key.refused is None]
    assert {"seq_len", "mixture", "order.window", "cost.num_layers"} <= {key.key for key in offered}
    same = [key.key for key in offered if figures(changed(key.key, OTHER.get(key.key) or _half(key.value))) == before]
    assert same == []


def test_ranges_are_those_of_the_configuration() -> None:
    """Fails when a value beyond a key's range is legal, or the end of the range is not."""
    for key in plan_keys(PackConfig(), of_dataset=False):
        divides = key.key in ("seq_len", "block_size") or key.key.startswith("vision.")
        if key.kind == "integer" and key.most is not None and not divides:
            assert parse_config(changed(key.key, int(key.most)) if "." in key.key else {key.key: int(key.most)})
            with pytest.raises(ConfigError, match=key.key):
                parse_config(changed(key.key, int(key.most) + 1))


def test_what_a_plan_cannot_answer_is_refused() -> None:
    """Fails when a key that is refused in the form is answered when it is asked for all the same."""
    stored = parse_config({"vision": {"image_size": 56}})
    refuse_unanswered(parse_config({"seq_len": 32768}), PackConfig(), of_dataset=False)
    refuse_unanswered(parse_config({"vision": {"image_size": 28}}), PackConfig(), of_dataset=False)
    with pytest.raises(ConfigError, match=r"vision.image_size: a plan cannot say what 28 changes: crops are not cut"):
        refuse_unanswered(parse_config({"vision": {"image_size": 28}}), stored, of_dataset=True)
    with pytest.raises(ConfigError, match=r"jpeg_quality: a plan cannot say what 50 changes: a plan writes nothing"):
        refuse_unanswered(parse_config({"jpeg_quality": 50}), PackConfig(), of_dataset=False)
