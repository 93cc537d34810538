"""Media told by what they are, in every form in which people write them into rows; Pillow makes the files."""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.families.family import Family
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.model import configured_renderer
from preshard.packer_service.ingest.render import render, render_pieces
from preshard.packer_service.ingest.source.files import list_fragments, read_fragment
from preshard.packer_service.ingest.source.forms.detect import MEDIA, closer_kind
from preshard.packer_service.ingest.source.forms.inline import is_media_file
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.packer_service.ingest.source.rows import parse_row
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError, DocumentError

ANSWERED = {"question": "What colour?", "answer": "red"}
BLUE = (90, 120, 250)
"""A colour whose PNG has ``-`` and ``_`` in the alphabet of URLs, and needs padding."""


def picture(kind: str, size: tuple[int, int] = (64, 32)) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", size, BLUE).save(data, kind)
    return data.getvalue()


KINDS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000", "PDF")
FILES = {kind: picture(kind) for kind in KINDS}
PNG = next(data for side in range(1, 200) if len(data := picture("PNG", (side, 31))) % 3)
SPELLED = base64.b64encode(PNG).decode()


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_every_kind_are_known_by_their_first_bytes(kind: str) -> None:
    """Fails when a kind of file that images may have is taken for anything else in a column that nothing reads."""
    data = FILES[kind]
    spelled = base64.b64encode(data).decode()
    assert is_media_file(data)
    for value in (
        data,
        [data],
        {"bytes": data, "path": None},
        spelled,
        spelled.rstrip("="),
        f"data:image/x;base64,{spelled}",
    ):
        assert closer_kind("a", {"a": value}) == MEDIA
    assert parse_row({**ANSWERED, "image": spelled}, "question_answer").media() == [Medium(kind="image", data=data)]


@pytest.mark.parametrize(
    "value",
    [
        *(
            "a.jpg",
            "data/a b.PNG",
            ["x/y.webp"],
            "clip.mp4",
            "s3://b/a.jpeg",
            {"bytes": None, "path": "a.jpg"},
            "s.wav",
        ),
        *("data:image/png;base64,AAAA", "data:image;base64,AAAA", {"bytes": b"x", "path": None}),
    ],
)
def test_values_that_are_media(value: Any) -> None:
    """Fails when a path or the inside of a row that holds a picture is left out like any other column."""
    assert closer_kind("a", {"a": value}) == MEDIA


@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            "a",
            "src/index.ts",
            "https://example.com/a.jpg",
            "see the long list of names in image.png",
            "text.\njpg",
        ),
        *(
            "iVBORw",
            "/9j/",
            b"plain",
            [],
            ["a"],
            {"path": "a.jpg", "size": 1},
            {"text": "a"},
            "II*",
            "www.png.org",
            ".jpg.",
        ),
    ],
)
def test_values_that_are_not(value: Any) -> None:
    """Fails when an address, a sentence or code ends the command."""
    assert closer_kind("a", {"a": value}) is None


@pytest.mark.parametrize(
    "spelled",
    [
        *(
            f"data:{head};base64,{SPELLED}"
            for head in ("image/png", "image", "", "IMAGE/PNG", "image/jpg;charset=utf-8")
        ),
        *(f"data:application/octet-stream;base64,{SPELLED}", f"image/png;base64,{SPELLED}", f"data:base64,{SPELLED}"),
        *(f"data:image/png;base64,{SPELLED.rstrip('=')}", "data:image/png;base64," + SPELLED.replace("=", "%3D")),
        *(SPELLED, SPELLED.rstrip("="), f" {SPELLED}\n", str(SPELLED.encode()), base64.encodebytes(PNG).decode()),
        *(base64.urlsafe_b64encode(PNG).decode(), base64.urlsafe_b64encode(PNG).decode().rstrip("=")),
    ],
)
def test_base64_in_every_form(spelled: str) -> None:
    """Fails when people's base64 is taken for a path, or is not read in a column, a part, bytes or ``base64``."""
    assert SPELLED.endswith("=")
    found = [Medium(kind="image", data=PNG)]
    assert parse_row({**ANSWERED, "image": spelled}, "question_answer").media() == found
    assert parse_row({**ANSWERED, "images": [spelled]}, "question_answer").media() == found
    assert parse_row({**ANSWERED, "image": {"bytes": spelled}}, "question_answer").media() == found or "," in spelled
    for key in ("image", "url", "base64"):
        turn = {"role": "user", "content": [{"type": "image", key: spelled}]}
        assert parse_row({"messages": [turn, {"role": "assistant", "content": "a"}]}).media() == found


