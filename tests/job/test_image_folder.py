"""An image folder as people have one: rows here, images there, the dataset inside, and a first command that fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from preshard.packer_service.ingest.media.reach import AllowedMedia
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.packer_service.job.pack import pack
from preshard.packer_service.job.preview.show import RejectedError, show_document
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.runtime.progress import Progress
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError

CONFIG = PackConfig(seq_len=1024, cp_sizes=(1,), ring_degrees=(1,), layouts=("contiguous",))


def said(image: str, **more: Any) -> dict[str, Any]:
    turns = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A thing."}]
    return {"id": image, "image": image, "conversations": turns, **more}


def folder(at: Path, images: list[str], rows: list[dict[str, Any]], name: str = "llava.json") -> Path:
    """A folder with images, and rows in a JSON array as LLaVA has them."""
    for image in images:
        (at / image).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (len(image), 120, 250)).save(at / image)
    (at / name).parent.mkdir(parents=True, exist_ok=True)
    (at / name).write_text(json.dumps(rows), encoding="utf-8")
    return at


@pytest.mark.parametrize(
    ("source", "name", "images", "uri", "where", "root"),
    [
        ("data/llava", "llava.json", "images/", "a.png", "data/llava", "data/llava/images"),
        ("data/llava/llava.json", "llava.json", "images/", "a.png", "data/llava", "data/llava/images"),
        ("data/llava", "notes/llava.json", "pics/x/", "coco/a.png", "data/llava/notes", "data/llava/pics/x"),
        ("data/llava/*.json", "llava.json", "my images/", "a.png", "data/llava", "'data/llava/my images'"),
        ("data/llava/", "llava.json", "b/", "sub/a.png", "data/llava", "data/llava/b"),
    ],
)
def test_images_in_a_folder_below_end_the_command_with_the_option_that_finds_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    name: str,
    images: str,
    uri: str,
    where: str,
    root: str,
) -> None:
    """Fails when each row of a LLaVA file is rejected without a word of where its images are."""
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "data/llava", [f"{images}{uri}"], [said(uri)], name)
    with pytest.raises(ConfigError) as told:
        list_sources([source])
    found = f"{root.strip(chr(39))}/{uri}"
    assert str(told.value).endswith(f": {uri}: no such file in {where}; found {found}: add --media-root {root}")
    media = AllowedMedia.of([source], [root.strip("'")])
    [file] = list_sources([source], media=media).files
    shown = show_document([source], CONFIG, media=media)
    assert (shown.media[0].name, file.media_root) == (uri, (str(tmp_path / root.strip("'")),))


def test_each_source_has_a_media_root_of_its_own_and_keeps_the_folder_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when an option for one source hides the images of another, or those that lie beside the rows."""
    monkeypatch.chdir(tmp_path)
    folder(Path("a"), ["own.png", "images/x.png"], [said("own.png"), said("x.png")])
    folder(Path("b"), ["images/x.png"], [said("x.png")])
    with pytest.raises(ConfigError, match=r"b/llava.json: x.png: .* add --media-root b=b/images$"):
        list_sources(["a", "b"])
    media = AllowedMedia.of(["a", "b"], ["b=b/images", "a=a/images"])
    for source, row in (("a", "a/llava.json:1"), ("a", "a/llava.json:2"), ("b", "b/llava.json:1")):
        shown = show_document(["a", "b"], CONFIG, row=row, media=media)
        assert (shown.media[0].width, shown.source) == (40, "default"), source
    assert AllowedMedia.of(["a"], ["year=2024"]).roots == ((None, "year=2024"),)
    with pytest.raises(ConfigError, match="--media-root c=x: no such file or folder"):
        list_sources(["a"], media=AllowedMedia.of(["a"], ["c=x"]))


