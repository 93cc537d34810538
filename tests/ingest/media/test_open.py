"""References to media: where they are looked for, and what a missing one says."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media import reach as media_module
from preshard.packer_service.ingest.media.reach import MediaReach, open_media
from preshard.schemas.errors import DocumentError
from preshard.schemas.files import filesystem


def image(uri: str | None = None, data: bytes | None = None) -> Medium:
    return Medium(kind="image", uri=uri, data=data)


def content(medium: Medium, base: str, *roots: str) -> bytes:
    reach = MediaReach(folder=base, roots=(base, *roots))
    with open_media(medium, reach) as file:
        assert file.size == len(file.read())
        file.seek(0)
        return file.read()


@pytest.mark.parametrize("uri", ["inside/a b%20.png", "../other/c.png", "{root}/base/inside/a b%20.png"])
def test_a_path_is_taken_as_written_from_the_rows_folder(tmp_path: Path, uri: str) -> None:
    # Fails when relative paths are percent-decoded, or looked for in the current folder.
    for name in ("base/inside/a b%20.png", "other/c.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    found = content(image(uri.format(root=tmp_path)), str(tmp_path / "base"), str(tmp_path))
    assert found == (b"other/c.png" if "other" in uri else b"base/inside/a b%20.png")


def test_file_uris_as_base_and_as_reference(tmp_path: Path) -> None:
    # Fails when a URI is not percent-decoded, as a base or as a reference.
    (tmp_path / "with space").mkdir()
    (tmp_path / "with space/x.png").write_bytes(b"x")
    encoded = f"file://{tmp_path}/with%20space"
    assert content(image("x.png"), encoded) == b"x"
    assert content(image(f"{encoded}/x.png"), "/nowhere", encoded) == b"x"


def test_inline_bytes_need_no_folder() -> None:
    # Fails when inline bytes are looked for on disk, or none at all (an empty file) is taken for no bytes.
    assert content(image(data=b"abc"), "/nowhere") == b"abc"
    assert content(image(data=b""), "/nowhere") == b""


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("none.png", "no such file"),
        ("file.txt/none.png", "no such file"),
        ("folder", "is a folder"),
        ("", "is a folder"),
        ("n" * 300, "longer than the file system allows"),
        ("circle", "in a circle"),
        ("pipe", "no such file"),
        ("a\0b", "cannot be opened"),
        ("nonsense://host/a.png", "cannot be opened"),
        ("https://host/a.png", "is not downloaded; fetch it first"),
    ],
)
def test_what_cannot_be_opened_is_missing_and_names_no_place(tmp_path: Path, uri: str, reason: str) -> None:
    # Fails when a message holds the machine's own paths (rejects would differ from machine to machine), when a named
    # pipe is opened (it waits for ever), or when an error escapes as something else than a rejected document.
    (tmp_path / "file.txt").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to("circle")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DocumentError, match=reason) as caught, open_media(image(uri), MediaReach.of(str(tmp_path))):
        pass
    assert caught.value.code == "missing_media"
    assert str(caught.value).startswith(uri.replace("\0", "\\x00") + ": ")
    assert str(tmp_path) not in str(caught.value)


def test_a_file_that_may_not_be_read_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The tests may run as a user who may read everything, so the system's answer is given by hand.
    (tmp_path / "locked.png").write_bytes(b"x")

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "translated words", str(tmp_path / "locked.png"))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DocumentError) as caught, open_media(image("locked.png"), MediaReach.of(str(tmp_path))):
        pass
    assert str(caught.value) == "locked.png: permission denied"


def test_neither_uri_nor_bytes_is_missing() -> None:
    # Fails when a part without either is opened as the row's own folder.
    with pytest.raises(DocumentError, match="neither a URI nor bytes"), open_media(image(), MediaReach.of("/")):
        pass


@pytest.fixture(autouse=True)
def _forget_clients() -> Iterator[None]:
    filesystem._client.cache_clear()
    yield
    filesystem._client.cache_clear()


class Remote:
    """A file system behind URIs that is really a local folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        inside = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())

        class Opener:
            @staticmethod
            def from_uri(uri: str) -> tuple[fs.FileSystem, str]:
                self.asked.append(uri)
                return inside, "bucket"

        monkeypatch.setattr(filesystem.fs, "FileSystem", Opener)


def test_remote_references_share_one_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Fails when each file makes a client of its own, or when a remote base is mixed up with local paths.
    (tmp_path / "bucket/videos").mkdir(parents=True)
    (tmp_path / "bucket/a.png").write_bytes(b"a")
    (tmp_path / "bucket/videos/b.png").write_bytes(b"b" * 3_000_000)
    remote = Remote(tmp_path, monkeypatch)
    assert content(image("../a.png"), "s3://bucket/videos", "s3://bucket") == b"a"
    assert content(image("b.png"), "s3://bucket/videos") == b"b" * 3_000_000
    assert content(image("s3://bucket/a.png"), "/local", "s3://bucket") == b"a"
    assert remote.asked == ["s3://bucket"]
    with pytest.raises(DocumentError, match=r"^c\.png: no such file$"):
        content(image("c.png"), "s3://bucket")


def test_an_outage_is_no_property_of_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Fails when a lost connection, an expired credential or a failing disk silently turns documents into rejects.
    (tmp_path / "a.png").write_bytes(b"a")
    for outage in (OSError("AWS Error NETWORK_CONNECTION during HeadObject"), OSError(errno.EIO, "input/output error")):

        def fail(*_: object, outage: OSError = outage) -> None:
            raise outage

        monkeypatch.setattr(media_module, "_open", fail)
        with pytest.raises(OSError, match=r"NETWORK_CONNECTION|input/output") as caught:
            content(image("a.png"), str(tmp_path))
        assert caught.value is outage