@pytest.mark.parametrize(
    "path", ["photos/cat", "9j/a", "i/VBORw0KGgo", "a" * 255, "/9j/4AAQ.jpg", "x-y_z=1/é", "sha/" + "0a" * 32]
)
def test_a_path_without_an_ending_stays_a_path(path: str) -> None:
    """Fails when base64 is seen in the name of a file."""
    assert parse_row({**ANSWERED, "image": path}, "question_answer").media() == [Medium(kind="image", uri=path)]


@pytest.mark.parametrize(
    "row",
    [
        {**ANSWERED, "image": "A" * 400 + "."},
        {**ANSWERED, "image": "data:text/html;base64," + SPELLED * 9},
        {**ANSWERED, "image": {"bytes": SPELLED * 9 + "!"}},
        {**ANSWERED, "image": SPELLED * 99},
        {**ANSWERED, "images": '["' + SPELLED * 9},
        {**ANSWERED, "answer": {"image": SPELLED * 9}},
        {"messages": [{"role": "user", "content": [{"type": SPELLED * 9}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "image": {SPELLED * 9: 1}}]}]},
    ],
)
def test_messages_repeat_no_more_than_60_characters_of_base64(row: dict[str, Any]) -> None:
    """Fails when a table of rejects holds the pictures that it rejects."""
    try:
        document = parse_row(row, "messages" if "messages" in row else "question_answer")
        said = " ".join(medium.label for medium in document.media() if len(medium.label) < 400)
    except DocumentError as error:
        said = str(error)
    assert SPELLED[:61] not in said
    assert "A" * 61 not in said


@pytest.mark.parametrize("spelled", ['["a.jpg", "b.jpg"]', ' ["a.jpg","b.jpg"]', '[{"path": "a.jpg"}, "b.jpg"]'])
def test_images_as_json_text(spelled: str) -> None:
    """Fails when a list of paths that a table holds as text is taken for the name of one file."""
    names = [Medium(kind="image", uri=name) for name in ("a.jpg", "b.jpg")]
    assert parse_row({**ANSWERED, "images": spelled}, "question_answer").media() == names
    pages = {"texts": '["One.", null]', "images": '[null, "a.jpg"]'}
    assert parse_row(pages, "interleaved").media() == names[:1]
    with pytest.raises(DocumentError, match=r"images is .*which is not JSON; write a list as"):
        parse_row({**ANSWERED, "images": "['a.jpg', 'b.jpg']"}, "question_answer")
    odd = parse_row({**ANSWERED, "image": "[1] cat.jpg"}, "question_answer").media()
    assert odd == [Medium(kind="image", uri="[1] cat.jpg")]


def listed(path: Path, rows: list[dict[str, Any]], **keys: Any) -> list[tuple[str, ...]]:
    """Lists the rows as JSON Lines, Parquet and Arrow, and gives the columns that each file reads."""
    (path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, path / "b.parquet")
    with pa.OSFile(str(path / "c.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return [
        list_sources([str(path / name)], PackConfig(**keys)).files[0].columns or ()
        for name in ("a.jsonl", "b.parquet", "c.arrow")
    ]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *[
            ("shot", "a.jpg"),
            ("pics", ["a.jpg"]),
            ("screenshot", "x/y.PNG"),
            ("image_base64", SPELLED),
            ("b64", SPELLED),
        ],
        *[("url", f"data:image/png;base64,{SPELLED}"), ("raw", {"bytes": None, "path": "a.jpg"}), ("raw", [PNG])],
        ("b64", SPELLED),
    ],
)
def test_a_column_that_holds_media_ends_the_command_whatever_its_name(tmp_path: Path, column: str, value: Any) -> None:
    """Fails when questions about pictures are packed as text, in any container; after the first row, too."""
    if not (column == "raw" and isinstance(value, list)):  # JSON holds no bytes
        with pytest.raises(ConfigError, match=rf"the column {column} is not read .*'ignore_columns=\[{column}\]'"):
            listed(tmp_path, [{**ANSWERED, column: None}, {**ANSWERED, column: value}])
    table = pa.Table.from_pylist([{**ANSWERED, column: value}])
    pq.write_table(table, tmp_path / "d.parquet")
    with pytest.raises(ConfigError, match=f"the column {column} is not read"):
        list_sources([str(tmp_path / "d.parquet")])
    with pytest.raises(DocumentError, match=f"the column {column} is not read"):
        parse_row({**ANSWERED, column: value}, "question_answer")
    kept = list_sources([str(tmp_path / "d.parquet")], PackConfig(ignore_columns=(column,))).files[0]
    assert (kept.columns, kept.unread) == (("answer", "question"), (column,))


