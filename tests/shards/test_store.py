"""A file appears whole or not at all, also when the writer dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from preshard.packer_service.shards.store import TEMPORARY, Folder
from preshard.schemas.files.filesystem import FileRefusedError


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    """Fails when a half-written file gets its final name, or a temporary one stays."""
    folder = Folder(str(tmp_path / "new" / "deep"))

    def write_half() -> None:
        with folder.writer("a.bin") as sink:
            sink.write(b"half")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_half()
    assert folder.names() == []


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    """Fails when a reader can see a file that is being written."""
    folder = Folder(str(tmp_path))
    folder.write("a.bin", b"old")
    with folder.writer("a.bin") as sink:
        sink.write(b"new and longer")
        assert folder.read("a.bin") == b"old"
    assert folder.read("a.bin") == b"new and longer"


@pytest.mark.process
def test_a_killed_writer_leaves_only_a_temporary_name(tmp_path: Path) -> None:
    """Fails when `kill -9` in the middle of a write leaves something under the final name."""
    program = (
        "import sys, time\n"
        "from preshard.packer_service.shards.store import Folder\n"
        "with Folder(sys.argv[1]).writer('a.bin') as sink:\n"
        "    sink.write(b'x' * 100)\n"
        "    sink.flush()\n"
        "    print('writing', flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        os.kill(writer.pid, signal.SIGKILL)
    folder = Folder(str(tmp_path))
    [left] = folder.names()
    assert left.startswith(TEMPORARY)
    folder.delete_temporary()
    assert folder.names() == []


def test_paths_and_uris_are_the_same_folder(tmp_path: Path) -> None:
    """Fails when a URI is read as a relative path."""
    Folder(f"file://{tmp_path}/x").write("deep/a.bin", b"1")
    assert Folder(str(tmp_path)).names() == ["x/deep/a.bin"]
    assert (Folder(str(tmp_path)) / "x").size("deep/a.bin") == 1
    assert Folder(str(tmp_path)).size("nothing") is None


def test_what_is_no_folder_or_no_file_is_named(tmp_path: Path) -> None:
    """Fails when a file in the place of a folder, or the other way round, ends in the system's words."""
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    said = "is not a folder, or lies below a file; remove what is in the way"
    with pytest.raises(FileRefusedError, match=f"file: {said}"):
        Folder(str(tmp_path / "file")).write("a", b"b")
    with pytest.raises(FileRefusedError, match=f"below: {said}"):
        Folder(str(tmp_path / "file" / "below")).write("a", b"b")
    with pytest.raises(FileRefusedError, match="folder: is a folder; remove it"):
        Folder(str(tmp_path)).write("folder", b"b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
