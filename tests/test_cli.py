"""The command line as a user types it: figures on standard output, mistakes in one line, exit statuses."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preshard.packer_service.cli import main
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.schemas.config import PackConfig


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


WRONG_SETTINGS = {
    "nonsense=1": "nonsense: unknown key; legal here: seq_len, max_images,",
    "vision.nonsense=1": "vision.nonsense: unknown key; legal here: image_size, patch_size, pool_size, max_crops",
    "seq_len=1000": "seq_len 1000 is not a multiple of 1024, .* take seq_len=1024",
    "seq_len=37000": "take seq_len=36864 or seq_len=37888",
    "seq_len=abc": "seq_len: 'abc' is not legal: give a whole number$",
    "seq_len=4,096": "seq_len: '4,096' is not legal: give a whole number, 4096 without separators",
    "seq_len=4k": "seq_len: '4k' is not legal: give a whole number, such as 4096",
    "layouts=[zigzg]": "layouts.0: 'zigzg' is not legal: take .*; did you mean zigzag\\?",
    "cp_sizes=2": r"cp_sizes: 2 is not legal: give a list, such as \[1, 2\]",
    "seq_len=true": "seq_len: True is not legal",
    "video.fps=-1": "video.fps: -1 is not legal: give more than 0",
    "layouts=[spiral]": "layouts.0: 'spiral' is not legal: .*'contiguous', 'zigzag', 'balanced_ring'",
    "layouts=[]": "layouts: .*at least 1 item",
    "cp_sizes=[2,2]": r"cp_sizes \[2, 2\] contains a value twice",
    "ring_degrees=[0]": "ring_degrees.0: 0 is not legal",
    "vision.image_size=379": "image_size 379 is not a multiple of patch_size 14; nearest that are: 378 and 392",
    "tokenizer=/nowhere/tokenizer.json": "tokenizer: '/nowhere/tokenizer.json' is not a file; give `tekken`",
    "fps": "--set 'fps': write key=value",
    "seq_len.deep=1": "seq_len: .* is not legal",
}


@pytest.mark.parametrize("setting", WRONG_SETTINGS)
def test_wrong_configuration_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], tiny_source: Path, tmp_path: Path, setting: str
) -> None:
    """Fails when a user's mistake ends in a traceback, in another status, or after work was begun."""
    out = tmp_path / "out"
    status, output, error = run(capsys, "pack", str(tiny_source), "--out", str(out), "--set", setting)
    assert status == 2
    assert output == ""
    assert error.count("\n") == 1
    assert re.search(WRONG_SETTINGS[setting], error)
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pack"], "Missing argument"),
        (["pack", "SOURCE"], "Missing option '--out'"),
        (["pack", "/nowhere", "--out", "OUT"], "SOURCE /nowhere: no such file or folder"),
        (["pack", "SOURCE", "--out", "/proc/x"], "--out /proc/x: cannot be written"),
        (["pack", "SOURCE", "--out", "OUT", "--config", "/nowhere.yaml"], "--config /nowhere.yaml: No such file"),
        (["pack", "SOURCE", "--out", "OUT", "--num-cpus", "0"], "'--num-cpus': 0 is not in the range"),
        (["pack", "s3:/typo", "--out", "OUT"], "SOURCE s3:/typo: no such file"),
        (["pack", "nope://x", "--out", "OUT"], "SOURCE nope://x: "),
        (["pack", "SOURCE", "--out", "nope://x"], "nope://x: Unrecognized filesystem"),
        (["pack", "SOURCE", "--out", "FILE"], "rows.jsonl: is a file, or below one; give a folder"),
        (["pack", "SOURCE/rows.json", "--out", "OUT"], "rows.json: no such file or folder; did you mean rows.jsonl?"),
        (["plan", "SOURCE", "--set", "tokenizer=/nowhere.json"], "tokenizer: '/nowhere.json' is not a file"),
        (["plan", "SOURCE", "--dp", "8,0"], "'8,0' is not a list of positive integers"),
        (["plan", "SOURCE", "--dp", "²"], "'²' is not a list of positive integers"),
        (["plan"], "give either SOURCE files and folders or --lengths FILE.parquet"),
        (["plan", "--lengths", "/nowhere.parquet"], "--lengths /nowhere.parquet: no such file"),
        (["report", "/nowhere"], "DATASET /nowhere: no such folder"),
        (["report", "SOURCE"], "has no manifest.json: it is not a dataset"),
        (["report", "PACKED"], "has no manifest.json: give a dataset inside of it, such as "),
        (["report", "FILE"], "rows.jsonl: is a file; give a folder"),
        (["advise", "/nowhere", "--gpus", "8", "--model", "no/x"], "get it with: hf download no/x --local-dir x"),
        (["verify", "nope://x"], "nope://x: Unrecognized filesystem"),
        (["verify", "/nowhere"], "DATASET /nowhere: no such folder"),
        (["nonsense"], "No such command 'nonsense'"),
        (["pack", "--nonsense"], "No such option"),
    ],
)
def test_wrong_words_and_paths_are_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str],
    tiny_source: Path,
    tiny_dataset: Path,
    tmp_path: Path,
    arguments: list[str],
    message: str,
) -> None:
    """Fails when a mistyped path or option ends in a traceback or in status 1."""
    places = {"FILE": "SOURCE/rows.jsonl", "PACKED": str(tiny_dataset.parent), "OUT": str(tmp_path / "out")}
    words = (places.get(word, word).replace("SOURCE", str(tiny_source)) for word in arguments)
    status, output, error = run(capsys, *words)
    assert status == 2
    assert output == ""
    assert error.count("\n") == 1
    assert message in error