def test_the_name_of_a_file_beside_its_bytes_is_no_second_image(tmp_path: Path) -> None:
    """Fails when a column that repeats the name of the image beside it ends the command."""
    rows = [{**ANSWERED, "image": "a.jpg", "filename": "a.jpg", "url": "https://x.org/a.jpg"}]
    assert listed(tmp_path, rows)[1] == ("answer", "image", "question")
    with pytest.raises(ConfigError, match="the column screenshot"):
        listed(tmp_path, [{**rows[0], "screenshot": "b.jpg"}])


@pytest.mark.parametrize(
    ("column", "value", "remedy"),
    [
        *[(name, 15, "give start and end, in seconds") for name in ("start_frame", "end_frame_idx", "frame_start")],
        *[(name, 1.5, "rename it to start") for name in ("start_time", "clip_start", "start_sec", "segment_begin")],
        *[(name, 1.5, "rename it to end") for name in ("end_time", "clip_end", "stop_s", "moment_end_seconds")],
        *[(name, [1.5, 2], "give start and end") for name in ("timestamps", "time_range", "segment")],
    ],
)
def test_times_of_a_clip_beside_a_video_end_the_command(tmp_path: Path, column: str, value: Any, remedy: str) -> None:
    """Fails when the whole of a film is packed for a caption of ten seconds of it."""
    rows = [{"video": "a.mp4", "caption": "a", column: value}]
    with pytest.raises(ConfigError, match=f"{column} beside a video is not read, so all of it .*; {remedy}"):
        listed(tmp_path, rows)
    assert listed(tmp_path, rows, ignore_columns=[column])[1] == ("caption", "video")
    assert listed(tmp_path, [{"text": "a", column: value}])[1] == ("text",)


SWIFT = [{"role": "user", "content": "<image>Find <ref-object>."}, {"role": "assistant", "content": "At <bbox>."}]
BOXES = {"ref": ["the sign"], "bbox": [[1, 2, 30, 20]]}


def test_values_that_placeholders_need_end_the_command(tmp_path: Path) -> None:
    """Fails when the model learns to write ``<bbox>`` because nobody read the boxes."""
    rows = [{"messages": SWIFT, "images": ["a.jpg"], "objects": BOXES}]
    with pytest.raises(ConfigError, match=r"objects holds what <ref-object> and <bbox> stand for.*ignore_col"):
        listed(tmp_path, rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet")
    with pytest.raises(ConfigError, match="the column objects holds what"):
        list_sources([str(tmp_path / "d.parquet")])
    plain = [{"image": "a.jpg", "caption": "a", "objects": BOXES}]
    late = [*plain * 70, {"image": "a.jpg", "caption": "<bbox>", "objects": BOXES}]
    pq.write_table(pa.Table.from_pylist(late), tmp_path / "e.parquet")
    [file] = list_sources([str(tmp_path / "e.parquet")]).files
    assert "objects" in (file.columns or ()), "so that each row can be looked at"
    with pytest.raises(DocumentError, match="the column objects holds what"):
        parse_row(late[-1], file.form)


IMAGES = {n: {"bytes": b"%d" % n, "path": f"{n}.png"} for n in (1, 2)}


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"question": "Is <image 2> <image 1>?", "image_1": IMAGES[1], "image_2": IMAGES[2]}, [2, 1]),
        ({"question": "<image_1> or <image 1>?", "image_1": IMAGES[1], "image_2": None}, [1, 1]),
        ({"question": "Which?", "image_2": IMAGES[2], "image_1": IMAGES[1]}, [1, 2]),
        ({"question": "<image><image>", "img_0": IMAGES[1], "img_1": IMAGES[2]}, [1, 2]),
        ({"question": "<image 2><image 1>", "images": [IMAGES[1], IMAGES[2]]}, [2, 1]),
        ({"question": "<image 10> <image 1>", "image1": IMAGES[1], "image10": IMAGES[2]}, [2, 1]),
    ],
)
def test_numbered_columns_of_images(row: dict[str, Any], shown: list[int]) -> None:
    """Fails when a question of MMMU loses its images, or shows them in another order than its text names them."""
    data = {n: image["bytes"] for n, image in IMAGES.items()}
    row = {
        name: {"bytes": data[int(value["path"][0])]} if isinstance(value, dict) else value
        for name, value in row.items()
    }
    if isinstance(row.get("images"), list):
        row["images"] = [{"bytes": data[1]}, {"bytes": data[2]}]
    document = parse_row({**row, "answer": "a"}, "question_answer")
    assert [medium.data for medium in document.media()] == [data[n] for n in shown]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "<image 3>", "image_1": b"x"}, "a text has <image 3>, and image_1 holds no image of that number"),
        (
            {"question": "<image 1>", "image_1": b"x", "image_2": b"y"},
            "image_1 and image_2 hold 2, but the row has 1 place",
        ),
        ({"question": "<image 1>", "image_1": [b"x", b"y"]}, "image_1 holds 2 images; give one"),
        ({"question": "a", "image_1": b"x", "img_1": b"y"}, "has image_1 and img_1; give one of them"),
        ({"question": "a", "image": b"x", "image_1": b"y"}, "the column image_1 is not read"),
    ],
)
def test_numbered_columns_that_do_not_fit(row: dict[str, Any], message: str) -> None:
    """Fails when an image of several is left out in silence."""
    with pytest.raises(DocumentError, match=message):
        parse_row({**row, "answer": "a"}, "question_answer")


