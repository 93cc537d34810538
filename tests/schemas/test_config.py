"""The configuration as a manifest stores it: complete, legal, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from preshard.schemas.codec import decode_manifest
from preshard.schemas.config import PackConfig, parse_config, stored_config
from preshard.schemas.errors import ConfigError, ManifestInvalid
from preshard.schemas.files.validation import first_violation, nearest_multiples, violations_of
from preshard.schemas.manifest import Manifest


@pytest.fixture
def manifest(tiny_dataset: Path) -> Manifest:
    return decode_manifest((tiny_dataset / "manifest.json").read_bytes(), "manifest.json")


def test_what_is_stored_is_what_packed(manifest: Manifest, tiny_config: PackConfig) -> None:
    """Fails when a value changes its type or its order on the way through JSON."""
    assert stored_config(manifest) == tiny_config
    assert parse_config(tiny_config.model_dump(mode="json")) == tiny_config


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda config: config.pop("seq_len"), "config.seq_len is not written out"),
        (lambda config: config["order"].pop("window"), "config.order.window is not written out"),
        (lambda config: config.pop("vision"), "config.vision is not written out"),
        (
            lambda config: config.pop("images"),
            "config.images is not written out.*earlier preshard.*pack its sources again",
        ),
        (lambda config: config.update(extra=1), "config.extra: unknown key; legal here: seq_len"),
        (lambda config: config["video"].update(rate=1), "config.video.rate: unknown key; legal here: fps, max_frames"),
        (lambda config: config.update(seq_len="1024"), "config.seq_len: '1024' is not legal: input should be"),
        (lambda config: config.update(seq_len=1025), "config.seq_len 1025 does not divide evenly"),
    ],
)
def test_a_stored_configuration_has_every_key(
    manifest: Manifest, edit: Callable[[dict[str, Any]], object], said: str
) -> None:
    """Fails when a missing key is replaced by a default in silence: a reader would take another pack for this one."""
    config = {key: dict(value) if isinstance(value, dict) else value for key, value in manifest.config.items()}
    edit(config)
    with pytest.raises(ManifestInvalid, match=said):
        stored_config(manifest.model_copy(update={"config": config}))


def test_a_model_decides_alone() -> None:
    """Fails when a key that the model folder decides is taken beside it, or a default is held against it."""
    assert parse_config({"model": "folder"}).model == "folder"
    for key, given in (("tokenizer", "other"), ("bidirectional", "none"), ("vision", {"max_crops": 4})):
        with pytest.raises(ConfigError, match="contradicts model, whose folder decides it"):
            parse_config({"model": "folder", key: given})
        parse_config({key: given})


def test_values_given_twice_are_told() -> None:
    """Fails when a degree listed twice makes two layouts of one name."""
    for key in ("cp_sizes", "ring_degrees"):
        with pytest.raises(ConfigError, match=rf"{key} \[1, 2, 1\] contains a value twice"):
            parse_config({key: [1, 2, 1]})


@pytest.mark.parametrize(
    ("value", "step", "said"),
    [(10, 4, "8 and 12"), (3, 4, "4"), (8, 4, "8"), (0, 4, "0"), (1, 1, "1"), (5, 2, "4 and 6")],
)
def test_nearest_multiples(value: int, step: int, said: str) -> None:
    """Fails when a message proposes 0, or a value that is not a multiple."""
    assert nearest_multiples(value, step) == said


def test_violations_are_worded_once() -> None:
    """Fails when an acronym loses its capitals, or the place of a fault inside a list is lost."""

    class Model(BaseModel):
        sizes: list[int]

    with pytest.raises(ValidationError) as caught:
        Model.model_validate({"sizes": [1, "x"]})
    violation = first_violation(caught.value)
    assert (violation.path, violation.value) == ("sizes.1", "x")
    assert str(violation).startswith("sizes.1: input should be a valid integer")
    with pytest.raises(ValidationError) as caught:
        Model.model_validate_json("[")
    assert str(first_violation(caught.value)).startswith("invalid JSON")


@pytest.mark.parametrize(
    ("message", "said"),
    [("Field required", "field required"), ("IPv4 expected", "IPv4 expected"), ("JSON expected", "JSON expected")],
)
def test_acronyms_keep_their_capitals(message: str, said: str) -> None:
    """Fails when a name in capitals is written as a word."""
    [violation] = violations_of([{"loc": (), "msg": message, "input": 1, "type": "missing"}])
    assert str(violation) == said


def test_zigzag_cuts_a_pack_into_two_chunks_for_each_ring_rank() -> None:
    """Fails when a pack that divides by the ring ranks alone is taken for a layout with two chunks of each."""
    given: dict[str, Any] = {"cp_sizes": (1,), "ring_degrees": (4,), "layouts": ("zigzag",)}
    assert PackConfig(**given, seq_len=24).seq_len == 24
    with pytest.raises(ValidationError, match="seq_len 20 does not divide evenly"):
        PackConfig(**given, seq_len=20)
