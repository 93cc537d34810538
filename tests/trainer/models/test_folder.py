"""Models that packs cannot follow, and datasets that a model cannot read, are refused before a weight is read."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from preshard.packer_service.demo.model import write_model_folder
from preshard.packer_service.ingest.families.folder import load_family
from preshard.schemas.dataset.read_manifest import decode_manifest
from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import Manifest, ModelEntry
from preshard.schemas.model.families import FAMILIES
from preshard.trainer.attention.mask import count_layers
from preshard.trainer.extra.model_check import check_dataset, check_packed_for
from preshard.trainer.extra.outputs import check_export
from preshard.trainer.models.interface import register_attention
from preshard.trainer.models.load import identity, model_sizes, read_model_config

SEQ_LEN = 1024
SMALL = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "head_dim": 8, "num_hidden_layers": 1}


@pytest.fixture(scope="module")
def texts(tiny_dataset: Path) -> Manifest:
    """The manifest of a dataset of the generic way, as if it held no image."""
    manifest = decode_manifest((tiny_dataset / "manifest.json").read_bytes(), "manifest.json")
    return manifest.model_copy(update={"counts": manifest.counts.model_copy(update={"images": 0})})


def text_model(vocab_size: int = 2**18, **settings: Any) -> Any:
    return register_attention().Qwen3Config(vocab_size=vocab_size, **{**SMALL, **settings})


def folder_of(path: Path, **settings: Any) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(text_model(**settings).to_dict()), encoding="utf-8")
    return path


def test_ids_without_an_embedding_are_refused(texts: Manifest) -> None:
    """Fails when a step looks up a row that the embedding does not have, or a row more than enough is refused."""
    rows = texts.tokenizer.vocab_size
    check_dataset(text_model(rows), texts, SEQ_LEN)
    with pytest.raises(ConfigError, match=f"an embedding of {rows - 1} rows; .* has ids below {rows}: pack with"):
        check_dataset(text_model(rows - 1), texts, SEQ_LEN)


def test_images_of_the_generic_way_are_refused(texts: Manifest, tiny_dataset: Path) -> None:
    """Fails when a model takes crops that its own processor would not have made."""
    manifest = decode_manifest((tiny_dataset / "manifest.json").read_bytes(), "manifest.json")
    assert manifest.counts.images > 0
    with pytest.raises(ConfigError, match="packed for no model, so its images are not those of qwen3"):
        check_dataset(text_model(), manifest, SEQ_LEN)
    check_dataset(text_model(), texts, SEQ_LEN)


def test_the_window_of_each_layer() -> None:
    """Fails when a layer is bound to the mask of another, or a model without windows to one more mask."""
    sliding = {"use_sliding_window": True, "num_hidden_layers": 3, "max_window_layers": 1}
    assert model_sizes(text_model(sliding_window=8, **sliding)).windows == (None, 8, 8)
    assert model_sizes(text_model(sliding_window=8)).windows == (), "no layer uses it"
    assert model_sizes(register_attention().MistralConfig(num_hidden_layers=2, sliding_window=8)).windows == (8, 8)
    assert model_sizes(register_attention().MistralConfig(sliding_window=None)).windows == ()
    assert list(count_layers((8, None, 8, 64), 64).items()) == [(None, 2), (8, 2)]
    assert count_layers((), 64) == {None: 1}


def test_a_window_that_layers_do_not_pass_on_is_refused(texts: Manifest) -> None:
    """Fails when layers that see less than their document are trained as if they saw all of it."""
    make, vocabulary = register_attention().PhimoeConfig, texts.tokenizer.vocab_size
    check_dataset(text_model(use_sliding_window=True, sliding_window=8), texts, SEQ_LEN)
    check_dataset(make(vocab_size=vocabulary, sliding_window=SEQ_LEN), texts, SEQ_LEN)
    with pytest.raises(ConfigError, match=f"sliding_window of {SEQ_LEN - 1} tokens, shorter than packs of {SEQ_LEN}"):
        check_dataset(make(vocab_size=vocabulary, sliding_window=SEQ_LEN - 1), texts, SEQ_LEN)


def test_dropout_in_attention_is_refused(tmp_path: Path) -> None:
    """Fails when a model's dropout is left out in silence."""
    read_model_config(folder_of(tmp_path / "without"))
    with pytest.raises(
        ConfigError, match=r"attention_dropout of config\.json is 0\.1, which packed attention does not implement"
    ):
        read_model_config(folder_of(tmp_path / "with", attention_dropout=0.1))


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"model_type": "nothing"}'])
def test_a_folder_without_a_model_is_refused(tmp_path: Path, content: str) -> None:
    """Fails when a folder that holds no model ends the run with a traceback."""
    with pytest.raises(ConfigError, match=r"has no config\.json; give the path of a model folder"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.json (does not describe a model|is not supported)"):
        read_model_config(tmp_path)


def test_a_model_that_came_later_names_the_version_that_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when an old transformers refuses a kind of model and nobody learns that a newer one takes it."""
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text('{"model_type": "molmo2"}', encoding="utf-8")
    for module in ("families.family", "extra.model_check"):
        monkeypatch.setattr(f"preshard.trainer.{module}.version", {"transformers": "5.19.1"}.__getitem__)
    with pytest.raises(
        ConfigError, match=r"needs transformers 5\.20 .* 5\.19\.1 is installed: pip install 'transformers>=5\.20'$"
    ):
        read_model_config(tmp_path)


def test_a_model_is_known_by_its_configuration_alone(tmp_path: Path) -> None:
    """Fails when a run is continued with another model, or refused since a library wrote its version elsewhere."""
    first, same, other = (folder_of(tmp_path / name) for name in ("first", "same", "other"))
    for folder, change in ((same, {"transformers_version": "9", "use_cache": False}), (other, {"rms_norm_eps": 1e-3})):
        stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps({**stored, **change}), encoding="utf-8")
    assert identity(first) == identity(same)
    assert identity(first) != identity(other)


@pytest.mark.parametrize("pickled", [False, True])
def test_the_weights_of_a_base_are_known_however_they_are_dealt(tmp_path: Path, pickled: bool) -> None:
    """Fails when adapters go on with another base, or are refused since its tensors lie in other files."""
    tensors = {f"layers.{number}": torch.randn(30, 40) for number in range(3)}
    found = {}
    for name, changed, files in (("first", 0.0, 1), ("dealt", 0.0, 3), ("trained", 1e-3, 1)):
        folder = folder_of(tmp_path / name)
        for path in [*folder.glob("*.safetensors"), *folder.glob("*.bin")]:
            path.unlink()
        for file in range(files):
            part = {key: value + changed * (key == "layers.1") for key, value in list(tensors.items())[file::files]}
            if pickled:
                torch.save(part, folder / f"pytorch_model-{file}.bin")
            else:
                save_file(part, folder / f"model-{file}.safetensors", metadata={"format": "pt"})
        found[name] = identity(folder, with_weights=True)
    assert found["first"] != found["trained"]
    assert found["first"]["config"] == found["trained"]["config"]
    assert pickled or found["first"] == found["dealt"]
    assert found["first"] == identity(tmp_path / "first", with_weights=True)
    if not pickled:
        (tmp_path / "first" / "model-0.safetensors").write_bytes(b"short")
        with pytest.raises(ConfigError, match="its weights cannot be read"):
            identity(tmp_path / "first", with_weights=True)


def test_an_export_takes_nobodys_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when an export writes over what somebody keeps, or trains for hours before a read-only disk is found."""
    check_export(tmp_path / "new" / "below")
    (tmp_path / "file").touch()
    for name in ("", "file"):
        with pytest.raises(ConfigError, match="which exists; name a folder that does not"):
            check_export(tmp_path / name)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK or path != tmp_path)
    with pytest.raises(ConfigError, match=f"and {tmp_path} is not writable; name another place"):
        check_export(tmp_path / "new" / "below")
    monkeypatch.setenv("RANK", "1")  # rank 0 alone writes
    check_export(tmp_path / "new" / "below")


