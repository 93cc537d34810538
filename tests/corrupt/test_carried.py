"""Every leaf of the manifest's tokenizer and model is said by the carried files, of a dataset of each family."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from preshard.packer_service.verify.carried import CarriedCheck
from preshard.schemas.config import parse_config
from preshard.schemas.manifest import Manifest

FAMILIES = ("qwen3_5", "glm4v", "glm46v", "gemma3", "gemma4", "molmo2", "internvl", "mistral3")
SELDOM = ("exaone4_5", "kimi_k25", "glm_ocr", "lighton_ocr", "paddleocr_vl")
"""Families that have almost everything from one of the others."""


def faults(data: Any, manifest: dict[str, Any]) -> list[str]:
    """Faults of a manifest, by the files that its dataset carries."""

    def read(name: str) -> bytes | None:
        path = Path(data.path, name)
        return path.read_bytes() if path.is_file() else None

    check = CarriedCheck(Manifest.model_validate(manifest), parse_config(manifest["config"]), read)
    found = [f"{finding[0].rule} {finding[1]}" for _, finding in check.run()]
    assert bool(found) != (check.marks is not None) or not manifest["carried"]
    return found


def leaves(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """Path to each single value of a tree, and to each list that has none."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from leaves(part, *path, key)
    if not isinstance(value, dict | list) or value == []:
        yield path


def changed(value: Any, name: str) -> Any:
    """Another value of the same type, and legal."""
    others: dict[str, Any] = {"axes": 4 - value if name == "axes" else 0, "bidirectional": None}
    if name in others:
        return others[name]
    if isinstance(value, bool) or value is None:
        return not value if value is not None else ("0" * 64 if "sha256" in name else 0)
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list):
        return [0]
    if len(value) == 64:
        return "0" * 64
    return {"all": "window", "window": "all"}.get(value, f"{value}_")


def cases(manifest: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The manifest with one leaf of tokenizer or model changed, or one key of the model's settings left out."""
    for section in ("tokenizer", "model"):
        for path in leaves(manifest[section]):
            other = copy.deepcopy(manifest)
            at = other[section]
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = changed(at[path[-1]], str(path[-1]))
            yield f"{section}.{'.'.join(map(str, path))}", other
    for key in manifest["model"]["settings"]:
        if key not in ("encoder", "tokens_per_second"):
            other = copy.deepcopy(manifest)
            del other["model"]["settings"][key]
            yield f"no {key}", other


@pytest.mark.parametrize("family", [*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in SELDOM)])
def test_every_leaf_is_derived(family: str, packed_for: Callable[[str], Any]) -> None:
    """Fails when a leaf of a model's or tokenizer's entry can be changed without a word, or a sound one is named."""
    data = packed_for(family)
    assert faults(data, data.manifest) == []
    found = {name: faults(data, manifest) for name, manifest in cases(data.manifest)}
    assert [name for name, named in found.items() if not named] == []
    assert len(found) > 30
    rules = {fault.split()[0] for named in found.values() for fault in named}
    assert rules == {"D11", "D14"}


def test_a_window_that_is_added_or_taken_away(packed_for: Callable[[str], Any]) -> None:
    """Fails when layers of a model get a window, or lose theirs, and nothing is said."""
    [with_masks, without] = [copy.deepcopy(packed_for(name).manifest) for name in ("gemma3", "internvl")]
    del with_masks["model"]["masks"]
    assert "D14 model.masks is None" in faults(packed_for("gemma3"), with_masks)[0]
    masks = {"full_layers": 1, "window_layers": 1, "window": 9, "groups": "all"}
    without["model"]["masks"] = masks
    assert "D14 model.masks is {" in faults(packed_for("internvl"), without)[0]


def test_files_that_were_left_out(packed_for: Callable[[str], Any]) -> None:
    """Fails when a dataset carries some of its files and not those that the others are read with."""
    for missing in ("tokenizer.json", "config.json", "preprocessor_config.json"):
        manifest = copy.deepcopy(packed_for("qwen3_5").manifest)
        manifest["carried"] = [entry for entry in manifest["carried"] if entry["name"] != missing]
        assert faults(packed_for("qwen3_5"), manifest)[0].startswith("D14"), missing
