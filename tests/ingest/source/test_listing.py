"""Contents of the command line's sources: the form of every file, what is not read, and what must not be overlooked."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from preshard.packer_service.config import load_config
from preshard.packer_service.ingest.source.files import list_fragments, read_fragment
from preshard.packer_service.ingest.source.forms.custom import source_hash
from preshard.packer_service.ingest.source.listing import Sources, list_sources
from preshard.packer_service.ingest.source.rows import parse_row
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError, DocumentError
from preshard.schemas.files import filesystem

TEXT, CHAT = {"text": "a"}, {"messages": [{"role": "assistant", "content": "a"}]}
SHAREGPT = {"conversations": [{"from": "gpt", "value": "a"}], "model": "m"}


def write(path: Path, *rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def listed(*sources: object, **keys: Any) -> Sources:
    return list_sources([str(source) for source in sources], PackConfig(**keys))


def labels(found: Sources) -> list[str]:
    return [file.label for file in found.files]


def test_every_file_has_the_form_that_its_columns_show(tmp_path: Path) -> None:
    """Fails when a form is guessed from the first row alone, or a file's form from another file."""
    write(tmp_path / "a.jsonl", TEXT, CHAT)
    write(tmp_path / "b.jsonl", {"id": 1}, SHAREGPT)
    pq.write_table(pa.table({"image": ["0.png"], "caption": ["a"], "score": [1.0]}), tmp_path / "c.parquet")
    (tmp_path / "0.png").touch()
    found = listed(tmp_path)
    assert [file.form for file in found.files] == ["messages", "sharegpt", "caption"]
    assert found.files[2].columns == ("caption", "image")
    assert found.unused == {"score": 1}
    [first, second, third] = found.notes()
    assert first.startswith("reads as: messages, text or annotations (")
    assert "ShareGPT" in second
    assert "caption" in third


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a", "images": ["0.png"], "conversation": [1]}, "the column conversation is not"),
        ({"messages": [1], "image_path": "0.png", "text": "a"}, "image_path is not .* --form caption reads it, and"),
        (
            {"raw_content": "a", "image": "0.png"},
            "the column image is not read by text; the forms sharegpt, .*caption, question_answer read it beside",
        ),
        ({**SHAREGPT, "audio": "a.wav"}, r"no form but one of your own .* 'ignore_columns=\[audio\]' leaves it out"),
        ({"instruction": "a", "output": "b", "photos": ["0.png"]}, "the column photos is not read by Alpaca"),
    ],
)
def test_a_column_of_media_that_nothing_reads_ends_the_command(tmp_path: Path, row: Any, message: str) -> None:
    """Fails when images, sound or turns are left out in silence, or nobody says how they are read."""
    write(tmp_path / "a.jsonl", row)
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "b.parquet")
    for name in ("a.jsonl", "b.parquet"):
        with pytest.raises(ConfigError, match=message):
            listed(tmp_path / name)


@pytest.mark.parametrize("rejected", [20, 5])
def test_first_rows_that_would_all_be_rejected_are_told(tmp_path: Path, rejected: int) -> None:
    """Fails when a source of rows that no form can parse is measured to its end without a word, or a few rows with
    faults cast doubt on the others."""
    rows = [{"question": "Why?", "answer": i < rejected or "So."} for i in range(20)]
    write(tmp_path / "a.jsonl", *rows)
    pq.write_table(
        pa.Table.from_pylist([{**row, "answer": str(row["answer"])} for row in rows]), tmp_path / "b.parquet"
    )
    pq.write_table(pa.table({"prompt": ["Why?"] * 20, "response": [3] * 20}), tmp_path / "c.parquet")
    found = [listed(tmp_path / name) for name in ("a.jsonl", "b.parquet", "c.parquet")]
    assert {file.form for each in found for file in each.files} == {"question_answer"}
    told = "each of its first 16 rows would be rejected: answer is a boolean, not a string"
    assert found[0].doubts == ((f"a.jsonl: {told}",) if rejected == 20 else ())
    assert found[1].doubts == ()
    assert "response is a number, not a string" in list(found[2].notes())[-1]
    assert listed(tmp_path, ignore=["a.*", "b.*"], form="text").doubts[0].startswith(f"{tmp_path.name}/c.parquet: each")


