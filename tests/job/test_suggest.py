"""A configuration from a sample of rows: it is legal as it is, and packing with it gives what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexed_files import write_indexed
from PIL import Image

from preshard.packer_service.cli import main
from preshard.packer_service.config import load_config
from preshard.packer_service.demo.model import write_model_folder
from preshard.packer_service.ingest.source.files import list_fragments
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.packer_service.job.pack import pack
from preshard.packer_service.job.preview import choices
from preshard.packer_service.job.preview import suggest as suggesting
from preshard.packer_service.job.preview.choices import compared_lengths
from preshard.packer_service.job.preview.suggest import suggest
from preshard.packer_service.report.advice.answer import Advisor
from preshard.packer_service.report.advice.question import make_question
from preshard.packer_service.report.dataset import report_dataset
from preshard.packer_service.runtime.executors import PlainExecutor

ROWS = 160


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suggested") / "model"
    write_model_folder(folder, "qwen3_vl", vocabulary=400)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of many lengths, and three of four rows some small images with a word: their crops would fill packs."""
    folder, rng = tmp_path_factory.mktemp("rows"), np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (64, 64, 3), np.uint8)).save(folder / "noise.png")
    rows: list[dict[str, Any]] = []
    for number in range(ROWS):
        n_images = int(rng.integers(2, 6)) if number % 4 else 0
        row = {"text": "<image>" * n_images + "word " * int(rng.integers(1, 400 if not n_images else 3))}
        rows.append({"id": f"r{number}", **row, **({"images": ["noise.png"] * n_images} if n_images else {})})
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return folder


def suggested(source: Path, model: Path, progress: Any, *settings: str, rows: int = 100) -> str:
    config = load_config(None, [f"model={model}", "layouts=[contiguous, zigzag]", *settings])
    return suggest([str(source)], config, make_question({"gpus": 2}), progress, rows=rows)


def test_packing_with_the_file_gives_what_it_says(source: Path, model: Path, tmp_path: Path, progress: Any) -> None:
    """Fails when the file is no configuration, or its fill, packs or disk are those of other documents."""
    file = tmp_path / "suggested.yaml"
    file.write_text(suggested(source, model, progress, "max_images=8"), encoding="utf-8")
    text, config = file.read_text(encoding="utf-8"), load_config(file)
    assert f"# Sample: 100 of {ROWS} rows" in text
    [(fill, packs)] = re.findall(r"^seq_len: .*fill ([0-9.]+)%.* about ([0-9]+) packs", text, re.MULTILINE)
    [disk] = re.findall(r"^# \*.* ([0-9.e-]+) +[<0-9.e-]+ +[0-9.]+!? +[^ ].*$", text, re.MULTILINE)
    pack([str(source)], str(tmp_path / "out"), config, PlainExecutor(), progress)
    report = report_dataset(str(tmp_path / "out"))
    assert report.rejected == 0
    assert 0.2 < report.fill < 0.8, "max_images binds"
    assert 100 * report.fill == pytest.approx(float(fill), abs=5), "of 100 rows"
    assert report.packs == pytest.approx(int(packs), rel=0.1, abs=1)
    written = sum(shard.stat().st_size for shard in (tmp_path / "out" / "shards").glob("*.tar"))
    assert written == pytest.approx(float(disk) * 1e9, rel=0.25)
    assert config.layouts == ("contiguous", "zigzag"), "a key that was given"
    assert config.max_images == 8
    assert report.warnings == [], "cost is that of the model folder"
    folder = json.loads((model / "config.json").read_text(encoding="utf-8"))
    assert config.cost.hidden_size == folder["text_config"]["hidden_size"]
    assert config.cost.vision_hidden_size == folder["vision_config"]["hidden_size"]


