"""Files of a dataset are regular ones of a bounded size, and nothing is written through a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyarrow import fs

from preshard.packer_service.shards.lock import locked
from preshard.packer_service.shards.store import Folder
from preshard.schemas.files.filesystem import FileRefusedError, open_regular
from preshard.schemas.files.regular import leads_outside

LOCAL = fs.LocalFileSystem()


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "link to a device"])
def test_what_is_no_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    """Fails when a pipe is waited for, or a device is read."""
    path = tmp_path / "manifest.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    with pytest.raises(FileRefusedError, match=r"^manifest.json: is a (pipe|folder|device), not a file$"):
        open_regular(LOCAL, "/dev/zero" if kind == "device" else str(path), "manifest.json")


def test_links_in_a_circle_are_named(tmp_path: Path) -> None:
    """Fails when they are an error of the system, which a loader's worker passes on below a traceback."""
    (tmp_path / "shard.tar").symlink_to("shard.tar")
    with pytest.raises(FileRefusedError, match=r"^shard\.tar: is a symbolic link that leads in a circle$"):
        open_regular(LOCAL, str(tmp_path / "shard.tar"), "shard.tar")


def test_a_file_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    """Fails when a file is read that is longer than any of its name."""
    path = tmp_path / "run.json"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(FileRefusedError, match=r"run\.json: has 1,099,511,627,776 bytes; at most 1,024 are read of it"):
        open_regular(LOCAL, str(path), "run.json", 1024)
    with pytest.raises(FileNotFoundError):
        open_regular(LOCAL, str(tmp_path / "nothing"), "nothing", 1024)


def test_a_snapshot_in_a_cache_of_the_hub_lies_inside(tmp_path: Path) -> None:
    """Fails when the Hub's cache, where every file is a link, is refused, or any link is followed as its blobs are."""
    repository = tmp_path / "datasets--someone--packs"
    snapshot, blobs = repository / "snapshots" / "abc", repository / "blobs"
    for folder in (snapshot / "shards", blobs):
        folder.mkdir(parents=True)
    (blobs / "f00").write_bytes(b"a shard")
    (tmp_path / "other").write_bytes(b"another file")
    (snapshot / "shards" / "a.tar").symlink_to("../../../blobs/f00")
    (snapshot / "shards" / "b.tar").symlink_to(tmp_path / "other")
    (snapshot / "shards" / "c.tar").symlink_to("c.tar")
    assert not leads_outside(snapshot / "shards" / "a.tar", snapshot)
    assert leads_outside(snapshot / "shards" / "b.tar", snapshot)
    assert set(Folder(str(snapshot)).links_outside()) == {"shards/b.tar", "shards/c.tar"}
    assert Folder(str(snapshot / "shards")).read("a.tar") == b"a shard"


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """Fails when a file of somebody else is overwritten, locked or removed, since a dataset holds a link to its folder.

    The dataset's own folder may be one: whoever names it says where to write.
    """
    outside, real = tmp_path / "outside", tmp_path / "real"
    outside.mkdir(), real.mkdir()
    (outside / "split.yaml").write_bytes(b"theirs")
    (tmp_path / "dataset").symlink_to(real)
    (real / ".nv-meta").symlink_to(outside)
    folder = Folder(str(tmp_path / "dataset"))
    meta = folder / ".nv-meta"
    for write in (
        lambda: meta.write("split.yaml", b"ours"),
        lambda: folder.write(".nv-meta/split.yaml", b"ours"),
        lambda: meta.delete("split.yaml"),
        meta.delete_all,
        lambda: meta.writer("split.yaml").__enter__(),
        lambda: locked(meta).__enter__(),
    ):
        with pytest.raises(FileRefusedError, match=r"DATASET .*: \.nv-meta is a link, and nothing is written through"):
            write()
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"split.yaml": b"theirs"}
    folder.write("README.md", b"ours")
    assert (real / "README.md").read_bytes() == b"ours"


def test_names_that_are_no_text_are_listed(tmp_path: Path) -> None:
    """Fails when a name that is not UTF-8, or a circle of links, ends the listing of a folder."""
    (tmp_path / os.fsdecode(b"\xff\xfe.tar")).touch()
    (tmp_path / "circle").symlink_to(tmp_path)
    (tmp_path / "a").touch()
    names = Folder(str(tmp_path)).names()
    assert {"a", os.fsdecode(b"\xff\xfe.tar")} <= set(names)
    assert len(names) <= 4
