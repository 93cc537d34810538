"""Model folders: which family they are, and settings that are refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers_alone import load_transformers

from preshard.packer_service.demo.families import FAMILIES
from preshard.packer_service.demo.model import write_model_folder
from preshard.packer_service.ingest.families.folder import TextFamily, family_at, load_family
from preshard.packer_service.ingest.model import configured_renderer
from preshard.packer_service.report.advice.model import folder_sizes
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError, DocumentError

IMAGES, VIDEOS, PROCESSOR = "preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny model folder of each family."""
    made = {family: tmp_path_factory.mktemp(family) for family in FAMILIES}
    for family, folder in made.items():
        write_model_folder(folder, family, vocabulary=256)
    return made


def changed(folder: Path, to: Path, name: str, **values: Any) -> str:
    """A copy of a folder's files with some settings of one file changed."""
    for file in folder.glob("*config.json"):
        (to / file.name).write_bytes(file.read_bytes())
    given = json.loads((to / name).read_text()) if (to / name).exists() else {}
    (to / name).write_text(json.dumps({**given, **values}))
    return str(to)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_is_its_family(folders: dict[str, Path], family: str) -> None:
    """Fails when a folder that we write is refused, or files that decide are not named with their hashes."""
    loaded = load_family(str(folders[family]))
    assert loaded.family.model_type == family
    assert isinstance(loaded.family, TextFamily) == (family == "qwen3")
    assert {"config.json"} <= loaded.sha256.keys()
    stills = family in ("gemma3", "kimi_k25", "mistral3", "lighton_ocr", "paddleocr_vl")
    assert family == "qwen3" or ({IMAGES} if stills else {IMAGES, VIDEOS}) <= loaded.sha256.keys()


def test_a_flat_configuration_is_read_as_transformers_reads_it(folders: dict[str, Path], tmp_path: Path) -> None:
    """Fails when settings of the language model are looked for in a section alone: PaddleOCR-VL's lie beside it."""
    folder = folders["paddleocr_vl"]
    config = json.loads((folder / "config.json").read_text())
    text = config.pop("text_config")
    flat = changed(folder, tmp_path, "config.json", **{**text, **config}, text_config=None)
    assert load_family(flat).family == load_family(str(folder)).family
    sizes, nested = folder_sizes(flat), folder_sizes(str(folder))
    assert replace(sizes, source="") == replace(nested, source="")


