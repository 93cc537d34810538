"""Sources that hold no rows: the message says what they hold, and what makes rows of it."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from preshard.packer_service.ingest.source.forms.fields import parsed_json
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.packer_service.ingest.source.names import matches
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
