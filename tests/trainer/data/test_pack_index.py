"""Places of packs: the same from a table held whole, and from the file that processes of a host share."""

from __future__ import annotations

import os
import pickle
import stat
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preshard.schemas.errors import ReaderError, TableInvalid
from preshard.schemas.members import sample_key, shard_name
from preshard.schemas.tables import PACKS
from preshard.trainer.data.pack_index import PackIndex, PackTable
from preshard.trainer.extra.shared_places import SharedPlaces

N_PACKS, PER_SHARD = 500, 3


def write_table(path: Path, *, group: int, **changed: list[int | None]) -> pa.Table:
    """A table of packs whose values are drawn, and the table itself."""
    rng = np.random.default_rng(0)
    columns = {name: pa.array(rng.integers(0, 2**31, N_PACKS), PACKS.field(name).type) for name in PACKS.names[4:]}
    columns |= {
        "pack_id": pa.array(range(N_PACKS)),
        "key": pa.array(map(sample_key, range(N_PACKS))),
        "shard": pa.array(shard_name(i // PER_SHARD) for i in range(N_PACKS)),
        "index_in_shard": pa.array(i % PER_SHARD for i in range(N_PACKS)),
        **{name: pa.array(values, pa.int64()) for name, values in changed.items()},
    }
    table = pa.table([columns[name] for name in PACKS.names], schema=PACKS)
    pq.write_table(table, path, row_group_size=group)
    return table


class Opens:
    """Opens a file, and remembers how often."""

    def __init__(self, path: Path) -> None:
        self.path, self.count = path, 0

    def __call__(self) -> pa.NativeFile:
        self.count += 1
        return pa.OSFile(str(self.path))


def shared(path: Path, opens: Opens | None = None) -> SharedPlaces:
    return SharedPlaces(
        partial(PackTable, opens or Opens(path)), pq.read_metadata(path).num_rows, "digest", path.parent
    )


@pytest.mark.parametrize("group", [1, 7, 64, N_PACKS])
def test_every_pack_is_found_in_any_order(tmp_path: Path, group: int) -> None:
    """Fails when a row is looked up in another row group, or key or shard are not those of the table."""
    path = tmp_path / "packs.parquet"
    rows = write_table(path, group=group).to_pylist()
    whole = PackIndex.of_bytes(path.read_bytes(), packs_per_shard=PER_SHARD)
    parts = PackIndex(shared(path), packs_per_shard=PER_SHARD)
    copied = pickle.loads(pickle.dumps(parts))
    assert len(whole) == len(parts) == len(copied) == N_PACKS
    for pack_id in np.random.default_rng(1).permutation(N_PACKS).tolist():
        place = whole[pack_id]
        assert place == parts[pack_id] == copied[pack_id]
        assert {name: rows[pack_id][name] for name in type(place).__slots__} == {
            name: getattr(place, name) for name in type(place).__slots__
        }
    for index in (whole, parts):
        with pytest.raises(IndexError):
            index[N_PACKS]


def test_a_row_group_is_decoded_once_for_all_processes(tmp_path: Path) -> None:
    """Fails when each worker decodes the table again, or one takes rows for written that are not there yet."""
    path = tmp_path / "packs.parquet"
    write_table(path, group=100)
    opens = Opens(path)
    first, second = shared(path, opens), shared(path, opens)
    expected = [first[i].tobytes() for i in range(250)]
    assert opens.count == 1, "not to know its row groups either"
    path.write_bytes(b"no table any more")
    assert [second[i].tobytes() for i in range(250)] == expected
    assert [pickle.loads(pickle.dumps(second))[i].tobytes() for i in range(250)] == expected
    with pytest.raises(TableInvalid, match="cannot be read as Parquet"):
        pickle.loads(pickle.dumps(second))[499]  # of a row group that nobody has decoded


def test_a_file_that_was_not_finished_is_filled_again(tmp_path: Path) -> None:
    """Fails when a process that was killed while it wrote row groups or edges leaves wrong places to the next job."""
    path = tmp_path / "packs.parquet"
    write_table(path, group=100)
    expected = PackIndex.of_bytes(path.read_bytes(), packs_per_shard=PER_SHARD)
    shared(path)[0]
    [file] = tmp_path.glob("*.places-*")
    written, flags = bytearray(file.read_bytes()), 8 + 8 * 6
    written[flags + 1 : flags + 5] = bytes(4)
    written[flags + 5 + 24 * 100 :] = b"\xff" * (24 * 400)
    for unwritten in (written, bytes(8) + b"\xff" * 48 + written[flags:], b""):
        file.write_bytes(unwritten)
        again = PackIndex(shared(path), packs_per_shard=PER_SHARD)
        assert [again[i] for i in range(N_PACKS)] == [expected[i] for i in range(N_PACKS)]


def test_opening_reads_no_row(tmp_path: Path) -> None:
    """Fails when a reader of a large dataset reads its whole table before the first step."""
    path = tmp_path / "packs.parquet"
    write_table(path, group=50)
    data = bytearray(path.read_bytes())
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    data[4:end] = bytes(end - 4)  # all but what Parquet says at the end of its row groups
    path.write_bytes(data)
    assert len(PackTable(Opens(path))) == N_PACKS
    with pytest.raises(TableInvalid):
        PackTable(Opens(path)).read(3)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("header_size", 2**32, "header_size is 4294967296; it must be from 0 to 4294967295"),
        ("offset", -1, "offset is -1; it must be from 0"),
        ("size", None, "size has nulls"),
    ],
)
def test_a_value_that_is_no_place_is_refused(tmp_path: Path, column: str, value: int | None, said: str) -> None:
    """Fails when a value wraps around and another range of bytes is read."""
    path = tmp_path / "packs.parquet"
    write_table(path, group=50, **{column: [*range(N_PACKS - 1), value]})
    with pytest.raises(TableInvalid, match=said):
        PackIndex.of_bytes(path.read_bytes(), packs_per_shard=PER_SHARD)
    with pytest.raises(TableInvalid, match=said):
        shared(path)[N_PACKS - 1]