@pytest.mark.parametrize(
    ("family", "name", "values", "message"),
    [
        ("qwen3_vl", IMAGES, {"do_resize": False}, r"do_resize false of preprocessor_config\.json is not followed"),
        ("qwen3_vl", IMAGES, {"resample": 2}, "resample 2 of preprocessor_config.json is not followed, only 3"),
        ("qwen3_vl", IMAGES, {"blur": 3}, "blur 3 of preprocessor_config.json is not followed"),
        ("qwen3_vl", IMAGES, {"patch_size": 14}, "patch_size of preprocessor_config.json 14 and patch_size of video_"),
        ("qwen3_vl", IMAGES, {"size": {"height": 3}}, "size of preprocessor_config.json is .*shortest_edge"),
        ("qwen3_vl", VIDEOS, {"do_normalize": False}, "do_normalize false of video_preprocessor_config.json"),
        ("qwen3_vl", IMAGES, {"image_processor_type": "ViTImageProcessor"}, "'ViTImageProcessor' .* is not followed"),
        ("qwen2_5_vl", IMAGES, {"max_pixels": 0}, "max_pixels of preprocessor_config.json is 0"),
        ("qwen2_5_vl", PROCESSOR, {"audio_length": 3}, "audio_length 3 of processor_config.json is not followed"),
        ("internvl", PROCESSOR, {"image_seq_length": 64}, "image_seq_length 64 differs from the 16 rows"),
        ("internvl", VIDEOS, {"size": {"height": 56, "width": 56}}, r"size \(56, 56\) of video_preprocessor"),
        ("glm4v", IMAGES, {"min_pixels": 3}, r"min_pixels 3 of preprocessor_config\.json is not followed"),
        (
            "glm4v",
            IMAGES,
            {"processor_class": "Qwen3VLProcessor"},
            "processor_class 'Qwen3VLProcessor' is not followed",
        ),
        ("glm46v", VIDEOS, {"temporal_patch_size": 4}, "temporal_patch_size of preprocessor_config.json 2 and"),
        (
            "lighton_ocr",
            IMAGES,
            {"patch_size": 16},
            "patch_size of preprocessor_config.json is 16; 14, as in vision_con",
        ),
        (
            "lighton_ocr",
            IMAGES,
            {"patch_size": {"height": 14, "width": 28}},
            "patch_size of .* 14, as in vision_config",
        ),
        ("lighton_ocr", PROCESSOR, {"spatial_merge_size": 4}, "spatial_merge_size 4 of processor_config.json differs"),
        (
            "paddleocr_vl",
            IMAGES,
            {"merge_size": 4},
            "merge_size 4 of preprocessor_config.json differs from 2 in vision_",
        ),
        ("paddleocr_vl", IMAGES, {"temporal_patch_size": 2}, "temporal_patch_size 2 .* is not followed, only 1"),
        ("mistral3", IMAGES, {"do_pad": False}, "do_pad false of preprocessor_config.json is not followed, only true"),
        ("mistral3", IMAGES, {"size": {"height": 3, "width": 4}}, "size of preprocessor_config.json is .*longest_edge"),
        ("mistral3", PROCESSOR, {"patch_size": 16}, "patch_size 16 of processor_config.json differs from 14 in vision"),
        (
            "mistral3",
            PROCESSOR,
            {"spatial_merge_size": 1},
            "spatial_merge_size 1 of processor_config.json differs from 2",
        ),
        (
            "mistral3",
            "tokenizer_config.json",
            {"fix_mistral_regex": True},
            "fix_mistral_regex true of tokenizer_config",
        ),
        ("mistral3", "config.json", {"vision_feature_layer": -2}, "vision_feature_layer of config.json is -2, while"),
        ("kimi_k25", IMAGES, {"merge_size": 4}, r"merge_size \[4, 4\] .* differs from \[2, 2\] in vision_config"),
        ("kimi_k25", IMAGES, {"size": {"max_height": 8, "max_width": 9}}, "max_height and max_width must be the same"),
        ("molmo2", VIDEOS, {"do_rescale": None}, "do_rescale false of video_preprocessor_config.json is not followed"),
        ("molmo2", IMAGES, {"overlap_margins": [4, 4]}, "leave nothing of 8"),
        (
            "gemma3",
            IMAGES,
            {"do_pan_and_scan": True},
            "do_pan_and_scan true of preprocessor_config.json is not followed",
        ),
        ("gemma3", PROCESSOR, {"image_seq_length": 64}, "image_seq_length 64 differs from the 16 rows"),
        ("gemma3", "config.json", {"vision_config": {"model_type": "clip"}}, "model_type 'clip' in vision_config of"),
        (
            "gemma4",
            IMAGES,
            {"max_soft_tokens": 100},
            "max_soft_tokens of preprocessor_config.json is 100; one of 70, 140",
        ),
        ("gemma4", VIDEOS, {"patch_size": 14}, "patch_size 14 of video_preprocessor_config.json differs from 16"),
        ("molmo2", IMAGES, {"pooling_size": [0, 2]}, r"pooling_size of preprocessor_config.json is \[0, 2\]"),
    ],
)
def test_a_setting_that_is_not_followed_is_refused_by_name(
    folders: dict[str, Path], tmp_path: Path, family: str, name: str, values: dict[str, Any], message: str
) -> None:
    """Fails when a processor's setting is passed over in silence: pixels would differ from those of the model."""
    with pytest.raises(ConfigError, match=message):
        load_family(changed(folders[family], tmp_path, name, **values))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "llava"}, "'llava' is not supported; what is: qwen3_vl, qwen3_vl_moe, qwen3_5, qwen3_5_moe, "),
        ({"model_type": "deepseek_ocr2"}, "'deepseek_ocr2' .* is not supported: its layers read images through SAM's"),
        ({"model_type": "unlimited_ocr"}, "'unlimited_ocr' .* is not supported: its layers read images through SAM's"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "'t5' is not supported"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "'bert' is not supported"),
        ({"model_type": "x", "architectures": ["XForCausalLM"], "vision_config": {}}, "'x' is not supported"),
        ({}, "'' is not supported"),
    ],
)
def test_another_kind_of_model_is_refused_in_one_line(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    """Fails when a model with an encoder that nobody follows is taken for one of text."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=message):
        load_family(str(tmp_path))


def test_what_is_no_model_folder(tmp_path: Path) -> None:
    """Fails when a missing folder or file ends in a traceback."""
    with pytest.raises(ConfigError, match="is not a folder"):
        load_family(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load_family(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_vl"}')
    with pytest.raises(ConfigError, match=r"has no preprocessor_config\.json"):
        load_family(str(tmp_path))
    (tmp_path / "preprocessor_config.json").write_text("[")
    family_at.cache_clear()
    with pytest.raises(ConfigError, match="is not JSON"):
        load_family(str(tmp_path))


def test_a_relative_path_is_another_folder_elsewhere(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a program that goes to another folder gets the model, or the tokenizer, of the one before."""
    found = []
    for name, family in (("one", "qwen3_vl"), ("other", "qwen3")):
        (tmp_path / name / "model").mkdir(parents=True)
        for file in folders[family].iterdir():
            (tmp_path / name / "model" / file.name).write_bytes(file.read_bytes())
        monkeypatch.chdir(tmp_path / name)
        config = PackConfig(model="model")
        found.append((load_family("model").family.model_type, configured_renderer(config).family.model_type))
    assert found == [("qwen3_vl", "qwen3_vl"), ("qwen3", "qwen3")]


def test_a_model_of_text_refuses_images() -> None:
    """Fails when an image disappears from a document that is packed for a model of text."""
    with pytest.raises(DocumentError, match="reads only text"):
        TextFamily("qwen3").check(["image"])
    TextFamily("qwen3").check([])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_language_model_is_packed_for_alone(folders: dict[str, Path], tmp_path: Path, family: str) -> None:
    """Fails when a language model that was saved alone is refused, for what its configuration holds besides."""
    transformers = load_transformers()
    causal = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    text = transformers.AutoConfig.from_pretrained(folders[family]).get_text_config()
    if text.model_type not in causal:
        pytest.skip(f"transformers has no causal language model of type {text.model_type}")
    text.architectures = [causal[text.model_type]]
    text.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((folders[family] / "tokenizer.json").read_bytes())
    assert load_family(str(tmp_path), "pil").family.model_type == text.model_type
