"""Mutations of every file of a dataset against everything that opens one: bytes, fields, columns, sizes, links.

    python tests/hostile/forged.py [DATASET] [--draws 5000] [--first 0] [--entries ENTRY,...] [--plant FAULT]

Draws are numbered, and each follows from its number: ``--first 17 --draws 1`` makes that of the 17th again. Sizes,
counts and checksums are repaired for most of them, so that nothing is found by a hash alone. Prints what does not end
as it should: in one line that names the file, or as if nothing were wrong, within limits of time and memory. Exit
status 1 if there is any such. Without DATASET the demonstration source is packed, in a minute.

``--plant`` puts back a fault that there was, ends with the first draw that finds it, and with status 1 if none does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads do not survive a fork
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import numpy as np  # noqa: E402
import probes  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from probes import ENTRIES, Outcome, probe, warm  # noqa: E402

from preshard.packer_service.config import load_config  # noqa: E402
from preshard.packer_service.demo.source import write_demo_source  # noqa: E402
from preshard.packer_service.job.pack import pack  # noqa: E402
from preshard.packer_service.runtime.executors import PlainExecutor  # noqa: E402
from preshard.packer_service.runtime.progress import NoProgress  # noqa: E402
from preshard.schemas.encode import tar_member  # noqa: E402
from preshard.schemas.files.npz import decode_arrays  # noqa: E402
from preshard.schemas.files.npz_write import encode_arrays  # noqa: E402
from preshard.schemas.header import read_member  # noqa: E402
from preshard.schemas.members import HEAD, HEADER_MEMBERS, crc32c, sample_key  # noqa: E402
from preshard.schemas.tables import TABLES  # noqa: E402
from tests.support.hostile_bytes import bomb_of_zeros, claim_of_shape  # noqa: E402
from tests.support.hostile_datasets import put_table, read_manifest, seal  # noqa: E402

Draw = random.Random
Mutation = Callable[[Path, Draw], str]
"""Changes a copy of a dataset; says what it changed."""

NUMBERS = (
    -1,
    0,
    1,
    2**31 - 1,
    2**31,
    2**32,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    10**30,
    -(2**63),
    0.5,
    float("nan"),
    1e308,
)
TEXTS = (
    "",
    "x" * 200_000,
    "\x1b[2J\x1b]0;t\x07\r\nok",
    "../../x",
    "/dev/zero",
    "\u202egnp.exe",
    "NaN",
    "\x00",
    "é" * 999,
)
OTHERS = (None, True, [], {}, [[]] * 1000, {"a": 1}, list(range(20_000)))


def bytes_of_a_file(folder: Path, draw: Draw) -> str:
    """A file with bytes that a bad disk, or a cut download, would give it."""
    file = _drawn_file(folder, draw)
    data = file.read_bytes()
    at = draw.randrange(max(len(data), 1))
    end = min(at + draw.choice((1, 7, 64, 4096)), len(data))
    kind = draw.choice(("flip", "cut", "zeros", "noise", "repeat", "empty"))
    changed = {
        "flip": data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :] if data else b"",
        "cut": data[:at],
        "zeros": data[:at] + bytes(end - at) + data[end:],
        "noise": data[:at] + draw.randbytes(end - at) + data[end:],
        "repeat": data[:end] + data[at:],
        "empty": b"",
    }[kind]
    _write(file, changed)
    if draw.random() < 0.7:
        repair(folder)
    return f"{kind} in {file.relative_to(folder)} at {at}"


def size_of_a_file(folder: Path, draw: Draw) -> str:
    """A file that claims a terabyte, and takes no place."""
    file, size = _drawn_file(folder, draw), draw.choice((1 << 30, 1 << 40))
    data = file.read_bytes()
    _write(file, data if draw.random() < 0.5 else b"")
    os.truncate(file, size)
    manifest = read_manifest(folder) if file.name != "manifest.json" else {"shards": [], "tables": []}
    for entry in (*manifest["shards"], *manifest["tables"]):
        if entry["name"] == file.name:
            entry["bytes"] = size
            seal(folder, manifest)
    return f"{file.relative_to(folder)} of {size} bytes"


def link_or_device(folder: Path, draw: Draw) -> str:
    """Something that is no file, or lies elsewhere, where a file or a folder should be."""
    names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*"))]
    name = draw.choice([*names, ".work", ".nv-meta", "README.md", "annotations.parquet"])
    path, kind = folder / name, draw.choice(("pipe", "device", "folder", "circle", "outside", "nowhere"))
    beside = folder.with_name(f"{folder.name}.outside")
    if path.exists() and kind == "outside":
        path.rename(beside)
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        if kind == "outside" and not beside.exists():
            beside.mkdir()
        leads = {"device": "/dev/zero", "circle": path.name, "outside": str(beside), "nowhere": "nothing"}
        path.symlink_to(leads[kind])
    return f"{name} is a {kind}"


def field_of_json(folder: Path, draw: Draw) -> str:
    """One value of the manifest, of the figures or of the run that is another, in a file that is in order otherwise."""
    name = draw.choice(("manifest.json",) * 4 + ("figures.json", "run.json"))
    found = json.loads((folder / name).read_bytes())
    what = _change(found, draw)
    if name == "manifest.json":
        seal(folder, found)
    else:
        _write(folder / name, json.dumps(found).encode())
        repair(folder)
    return f"{name}: {what}"


def column_of_a_table(folder: Path, draw: Draw) -> str:
    """One column of a table that has other values, another type or no place; or rows that are others, or too many."""
    name = draw.choice(tuple(TABLES))
    table, schema = pq.read_table(folder / name), TABLES[name]
    at = draw.randrange(len(schema))
    field = table.schema.field(at)
    kind = draw.choice(("value", "value", "null", "type", "drop", "twice", "rows", "groups", "dictionary"))
    options: dict[str, Any] = {"row_group_size": max(len(table), 1)}
    if kind == "value" and pa.types.is_integer(field.type):
        value = draw.choice([number for number in NUMBERS if isinstance(number, int) and -(2**63) <= number < 2**63])
        values, changed = table[at].to_pylist(), draw.choice((1, len(table)))
        values = [value] * min(changed, len(table)) + values[changed:]
        table = table.set_column(at, field, pa.array(values, field.type))
    elif kind == "value" and pa.types.is_string(field.type):
        table = table.set_column(at, field, pa.array([draw.choice(TEXTS)] * len(table), field.type))
    elif kind == "null":
        table = table.set_column(at, field, pa.nulls(len(table), field.type))
    elif kind == "type":
        table = table.set_column(at, pa.field(field.name, pa.binary()), pa.array([b"\xff"] * len(table), pa.binary()))
    elif kind == "drop":
        table = table.remove_column(at)
    elif kind == "twice":
        table = table.append_column(field.name, table[at])
    elif kind == "rows":
        wanted = draw.choice((0, 1, len(table) + 1, 200_000))
        table = table.take(pa.array(np.arange(wanted) % max(len(table), 1))) if len(table) else table
    elif kind == "groups":
        options = {"row_group_size": 1}
    else:
        options |= {"compression": "gzip", "data_page_version": "2.0", "write_statistics": False}
    (folder / name).unlink()
    pq.write_table(table, folder / name, **options)
    rows = len(table) if draw.random() < 0.8 else draw.choice((0, 2**40, len(table) + 1))
    put_table(folder, name, rows)
    return f"{name}: {kind} of {field.name}, {len(table)} rows, {rows} in the manifest"


def head_of_a_sample(folder: Path, draw: Draw) -> str:
    """One value of a sample's head that is another, with every size and checksum in order."""
    members, _ = _first_sample(folder)
    head = json.loads(members[HEAD])
    what = _change(head, draw)
    _put_sample(folder, members | {HEAD: json.dumps(head).encode()}, repair_head=False)
    return f"head: {what}"