def test_numbered_columns_in_other_forms() -> None:
    """Fails when they are read beside questions alone, or lost beside a text."""
    caption = parse_row({"caption": "Two.", "image_1": b"x", "image_2": b"y"}, "caption")
    assert [medium.data for medium in caption.media()] == [b"x", b"y"]
    turns = [{"from": "human", "value": "<image 1>?"}, {"from": "gpt", "value": "a"}]
    assert parse_row({"conversations": turns, "image_1": b"x"}, "sharegpt").media()[0].data == b"x"
    with pytest.raises(DocumentError, match="image_1 is not read beside text"):
        parse_row({"text": "a", "image_1": b"x"}, "messages")


@pytest.mark.parametrize(("column", "name"), [("pics", "images"), ("image_base64", "image"), ("my clip", "video")])
def test_a_column_is_read_under_another_name(tmp_path: Path, column: str, name: str) -> None:
    """Fails when the option that a message proposes does not read the column, in any container, or loses the others."""
    value: Any = [SPELLED] if name == "images" else SPELLED if name == "image" else "a.mp4"
    rows = [{**ANSWERED, column: value, "level": 1}] * 2
    said = column if column.isidentifier() else f'"{column}"'
    with pytest.raises(ConfigError, match=re.escape(f"--set 'rename_columns={{{said}: {name}}}' reads it")):
        listed(tmp_path, rows)
    config = PackConfig(rename_columns={column: name}, keep_columns={"level": "int"})  # type: ignore[arg-type]
    given = listed(tmp_path, rows, rename_columns={column: name}, keep_columns={"level": "int"})
    assert given[1] == given[2]
    assert column in given[1]
    for kind in ("a.jsonl", "b.parquet", "c.arrow"):
        [file] = list_sources([str(tmp_path / kind)], config).files
        found = [row for _, _, row in read_fragment(list_fragments([file])[0]).rows]
        document = parse_row(found[1], file.form, config, file.unread)
        assert document.kept == (("level", 1),)
        assert document.media() == parse_row({**ANSWERED, name: value}, "question_answer").media()
    (tmp_path / "d.jsonl").write_text(json.dumps({**rows[0], name: value}), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"has {name} and {column}, which rename_columns gives this name"):
        list_sources([str(tmp_path / "d.jsonl")], config)


SAID = ("<image>What?", "<image 1>What?", "<video>What?", "What? <image_2>")


@pytest.mark.parametrize("text", SAID)
@pytest.mark.parametrize("column", ["image_1", "notes"])
def test_a_placeholder_of_a_row_without_media_is_a_reject_that_names_the_columns(
    tmp_path: Path, text: str, column: str
) -> None:
    """Fails when questions about pictures that nobody read are learnt as text; a model of text alone reads any text."""
    rows = [{"question": text, "answer": "a", column: "a.jpg" if column == "image_1" else "a", "level": "hard"}]
    write = {"rename_columns": {}} if column == "notes" else {"ignore_columns": ["image_1"]}
    listed(tmp_path, rows, **write)
    config, reach = PackConfig(**write), MediaReach.of(str(tmp_path))  # type: ignore[arg-type]
    for name in ("a.jsonl", "b.parquet"):
        [file] = list_sources([str(tmp_path / name)], config).files
        [row] = [row for _, _, row in read_fragment(list_fragments([file])[0]).rows]
        document = parse_row(row, file.form, config, file.unread)
        with pytest.raises(
            DocumentError, match="the row shows no image or video; columns that nothing reads: "
        ) as told:
            render_pieces(document, reach, config)
        assert {column, "level"} <= set(str(told.value).partition("reads: ")[2].partition(";")[0].split(", "))
        renderer = configured_renderer(config)
        blind = replace(renderer, family=Family(model_type="square"))
        assert len(render(blind, document, [])) == len(render(renderer, replace(document, unfilled=()), []))
    corpus = parse_row({"text": text}, "messages")
    assert render_pieces(corpus, reach, config), "pre-training text may hold what it likes"
