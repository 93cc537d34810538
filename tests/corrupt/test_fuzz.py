"""Damage anywhere is reported, and never ends verifying: seeded flips, cuts and zeros in every file."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from preshard.packer_service.verify import Verdict

DAMAGES = ("flip", "cut", "zero", "repeat", "insert")


def damage(data: bytes, kind: str, seed: random.Random) -> bytes:
    """Bytes with one fault of a kind, never the same as before."""
    at = seed.randrange(len(data))
    if kind == "flip":
        return data[:at] + bytes([data[at] ^ (1 << seed.randrange(8))]) + data[at + 1 :]
    if kind == "cut":
        return data[:at]
    if kind == "zero":
        end = next((i for i in range(at, len(data)) if data[i]), None)
        return data[:at] if end is None else data[:at] + bytes(end + 1 - at) + data[end + 1 :]
    if kind == "repeat":
        return data[: at + 1] + data[at : at + 64] + data[at + 1 :]
    return data[:at] + bytes(seed.randrange(256) for _ in range(7)) + data[at:]


def _files(folder: Path) -> list[Path]:
    """Every file whose bytes the format fixes."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "run.json")


@pytest.mark.parametrize(
    "number", [pytest.param(number, marks=[pytest.mark.slow] * (number % 2)) for number in range(60)]
)
def test_damage_is_reported(number: int, sound: Path, tmp_path: Path, verify: Callable[[Path], Verdict]) -> None:
    """Fails when damaged bytes crash verifying, or when it calls them sound."""
    seed = random.Random(number)
    copy = shutil.copytree(sound, tmp_path / "dataset")
    files = _files(copy)
    file, kind = files[number % len(files)], DAMAGES[number // len(files) % len(DAMAGES)]
    file.write_bytes(damage(file.read_bytes(), kind, seed))
    verdict = verify(copy)
    assert not verdict.sound, f"{kind} in {file.name}"
    # A tar is blamed itself; what a table or the manifest says may be blamed on what it speaks of.
    if file.suffix == ".tar":
        assert file.name in {fault.file.rpartition("/")[2] for fault in verdict.broken}


@pytest.mark.parametrize("name", [b"0000000000.json", b"0000000000.sequence.npz", b"0000000000.layouts.npz"])
def test_damage_below_the_hashes_is_reported(name: bytes, editable: Any, verify: Callable[[Path], Verdict]) -> None:
    """Fails when a decoder crashes on damage that the shard's hash does not show, or lets it through.

    Some bits stand where no value depends on them: the dates and flags of an archive's entries, which are much of a
    small one. Every other flip must be seen.
    """
    seed, reported, tries = random.Random(0), 0, 8
    tar, offsets = editable.shard_file().read_bytes(), editable.offsets(0)
    header = tar.index(name)
    start, size = header + 512, int(tar[header + 124 : header + 135], 8)
    for _ in range(tries):
        content = damage(tar[start : start + size], "flip", seed)
        editable.write_shard_bytes(0, tar[:start] + content + tar[start + size :], offsets)
        editable.seal()
        reported += not verify(editable.path).sound
    assert reported >= tries // 2


@pytest.mark.parametrize(
    ("numbers", "rules"),
    [([-(2**63), -1, 0, 2**31, 2**63 - 1], {"D6", "P17"}), ([0, 1, 2, 3, 5], {"D10", "S6", "P17"})],
    ids=["absurd", "possible"],
)
def test_tables_that_lie_are_reported(
    editable: Any, verify: Callable[[Path], Verdict], numbers: list[int], rules: set[str]
) -> None:
    """Fails when a table of the right columns and absurd values crashes a check, or possible ones are believed."""
    for name in ("packs.parquet", "documents.parquet", "measures.parquet"):
        rows = editable.tables[name]
        for number, row in enumerate(rows[:20]):
            columns = [key for key, value in row.items() if isinstance(value, int)]
            row[columns[number % len(columns)]] = numbers[number % len(numbers)]
    editable.save(places=False)
    found = {fault.rule for fault in verify(editable.path).broken}
    assert rules <= found


def test_a_location_that_is_no_folder_is_the_users_mistake(tmp_path: Path, verify: Callable[[Path], Verdict]) -> None:
    """Fails when a mistyped path is called a broken dataset."""
    from preshard.schemas.errors import ConfigError

    with pytest.raises(ConfigError, match="no such folder"):
        verify(tmp_path / "nowhere")
    assert [fault.rule for fault in verify(tmp_path).broken] == ["D1"]