def arrays_of_a_sample(folder: Path, draw: Draw) -> str:
    """One array of a sample that has wild values or another shape, or that inflates, with checksums in order."""
    members, _ = _first_sample(folder)
    extension = draw.choice(("sequence.npz", "layouts.npz"))
    arrays = decode_arrays(members[extension], lambda _: 1 << 40)
    name, kind = draw.choice(sorted(arrays)), draw.choice(("wild", "wild", "one", "shape", "drop", "bomb", "claim"))
    if kind in ("wild", "one") and arrays[name].dtype.kind in "if":
        value = draw.choice((-1, 0, 1, 2**31 - 1, -(2**31)))
        arrays[name].reshape(-1)[: None if kind == "wild" else 1] = value
    elif kind == "shape":
        arrays[name] = np.concatenate([arrays[name], arrays[name]])
    elif kind == "drop":
        del arrays[name]
    data = encode_arrays(arrays)
    if kind == "bomb":
        data = bomb_of_zeros(name, 3 << 30)
    elif kind == "claim":
        data = claim_of_shape(name, (1 << 40,))
    _put_sample(folder, members | {extension: data})
    return f"{extension}: {kind} of {name}"


def _follow_links() -> None:
    from preshard.packer_service.shards import store

    store.refuse_links = lambda _top, _path: None


