"""Refusals of the reader: splits that the dataset was not packed for, and bytes that break the format."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preshard.schemas import errors
from preshard.schemas.dataset.manifest_parts import seal_manifest
from preshard.schemas.dataset.read_manifest import decode_manifest
from preshard.schemas.encode import encode_json, encode_table
from preshard.schemas.header import read_member
from preshard.schemas.layout import TokenLayout
from preshard.schemas.members import crc32c
from preshard.schemas.tables import PACKS
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.data.files import DatasetFiles
from preshard.trainer.data.reader import PackReader, RankPart, read_crops
from preshard.trainer.data.split import plan_split, read_header, token_layout
from tests.support.hostile_datasets import read_manifest, seal

SPLITS = [
    ({"layout": "spiral"}, "layout is 'spiral'.* contiguous, zigzag, balanced_ring, balanced_gather"),
    ({"ring_degree": 16, "layout": "balanced_ring"}, "ring_degree is 16.* 1, 2, 4, 8.* contiguous.* pack with 16"),
    ({"ring_degree": 16, "layout": "zigzag"}, "32 equal chunks.* multiples of 16: take layout contiguous, or"),
    ({"ring_degree": 0}, "ring_degree is 0"),
    ({"ulysses_degree": -1}, "ulysses_degree is -1"),
    ({"ring_degree": 3}, "ring_degree is 3, which does not divide .* 2048.* 1, 2, 4, 8"),
    ({"ulysses_degree": 3}, r"ulysses_degree \* ring_degree is 3, which does not divide .* 2048.* 1, 2, 4, 8"),
    ({"dp_rank": 2, "dp_size": 2}, "dp_rank is 2.* below 2"),
    ({"dp_rank": -1}, "dp_rank is -1"),
    ({"dp_size": 0}, "dp_size 0"),
    ({"cp_rank": 4, "ulysses_degree": 2, "ring_degree": 2}, "cp_rank is 4.* below 4"),
    ({"dp_size": 1000}, "dp_size is 1000.* packs"),
    ({"epoch": -1}, "epoch is -1"),
]


@pytest.mark.parametrize(("split", "message"), SPLITS)
def test_a_split_the_dataset_lacks_is_named_with_those_it_has(
    packed: Path, split: dict[str, Any], message: str
) -> None:
    """Fails when a wrong degree or rank reads another rank's part, or ends in a KeyError."""
    with pytest.raises(errors.ReaderError, match=message):
        PackedDataset(packed, **split)


@pytest.mark.parametrize("cp_rank", [-1, 2])
def test_a_rank_that_is_not_there_is_named_by_every_reader(packed: Path, cp_rank: int) -> None:
    """Fails when only PackedDataset knows how many ranks there are: Energon's samples ended in an IndexError."""
    part = RankPart(scheme="contiguous", ulysses_degree=1, ring_degree=2, cp_rank=cp_rank)
    with pytest.raises(errors.ReaderError, match=f"cp_rank is {cp_rank}; with ulysses_degree .* below 2"):
        PackReader(DatasetFiles(packed), part)


def test_a_slice_that_does_not_divide(copied: Path) -> None:
    """Fails when pieces of unequal length are accepted: collectives would hang or mix tokens."""
    _edit_manifest(copied, lambda manifest: manifest["config"].update(cp_sizes=[1, 2, 4, 8, 3]))
    with pytest.raises(errors.ReaderError, match="is 3, which does not divide the dataset's seq_len 2048"):
        PackedDataset(copied, ulysses_degree=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed 1, not 0"),
        ({"dataset_id": "other"}, "dataset_id 'other'"),
        ({"position": 1000}, "1000"),
        ({"position": -1}, "-1"),
        ({"epoch": None}, "no epoch"),
    ],
)
def test_a_state_of_something_else_is_refused(packed: Path, change: dict[str, Any], message: str) -> None:
    """Fails when a job resumes at a position in another order and trains again on packs that it has seen."""
    dataset = PackedDataset(packed)
    state = {name: value for name, value in {**dataset.state_dict(), **change}.items() if value is not None}
    with pytest.raises(errors.ReaderError, match=message):
        dataset.load_state_dict(state)


