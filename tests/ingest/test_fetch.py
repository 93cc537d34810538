"""Ranges of several files, read at the same time and near ones as one, are what each alone would be."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from preshard.packer_service.ingest import fetch
from preshard.packer_service.ingest.fetch import Range, read_range, read_ranges, recent_values
from preshard.schemas.files.filesystem import FileRefusedError


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    """Files of numbers, by their URIs."""
    drawn = random.Random(5)
    content = {str(tmp_path / name): drawn.randbytes(5000) for name in ("a.tar", "b.tar", "c.tar")}
    for name, data in content.items():
        Path(name).write_bytes(data)
    return content


@pytest.mark.parametrize(("gap", "part"), [(0, 1), (0, 1 << 23), (40, 300), (1 << 18, 1 << 23)])
def test_every_range_is_what_it_names(
    files: dict[str, bytes], gap: int, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when ranges that touch, overlap, repeat, are empty or lie far from each other are cut from the wrong place.

    Some reach past the end of their file, as those of a shard that was cut short do.
    """
    monkeypatch.setattr(fetch, "GAP", gap)
    monkeypatch.setattr(fetch, "PART", part)
    drawn = random.Random(7)
    for count in (0, 1, 2, 40):
        wanted = [
            Range(drawn.choice(list(files)), start, start + drawn.choice([0, 1, 50, 400]))
            for start in (drawn.randrange(0, 5100) for _ in range(count))
        ]
        wanted += wanted[:3]
        found = [None if each is None else bytes(each) for each in read_ranges(wanted)]
        assert found == [files[each.uri][each.start : each.end] for each in wanted]


def test_a_file_that_is_gone_costs_its_own_ranges(files: dict[str, bytes], tmp_path: Path) -> None:
    """Fails when documents of other shards are lost with those of one."""
    uri, gone = next(iter(files)), str(tmp_path / "gone.tar")
    assert read_ranges([Range(gone, 0, 5)]) == [None]
    assert read_ranges([Range(uri, 3, 9), Range(gone, 0, 5), Range(gone, 7, 8)]) == [files[uri][3:9], None, None]
    with pytest.raises(FileNotFoundError):
        read_range(Range(gone, 0, 5))


def test_what_fails_is_no_missing_file(files: dict[str, bytes], tmp_path: Path) -> None:
    """Fails when an outage is taken for a shard that is gone, and documents are rejected for it."""
    (tmp_path / "folder.tar").mkdir()
    with pytest.raises(FileRefusedError, match=r"folder\.tar: is a folder, not a file"):
        read_ranges([Range(next(iter(files)), 0, 5), Range(str(tmp_path / "folder.tar"), 0, 5)])


def test_a_file_that_has_grown_is_opened_anew(tmp_path: Path) -> None:
    """Fails when rows that were added to a file are cut off, because it is still open as it was."""
    uri = str(tmp_path / "rows.jsonl")
    for version, content in enumerate([b"one row", b"one row and another"]):
        (tmp_path / "new").write_bytes(content)
        (tmp_path / "new").replace(uri)
        assert read_ranges([Range(uri, 0, 100, version), Range(uri, 4, 100, version)]) == [content, content[4:]]


def test_the_least_recently_used_goes_first() -> None:
    """Fails when a value in use is dropped, or the limit is exceeded."""
    recent = recent_values(5, len)
    recent["a"] = "aa"
    recent["b"] = "bb"
    assert recent["a"] == "aa"
    recent["c"] = "cc"
    assert [recent.get(key) for key in "abc"] == ["aa", None, "cc"]


def test_the_newest_value_is_kept_whatever_it_weighs() -> None:
    """Fails when something large is made again each time it is asked for, or keeps what it displaced alive."""
    for limit in (0, 3):
        recent = recent_values(limit, len)
        recent["small"] = "x"
        recent["large"] = "xxxxxxxx"
        assert recent["large"] == "xxxxxxxx"
        assert len(recent) == 1
        recent["empty"] = ""
        assert list(recent) == ["empty"]


def test_bytes_that_are_not_there_take_no_memory(files: dict[str, bytes]) -> None:
    """Fails when a range of a forged table is allocated before it is read; no machine has an exabyte."""
    uri, content = next(iter(files.items()))
    assert read_range(Range(uri, 10, 1 << 60)) == content[10:]
    assert read_range(Range(uri, 1 << 59, 1 << 60)) == b""
