"""Advice over REST: what the command says, and refusals."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from rich.console import Console

from preshard.packer_service.cli import main
from preshard.packer_service.report.advice.console import print_advice
from preshard.packer_service.report.advice.dataset import advise_dataset
from preshard.packer_service.report.advice.question import AdviceQuestion, make_question
from preshard.packer_service.report.dataset import dataset_limit
from preshard.packer_service.shards.store import Folder

ADVICE = "/v1/datasets/tiny/advice"


def test_the_service_says_what_the_command_says(
    client: TestClient, tiny_dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails when the two read other loads, or an assumption is lost on the way to either."""
    with pytest.raises(SystemExit):
        main(["advise", str(tiny_dataset), "--gpus", "4", "--gpu", "a100", "--assume", "latency_us=3", "--json"])
    printed = json.loads(capsys.readouterr().out)
    found = client.get(f"{ADVICE}?gpus=4&gpu=a100&latency_us=3").json()
    assert found == printed
    assert found["splits"][0]["tokens_per_second"] == max(each["tokens_per_second"] for each in found["splits"])
    ring = [each for each in found["splits"] if each["ring_degree"] > 1]
    assert ring
    assert any(each["seconds"]["attention_waiting"] for each in ring)


def test_the_command_prints_splits_reasons_and_assumptions(
    tiny_dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails when the tables name other splits than the reasons below them, or hide an assumption."""
    with pytest.raises(SystemExit):
        main(["advise", str(tiny_dataset), "--gpus", "2", "--limit", "3"])
    out = capsys.readouterr().out
    assert "2 x h100" in out
    limit = dataset_limit(Folder(str(tiny_dataset)))
    assert limit is not None
    assert f"note: {limit.message}" in out
    assert "\n3. " in out
    assert "\n4. " not in out
    assert all(f"  {name}=" in out for name in AdviceQuestion.model_fields if name not in ("gpus", "gpu", "limit"))


def test_a_narrow_terminal_has_all_letters_of_the_tables(tiny_dataset: Path) -> None:
    """Fails when a terminal of 80 columns shows half of a layout's name, or a heading without its end."""
    advice, out = advise_dataset(str(tiny_dataset), make_question({"gpus": 2})), io.StringIO()
    print_advice(advice, Console(file=out, width=80))
    assert {split.layout for split in advice.splits}
    assert "…" not in out.getvalue()


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("?gpus=0", "query.gpus: input should be greater than or equal to 1"),
        ("?gpus=2&gpu=tpu", "query.gpu: input should be 'a100', 'h100', 'h200', 'b200', 'l40s' or 'cpu'"),
        ("?gpus=2&speed=1", "query.speed: extra inputs are not permitted"),
        ("?gpus=2&limit=501", "query.limit: input should be less than or equal to 500"),
    ],
)
def test_what_is_not_legal_is_refused(client: TestClient, query: str, detail: str) -> None:
    """Fails when a misspelt assumption is passed over in silence."""
    found = client.get(ADVICE + query)
    assert (found.status_code, found.json()["detail"]) == (422, detail)


def test_a_wrong_option_of_the_command_is_one_line(tiny_dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails when an assumption without a value ends in a traceback, or one is passed over for an option."""
    for wrong, line in (
        ("peak_tflops", "write key=value"),
        ("peak=1", "--assume peak: unknown; legal are peak_tflops"),
        ("gpus=3", "give --gpus 3 instead"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["advise", str(tiny_dataset), "--gpus", "2", "--assume", wrong])
        assert stopped.value.code == 2
        assert line in capsys.readouterr().err


def test_both_sides_of_a_comparison_are_the_commands(
    client: TestClient, tiny_dataset: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Fails when service and command compare other figures, or a file of a report cannot be compared."""
    with pytest.raises(SystemExit):
        main(["report", str(tiny_dataset), "--json"])
    saved = tmp_path / "report.json"
    saved.write_text(capsys.readouterr().out)
    with pytest.raises(SystemExit):
        main(["report", str(tiny_dataset), "--against", str(saved), "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    known = {(row["section"], row["name"]): row["first"] for row in rows}
    side = client.get("/v1/datasets/tiny/compared").json()["figures"]
    assert {(each["section"], each["name"]): each["value"] for each in side} == pytest.approx(known)
    lengths = [row for row in rows if row["section"] == "lengths"]
    assert lengths
    assert all(row["second"] is None for row in lengths)
    assert all(row["verdict"] in (None, "same") for row in rows)


def test_what_cannot_be_compared_is_one_line(
    tiny_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails when a file of something else ends in a traceback."""
    other = tmp_path / "other.json"
    other.write_text("{}")
    for against, line in ((str(other), "is not the output of `preshard plan --json`"), ("/nowhere", "no such folder")):
        with pytest.raises(SystemExit) as stopped:
            main(["report", str(tiny_dataset), "--against", against])
        assert stopped.value.code == 2
        assert line in capsys.readouterr().err
