"""Files of a tokenizer and a model that a dataset carries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from preshard.packer_service.ingest.carried import SECRET, files_to_carry
from preshard.schemas import manifest
from preshard.schemas.config import PackConfig

Made = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with what is carried and what is not."""
    for name in ("tokenizer.json", "config.json", "chat_template.jinja", "model.safetensors", "modeling_x.py", ".env"):
        (tmp_path / name).write_text(name)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    return tmp_path


def test_neither_weights_nor_code_are_carried(folder: Path) -> None:
    """Fails when a dataset carries more of a folder than its tokenizer and processors, or less."""
    expected = ["additional_chat_templates/tool_use.jinja", "chat_template.jinja", "config.json", "tokenizer.json"]
    for config in (PackConfig(model=str(folder)), PackConfig(tokenizer=str(folder))):
        assert [*files_to_carry(config, []).files] == expected
    assert [*files_to_carry(PackConfig(tokenizer=str(folder / "tokenizer.json")), []).files] == ["tokenizer.json"]
    assert files_to_carry(PackConfig(), []) == ({}, "")


def test_the_template_of_the_job_is_carried_alone(folder: Path) -> None:
    """Fails when who reads the dataset renders chats by another template than the job did."""
    (folder / "mine.txt").write_text("mine")
    carried = files_to_carry(PackConfig(tokenizer=str(folder), chat_template=str(folder / "mine.txt")), []).files
    assert carried["chat_template.jinja"] == b"mine"
    assert not any(name.startswith("additional") for name in carried)


@pytest.mark.parametrize("secret", ['{"use_auth_token": "abc"}', '{"x": "hf_%s"}' % ("aB3" * 12)])
def test_no_secret_is_carried(folder: Path, secret: str) -> None:
    """Fails when a dataset that is handed on has the key of whoever downloaded the model."""
    (folder / "tokenizer_config.json").write_text(secret)
    carried = files_to_carry(PackConfig(model=str(folder)), [])
    assert carried.files == {}
    assert "tokenizer_config.json holds" in carried.note
    assert "abc" not in carried.note
    assert SECRET.search(b'{"use_auth_token": null, "image_token": "<image>"}') is None


def test_a_huge_file_is_not_carried(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a dataset of a few rows has gigabytes of something called a tokenizer."""
    monkeypatch.setattr("preshard.packer_service.ingest.carried.LARGEST_CARRIED", 5)
    carried = files_to_carry(PackConfig(model=str(folder)), [])
    assert (carried.files, "more than 5" in carried.note) == ({}, True)
    assert manifest.LARGEST_CARRIED == 64 << 20