def _inflate_whatever_is_there() -> None:
    from preshard.schemas.files import npz

    decode = npz.decode_arrays
    for module in [module for module in sys.modules.values() if getattr(module, "decode_arrays", None) is decode]:
        vars(module)["decode_arrays"] = lambda data, _room: decode(data, lambda _: 1 << 40)


def _wait_for_pipes() -> None:
    from preshard.packer_service.shards import store
    from preshard.schemas.files import filesystem

    filesystem.require_regular = store.require_regular = lambda path, _name: Path(path).stat().st_size
    probes.WALL_SECONDS = 60  # none of them uses a processor


FAULTS: dict[str, tuple[Callable[[], None], str, str]] = {
    "links": (_follow_links, "card,energon", "written outside"),
    "inflated": (_inflate_whatever_is_there, "read", "memory"),
    "pipes": (_wait_for_pipes, "read", "hung"),
}
"""Functions that put back a fault of before, the entries that are asked about it, and how one of them ends by it."""

MUTATIONS: tuple[Mutation, ...] = (
    bytes_of_a_file,
    size_of_a_file,
    link_or_device,
    field_of_json,
    field_of_json,
    column_of_a_table,
    column_of_a_table,
    head_of_a_sample,
    arrays_of_a_sample,
)


def make(number: int, healthy: Path, copy: Path) -> str:
    """Writes the copy of a draw, in place of that of another; says what it has."""
    for old in (copy, copy.with_name(f"{copy.name}.outside")):
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink(missing_ok=True)
    shutil.copytree(healthy, copy, copy_function=os.link)
    for file in copy.glob("*.json"):  # which are changed in place
        data = file.read_bytes()
        _write(file, data)
    draw = random.Random(number)
    return draw.choice(MUTATIONS)(copy, draw)


def mutation_of(number: int) -> Mutation:
    """Mutation that a draw makes."""
    return random.Random(number).choice(MUTATIONS)


def wrong_of(
    number: int, healthy: Path, copy: Path, entries: Sequence[str], ids: Sequence[str]
) -> list[tuple[str, str, Outcome]]:
    """The entries that do not end as they should on a draw, with what the draw has."""
    what = make(number, healthy, copy)
    outside = copy.with_name(f"{copy.name}.outside")
    before = _listed(outside)
    found = [(what, entry, outcome) for entry, outcome in probe(entries, copy, ids).items() if not outcome.is_right]
    if _listed(outside) != before:
        found.append((what, "all", Outcome(what="written outside", line=str(outside))))
    return found


def repair(folder: Path) -> None:
    """Writes the sizes and hashes of tables, shards and figures into the manifest, where that can be read."""
    try:
        manifest = read_manifest(folder)
        for entry in manifest["tables"]:
            entry.update(_stated(folder / entry["name"]))
        for entry in manifest["shards"]:
            entry.update(_stated(folder / "shards" / entry["name"]))
        for entry in manifest["carried"]:
            entry.update(_stated(folder / "model" / entry["name"]))
        manifest["figures"] = _stated(folder / "figures.json")
    except (ValueError, KeyError, TypeError, OSError):
        return
    seal(folder, manifest)


