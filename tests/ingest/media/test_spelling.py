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


def test_a_name_of_another_file_is_not_told(tmp_path: Path) -> None:
    """Fails when a file is proposed whose name says something else."""
    (tmp_path / "b.jpg").write_bytes(b"x")
    assert refused(tmp_path, Medium(kind="image", uri="a.jpg")).endswith("no such file in the folder of rows.jsonl")


def test_a_folder_in_place_of_a_video_says_how_frames_are_given(tmp_path: Path) -> None:
    """Fails when a folder of frames is refused without a way to pack them."""
    (tmp_path / "clip").mkdir()
    assert refused(tmp_path, Medium(kind="video", uri="clip")).endswith("in the column frames, with their rate in fps")
