"""The vision encoder that a manifest describes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from transformers_alone import load_transformers

from preshard.packer_service.demo.model import model_config, tiny_model
from preshard.packer_service.ingest.families.folder import load_family
from preshard.schemas.manifest import ENCODER_KEY, VisionEncoder, encoder_of, tokens_per_second
from preshard.schemas.model.encoders import ENCODERS
from preshard.schemas.model.families import FAMILIES

LARGEST = 2**31 - 1
SIDES = ("temporal_patch_size",)
SIZES = tuple(name for name in VisionEncoder.model_fields if name not in (*SIDES, "patch_size"))
GOOD: dict[str, Any] = {**dict.fromkeys((*SIDES, *SIZES), 1), "patch_size": [14, 14]}


def described(**changed: object) -> VisionEncoder | None:
    return encoder_of({ENCODER_KEY: {**GOOD, **changed}})


@pytest.mark.parametrize("name", [*SIDES, *SIZES])
def test_the_least_and_the_largest_size_are_legal_and_the_next_are_not(name: str) -> None:
    """Fails when a size that is divided by may be 0, or one may be too large for the sums made of it."""
    least = 1 if name in SIDES else 0
    for legal in (least, LARGEST):
        assert getattr(described(**{name: legal}), name) == legal
    for wrong in (least - 1, LARGEST + 1, "1", 1.0, True):
        with pytest.raises(ValueError, match=rf"^encoder: {name}: "):
            described(**{name: wrong})


@pytest.mark.parametrize("sides", [[14], [14, 14, 14], [0, 14], [14, LARGEST + 1]])
def test_a_patch_has_two_sides(sides: list[int]) -> None:
    """Fails when a patch of one side, or of none, is taken."""
    assert described(patch_size=[1, LARGEST]) is not None
    with pytest.raises(ValueError, match=r"^encoder: patch_size"):
        described(patch_size=sides)


def test_what_is_described_is_whole_and_stays() -> None:
    """Fails when an unknown dimension is passed over, a missing one has a default, or one is changed later."""
    for wrong in ({"heads": 16}, {"layers": None}):
        with pytest.raises(ValueError, match="encoder"):
            described(**wrong)
    encoder = described()
    assert encoder is not None
    with pytest.raises(ValidationError, match="frozen"):
        encoder.layers = 2  # type: ignore[misc]
    assert encoder_of({}) is None


def test_the_growth_of_positions_is_a_number_or_none() -> None:
    """Fails when a text or a truth value is taken for tokens per second."""
    assert tokens_per_second({"tokens_per_second": 2}) == 2
    assert tokens_per_second({}) is None
    for wrong in (True, "2"):
        with pytest.raises(ValueError, match="not a number"):
            tokens_per_second({"tokens_per_second": wrong})


@pytest.mark.parametrize("family", FAMILIES)
def test_the_encoder_of_a_configuration_is_that_of_its_folder(tmp_path: Path, family: str) -> None:
    """Fails when a family's encoder is counted by one rule for packs and by another for the memory of a run, or where
    ``transformers`` takes other values for what a file leaves out.
    """
    ids = {mark: number for number, mark in enumerate(tiny_model(family).marks)}
    for name, values in {"config.json": model_config(family, ids, 1000), **tiny_model(family).processors}.items():
        (tmp_path / name).write_text(json.dumps(values))
    whole = load_transformers().AutoConfig.from_pretrained(tmp_path).to_dict()
    assert ENCODERS[family](whole) == encoder_of(load_family(str(tmp_path), "torchvision").family.settings)


def test_every_family_has_an_encoder() -> None:
    """Fails when a run of a new family is estimated as if it had none."""
    assert ENCODERS.keys() == FAMILIES.keys()