def _edit_manifest(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Edits the manifest and seals it again, so that nothing but the edit is wrong with it."""
    manifest = read_manifest(folder)
    edit(manifest)
    seal(folder, manifest)


def _edited(edit: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    return lambda folder: _edit_manifest(folder, edit)


BROKEN_FOLDERS: dict[str, tuple[type[Exception], str, Callable[[Path], object]]] = {
    "no manifest": (errors.ManifestMissing, "manifest.json", lambda folder: (folder / "manifest.json").unlink()),
    "no folder": (errors.ManifestMissing, "dataset/manifest.json", lambda folder: folder.rename(f"{folder}-gone")),
    "version": (errors.ManifestInvalid, "format_version is 0", _edited(lambda m: m.update(format_version=0))),
    "no field": (errors.ManifestInvalid, "shards", _edited(lambda m: m.pop("shards"))),
    "no setting": (errors.ManifestInvalid, "vision is not written out", _edited(lambda m: m["config"].pop("vision"))),
    "no table": (errors.ManifestInvalid, "tables: has ", _edited(lambda m: m.update(tables=[]))),
    "no packs": (errors.TableMissing, "packs.parquet", lambda folder: (folder / "packs.parquet").unlink()),
    "other packs": (errors.TableChanged, "SHA-256", lambda folder: (folder / "packs.parquet").write_bytes(b"PAR1")),
}


@pytest.mark.parametrize("broken", BROKEN_FOLDERS)
def test_a_broken_folder(copied: Path, broken: str) -> None:
    """Fails when the reader guesses what a missing file or field would have said."""
    error, message, plant = BROKEN_FOLDERS[broken]
    plant(copied)
    with pytest.raises(error, match=message):
        PackedDataset(copied)


def _replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old, new)


BROKEN_BYTES: dict[str, tuple[type[Exception], str, Callable[[bytes], bytes]]] = {
    "name of a member": (errors.MembersInvalid, "no tar header of", _replaced(b".sequence.npz", b".sequence.npy")),
    "arrays": (errors.MemberChanged, "sequence.npz", _replaced(b"tokens.npy", b"tokems.npy")),
    "layouts": (errors.MemberChanged, "layouts.npz", _replaced(b"contiguous.ring2.npy", b"contiguous,ring2.npy")),
    "head": (errors.MemberChanged, "json", _replaced(b'{"pack_id":', b'["pack_id":')),
    "name of a crop": (errors.ImagesInvalid, "crop 0", _replaced(b".0000.jpg", b".0001.jpg")),
    "pixels": (errors.MemberChanged, "0000.jpg: has the CRC-32C", _replaced(b"\xff\xd8\xff\xe0", b"\0\0\0\0")),
    "end": (errors.ShardChanged, "has only (700|0) of the .* cut short", lambda data: data[:700]),
}


@pytest.mark.parametrize("broken", BROKEN_BYTES)
def test_broken_bytes(copied: Path, broken: str) -> None:
    """Fails when damaged bytes come out as tokens, pixels or an error that names neither file nor sample."""
    error, message, edit = BROKEN_BYTES[broken]
    for path in sorted((copied / "shards").glob("*.tar")):
        path.write_bytes(edit(path.read_bytes()))
    with pytest.raises(error, match=f"shards/preshard-00000.*{message}"):
        list(PackedDataset(copied, ulysses_degree=2))


@pytest.mark.parametrize("short", [1, 511])
def test_a_range_that_ends_a_little_short(copied: Path, short: int) -> None:
    """Fails when a shard cut within a tar block passes for whole, as a header part or crop may still decode."""
    files = PackedDataset(copied).files
    shard = copied / "shards" / "preshard-000000.tar"
    shard.write_bytes(shard.read_bytes()[:2048])
    assert len(files.read_range(shard.name, 512, 1536)) == 1536
    with pytest.raises(errors.ShardChanged, match=f"1536 of the {1536 + short} bytes from byte 512"):
        files.read_range(shard.name, 512, 1536 + short)


@pytest.mark.parametrize("past", [1, 511])
def test_a_crop_that_reaches_a_little_past_its_sample(copied: Path, past: int) -> None:
    """Fails when a rank reads the next sample's bytes, or the tar's end, as its own last crop."""
    dataset = PackedDataset(copied)
    place = next(place for place in dataset.files.packs() if place.size > place.header_size)
    head = read_header(dataset.files, place, dataset.config, 1).head
    last = head.images[-1]
    beyond = place.size - place.header_size - last.offset - 512 + past
    head = head.model_copy(update={"images": [*head.images[:-1], last.model_copy(update={"size": beyond})]})
    with pytest.raises(errors.ImagesInvalid, match="outside the sample"):
        read_crops(dataset.files, place, head, range(len(head.images)), image_format="jpeg", most_pixels=1 << 30)


@pytest.mark.parametrize(
    ("first", "said"), [(0, "crops 0 to 4 lie at byte 2048,"), (2, "crops 2 to 4 lie at byte 4096,")]
)
def test_crops_outside_of_their_sample_are_named(first: int, said: str) -> None:
    """Fails when other crops are named than those that were asked for, or the place of another one."""
    images = [SimpleNamespace(height=8, width=8, offset=1024 * at, size=500) for at in range(5)]
    place: Any = SimpleNamespace(header_size=2048, size=2048 + 5 * 1024 - 600, where="here")
    head, files = SimpleNamespace(images=images), SimpleNamespace(read_range=None)
    with pytest.raises(errors.ImagesInvalid, match=f"^here: {said} outside the sample"):
        read_crops(files, place, head, range(first, 5), image_format="jpeg", most_pixels=1 << 30)  # type: ignore[arg-type]


def test_a_damaged_crop_is_named_and_no_more_is_read(copied: Path) -> None:
    """Fails when a flipped bit in a picture that still decodes is trained on, or finding it costs further bytes."""
    dataset = PackedDataset(copied)
    place = next(place for place in dataset.files.packs() if place.size > place.header_size)
    head = read_header(dataset.files, place, dataset.config, 1).head
    shard = copied / "shards" / place.shard
    data, at = bytearray(shard.read_bytes()), place.offset + place.header_size + head.images[0].offset + 512
    data[at + head.images[0].size - 1] ^= 1  # of the end marker, which decoders do not look at
    shard.write_bytes(data)
    before, crops = dataset.bytes_read, range(len(head.images))
    with pytest.raises(
        errors.MemberChanged, match=rf"{place.shard}, sample {place.key}, {place.key}.0000.jpg: has the"
    ):
        read_crops(dataset.files, place, head, crops, image_format="jpeg", most_pixels=1 << 30)
    assert dataset.bytes_read - before <= place.size - place.header_size


def test_a_missing_shard(copied: Path) -> None:
    """Fails when a lost shard ends in an error that does not name it."""
    for path in (copied / "shards").glob("*.tar"):
        path.unlink()
    with pytest.raises(errors.ShardMissing, match="shards/preshard-00000"):
        next(iter(PackedDataset(copied)))


def _exchange(head: dict[str, Any]) -> None:
    ranks = head["image_shard_boundaries"]["2"]
    ranks["0"], ranks["1"] = ranks["1"], ranks["0"]


def _swap_offsets(head: dict[str, Any]) -> None:
    first, second = head["images"][0], head["images"][1]
    first["offset"], second["offset"] = second["offset"], first["offset"]


BROKEN_HEADS: dict[str, tuple[type[Exception], str, Callable[[dict[str, Any]], object]]] = {
    "another pack": (errors.PackRowInvalid, "holds pack", lambda head: head.update(pack_id=(head["pack_id"] + 1) % 10)),
    "no field": (errors.SampleHeadInvalid, "images", lambda head: head.pop("images")),
    "ranks exchanged": (errors.BoundariesInvalid, "in rank order", _exchange),
    "no boundaries": (
        errors.BoundariesInvalid,
        "has no cp_size 2; it has 1, 4, 8",
        lambda head: head["image_shard_boundaries"].pop("2"),
    ),
    "a rank less": (errors.BoundariesInvalid, "rank", lambda head: head["image_shard_boundaries"]["2"].pop("1")),
    "a gap": (
        errors.BoundariesInvalid,
        "consecutive",
        lambda head: head["image_shard_boundaries"]["2"]["0"].update(end_image_idx=1),
    ),
    "a crop less": (errors.BoundariesInvalid, "cum_image_bounds .* images", lambda head: head["images"].pop()),
    "offset": (errors.ImagesInvalid, "crop 0: byte 0", lambda head: head["images"][0].update(offset=9)),
    "offsets exchanged": (errors.ImagesInvalid, "crop 0: byte 0: 0000000.*0001.jpg", _swap_offsets),
    "past the end": (errors.ImagesInvalid, "outside the", lambda head: head["images"][0].update(offset=99999)),
    "size": (errors.ImagesInvalid, "crop 0: .* bytes, not 9", lambda head: head["images"][0].update(size=9)),
}


def _edit_head(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Edits the head of every sample with two crops or more where it lies: spaces after the JSON keep its length."""
    for path in sorted((folder / "shards").glob("*.tar")):
        data = path.read_bytes()
        with tarfile.open(path) as tar:
            members = [member for member in tar if member.name.endswith(".json")]
        for member in members:
            place = slice(member.offset_data, member.offset_data + member.size)
            head = json.loads(data[place])
            if len(head["images"]) < 2:
                continue
            edit(head)
            # An edit may lengthen the head by a character or two; a name that no reader needs makes room.
            head.get("documents", [{}])[0].update(doc_id="")
            edited = json.dumps(head, separators=(",", ":")).encode().ljust(member.size)
            assert len(edited) == member.size
            data = data[: place.start] + edited + data[place.stop :]
        path.write_bytes(data)
    _repair_checksums(folder)


def _repair_checksums(folder: Path) -> None:
    """Makes ``packs.parquet`` and the manifest follow from the heads, so that only what the heads say is wrong."""
    rows = pq.read_table(folder / "packs.parquet").to_pylist()
    for row in rows:
        shard = (folder / "shards" / row["shard"]).read_bytes()
        row["head_crc32c"] = crc32c(read_member(shard[row["offset"] :], 0, f"{row['key']}.json", "")[0])
    table = encode_table(pa.Table.from_pylist(rows, schema=PACKS))
    (folder / "packs.parquet").write_bytes(table)
    manifest = decode_manifest((folder / "manifest.json").read_bytes(), "manifest.json")
    entries = [
        entry.model_copy(update={"bytes": len(table), "sha256": hashlib.sha256(table).hexdigest()})
        if entry.name == "packs.parquet"
        else entry
        for entry in manifest.tables
    ]
    sealed = seal_manifest(manifest.model_copy(update={"tables": entries}))
    (folder / "manifest.json").write_bytes(encode_json(sealed))


@pytest.mark.parametrize("broken", BROKEN_HEADS)
def test_a_broken_head(copied: Path, broken: str) -> None:
    """Fails when boundaries out of order put features on the wrong tokens, or another crop is read instead of ours."""
    error, message, edit = BROKEN_HEADS[broken]
    _edit_head(copied, edit)
    with pytest.raises(error, match=f"shards/preshard-00000.*sample 00000.*{message}"):
        list(PackedDataset(copied, ulysses_degree=2))


def test_an_edited_head_that_breaks_no_rule_is_read(copied: Path) -> None:
    """Fails when editing itself is what the reader refuses, so that the edits above would prove nothing."""
    _edit_head(copied, len)
    assert len(list(PackedDataset(copied, ulysses_degree=2))) == PackedDataset(copied).n_packs


RUNS = {
    "as it was": ([[0, 0, 4], [0, 6, 2], [1, 4, 2], [1, 8, 4]], None),
    "a token twice": ([[0, 0, 4], [0, 6, 2], [1, 4, 3], [1, 9, 3]], errors.LayoutNotPartition),
    "a token lost": ([[0, 0, 4], [0, 6, 2], [1, 4, 1], [1, 8, 4]], errors.LayoutNotPartition),
    "unequal slices": ([[0, 0, 4], [0, 6, 3], [1, 4, 2], [1, 9, 3]], errors.LayoutNotPartition),
    "a rank too many": ([[0, 0, 4], [2, 6, 2], [1, 4, 2], [1, 8, 4]], errors.LayoutNotPartition),
    "a negative rank": ([[-1, 0, 4], [-1, 6, 2], [1, 4, 2], [1, 8, 4]], errors.LayoutNotPartition),
    "an empty run": ([[0, 0, 4], [0, 6, 2], [1, 4, 2], [1, 8, 4], [1, 12, 0]], errors.LayoutNotPartition),
    "none": (np.zeros((0, 3)), errors.LayoutNotPartition),
}


@pytest.mark.parametrize("broken", RUNS)
def test_a_layout_that_is_not_a_partition(packed: Path, broken: str) -> None:
    """Fails when a token that two ranks hold, or none, is trained on twice or never."""
    runs, error = RUNS[broken]
    needs = np.ones((2, 1), np.bool_)
    layout = TokenLayout(scheme="zigzag", ring_degree=2, block_size=12, runs=np.array(runs, np.int32), needs=needs)
    dataset = PackedDataset(packed)
    header = read_header(dataset.files, dataset.files.packs()[0], dataset.config, 1)
    header, config = replace(header, layouts={layout.name: layout}), dataset.config.model_copy(update={"seq_len": 12})
    split = plan_split(config, layout="zigzag", ring_degree=2, ulysses_degree=1)
    if error is None:
        assert token_layout(header, split, config, "here") is layout
        return
    with pytest.raises(error, match=r"here.layouts.npz: layout zigzag.ring2"):
        token_layout(header, split, config, "here")


def test_a_missing_layout(packed: Path) -> None:
    """Fails when a layout that the configuration lists and the sample lacks is derived without a word."""
    dataset = PackedDataset(packed)
    header = read_header(dataset.files, dataset.files.packs()[0], dataset.config, 1)
    header.layouts.pop("zigzag.ring8")
    split = plan_split(dataset.config, layout="zigzag", ring_degree=8, ulysses_degree=1)
    with pytest.raises(errors.LayoutsInvalid, match=r"zigzag.ring8 is missing; there are only contiguous.ring1"):
        token_layout(header, split, dataset.config, "here")