def packed_images(folder: Path, family: str) -> ModelEntry:
    """Manifest's entry on a family's tiny model."""
    write_model_folder(folder, family, vocabulary=300)
    own = load_family(str(folder)).family
    return ModelEntry(
        **{"model_type": own.model_type, "files": {}, "axes": own.axes, "merge": own.merge},
        **{"row_ids": [], "group_ids": [], "settings": dict(own.settings)},
    )


OF_ROWS = {
    **{"gemma3": ("", "mm_tokens_per_image", 1), "gemma4": ("vision_config", "pooling_kernel_size", 5)},
    **{"internvl": ("", "downsample_ratio", 0.25), "mistral3": ("", "spatial_merge_size", 4)},
    **{"lighton_ocr": ("", "spatial_merge_size", 4), "kimi_k25": ("vision_config", "merge_kernel_size", [4, 4])},
}
"""Settings that decide the size of a row, for families that do not call it ``spatial_merge_size`` of their encoder."""


@pytest.mark.parametrize("family", FAMILIES)
def test_images_for_another_size_of_patches_or_rows_are_refused(family: str, tmp_path: Path) -> None:
    """Fails when a model takes pictures cut for another, whose features fill other rows, or refuses its own."""
    entry = packed_images(tmp_path / "model", family)
    config = read_model_config(tmp_path / "model")
    check_packed_for(config, entry, has_images=True)
    changes = [("vision_config", "patch_size", 7, "patches of 7 x 7 pixels")]
    if entry.has_grids:
        changes.append(("vision_config", "temporal_patch_size", 4, "patches of 4 frames"))
    if family != "molmo2":
        of, name, value = OF_ROWS.get(family, ("vision_config", "spatial_merge_size", 4))
        changes.append((of, name, value, r"rows of \d+ patches along a side"))
    for of, name, value, said in changes:
        other = copy.deepcopy(config)
        setattr(getattr(other, of) if of else other, name, value)
        message = f"the dataset was packed for .* and the model has {said}: pack with --model DIR of this model"
        with pytest.raises(ConfigError, match=message):
            check_packed_for(other, entry, has_images=True)
        check_packed_for(other, entry, has_images=False)


def test_ranks_share_no_more_heads_than_each_layer_has() -> None:
    """Fails when a layer has query heads that do not divide over ranks which those of another layer do."""
    laguna = register_attention().LagunaConfig(
        num_hidden_layers=2, num_attention_heads=4, num_attention_heads_per_layer=[4, 6]
    )
    sizes = model_sizes(laguna)
    assert sizes.layer_heads == (4, 6)
    assert sizes.num_heads == 2
