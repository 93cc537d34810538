"""References that would be files if they were spelled as those are."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media.reach import MediaReach, open_media
from preshard.schemas.errors import DocumentError

COMPOSED = unicodedata.normalize("NFC", "é/ü.jpg")


def refused(folder: Path, medium: Medium) -> str:
    reach = MediaReach(folder=str(folder), roots=(str(folder),), file="rows.jsonl")
    with pytest.raises(DocumentError) as error, open_media(medium, reach):
        pass
    return str(error.value)


@pytest.mark.parametrize(
    ("reference", "name", "how"),
    [
        (COMPOSED, unicodedata.normalize("NFD", COMPOSED), "in another Unicode form"),
        (unicodedata.normalize("NFD", COMPOSED), COMPOSED, "in another Unicode form"),
        ("Images/a.jpg", "images/a.JPG", "in other capitals"),
        ("images\\a.jpg", "images/a.jpg", "with / in place of \\"),
        ("my%20picture.jpg", "my picture.jpg", "without percent-encoding"),
        ("a.jpg ", "a.jpg", "without white space around it"),
        ("Images\\a.jpg", "images/a.jpg", "spelled otherwise"),
        (".\\images\\a.jpg", "images/a.jpg", "spelled otherwise"),
        ("images/a", "images/a.jpg", "with another ending"),
        ("images/a.jpg", "images/a.png", "with another ending"),
        ("data/images/a.jpg", "images/a.jpg", "in another folder"),
        ("C:\\Users\\me\\a.jpg", "images/a.jpg", "in another folder"),
    ],
)
def test_a_reference_that_is_spelled_otherwise_is_told(reference: str, name: str, how: str, tmp_path: Path) -> None:
    """Fails when a file is said to be missing which lies there under a name that looks the same."""
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(b"x")
    said = refused(tmp_path, Medium(kind="image", uri=reference))
    assert said.endswith(
        f"no such file in the folder of rows.jsonl; found {name}, {how}: write it as the file is named"
    )


@pytest.mark.parametrize(
    "reference", ["/mnt/me/train/a.jpg", "/data/local-files/?d=train%2Fa.jpg", "/data/upload/1/a.jpg"]
)
def test_a_path_of_another_machine_names_the_file_that_is_here(reference: str, tmp_path: Path) -> None:
    """Fails when rows of a colleague, or of Label Studio, are told no more than that they may not be read."""
    (tmp_path / "train").mkdir()
    (tmp_path / "train/a.jpg").write_bytes(b"x")
    said = refused(tmp_path, Medium(kind="image", uri=reference))
    assert "lies outside of SOURCE and the allowed folders" in said
    assert "; found train/a.jpg, " in said
    assert ("--allow-media" in said) is ("?d=" not in reference)


def test_files_of_one_name_in_two_folders_are_told_apart(tmp_path: Path) -> None:
    """Fails when one of two files is proposed that the reference says nothing of."""
    for folder in ("train", "test"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jpg").write_bytes(b"x")
    assert "found train/a.jpg" in refused(tmp_path, Medium(kind="image", uri="coco/train/a.jpg"))
    assert "found" not in refused(tmp_path, Medium(kind="image", uri="coco/val/a.jpg"))


def test_a_name_of_another_file_is_not_told(tmp_path: Path) -> None:
    """Fails when a file is proposed whose name says something else."""
    (tmp_path / "b.jpg").write_bytes(b"x")
    assert refused(tmp_path, Medium(kind="image", uri="a.jpg")).endswith("no such file in the folder of rows.jsonl")


def test_a_folder_in_place_of_a_video_says_how_frames_are_given(tmp_path: Path) -> None:
    """Fails when a folder of frames is refused without a way to pack them."""
    (tmp_path / "clip").mkdir()
    assert refused(tmp_path, Medium(kind="video", uri="clip")).endswith("in the column frames, with their rate in fps")