def test_another_table_is_refused(tmp_path: Path) -> None:
    """Fails when a table without the columns, or no table at all, ends in an exception that is not ours."""
    for data in (b"", b"PAR1", b"no table"):
        with pytest.raises(TableInvalid, match=r"packs\.parquet: cannot be read as Parquet"):
            PackTable(partial(pa.BufferReader, data))
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"pack_id": [1]}), other)
    with pytest.raises(TableInvalid, match="has the columns"):
        PackTable(Opens(other))


def test_no_dataset_has_no_packs(tmp_path: Path) -> None:
    """Fails when an empty table cannot be opened."""
    path = tmp_path / "packs.parquet"
    pq.write_table(PACKS.empty_table(), path)
    assert len(PackIndex.of_bytes(path.read_bytes(), packs_per_shard=PER_SHARD)) == 0
    assert len(shared(path)) == 0


def test_a_folder_that_cannot_hold_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a full or forbidden temporary folder ends in a traceback."""
    path = tmp_path / "packs.parquet"
    write_table(path, group=50)
    with pytest.raises(ReaderError, match=r"places-2 cannot be written .*needs 1 MiB .*packs: set TMPDIR"):
        SharedPlaces(partial(PackTable, Opens(path)), N_PACKS, "digest", path)
    monkeypatch.setattr("tempfile.tempdir", str(path))
    with pytest.raises(ReaderError, match=r"cannot be created .*set TMPDIR"):
        SharedPlaces(partial(PackTable, Opens(path)), N_PACKS, "digest")


def test_places_are_whole_where_the_system_writes_a_part_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when what a short write has left over goes to another place, or nowhere: packs would be read elsewhere."""
    path, pwrite = tmp_path / "packs.parquet", os.pwrite
    write_table(path, group=100)
    whole = PackIndex.of_bytes(path.read_bytes(), packs_per_shard=PER_SHARD)
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: pwrite(file, data[:701], at))
    parts = PackIndex(shared(path), packs_per_shard=PER_SHARD)
    assert all(whole[pack_id] == parts[pack_id] for pack_id in (499, 0, 250, 103))


def test_the_file_is_this_users_alone(tmp_path: Path) -> None:
    """Fails when another user of the machine can see which packs a job reads, or say where they lie."""
    write_table(tmp_path / "packs.parquet", group=50)
    umask = os.umask(0)
    try:
        shared(tmp_path / "packs.parquet")
    finally:
        os.umask(umask)
    [file] = tmp_path.glob("*.places-*")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("left", [4, 8, 20, 700])
def test_a_shared_file_that_was_cut_is_filled_again(tmp_path: Path, left: int) -> None:
    """Fails when a file of places that others cut short, or whose rest became zeros, ends a reader or misleads it."""
    path = tmp_path / "packs.parquet"
    write_table(path, group=64)
    whole = PackIndex.of_bytes(path.read_bytes(), packs_per_shard=PER_SHARD)
    before = PackIndex(shared(path), packs_per_shard=PER_SHARD)
    assert [before[each] for each in range(N_PACKS)] == [whole[each] for each in range(N_PACKS)]
    (file,) = tmp_path.glob("digest.*")
    size = file.stat().st_size
    assert left < size - 8
    for fill in (None, size):
        os.truncate(file, left)
        if fill is not None:
            os.truncate(file, fill)
        for index in (before, PackIndex(shared(path), packs_per_shard=PER_SHARD)):
            assert [index[each] for each in range(N_PACKS)] == [whole[each] for each in range(N_PACKS)]
