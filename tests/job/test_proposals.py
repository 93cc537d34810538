"""Proposals of commands: they can be pasted, and do what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from preshard.packer_service.cli.run import main
from preshard.packer_service.config import load_config
from preshard.schemas.errors import ConfigError

SHORT = ("cp_sizes=[1]", "ring_degrees=[1]", "layouts=[contiguous]")


def ran(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*words, *(word for setting in SHORT for word in ("--set", setting))])
    return int(ended.value.code or 0)


def test_documents_that_are_too_long_propose_the_length_that_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails when the user has to guess a legal length, or what is proposed still rejects a document."""
    monkeypatch.chdir(tmp_path)
    rows = [{"text": "word " * n} for n in (10, 60, 333)]
    Path("a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    local = ("--executor", "local", "--num-cpus", "1")
    assert ran("pack", "a.jsonl", "--out", "out", "--set", "seq_len=32", *local) == 3
    said = capsys.readouterr().out
    assert "out: 1 document in 1 pack and 1 shard, 2 rejected (" in said
    [setting] = re.findall("too large for a pack: --set (seq_len=[0-9]+) holds all 2; --set oversize=truncate or", said)
    assert ran("pack", "a.jsonl", "--out", "other", "--set", setting, *local) == 0
    assert "other: 3 documents in " in capsys.readouterr().out


def test_a_model_is_named_by_an_option_and_looked_for_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails when a name of the Hub is taken for a folder, or nobody says how to get the model."""
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text('{"text": "a"}', encoding="utf-8")
    get = "hf download someone/Model-1B --local-dir Model-1B"
    for option in (("--model", "someone/Model-1B"), ("--set", "model=someone/Model-1B")):
        assert ran("show", "a.jsonl", *option) == 2
        assert get in capsys.readouterr().err
    snapshot = tmp_path / "hub" / "models--someone--Model-1B" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}", encoding="utf-8")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40, encoding="utf-8")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert load_config(None, ["model=someone/Model-1B"]).model == str(snapshot)
    Path("someone/Model-1B").mkdir(parents=True)
    assert load_config(None, ["model=someone/Model-1B"]).model == "someone/Model-1B", "a folder goes first"
    with pytest.raises(ConfigError, match="model nobody/x: no such folder"):
        load_config(None, ["model=nobody/x"])