def test_no_words_at_all_give_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Fails when the help of a bare ``preshard`` comes squeezed into one line, as errors are."""
    status, output, error = run(capsys)
    assert (status, output) == (2, "")
    assert re.search(r"^  pack +Pack SOURCE", error, re.MULTILINE)


def test_the_help_says_of_each_command_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    """Fails when the first sentence of a command is too long for its line, and ends in the middle."""
    commands = run(capsys, "--help")[1].partition("Commands:")[2].strip().splitlines()
    assert len(commands) > 10
    assert [line for line in commands if not re.fullmatch(r" *\S+ +[A-Z].*[^.][.]", line)] == []


def test_a_configuration_file_and_settings_over_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_source: Path
) -> None:
    """Fails when --set does not win over --config, or a file that is no mapping is accepted."""
    file = tmp_path / "pack.yaml"
    file.write_text("seq_len: 1000\nvideo: {fps: 1}\n")
    words = ["pack", str(tiny_source), "--out", "x", "--config", str(file)]
    status, _, error = run(capsys, *words, "--set", "seq_len=999")
    assert status == 2
    assert "seq_len 999" in error
    for text, message in (
        ("- a\n", "contains a list"),
        ("a: [", "not YAML"),
        ("video: {fps: fast}", "video.fps: 'fast'"),
    ):
        file.write_text(text)
        status, _, error = run(capsys, *words)
        assert status == 2
        assert message in error


REPORT_KEYS = {
    "documents",
    "packs",
    "tokens",
    "padding_tokens",
    "fill",
    "rejects",
    "truncated_tokens",
    "straggler_ratio",
}
REPORT_KEYS |= {"plan_seconds", "balance", "images"}


def check_figures(figures: dict) -> None:
    assert figures.keys() >= REPORT_KEYS
    assert figures["tokens"] + figures["padding_tokens"] == figures["packs"] * figures["seq_len"]
    assert figures["fill"] == pytest.approx(figures["tokens"] / (figures["packs"] * figures["seq_len"]))
    assert set(figures["balance"]) == {"contiguous", "zigzag", "balanced_ring", "balanced_gather"}
    for degrees in figures["balance"].values():
        assert set(degrees) == {"1", "2", "4", "8"}
        for degree, row in degrees.items():
            assert row["ring_path"]["mean"] >= row["gather_path"]["mean"] - 1e-9
            assert 0 <= row["traffic"]["mean"] <= row["traffic"]["max"] <= 1
            assert len(row["tiles"]["rank_mean"]) == int(degree)
            assert row["attention"]["imbalance"]["mean"] >= 1
        assert degrees["1"]["traffic"]["max"] == 0
    assert set(figures["images"]) == {"1", "2", "4", "8"}
    assert figures["images"]["1"]["images"]["imbalance"]["mean"] == 1


def test_report_says_what_was_written(
    capsys: pytest.CaptureFixture[str], tiny_dataset: Path, tiny_rejects: dict[str, str]
) -> None:
    """Fails when the report counts other documents, tokens or rejects than the tables hold."""
    status, output, _ = run(capsys, "report", str(tiny_dataset), "--json")
    assert status == 0
    figures = json.loads(output)
    check_figures(figures)
    assert figures["documents"] == 29
    assert sum(figures["rejects"].values()) == len(tiny_rejects)
    assert figures["rejects"]["bad_row"] == 2
    assert figures["balanced_packs"] == figures["packs"]
    status, output, _ = run(capsys, "report", str(tiny_dataset))
    assert status == 0
    assert "duplicate_row 1" in output
    assert "balanced_ring" in output
    assert "cp 8" in output


def lengths_file(path: Path, **columns: list) -> str:
    pq.write_table(pa.table(columns), path)
    return str(path)


def test_plan_from_lengths_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_settings: list[str]) -> None:
    """Fails when the what-if tool plans other documents than the file holds, or loses one it cannot pack."""
    file = lengths_file(
        tmp_path / "lengths.parquet",
        doc_id=[str(i) for i in range(100)],
        tokens=[17 + 9 * i for i in range(98)] + [2000, 0],
        images=[i % 3 for i in range(99)] + [0],
    )
    settings = [word for setting in tiny_settings for word in ("--set", setting)]
    status, output, _ = run(capsys, "plan", "--lengths", file, "--json", *settings)
    assert status == 0
    figures = json.loads(output)
    check_figures(figures)
    assert figures["documents"] == 98
    assert figures["tokens"] == sum(17 + 9 * i for i in range(98))
    assert figures["rejects"] == {"empty": 1, "too_long": 1}
    status, output, _ = run(capsys, "plan", "--lengths", file, "--json", "--set", "oversize=split", *settings)
    assert json.loads(output)["tokens"] == sum(17 + 9 * i for i in range(98)) + 2000
    status, output, _ = run(capsys, "plan", "--lengths", file, "--json", "--set", "oversize=truncate", *settings)
    assert json.loads(output)["truncated_tokens"] == {"default": 2000 - 1024}


def test_straggler_ratios_for_the_sizes_asked(
    capsys: pytest.CaptureFixture[str], tiny_dataset: Path, tmp_path: Path
) -> None:
    """Fails when a size that cuts through the groups of equal cost is answered as if it had no straggler."""
    status, output, _ = run(capsys, "report", str(tiny_dataset), "--json", "--dp", "1,4")
    assert status == 0
    figures = json.loads(output)
    assert list(figures["straggler_ratio"]) == list(figures["encoder_straggler"]) == ["1", "4"]
    loads = pq.read_table(tiny_dataset / "packs.parquet")["load"].to_numpy()
    steps = loads[: len(loads) // 4 * 4].reshape(-1, 4)
    assert figures["encoder_straggler"]["4"] == pytest.approx(steps.max(axis=1).sum() / steps.mean(axis=1).sum())
    file = lengths_file(tmp_path / "x.parquet", doc_id=["a"], tokens=[3], images=[0])
    for words in (["report", str(tiny_dataset), "--dp", "3"], ["plan", "--lengths", file, "--dp", "48"]):
        status, _, error = run(capsys, *words)
        assert status == 2
        assert re.search(r"data-parallel size \d+ does not divide order.window \d+; sizes that do: 1, 2, 4", error)
    status, _, error = run(capsys, "report", str(tiny_dataset), "--dp", "four")
    assert status == 2
    assert "'four' is not a list of positive integers" in error


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"doc_id": ["a"], "tokens": [3]}, "lacks the column images"),
        ({"doc_id": ["a"], "tokens": ["x"], "images": [0]}, "lengths are integers"),
        ({"doc_id": ["a"], "tokens": [-3], "images": [0]}, "tokens holds a null or negative value"),
        ({"doc_id": ["a"], "tokens": [3], "images": [None]}, "images holds a null or negative value"),
    ],
)
def test_wrong_lengths_are_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, columns: dict[str, list], message: str
) -> None:
    """Fails when a malformed lengths file ends in a traceback."""
    status, _, error = run(capsys, "plan", "--lengths", lengths_file(tmp_path / "x.parquet", **columns))
    assert status == 2
    assert message in error
    assert error.count("\n") == 1


def test_a_source_of_which_nothing_can_be_packed_has_failed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_config: PackConfig, tiny_settings: list[str], progress: Any
) -> None:
    """Fails when forty of forty rows are rejected with exit status 0, or no reason is on the screen."""
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"id": "r{i}", "text": {i}}}\n' for i in range(40)))
    words = [str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / "out")]
    pack(words[:1], words[2], tiny_config, PlainExecutor(), progress)
    status, output, error = run(capsys, "pack", *words, *(w for s in tiny_settings for w in ("--set", s)))
    assert status == 1
    assert re.search(r"^  40 bad_row: .* \(rows.jsonl:1\)$", output, re.MULTILINE)
    assert f"every reject: {tmp_path}/out/rejects.parquet" in output
    assert error == f"preshard: {tmp_path}/out: holds no document: all 40 rows were rejected\n"
    status, output, _ = run(capsys, "report", words[2])
    assert status == 0
    assert "40 bad_row" in output
    status, output, _ = run(capsys, "report", words[2], "--json")
    assert [reason["documents"] for reason in json.loads(output)["reject_reasons"]] == [40]


def test_rows_that_nobody_can_count_are_not_lost_with_status_0(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_settings: list[str], tiny_config: PackConfig, progress: Any
) -> None:
    """Fails when half a download passes as one reject of many rows, however many it lost."""
    lines = [f'{{"id": "r{i}", "text": "word {i}"}}\n' for i in range(20_000)]
    whole = gzip.compress("".join(lines[:200]).encode()) + gzip.compress("".join(lines[200:]).encode())
    (tmp_path / "rows.jsonl.gz").write_bytes(whole[:2_000])
    words = [str(tmp_path / "rows.jsonl.gz"), "--out", str(tmp_path / "out")]
    pack(words[:1], words[2], tiny_config, PlainExecutor(), progress)
    words += [word for setting in tiny_settings for word in ("--set", setting)]
    status, _, error = run(capsys, "pack", *words, "--max-rejects", "1")
    assert status == 3
    assert error.startswith(f"preshard: {tmp_path}/out: the dataset is whole, but a file is damaged, and nobody knows ")
    assert error.endswith("; mend it, or accept the loss with --allow-lost-files\n")
    assert run(capsys, "pack", *words, "--allow-lost-files")[0] == 0


def test_too_many_rejects_are_another_exit_status(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_settings: list[str], tiny_config: PackConfig, progress: Any
) -> None:
    """Fails when a source that loses a tenth of its rows packs with status 0, or one within the limit does not."""
    rows = [f'{{"id": "r{i}", "text": "word {i}"}}' for i in range(18)] + ['{"id": "r1", "text": "word 1"}', '{"x": 1}']
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    words = [str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / "out")]
    pack(words[:1], words[2], tiny_config, PlainExecutor(), progress)
    words += [word for setting in tiny_settings for word in ("--set", setting)]
    status, output, error = run(capsys, "pack", *words)
    assert status == 3
    assert "already packed" in output
    assert re.search(r"^fill [0-9.]+%\nwhy packs are not fuller: there are too few documents: ", output, re.MULTILINE)
    assert error.startswith(
        f"preshard: {tmp_path}/out: the dataset is whole, but 2 of 20 rows (10.00%) were rejected, "
    )
    assert "1 duplicate_row (is equal to the row 'rows.jsonl:2')" in error
    assert error.endswith("or allow more with --max-rejects 0.1\n")
    assert run(capsys, "pack", *words, "--max-rejects", "0.1")[0] == 0
    assert run(capsys, "pack", *words, "--max-rejects", "0.09")[0] == 3
    assert run(capsys, "verify", words[2])[0] == 0