def _stated(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _listed(folder: Path) -> list[tuple[str, int, int]]:
    """Contents of a folder, or the file itself: a link of the dataset leads there."""
    if not folder.exists():
        return []
    files = [folder, *sorted(folder.rglob("*"))] if folder.is_dir() else [folder]
    return [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.is_file()]


def packed_demo(folder: Path) -> Path:
    """A dataset of a fourth of the demonstration source, with several shards of short packs."""
    write_demo_source(folder / "source", log=lambda _: None)
    rows = folder / "source" / "documents.jsonl"
    rows.write_bytes(b"".join(rows.read_bytes().splitlines(keepends=True)[::4]))
    settings = ["seq_len=2048", "cp_sizes=[1,2]", "ring_degrees=[1,2]", "block_size=128", "packs_per_shard=4"]
    config = load_config(None, [*settings, "order.window=2", "vision.image_size=84", "video.max_frames=4"])
    pack([str(folder / "source")], str(folder / "dataset"), config, PlainExecutor(), NoProgress())
    return folder / "dataset"


def _write(path: Path, data: bytes) -> None:
    """Other bytes, and not those of the healthy dataset, which has the same file."""
    path.unlink()
    path.write_bytes(data)


def _drawn_file(folder: Path, draw: Draw) -> Path:
    return draw.choice(sorted(path for path in folder.rglob("*") if path.is_file()))


def _change(found: Any, draw: Draw) -> str:
    """Changes one value somewhere in some JSON, or takes it away, or adds one."""
    path, at = "", found
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return f"{path} stays"
        key = draw.choice(keys)
        path += f".{key}"
        if isinstance(at[key], dict | list) and at[key] and draw.random() < 0.85:
            at = at[key]
            continue
        kind = draw.choice(("number", "number", "text", "other", "drop", "more"))
        if kind == "drop":
            del at[key]
        elif kind == "more":
            at.update(unknown=1) if isinstance(at, dict) else at.extend(at * 50)
        else:
            at[key] = draw.choice({"number": NUMBERS, "text": TEXTS, "other": OTHERS}[kind])
        shown = repr(at[key])[:60] if kind not in ("drop", "more") else kind
        return f"{path} is {shown}"


def _first_sample(folder: Path) -> tuple[dict[str, bytes], int]:
    """The members of the first sample's header part, and the byte behind them."""
    data = (folder / "shards" / "preshard-000000.tar").read_bytes()
    members, at = dict[str, bytes](), 0
    for name in HEADER_MEMBERS:
        members[name], at = read_member(data, at, f"{sample_key(0)}.{name}", "first sample")
    return members, at


def _put_sample(folder: Path, members: dict[str, bytes], *, repair_head: bool = True) -> None:
    """Writes the first sample's header part, and all that says where it lies and what it holds."""
    _, at = _first_sample(folder)
    shard = folder / "shards" / "preshard-000000.tar"
    old = shard.read_bytes()
    if repair_head:
        head = json.loads(members[HEAD])
        head["crc32c"] = {name: crc32c(data) for name, data in members.items() if name != HEAD}
        members[HEAD] = json.dumps(head).encode()
    header = b"".join(tar_member(f"{sample_key(0)}.{name}", members[name]) for name in HEADER_MEMBERS)
    _write(shard, header + old[at:])
    longer = len(header) - at
    rows = pq.read_table(folder / "packs.parquet").to_pylist()
    for row in rows:
        if row["pack_id"] == 0:
            row.update(header_size=len(header), head_crc32c=crc32c(members[HEAD]), size=row["size"] + longer)
        elif row["shard"] == shard.name:
            row["offset"] += longer
    (folder / "packs.parquet").unlink()
    pq.write_table(pa.Table.from_pylist(rows, TABLES["packs.parquet"]), folder / "packs.parquet")
    index = shard.with_name(f"{shard.name}.idx")
    offsets = np.frombuffer(index.read_bytes(), "<u8").copy()
    offsets[1:] += np.uint64(longer % 2**64)
    _write(index, offsets.tobytes())
    repair(folder)


def main() -> None:
    """Entry point of the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, nargs="?")
    parser.add_argument("--draws", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--entries", default=",".join(ENTRIES))
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no draw begins")
    parser.add_argument("--plant", choices=sorted(FAULTS))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="datasets-") as scratch:
        healthy = packed_demo(Path(scratch)) if given.dataset is None else given.dataset
        sys.exit(_run(given, healthy, Path(scratch) / "copy"))


def _run(given: argparse.Namespace, healthy: Path, copy: Path) -> int:
    ids = pq.read_table(healthy / "documents.parquet", columns=["doc_id"])["doc_id"].to_pylist()[:9]
    warm(healthy, ids)
    plant, asked, expected = FAULTS.get(given.plant, (lambda: None, given.entries, ""))
    plant()
    counts, until, made = Counter[str](), time.monotonic() + given.seconds, 0
    entries = asked.split(",")
    for number in range(given.first, given.first + given.draws):
        if time.monotonic() > until:
            break
        made += 1
        for what, entry, outcome in wrong_of(number, healthy, copy, entries, ids):
            counts[outcome.what] += 1
            print(f"{number} {what!r:.120}: {entry}: {outcome.what}: {outcome.line!r:.200}", flush=True)
        if counts[expected]:
            print(f"{given.plant}: found by draw {number}, the {made}th")
            return 0
        if made % 100 == 0:
            print(f"{made} draws, {counts.total()} wrong", file=sys.stderr, flush=True)
    if given.plant:
        print(f"{given.plant}: not found by {made} draws")
        return 1
    print(f"{made} draws against {len(entries)} entries: {dict(counts) or 'all as they should'}")
    return int(bool(counts))


if __name__ == "__main__":
    main()