def test_layers_with_a_window_do_less(
    source: Path, tmp_path: Path, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when splits of a model with windows are estimated as if each layer saw whole documents."""
    seen: list[Any] = []

    def note(**given: Any) -> Advisor:
        seen.append(given["loads"])
        return Advisor(**given)

    monkeypatch.setattr(choices, "Advisor", note)
    for kinds in (["full_attention"] * 2, ["full_attention", "sliding_attention"]):
        changed = {"use_sliding_window": True, "sliding_window": 100, "layer_types": kinds}
        write_model_folder(tmp_path / kinds[1], "qwen3", vocabulary=400, files={"config.json": changed})
        suggested(source, tmp_path / kinds[1], progress, "seq_len=2048")
    assert [each.windows for each in seen] == [False, True]
    whole, less = (each.columns["attention_tiles"] for each in seen)
    assert (less < whole).all()


def test_max_images_is_the_least_that_fills_packs(source: Path, model: Path, tmp_path: Path, progress: Any) -> None:
    """Fails when packs may hold any number of crops, or so few that they stay empty."""
    file = tmp_path / "suggested.yaml"
    file.write_text(suggested(source, model, progress), encoding="utf-8")
    most, images = load_config(file).max_images, sum(len(row.get("images", [])) for row in _rows(source))
    assert most is not None
    assert 8 < most < images
    [fill] = re.findall(r"^seq_len: .*fill ([0-9.]+)%", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert float(fill) > 90


def _rows(source: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (source / "rows.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_file_depends_on_the_source_and_the_seed_alone(source: Path, model: Path, progress: Any) -> None:
    """Fails when a clock or a global random state decides which rows are drawn."""
    keys = ["seq_len=2048", "max_images=24", "oversize=reject", "turns=last"]
    first, again = (suggested(source, model, progress, *keys, rows=40) for _ in range(2))
    assert first == again
    other = suggested(source, model, progress, *keys, "order.seed=1", rows=40)
    assert "drawn by order.seed 1" in other
    assert [line for line in first.splitlines() if "*" in line] != [line for line in other.splitlines() if "*" in line]
    for line in ("seq_len: 2048", "max_images: 24", "oversize: reject", "turns: last"):
        assert any(found.startswith(line) for found in first.splitlines()), line
    assert "seed: 1" in other


def test_the_command_refuses_what_it_cannot_sample(
    tiny_dataset: Path, source: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails when a packed dataset is read as rows, or a folder that is no model ends with a traceback."""
    for words, message in (
        ([str(tiny_dataset), "--model", str(model), "--gpus", "2"], "is a packed dataset; give the source"),
        ([str(source), "--model", str(tmp_path), "--gpus", "2"], "model"),
        ([str(source), "--gpus", "2"], "give --model DIR"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["suggest", *words])
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error


def test_a_source_of_which_nothing_is_left_says_why(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails when someone whose rows would all be rejected reads a code and a number alone."""
    rows = [{"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": ""}]} for n in (1, 2)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    with pytest.raises(SystemExit) as stop:
        main(["suggest", str(tmp_path / "rows.jsonl"), "--model", str(model), "--gpus", "2"])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert "suggest: all of 2 drawn rows would be rejected, each for this: " in said
    assert "no token would carry loss; preshard show SOURCE --row N says more of one" in said


def test_lengths_around_the_one_that_cuts_off_little_are_compared() -> None:
    """Fails when one long document decides the length of all packs, or many of them do not."""
    few, many = np.array([1000] * 999 + [9000]), np.array([1000] * 900 + [9000] * 100)
    assert compared_lengths(few) == [2048, 4096, 8192]
    assert compared_lengths(many) == [8192, 16384, 32768, 65536]


def test_documents_of_an_index_are_counted_by_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when numbers of documents are taken for bytes, so that a sample is said to be of another number of rows."""
    monkeypatch.setattr(suggesting, "SCANNED_ROWS", 50)
    write_indexed(tmp_path / "f.bin", [[[60] * (1 + i // 5)] for i in range(500)])
    drawn = suggesting.draw(list_fragments(list_sources([str(tmp_path)]).files), 10, load_config())
    assert (drawn.n_rows, drawn.counted, len(drawn.rows)) == (500, False, 10)