def test_an_image_that_is_missing_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a reject among good rows does not say which folder was looked in, or that the file lies below it."""
    monkeypatch.chdir(tmp_path)
    folder(Path("a"), ["own.png", "images/x.png"], [said("own.png"), said("x.png"), said("none.png")])
    below = "found images/x.png: add --media-root FOLDER, which is 'images' seen from a/llava.json"
    with pytest.raises(RejectedError, match=f"x.png: no such file in the folder of a/llava.json; {below}$"):
        show_document(["a"], CONFIG, row="2")
    with pytest.raises(RejectedError, match=r"none.png: no such file in the folder of a/llava.json$"):
        show_document(["a"], CONFIG, row="3")
    with pytest.raises(RejectedError, match=r"no such file in the media root or the folder of a/llava.json$"):
        show_document(["a"], CONFIG, row="3", media=AllowedMedia.of(["a"], ["a/images"]))
    folder(Path("b"), [], [said("none.png"), said("z.png")])
    doubt = (
        "b/llava.json: none of the 2 images and videos of its first rows is there, such as none.png: no such file in b"
    )
    assert list_sources(["b"]).doubts[-1] == doubt


def test_an_output_without_documents_does_not_block_the_corrected_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress
) -> None:
    """Fails when a command that packed nothing, or ended for an option, leaves a folder that the right one refuses."""
    monkeypatch.chdir(tmp_path)
    folder(Path("a"), ["x.png"], [{**said("x.png"), "id": n} for n in range(3)])
    wrong = CONFIG.model_copy(update={"max_images": 1, "seq_len": 16})
    assert pack(["a"], "out", wrong, PlainExecutor(), progress).manifest.counts.documents == 0
    again = pack(["a"], "out", wrong, PlainExecutor(), progress)
    assert again.already_done
    done = pack(["a"], "out", CONFIG, PlainExecutor(), progress)
    assert (done.manifest.counts.documents, done.already_done) == (3, False)
    with pytest.raises(ConfigError, match="was started with different input"):
        pack(["a"], "out", CONFIG.model_copy(update={"max_images": 7}), PlainExecutor(), progress)
    unknown = CONFIG.model_copy(update={"mixture": (("nobody", 2.0),)})
    with pytest.raises(ConfigError, match="nobody"):
        pack(["a"], "other", unknown, PlainExecutor(), progress)
    assert (Path("other") / ".work" / "job.json").is_file(), "it ended after it had claimed the folder"
    assert pack(["a"], "other", CONFIG, PlainExecutor(), progress).manifest.counts.documents == 3


def test_a_dataset_below_its_source_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress
) -> None:
    """Fails when ``preshard pack . --out packed`` packs its own tables with the next run, or cannot go on."""
    monkeypatch.chdir(tmp_path)
    folder(Path(), ["x.png"], [said("x.png")])
    first = pack(["."], "packed", CONFIG, PlainExecutor(), progress)
    assert first.manifest.counts.documents == 1
    found = list_sources(["."])
    assert [file.label.rpartition("/")[2] for file in found.files] == ["llava.json"]
    assert any(note.startswith("skipped the packed dataset ") for note in found.notes())
    assert pack(["."], "packed", CONFIG, PlainExecutor(), progress).already_done
    Path("packed/manifest.json").rename("packed/.work-json")
    Path("packed/.work").mkdir()
    Path("packed/.work-json").rename("packed/.work/job.json")
    assert len(list_sources(["."]).files) == 1, "one that is being packed"
    Path("only").mkdir()
    Path("packed").rename("only/packed")
    with pytest.raises(ConfigError, match="SOURCE only: holds no rows but packed datasets; name only/packed itself"):
        list_sources(["only"])


def test_files_that_rows_name_are_not_listed_as_left_out(tmp_path: Path) -> None:
    """Fails when the note of what nothing read names the images that were packed."""
    folder(tmp_path, ["x.png", "y.png"], [said("x.png"), said("y.png")])
    (tmp_path / "notes.txt").touch()
    assert list_sources([str(tmp_path)]).unread == {"*.txt": 1}


def test_pictures_with_a_text_beside_each_are_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: Progress
) -> None:
    """Fails when a folder of pictures and texts, as people train LoRAs of, needs rows to be written first."""
    monkeypatch.chdir(tmp_path)
    folder(Path("p"), ["a.png", "sub/b c.PNG", "alone.png"], [])
    Path("p/llava.json").unlink()
    for name, text in (("a", "A cat.\n"), ("sub/b c", "\ufeffEin Hund \u00fc."), ("lost", "No picture.")):
        Path(f"p/{name}.txt").write_text(text, encoding="utf-8")
    found = list_sources(["p"])
    assert [(file.label, file.form) for file in found.files] == [("p/*.txt", "caption")]
    assert found.unread == {"*.txt": 1, "*.png": 1}
    folder(Path("q"), ["a.png"], [])
    Path("q/llava.json").unlink()
    with pytest.raises(ConfigError, match=r"SOURCE q: holds images or videos and no rows; write a.txt beside each"):
        list_sources(["q"])
    done = pack(["p"], "out", CONFIG, PlainExecutor(), progress)
    assert (done.manifest.counts.documents, done.manifest.counts.images) == (2, 2)
    shown = show_document(["p"], CONFIG, doc_id="sub/b c")
    assert "".join(span.text for span in shown.pieces[0].spans if span.text).count("Ein Hund \u00fc.") == 1
    assert pack(["p"], "out", CONFIG, PlainExecutor(), progress).already_done
    Path("p/a.txt").write_bytes(b"\xff")
    Path("p/sub/b c.txt").unlink()
    assert pack(["p"], "other", CONFIG, PlainExecutor(), progress).manifest.counts.rejected == 1