@pytest.mark.parametrize("indent", [None, 1])
def test_an_array_under_the_name_of_lines_is_an_array(tmp_path: Path, indent: int | None) -> None:
    """Fails when the lines of an array are rejects, or its only line is a row."""
    (tmp_path / "a.jsonl").write_text(json.dumps([TEXT, TEXT], indent=indent), encoding="utf-8")
    (tmp_path / "b.jsonl").write_text(f"[\n{json.dumps(TEXT)},\n{json.dumps(TEXT)}\n]\n", encoding="utf-8")
    for name in ("a.jsonl", "b.jsonl"):
        found = listed(tmp_path / name)
        assert [len(list(read_fragment(each).rows)) for each in list_fragments(found.files)] == [2]
        assert not found.doubts


@pytest.mark.parametrize(
    ("name", "row", "program"),
    [
        ("a.jsonl", {"custom_id": "1", "body": {"model": "m", **CHAT}}, "jq -c .body a.jsonl > rows.a.jsonl"),
        ("a.json", {"row_idx": 0, "row": {"question": "a", "answer": "b"}}, "jq -c '.[] | .row' a.json > a.jsonl"),
    ],
)
def test_rows_inside_of_a_column_are_told(tmp_path: Path, name: str, row: dict[str, Any], program: str) -> None:
    """Fails when each request of a batch is a reject, or no way out is named."""
    (tmp_path / name).write_text(json.dumps([row] if name == "a.json" else row) + "\n", encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        listed(tmp_path / name)
    assert program in str(refused.value)


def test_contents_of_parts_are_no_text(tmp_path: Path) -> None:
    """Fails when Gemini's turns are taken for pre-training text, each a reject."""
    write(tmp_path / "a.jsonl", {"contents": [{"role": "user", "parts": [{"text": "a"}]}]})
    with pytest.raises(ConfigError, match="contents of parts are Gemini's turns; write them as messages: jq -c"):
        listed(tmp_path / "a.jsonl")


@pytest.mark.parametrize("write_file", ["a.jsonl", "a.parquet"])
def test_columns_of_no_form_end_the_command(tmp_path: Path, write_file: str) -> None:
    """Fails when half a preference is measured row by row before the command says that it cannot pack it."""
    row = {"prompt": "The sky is", "chosen": " blue."}
    write(tmp_path / "a.jsonl", row)
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    with pytest.raises(
        ConfigError, match=f"SOURCE {write_file}: chosen alone is not a preference.*--ignore '{write_file}'"
    ):
        listed(tmp_path / write_file)
    write(tmp_path / "b.jsonl", {"prompt": "a", "completion": "b", "label": True})
    with pytest.raises(ConfigError, match="the column label says which answers are bad, and all would be learnt"):
        listed(tmp_path / "b.jsonl")
    assert listed(tmp_path / "b.jsonl", ignore_columns=["label"]).files[0].form == "prompt_completion"
    write(tmp_path / "d.jsonl", {"question": "The sky is", "chosen": " blue.", "rejected": " green."})
    with pytest.raises(ConfigError, match="the column question is not read by preferences"):
        listed(tmp_path / "d.jsonl")
    assert listed(tmp_path / "d.jsonl", ignore_columns=["question"]).files[0].form == "preferences"
    write(tmp_path / "c.jsonl", {"conversations": [], "video": "v.mp4", "fps": 29.97})
    with pytest.raises(ConfigError, match="the column fps beside images or videos is not read: a setting belongs into"):
        listed(tmp_path / "c.jsonl")


def test_a_column_is_left_out_when_the_user_says_so(tmp_path: Path) -> None:
    """Fails when somebody who means to train on text alone cannot."""
    row = {"raw_content": "a", "image": "0.png", "n_images": 1, "turn": 2}
    write(tmp_path / "a.jsonl", row)
    [file] = listed(tmp_path, ignore_columns=["image"]).files
    assert file.form == "text"
    assert parse_row(row, file.form, PackConfig(ignore_columns=("image",))).text == "a"
    with pytest.raises(DocumentError, match="the column image is not read by text"):
        parse_row(row, file.form)


def test_a_later_row_with_media_is_a_reject(tmp_path: Path) -> None:
    """Fails when only a file's first rows are looked at for columns that nothing reads."""
    write(tmp_path / "a.jsonl", *[{"raw_content": "a"}] * 100, {"raw_content": "a", "image": "0.png"})
    [file] = listed(tmp_path).files
    [fragment] = list_fragments([file])
    rows = [row for _, _, row in read_fragment(fragment).rows]
    with pytest.raises(DocumentError, match="the column image is not read by text"):
        parse_row(rows[-1], file.form)


def test_conversations_may_follow_many_texts(tmp_path: Path) -> None:
    """Fails when a file that begins with texts loses the conversations behind them."""
    write(tmp_path / "a.jsonl", *[TEXT] * 200, CHAT)
    [file] = listed(tmp_path).files
    assert file.form == "messages"
    assert parse_row(CHAT, file.form).branches


def test_files_that_are_no_source_are_counted(tmp_path: Path) -> None:
    """Fails when a file is skipped without a word, or cannot be left out by its name or its path."""
    write(tmp_path / "a.jsonl", TEXT)
    write(tmp_path / "deep" / "b.jsonl", TEXT)
    write(tmp_path / "deep" / "config.json", {"hidden_size": 1})
    (tmp_path / "deep" / "pretty.json").write_text(json.dumps({"a": 1}, indent=1))
    for name in ("a.jsonl.bz2", "README", "0.png", "1.png", ".hidden"):
        (tmp_path / name).write_bytes(b"x")
    found = listed(tmp_path)
    assert found.unread == {"*.bz2": 1, "*.json": 2, "*.png": 2, ".hidden": 1, "README": 1}
    assert list(found.notes())[-1].endswith("; pass --ignore PATTERN to silence this")
    found = listed(tmp_path, ignore=["*.png", "README", "deep/*", ".h*", "*.bz2"])
    assert found.unread == {}
    assert labels(found) == [f"{tmp_path.name}/a.jsonl"]


def test_json_is_an_array_or_lines(tmp_path: Path) -> None:
    """Fails when a file that ends in .json is taken for the wrong one of both, or a file of settings for rows."""
    (tmp_path / "array.json").write_text(f"\ufeff [{json.dumps(TEXT)}]", encoding="utf-8")
    write(tmp_path / "lines.json", TEXT, TEXT)
    write(tmp_path / "one.json", TEXT)
    assert [file.kind for file in listed(tmp_path).files] == ["json", "jsonl", "jsonl"]
    write(tmp_path / "settings.json", {"a": 1})
    with pytest.raises(ConfigError, match=r"settings\.json: holds no rows"):
        listed(tmp_path / "settings.json")


def test_patterns_match_as_a_shell_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a pattern finds other files than the user's shell would, or names them otherwise."""
    for name in ("a/1.jsonl", "a/2.jsonl", "b/1.jsonl", "b/c/1.jsonl", "b/c/1.txt"):
        write(tmp_path / name, TEXT)
    assert labels(listed(tmp_path / "*" / "1.jsonl")) == [f"{tmp_path.name}/{x}" for x in ("a/1.jsonl", "b/1.jsonl")]
    assert len(listed(tmp_path / "**" / "1.jsonl").files) == 3
    assert labels(listed(tmp_path / "a" / "[!1].json?")) == ["a/2.jsonl"]
    assert len(listed(f"file://{tmp_path}/*/1.jsonl").files) == 2
    monkeypatch.chdir(tmp_path / "a")
    assert len(listed("*.jsonl").files) == 2
    with pytest.raises(ConfigError, match="holds no file of rows; these end in"):
        listed(tmp_path / "*.nothing")
    os.rename("1.jsonl", "[1].jsonl")  # noqa: PTH104
    assert len(listed(tmp_path / "a" / "[1].jsonl").files) == 1  # a file of that very name


def test_a_form_of_ones_own_reads_every_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a user's function does not get the whole row, or its errors end the job."""
    code = (
        "def rows(row):\n"
        "    return {'messages': [{'role': 'user', 'content': row['q']}, {'role': 'assistant', 'content': row['a']}]}\n"
        "def nothing(row):\n    return 3\n"
        "number = 3\n"
    )
    (tmp_path / "my_forms_here.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    pq.write_table(pa.table({"q": ["Why?"], "a": ["So."], "image": ["0.png"]}), tmp_path / "a.parquet")
    config = load_config(None, ["form=my_forms_here:rows"])
    [file] = list_sources([str(tmp_path / "a.parquet")], config).files
    [fragment] = list_fragments([file])
    [(_, _, row)] = read_fragment(fragment).rows
    assert parse_row(row, file.form).branches[0][1].parts == ("So.",)
    assert file.form_sha256 == source_hash("my_forms_here:rows")
    with pytest.raises(DocumentError, match="my_forms_here:rows raised KeyError: 'q'"):
        parse_row({"a": "b"}, file.form)
    with pytest.raises(DocumentError, match="my_forms_here:nothing returned a number"):
        parse_row(row, "my_forms_here:nothing")
    for name, reason in (
        ("nowhere:rows", "ModuleNotFound"),
        ("my_forms_here:x", "Attribute"),
        ("my_forms_here:number", "is a number"),
    ):
        with pytest.raises(ConfigError, match=reason):
            list_sources([str(tmp_path / "a.parquet")], load_config(None, [f"form={name}"]))
    with pytest.raises(ConfigError, match="--form lava: no such form; legal are auto, tokens, sharegpt"):
        list_sources([str(tmp_path / "a.parquet")], load_config(None, ["form=lava"]))


def test_a_source_is_named_without_its_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when the label of a bucket, which is in locations and tables, holds the key that the command gave."""
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket/a.jsonl").write_text('{"text": "x"}')
    inside = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr(filesystem, "_client", lambda *_: (inside, "bucket"))
    for source in ("s3://KEY:hunter2@bucket", "s3://KEY:hunter2@bucket/*.jsonl?region=r"):
        [file] = list_sources([source]).files
        assert file.label == "bucket/a.jsonl"
        assert file.media.location("x.png").startswith("s3://KEY:hunter2@bucket/x.png"), "read with the command's key"


def test_what_other_programs_keep_beside_the_data_is_no_row(tmp_path: Path) -> None:
    """Fails when forks of macOS, copies of Jupyter, or files that Spark never finished are read as rows."""
    beside = ("._a.jsonl", ".ipynb_checkpoints/a-checkpoint.jsonl", "__MACOSX/._a.jsonl", "_temporary/0/part.parquet")
    for name in ("a.jsonl", *beside):
        write(tmp_path / name, {**TEXT, "id": name})
    found = listed(tmp_path)
    assert labels(found) == [f"{tmp_path.name}/a.jsonl"]
    assert set(found.unread) == {"._*", "**/.ipynb_checkpoints/**", "**/__MACOSX/**", "**/_temporary/**"}
    assert listed(tmp_path, ignore=list(found.unread)).unread == {}
    assert labels(listed(tmp_path / ".ipynb_checkpoints")) == [".ipynb_checkpoints/a-checkpoint.jsonl"]
    (tmp_path / "_temporary/0/part.parquet").unlink()  # the one that pyarrow leaves out, and datasets does not
    read = datasets.load_dataset(str(tmp_path), cache_dir=str(tmp_path / ".cache"), split="train")
    assert read["id"] == ["a.jsonl"]


def test_a_column_to_keep_that_nobody_has_is_told(tmp_path: Path) -> None:
    """Fails when a slip in keep_columns, or a column that is only the name of folders, makes all values null."""
    (tmp_path / "lang=en").mkdir()
    pq.write_table(pa.table({"text": ["a"], "quality": [0.5]}), tmp_path / "lang=en" / "a.parquet")
    with pytest.raises(ConfigError, match="no file has a column qualty; did you mean quality"):
        listed(tmp_path, keep_columns={"qualty": "float"})
    with pytest.raises(ConfigError, match=r"no file has a column lang; write it into the rows, .*\(lang=en\)"):
        listed(tmp_path, keep_columns={"lang": "string"})
    assert not listed(tmp_path, keep_columns={"quality": "float"}).doubts
    write(tmp_path / "b.jsonl", TEXT)
    assert listed(tmp_path / "b.jsonl", keep_columns={"lang": "string"}).doubts == (
        "keep_columns: no first row has a column lang; documents keep null where their row has none",
    )


def test_columns_in_another_member_than_json_are_told(tmp_path: Path) -> None:
    """Fails when the captions of ``0.info.json`` are no more than missing."""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, data in (("0.jpg", b"\xff\xd8\xff"), ("0.info.json", b'{"caption": "a"}')):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    with pytest.raises(ConfigError, match=r"columns come from the member KEY.json alone, not from KEY.info.json"):
        listed(tmp_path / "a.tar")


def test_a_path_is_renamed_to_what_takes_images_and_videos(tmp_path: Path) -> None:
    """Fails when the path of a video is proposed to be read as an image."""
    write(tmp_path / "a.jsonl", {"path": "v/0.mp4", "text": "a"})
    with pytest.raises(ConfigError, match=r"'rename_columns=.path: file_name.' reads it"):
        listed(tmp_path / "a.jsonl")
    [file] = listed(tmp_path / "a.jsonl", rename_columns={"path": "file_name"}).files
    assert (file.form, file.kind) == ("caption", "jsonl")


def test_files_of_one_name_are_told(tmp_path: Path) -> None:
    """Fails when the same rows as CSV and JSON Lines are packed twice without a word."""
    write(tmp_path / "d" / "a.jsonl", TEXT)
    (tmp_path / "d" / "a.csv").write_text("text\na\n", encoding="utf-8")
    write(tmp_path / "d" / "b.jsonl", TEXT)
    told = "d/a.csv and d/a.jsonl have one name; if they hold the same rows, --ignore 'a.csv' leaves one out"
    assert told in list(listed(tmp_path / "d").notes())
    assert not listed(tmp_path / "d", ignore=["a.csv"]).left_out
