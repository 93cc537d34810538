"""Files of a model folder: read as ``transformers`` reads them, or refused in one line that says how to mend them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers_alone import load_transformers

from preshard.packer_service.demo.model import write_model_folder
from preshard.schemas.errors import ConfigError
from preshard.trainer.core.export import write_folder
from preshard.trainer.models.load import load_model, read_model_config

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PART = "model-0000{}-of-00002.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose ``config.json`` ties an embedding and an output projection that are two in its files."""
    folder = tmp_path_factory.mktemp("whole")
    write_model_folder(folder, "qwen3", vocabulary=300)
    load_model(folder, from_scratch=True).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    return folder


def copied(whole: Path, folder: Path) -> Path:
    return Path(shutil.copytree(whole, folder / "model"))


def in_pickle(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def in_two(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    names = {name: PART.format(1 + number % 2) for number, name in enumerate(sorted(tensors))}
    for file in set(names.values()):
        save_file({name: tensors[name] for name in names if names[name] == file}, folder / file, {"format": "pt"})
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))
    (folder / WEIGHTS).unlink()


def equal_ends(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, folder / WEIGHTS)


@pytest.mark.parametrize("store", [None, in_pickle, in_two, equal_ends])
def test_ends_that_differ_are_not_tied(whole: Path, tmp_path: Path, store: Callable[[Path], None] | None) -> None:
    """Fails when a model computes with one matrix where its folder has two, or its export is read with one."""
    folder = copied(whole, tmp_path)
    if store is not None:
        store(folder)
    model: Any = load_model(folder)
    transformers = load_transformers()
    right = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ends = model.lm_head.weight, model.model.embed_tokens.weight
    assert ends[0].equal(right.lm_head.weight)
    assert ends[1].equal(right.model.embed_tokens.weight)
    assert (ends[0] is ends[1]) == (store is equal_ends)
    if store is None:
        write_folder(model, model.state_dict(), folder, tmp_path / "out")
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        assert again.lm_head.weight.equal(right.lm_head.weight)


def renamed(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "tiny.safetensors")


def without_index(folder: Path) -> None:
    in_two(folder)
    (folder / INDEX).unlink()


def without_a_part(folder: Path) -> None:
    in_two(folder)
    (folder / PART.format(2)).unlink()


def cut(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1])


def pointer(folder: Path) -> None:
    (folder / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def adapted(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "some/base"}')


def more_rows(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["lm_head.weight"] = torch.cat([tensors["lm_head.weight"]] * 2)
    save_file(tensors, folder / WEIGHTS)


def prefixed(folder: Path) -> None:
    save_file({f"module.{name}": each for name, each in load_file(folder / WEIGHTS).items()}, folder / WEIGHTS)


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "renamed": (renamed, "holds tiny.safetensors and neither model.safetensors nor model.safetensors.index.json"),
    "no index": (without_index, "holds model-00001-of-00002.safetensors and neither model.safetensors nor"),
    "a part": (without_a_part, "lacks model-00002-of-00002.safetensors, by its model.safetensors.index.json: get it"),
    "cut": (cut, "model.safetensors is cut short or damaged ("),
    "pointer": (pointer, "in place of a file that was not fetched: git -C "),
    "adapter": (adapted, "which holds adapters of some/base: give that model, or a folder in which they are merged"),
    "rows": (more_rows, "lm_head.weight is stored as [628, 64], and by config.json it is [314, 64]: give the config"),
    "prefix": (prefixed, "has no weights for lm_head.weight and 24 more parameters, and has module.lm_head.weight"),
}


@pytest.mark.parametrize(("damage", "said"), FAULTS.values(), ids=FAULTS)
def test_what_is_wrong_with_a_folder_is_said(
    whole: Path, tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    """Fails when a folder is refused without a remedy, in the words of a library, or an adapter in it is left out."""
    folder = copied(whole, tmp_path)
    damage(folder)
    load_transformers()
    with pytest.raises(ConfigError) as raised:
        load_model(folder)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_where_the_folder_may_be_is_said(whole: Path, tmp_path: Path) -> None:
    """Fails when a name of the Hub, a file, or the folder above is refused without a word of what to give."""
    copied(whole, tmp_path)
    for given, said in {
        Path("some/model-1.5B"): "get it with hf download some/model-1.5B --local-dir model-1.5B, and",
        tmp_path: f"give one below it that does, such as --model {tmp_path / 'model'}",
        tmp_path / "model" / "config.json": f"it is a file: give --model {tmp_path / 'model'}",
        tmp_path / "model" / "nothing": "give the path of a model folder",
    }.items():
        with pytest.raises(ConfigError, match=r"has no config\.json; ") as raised:
            read_model_config(given)
        assert said in str(raised.value)
