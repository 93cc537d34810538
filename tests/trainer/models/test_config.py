"""The model's dimensions: which are legal, and which fit a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.config import VisionConfig
from schemas.errors import ConfigError
from schemas.manifest import TokenizerEntry
from trainer.data.dataset import PackedDataset
from trainer.models.config import PRESETS, ModelConfig, parse_model_config

Sizes = tuple[VisionConfig, TokenizerEntry]


@pytest.fixture(scope="module")
def sizes(tiny_dataset: Path) -> Sizes:
    dataset = PackedDataset(tiny_dataset)
    return dataset.config.vision, dataset.files.manifest.tokenizer


def test_what_is_left_out_is_the_datasets(sizes: Sizes) -> None:
    """Fails when a preset is filled in with wrong sizes, or with none."""
    filled = PRESETS["tiny"].for_dataset(*sizes)
    assert (filled.vision.image_size, filled.vision.patch_size, filled.vision.pool_size) == (56, 14, 2)
    assert filled.decoder.vocab_size == sizes[1].vocab_size == 131072
    assert filled.for_dataset(*sizes) == filled


@pytest.mark.parametrize(
    ("section", "field", "value", "said"),
    [
        ("vision", "image_size", 378, r"vision\.image_size is 378; the dataset was packed with vision\.image_size 56"),
        ("vision", "patch_size", 7, r"vision\.patch_size is 7; the dataset was packed with vision\.patch_size 14"),
        ("vision", "pool_size", 3, r"vision\.pool_size is 3; the dataset was packed with vision\.pool_size 2"),
        ("decoder", "vocab_size", 1000, r"vocab_size is 1000; the dataset's tokenizer .* has 131072 tokens"),
    ],
)
def test_a_model_that_does_not_fit_the_dataset_is_refused(
    sizes: Sizes, section: str, field: str, value: int, said: str
) -> None:
    """Fails when the misfit only shows as an index error, or as features on the wrong tokens."""
    part = getattr(PRESETS["tiny"], section).model_copy(update={field: value})
    with pytest.raises(ConfigError, match=said):
        PRESETS["tiny"].model_copy(update={section: part}).for_dataset(*sizes)


def test_more_rows_than_tokens_are_legal(sizes: Sizes) -> None:
    """Fails when a published model's padded embedding is refused."""
    real = PRESETS["qwen3-8b-siglip2"].for_dataset(*sizes)
    assert real.decoder.vocab_size == 151936
    with pytest.raises(ConfigError, match="vocab_size is 151936"):
        PRESETS["qwen3-8b-siglip2"].for_dataset(sizes[0], sizes[1].model_copy(update={"vocab_size": 151937}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"decoder.num_key_value_heads": 3}, "num_attention_heads 8 is not a multiple of num_key_value_heads 3"),
        ({"decoder.head_dim": 7}, "head_dim 7 is odd"),
        ({"vision.num_attention_heads": 5}, "hidden_size 32 is not a multiple of num_attention_heads 5"),
        ({"vision.image_size": 57, "vision.patch_size": 14}, "image_size 57 is not a multiple of patch_size 14"),
        ({"decoder.num_layers": 0}, r"model: decoder\.num_layers: "),
        ({"decoder.layers": 2}, r"model: decoder\.layers: "),
    ],
)
def test_an_impossible_config_is_one_line(change: dict[str, Any], said: str) -> None:
    """Fails when a dimension that does not divide gets as far as a matrix of the wrong shape."""
    values = PRESETS["tiny"].model_dump()
    for path, value in change.items():
        section, field = path.split(".")
        values[section][field] = value
    with pytest.raises(ConfigError, match=said) as raised:
        parse_model_config(values)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_survive_yaml(preset: str) -> None:
    """Fails when a preset that is written to a file, to start one's own model from, cannot be read back."""
    assert parse_model_config(yaml.safe_load(yaml.safe_dump(PRESETS[preset].model_dump()))) == PRESETS[preset]


def test_no_model_is_built_with_a_size_left_open() -> None:
    """Fails when a model is built before the dataset has filled in its sizes."""
    from trainer.models.model import build_model

    assert isinstance(PRESETS["tiny"], ModelConfig)
    with pytest.raises(AssertionError, match="for_dataset"):
        build_model(PRESETS["tiny"], seed=0)
