"""A manifest's model by two ways: as packing reads the folder, and as verifying reads the carried files."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from preshard.packer_service.demo.model import tiny_model, write_model_folder
from preshard.packer_service.ingest.families.folder import family_at, load_family
from preshard.packer_service.verify.independent.model import derive_model, files_that_decide
from preshard.schemas.config import PackConfig, parse_config
from preshard.schemas.manifest import CARRIED_FILES
from preshard.schemas.model.families import FAMILIES
from preshard.schemas.model.followed import layer_masks

LEFT_OUT = {
    "config.json": ("mm_tokens_per_image", "spatial_merge_size"),
    "preprocessor_config.json": ("image_mean", "image_std", "pooling_size", "overlap_margins", "max_soft_tokens"),
    "video_preprocessor_config.json": ("image_mean", "image_std", "pooling_size", "max_soft_tokens"),
}
"""Settings that have a default; a folder whose sizes then disagree is refused, and says nothing of this."""


class Ids(dict[str, int]):
    """An id for every spelling that is asked for."""

    def __missing__(self, name: str) -> int:
        self[name] = len(self)
        return self[name]


def both_ways(folder: Path, config: PackConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings that packing and verifying make of a folder."""
    found, ids = load_family(str(folder), config.images.backend), Ids()
    files = {name: (folder / name).read_bytes() for name in CARRIED_FILES if (folder / name).is_file()}
    masks, family = layer_masks(found.config, config.seq_len, "model"), found.family
    packed = {
        **{"model_type": family.model_type, "axes": family.axes, "merge": family.merge},
        **{
            "row_ids": [ids[name] for name in family.row_tokens],
            "group_ids": [ids[name] for name in family.group_tokens],
        },
        **{"settings": dict(family.settings), "bidirectional": family.bidirectional or None},
        **{"masks": masks and masks.model_dump(), "files": sorted(found.sha256)},
    }
    derived = derive_model(files, config, ids)
    return packed, derived | {"files": files_that_decide(files, family.model_type)}


def configured(folder: Path, **settings: Any) -> PackConfig:
    return parse_config({"model": str(folder), "seq_len": 512, "max_images": 16, **settings, **SMALL})


SMALL: dict[str, Any] = {"cp_sizes": [1], "ring_degrees": [1], "layouts": ["contiguous"]}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", ["tiny", "published", "pil"])
def test_both_ways_agree(family: str, form: str, tmp_path: Path) -> None:
    """Fails when either way reads a size, a colour, a token or a mask that the folder does not say."""
    published = tiny_model(family).published if form == "published" else {}
    write_model_folder(tmp_path / "model", family, vocabulary=300, files=published)
    backend = {"images": {"backend": "pil"}} if form == "pil" and family not in ("kimi_k25", "molmo2") else {}
    packed, derived = both_ways(tmp_path / "model", configured(tmp_path / "model", **backend))
    assert derived == packed
    assert packed["settings"]["image_backend"] == ("pil" if backend else "torchvision")


@pytest.mark.parametrize("family", FAMILIES)
def test_both_ways_have_the_same_defaults(family: str, tmp_path: Path) -> None:
    """Fails when a setting that a folder leaves out has another value on one of the ways."""
    write_model_folder(tmp_path / "model", family, vocabulary=300)
    n_left_out = 0
    for name, key in ((name, key) for name, keys in LEFT_OUT.items() for key in keys):
        path = tmp_path / "model" / name
        values = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if key in values:
            path.write_text(json.dumps({other: values[other] for other in values if other != key}), encoding="utf-8")
            family_at.cache_clear()
            try:
                load_family(str(tmp_path / "model"))
            except ValueError:
                path.write_text(json.dumps(values), encoding="utf-8")
            else:
                n_left_out += 1
    family_at.cache_clear()
    packed, derived = both_ways(tmp_path / "model", configured(tmp_path / "model"))
    assert derived == packed
    assert n_left_out


WINDOWED = {"sliding_window": 100, "num_hidden_layers": 8}


@pytest.mark.parametrize(
    ("kind", "seq_len"), itertools.product(("qwen3", "mistral", "gemma2", "gpt_oss", "olmo3"), (64, 512))
)
def test_windows_of_models_of_text(kind: str, seq_len: int, tmp_path: Path) -> None:
    """Fails when verifying takes a window for none, or one that no pack is longer than for one."""
    model = {"model_type": kind, "architectures": ["AForCausalLM"], "num_attention_heads": 4, **WINDOWED}
    model["num_key_value_heads"], model["head_dim"] = 2, 8
    if kind == "gemma2":
        model |= {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    (tmp_path / "config.json").write_text(json.dumps(model), encoding="utf-8")
    packed, derived = both_ways(tmp_path, configured(tmp_path, seq_len=seq_len))
    assert derived == packed
    assert (packed["masks"] is not None) == (seq_len == 512 and kind != "qwen3")
