"""A tar taken apart: grouped as webdataset groups it, hashed whole, and read further after a broken place."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest
import webdataset

from preshard.packer_service.verify.tar import TarScan
from preshard.schemas.encode import TAR_END, tar_member

SAMPLES = [
    [("0.json", b"{}"), ("0.0000.jpg", b"x" * 700)],
    [("1.json", b""), ("1.0000.jpg", b"y" * 512)],
    [("2.json", b"z")],
]


def sample_bytes(sample: list[tuple[str, bytes]]) -> bytes:
    return b"".join(tar_member(name, data) for name, data in sample)


TAR = b"".join(map(sample_bytes, SAMPLES)) + TAR_END
OFFSETS = [0, len(sample_bytes(SAMPLES[0])), len(sample_bytes(SAMPLES[0]) + sample_bytes(SAMPLES[1]))]


def scan(data: bytes, resume: list[int]) -> tuple[list[str], TarScan]:
    tar = TarScan(file=io.BytesIO(data), size=len(data), resume=resume)
    return [sample.key for sample in tar.samples()], tar


def test_samples_are_those_of_webdataset(tmp_path: Path) -> None:
    """Fails when keys are cut elsewhere than webdataset cuts them, or offsets are not those of the headers."""
    (tmp_path / "a.tar").write_bytes(TAR)
    other = [sample["__key__"] for sample in webdataset.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False)]
    tar = TarScan(file=io.BytesIO(TAR), size=len(TAR), resume=[])
    samples = list(tar.samples())
    assert [sample.key for sample in samples] == other
    assert [sample.offset for sample in samples] == OFFSETS
    assert [[(m.name, m.data) for m in sample.members] for sample in samples] == SAMPLES
    assert samples[-1].end == len(TAR) - len(TAR_END)
    assert not tar.findings


@pytest.mark.parametrize("at", range(0, len(TAR), 97))
def test_the_whole_file_is_hashed_and_read_on(at: int) -> None:
    """Fails when a broken place ends the hashing, or hides samples that the index still finds."""
    data = bytearray(TAR)
    data[at] ^= 0x55
    keys, tar = scan(bytes(data), [*OFFSETS, len(TAR)])
    assert tar.hash.hexdigest() == hashlib.sha256(data).hexdigest()
    damaged = max(i for i, offset in enumerate(OFFSETS) if offset <= at)
    assert {"0", "1", "2"} - set(keys) <= {str(damaged)}


@pytest.mark.parametrize("end", range(0, len(TAR), 131))
def test_a_cut_tar_is_broken_and_its_whole_samples_are_read(end: int) -> None:
    """Fails when a truncated tar passes for whole, or its last piece for a sample."""
    keys, tar = scan(TAR[:end], OFFSETS)
    assert tar.broken
    assert tar.findings
    assert (
        keys
        == [str(i) for i, offset in enumerate([*OFFSETS[1:], len(TAR) - len(TAR_END)]) if offset <= end][: len(keys)]
    )
    assert len(keys) >= sum(offset <= end for offset in OFFSETS[1:])
