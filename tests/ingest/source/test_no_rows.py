"""Sources that hold no rows: the message says what they hold, and what makes rows of it."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import tarfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from preshard.packer_service.ingest.source.forms.fields import parsed_json
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.packer_service.ingest.source.names import matches
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError, DocumentError

ROW = {"question": "Why?", "answer": "So."}
OTHER = {"file_name": "a.jpg"}
MANY = [ROW] * 3


def refused(source: Path) -> str:
    with pytest.raises(ConfigError) as error:
        list_sources([str(source)])
    return str(error.value)


OBJECTS: dict[str, tuple[Any, str]] = {
    "one list": ({"version": "1", "data": MANY}, "jq -c '.data[]' a.json > a.jsonl"),
    "the longest list": ({"images": [OTHER], "annotations": MANY}, "jq -c '.annotations[]' a.json > a.jsonl"),
    "a name with spaces": ({"all rows": MANY}, """jq -c '.["all rows"][]' a.json > a.jsonl"""),
    "ids": ({"x1": ROW, "x2": ROW}, "jq -c 'to_entries[] | {id: .key} + .value' a.json > a.jsonl"),
    "no rows": ({"version": "1", "rows": 7}, "one object (version, rows) without the columns of a form"),
}


@pytest.mark.parametrize("case", OBJECTS)
def test_an_object_is_described(case: str, tmp_path: Path) -> None:
    """Fails when one object in place of rows is refused without saying where its rows are."""
    value, expected = OBJECTS[case]
    for indent in (None, 2):
        (tmp_path / "a.json").write_text(json.dumps(value, indent=indent), encoding="utf-8")
        assert refused(tmp_path).endswith(expected)


@pytest.mark.parametrize("text", [f"{json.dumps(ROW)}{json.dumps(ROW)}", json.dumps(ROW, indent=1)])
def test_objects_that_are_not_on_lines_are_described(text: str, tmp_path: Path) -> None:
    """Fails when rows that only stand on other lines are said to hold no rows."""
    (tmp_path / "a b.json").write_text(text, encoding="utf-8")
    assert refused(tmp_path).endswith("write it so: jq -c . 'a b.json' > 'a b.jsonl'")


def test_a_list_that_goes_beyond_what_is_looked_at_is_described(tmp_path: Path) -> None:
    """Fails when an object is too large to be read whole, and its rows are not found for it."""
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps({"info": {}, "rows": [ROW] * 200_000}).encode(), 1))
    assert refused(tmp_path).endswith("zcat a.json.gz | jq -c '.rows[]' > a.jsonl")


@pytest.mark.parametrize("orient", ["columns", "list"])
def test_columns_of_pandas_become_rows(orient: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when the program that a message gives does not write the rows."""
    table = pd.DataFrame(MANY).rename(columns={} if orient == "columns" else {"answer": "answers"})
    written = table.to_json() if orient == "columns" else json.dumps(table.to_dict(orient="list"))
    (tmp_path / "a.json").write_text(written, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(shlex.split(refused(tmp_path))[-1])
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows == table.to_dict(orient="records")


def test_a_saved_table_becomes_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when the program that a message gives does not write Parquet that can be packed."""
    pd.DataFrame(MANY).to_pickle(tmp_path / "my rows.pkl")
    monkeypatch.chdir(tmp_path)
    exec(shlex.split(refused(tmp_path / "my rows.pkl"))[-1])
    assert [file.form for file in list_sources([str(tmp_path)]).files] == ["question_answer"]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("a.zip", "unpack a.zip: unzip a.zip"),
        ("a.jsonl.xz", "unpack a.jsonl.xz: xz -dk a.jsonl.xz"),
        ("a.jsonl.bz2", "unpack a.jsonl.bz2: bzip2 -dk a.jsonl.bz2"),
        ("a.txt", """for file in ./*.txt; do jq -Rsc '{text: .}' "$file"; done > texts.jsonl"""),
        ("a.unknown", "behind it"),
    ],
)
def test_a_file_of_another_kind_is_named_with_its_remedy(name: str, remedy: str, tmp_path: Path) -> None:
    """Fails when a folder of archives or texts is refused without saying what to do with them."""
    (tmp_path / name).write_bytes(b"x")
    assert refused(tmp_path).endswith(remedy)


def test_boxes_are_no_conversations(tmp_path: Path) -> None:
    """Fails when the annotations of a detection dataset are taken for those that a form has."""
    row = {"image": "a.jpg", "annotations": [{"bbox": [0, 0, 1, 1], "category_id": 3}]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row), encoding="utf-8")
    assert "image alone is no form; the nearest, caption, needs caption, text" in refused(tmp_path)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"question": "a", "image": "b", "answers": ["c"]}, "--set 'rename_columns={answers: answer}'"),
        ({"conversation": []}, "conversations: --set 'rename_columns={conversation: conversations}'"),
        ({"solution": "a", "answer": "b"}, "question_answer, needs instruction, question, query or prompt beside it"),
    ],
)  # fmt: skip
def test_the_nearest_form_is_named(row: dict[str, Any], expected: str, tmp_path: Path) -> None:
    """Fails when a message names a form that reads fewer of the columns, or does not say how to reach it."""
    (tmp_path / "a.jsonl").write_text(json.dumps(row), encoding="utf-8")
    assert expected in refused(tmp_path)


def test_a_list_that_python_printed_is_told() -> None:
    """Fails when what pandas writes for a list in CSV is called broken, and not what it is."""
    with pytest.raises(DocumentError, match=r"not JSON but how Python prints a value; write it by json\.dumps"):
        parsed_json(str([{"from": "human", "value": "Why?"}]), "conversations")


@pytest.mark.parametrize("name", ["-a.json", "-a.json.gz", "a'$(touch b).json"])
def test_names_of_files_are_neither_options_nor_commands(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a proposed command takes a name for an option, or does what the name says."""
    written = json.dumps({"é": MANY}).encode()
    (tmp_path / name).write_bytes(gzip.compress(written) if name.endswith("gz") else written)
    command = refused(tmp_path).partition("as lines: ")[2]
    words = shlex.split(command)
    assert f"./{name}" in words or name in words
    assert not any(word.startswith("-a") for word in words[:-1])
    assert '.["\\u00e9"][]' in words  # jq's names are ASCII


@pytest.mark.parametrize("name", ["a'; touch b;'.jsonl", "a[0].jsonl", "*.jsonl"])
def test_the_option_that_leaves_a_file_out_does_only_that(name: str, tmp_path: Path) -> None:
    """Fails when a pasted ``--ignore`` ends in the middle of a name, or its pattern means other files."""
    (tmp_path / name).write_text('{"x": 1}\n', encoding="utf-8")
    asked = refused(tmp_path).rpartition("; --ignore ")[2].removesuffix(" leaves the file out")
    (pattern,) = shlex.split(asked)
    assert matches(name, pattern)
    assert not matches("a0.jsonl", pattern)


@pytest.mark.parametrize(
    ("row", "setting"),
    [
        ({"conversations';w'": []}, {"rename_columns": {"conversations';w'": "conversations"}}),
        ({"text": "a", "pic'$(w)": {"bytes": "", "path": "a.png"}}, {"rename_columns": {"pic'$(w)": "image"}}),
    ],
)
def test_the_option_that_sets_a_column_does_only_that(
    row: dict[str, Any], setting: dict[str, Any], tmp_path: Path
) -> None:
    """Fails when a pasted ``--set`` ends in the middle of a column's name."""
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    words = shlex.split(refused(tmp_path).partition("--set ")[2].partition("; --ignore")[0])
    key, _, value = words[0].partition("=")
    assert {key: yaml.safe_load(value)} == setting


@pytest.mark.parametrize(
    ("name", "written", "reason"),
    [
        ("a.json", b"", "is empty"),
        ("a.json", b"\xef\xbb\xbf \n", "is empty"),
        ("a.json.gz", gzip.compress(b"", mtime=0), "is empty"),
        ("a.json.gz", b'[{"text": "x"}]', r"cannot be decompressed \(.*[gG]zip.*\); copy it again"),
        ("a.json.gz", gzip.compress(b'{"rows": 1}', mtime=0)[:-9], r"cannot be decompressed \(.*\); copy it again"),
        ("a.json.zst", b"[]", r"cannot be decompressed \(.*\); copy it again"),
        ("a.json", b"null", "is neither an array nor lines of objects"),
    ],
)
def test_what_holds_nothing_is_told_from_other_values(name: str, written: bytes, reason: str, tmp_path: Path) -> None:
    """Fails when a file that is empty, or was copied in part, is said to hold another kind of JSON."""
    (tmp_path / name).write_bytes(written)
    assert re.search(rf"/{name} {reason}$", refused(tmp_path))


@pytest.mark.parametrize(
    ("name", "written", "reason"),
    [
        (
            "meta.json",
            {"zh": {"root": "my coco/", "annotation": "zh.jsonl", "repeat_time": 1}},
            "preshard pack zh.jsonl --media-root 'my coco/' --out packed",
        ),
        ("info.json", {"my": {"file_name": "my.json", "columns": {}}}, "preshard pack my.json --out packed"),
        ("a.csv", "caption;image\nx;a.jpg\n", 'its columns are separated by ";"'),
        ("a.tsv", "caption,image\nx,a.jpg\n", 'its columns are separated by ","'),
    ],
)
def test_lists_of_datasets_and_other_separators_are_told(name: str, written: Any, reason: str, tmp_path: Path) -> None:
    """Fails when the file that a trainer starts from, or one that a spreadsheet wrote, is a dead end."""
    text = written if isinstance(written, str) else json.dumps(written)
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert reason in refused(tmp_path)


def test_a_separator_is_replaced_by_the_command_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when the pasted command reads other columns, or writes over the file that it reads."""
    (tmp_path / "a.csv").write_text('caption;image\n"x, y";a.jpg\n', encoding="utf-8")
    program = shlex.split(refused(tmp_path).partition("python -c ")[2].partition("; --ignore")[0])[0]
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    assert (tmp_path / "a.rows.csv").read_text(encoding="utf-8") == 'caption,image\n"x, y",a.jpg\n'
    assert list_sources([str(tmp_path / "a.rows.csv")]).files[0].form == "caption"


def test_pictures_with_json_beside_each_become_a_webdataset(tmp_path: Path) -> None:
    """Fails when what img2dataset writes as files is said to hold nothing, or the tar that is named holds no rows."""
    for name in ("000", "001"):
        (tmp_path / "in" / f"{name}.jpg").parent.mkdir(exist_ok=True)
        (tmp_path / "in" / f"{name}.jpg").write_bytes(b"\xff\xd8\xff")
        (tmp_path / "in" / f"{name}.txt").write_text(f"a {name}", encoding="utf-8")
        (tmp_path / "in" / f"{name}.json").write_text(
            json.dumps({"caption": f"a {name}", "url": "u"}), encoding="utf-8"
        )
    command = refused(tmp_path / "in").partition("make a WebDataset of them: ")[2]
    assert command == f"tar --sort=name -cf rows.tar -C {tmp_path / 'in'} ."
    with tarfile.open(tmp_path / "rows.tar", "w") as tar:
        for path in sorted((tmp_path / "in").iterdir()):
            tar.add(path, f"./{path.name}")
    assert list_sources([str(tmp_path / "rows.tar")]).files[0].form == "caption"


@pytest.mark.parametrize(
    ("log", "function"),
    [("_delta_log/00000000000000000000.json", "delta_scan"), ("metadata/v1.metadata.json", "iceberg_scan")],
)
def test_files_that_a_log_may_have_removed_are_not_read(log: str, function: str, tmp_path: Path) -> None:
    """Fails when rows that were deleted from a table of Delta or Iceberg are packed."""
    (tmp_path / "t/data").mkdir(parents=True)
    (tmp_path / "t/data/a.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    (tmp_path / "t" / log).parent.mkdir()
    (tmp_path / "t" / log).write_text('{"add": {}}\n', encoding="utf-8")
    said = refused(tmp_path)
    assert (
        shlex.split(said.partition("duckdb -c ")[2])[0]
        == f"copy (from {function}('{tmp_path / 't'}')) to 'rows.parquet'"
    )
    assert list_sources([str(tmp_path)], PackConfig(ignore=(f"t/{log}",))).files
