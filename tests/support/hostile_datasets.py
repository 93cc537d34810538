"""Folders that are made to hang, crash or fill whatever reads them: each is a dataset in which one thing is hostile.

Hashes and sizes in their manifests are in order wherever that gets a reader further.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from preshard.schemas.encode import tar_member
from preshard.schemas.header import read_member
from preshard.schemas.members import HEAD, HEADER_MEMBERS, crc32c, sample_key
from preshard.schemas.tables import TABLES
from tests.support.hostile_bytes import bomb_of_zeros, claim_of_rows, claim_of_shape

UNSEALED = "0" * 64

Make = Callable[[Path], None]


def write_hostile(root: Path, healthy: Path, *, rows: int, wanted: tuple[str, ...] = ()) -> list[str]:
    """Writes a folder for each kind below a root, from copies of a sound dataset; returns their names.

    Args:
        root: where they are written.
        healthy: a sound dataset with at least two documents.
        rows: rows of the tables that are to be large; a row takes almost nothing on the disk.
        wanted: the kinds to write; all if empty.
    """
    kinds = {**CONFIGS, **FILES, **TABLE_KINDS, **large_tables(rows)}
    for name in wanted or kinds:
        folder = root / name
        shutil.copytree(healthy, folder)
        kinds[name](folder)
    return list(wanted or kinds)


def read_manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
    return found


def seal(folder: Path, manifest: dict[str, Any]) -> None:
    """Writes a manifest with the hash that its own bytes have."""
    unsealed = {name: value for name, value in manifest.items() if name != "sha256"} | {"sha256": UNSEALED}
    data = json.dumps(unsealed, separators=(",", ":")).encode()
    digest = hashlib.sha256(data).hexdigest().encode()
    (folder / "manifest.json").write_bytes(data[: -len(UNSEALED) - 2] + digest + b'"}')


def changed(path: str, value: Any) -> Make:
    """A manifest in which one value is another; the path has dots."""

    def make(folder: Path) -> None:
        manifest = read_manifest(folder)
        section: Any = manifest
        *above, last = path.split(".")
        for name in above:
            section = section[int(name) if isinstance(section, list) else name]
        section[last] = value
        seal(folder, manifest)

    return make


def several(*makes: Make) -> Make:
    def make(folder: Path) -> None:
        for each in makes:
            each(folder)

    return make


def figures(content: bytes) -> Make:
    """Figures that the manifest names as they are."""

    def make(folder: Path) -> None:
        (folder / "figures.json").write_bytes(content)
        entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        seal(folder, read_manifest(folder) | {"figures": entry})

    return make


CONFIGS: dict[str, Make] = {
    "window-of-a-trillion": changed("config.order.window", 10**12),
    "window-of-a-million": changed("config.order.window", 2**20),
    "window-zero": changed("config.order.window", 0),
    "window-a-prime": changed("config.order.window", 1_048_573),
    "degrees-absurd": changed("config.ring_degrees", [2**40]),
    "degrees-many": changed("config.cp_sizes", [2**n for n in range(13)]),
    "degrees-thousands": changed("config.ring_degrees", list(range(1, 5000))),
    "seq-len-huge": changed("config.seq_len", 2**27),
    "seq-len-negative": changed("config.seq_len", -(2**40)),
    "packs-per-shard-one": changed("config.packs_per_shard", 1),
    "cost-nan": changed("config.cost.attention_tflops", float("nan")),
    "cost-inf": changed("config.cost.attention_tflops", float("inf")),
    "cost-wide": changed("config.cost.hidden_size", 2**24),
    "counts-of-all": changed("counts.packs", 2**63 - 1),
    "counts-negative": changed("counts.tokens", -1),
    "rows-of-billions": changed("tables.1.rows", 2**62),
    "shards-outside": changed(
        "shards", [{"name": "../../x", "bytes": 1, "sha256": "0" * 64, "packs": 1, "first_pack": 0}]
    ),
    "model-strange": changed("model", {"model_type": "qwen3_vl", "files": {}, "axes": 3, "merge": 2**30, "row_ids": [],
                                       "group_ids": [], "settings": {"patch_size": 0}}),
    "tokenizer-elsewhere": changed("tokenizer.name", "/dev/zero"),
}  # fmt: skip


def manifest_of(data: bytes) -> Make:
    return lambda folder: (folder / "manifest.json").write_bytes(data) and None  # type: ignore[func-returns-value]


def many_keys(folder: Path) -> None:
    """A manifest of 31 MB with a million keys, in order otherwise."""
    counts = {f"*.pattern-number-{number:08d}": 1 for number in range(1_000_000)}
    seal(folder, read_manifest(folder) | {"unread_files": counts})


def endless(name: str) -> Make:
    """A file of a terabyte that takes no place."""

    def make(folder: Path) -> None:
        with (folder / name).open("wb") as file:
            file.truncate(1 << 40)

    return make


def pipe(name: str) -> Make:
    """A named pipe that nobody writes to."""

    def make(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return make


def link(name: str, to: str) -> Make:
    def make(folder: Path) -> None:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.symlink_to(to)

    return make


def many_files(folder: Path) -> None:
    for number in range(20_000):
        (folder / "shards" / f"{number}.tar").touch()


def deep_folders(folder: Path) -> None:
    shutil.rmtree(folder)
    path = folder
    for _ in range(200):
        path /= "d"
    path.mkdir(parents=True)


def wide_folders(folder: Path) -> None:
    shutil.rmtree(folder)
    for number in range(3000):
        (folder / str(number)).mkdir(parents=True)


def odd_name(folder: Path) -> None:
    """A folder whose name is no text."""
    folder.rename(os.fsdecode(os.fsencode(folder.parent) + b"/odd-\xff\xfe\n-name"))


def job(planned: Make) -> Make:
    def make(folder: Path) -> None:
        (folder / "manifest.json").unlink()
        (folder / ".work").mkdir()
        planned(folder)

    return make


def samples_of_noise(folder: Path) -> None:
    for path in (folder / "shards").glob("*.tar"):
        path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))


def first_member(extension: str, data: Callable[[], bytes]) -> Make:
    """A dataset in whose first sample a member of the header part is another, with every checksum and size in order."""

    def make(folder: Path) -> None:
        shard, table = folder / "shards" / "preshard-000000.tar", pq.read_table(folder / "packs.parquet")
        old, size = shard.read_bytes(), table["size"][0].as_py()
        members, at = {}, 0
        for name in HEADER_MEMBERS:
            members[name], at = read_member(old, at, f"{sample_key(0)}.{name}", "first sample")
        members[extension] = data()
        head = json.loads(members[HEAD])
        head["crc32c"][extension] = crc32c(members[extension])
        members[HEAD] = json.dumps(head, separators=(",", ":")).encode()
        header = b"".join(tar_member(f"{sample_key(0)}.{name}", content) for name, content in members.items())
        new = header + old[at:]
        shard.write_bytes(new)
        columns = {name: table[name].to_pylist() for name in ("offset", "header_size", "head_crc32c", "size")}
        columns["header_size"][0], columns["head_crc32c"][0] = len(header), crc32c(members[HEAD])
        columns["size"][0] = size + len(new) - len(old)
        for row, name in enumerate(table["shard"].to_pylist()):
            columns["offset"][row] += (len(new) - len(old)) if row and name == shard.name else 0
        for name, values in columns.items():
            at = table.schema.get_field_index(name)
            table = table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))
        pq.write_table(table, folder / "packs.parquet")
        put_table(folder, "packs.parquet", len(table))
        manifest = read_manifest(folder)
        manifest["shards"][0].update(bytes=len(new), sha256=hashlib.sha256(new).hexdigest())
        seal(folder, manifest)

    return make


DEEP = b"[" * 200_000 + b"]" * 200_000

FILES: dict[str, Make] = {
    "manifest-endless": endless("manifest.json"),
    "manifest-deep": manifest_of(b'{"format_version":3,"config":' + DEEP + b"}"),
    "manifest-many-keys": many_keys,
    "manifest-a-pipe": pipe("manifest.json"),
    "manifest-a-device": link("manifest.json", "/dev/zero"),
    "manifest-a-circle": link("manifest.json", "manifest.json"),
    "table-a-pipe": pipe("packs.parquet"),
    "table-a-device": link("documents.parquet", "/dev/zero"),
    "shards-a-circle": link("shards", "shards"),
    "shards-the-root": link("shards", ".."),
    "shards-many-files": many_files,
    "run-endless": endless("run.json"),
    "run-deep": lambda folder: (folder / "run.json").write_bytes(DEEP) and None,  # type: ignore[func-returns-value]
    "run-a-pipe": pipe("run.json"),
    "figures-endless": endless("figures.json"),
    "figures-deep": figures(DEEP),
    "figures-of-nothing": figures(b"{}"),
    "folders-deep": deep_folders,
    "folders-wide": wide_folders,
    "name-no-text": odd_name,
    "job-with-a-pipe": job(pipe(".work/planned.json")),
    "job-endless": job(endless(".work/planned.json")),
    "samples-of-noise": samples_of_noise,
    "sample-inflates-to-gigabytes": first_member("sequence.npz", lambda: bomb_of_zeros("tokens", 3 << 30)),
    "sample-inflates-to-what-fits": first_member("layouts.npz", lambda: bomb_of_zeros("zigzag.ring1", 3 << 29)),
    "sample-claims-terabytes": first_member("sequence.npz", lambda: claim_of_shape("tokens", (1 << 40,))),
}


def put_table(folder: Path, name: str, rows: int) -> None:
    """Notes a table that was written anew in the manifest."""
    manifest, path = read_manifest(folder), folder / name
    entry = next(entry for entry in manifest["tables"] if entry["name"] == name)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    entry.update(bytes=path.stat().st_size, rows=rows, sha256=digest)
    seal(folder, manifest)


def raw(name: str, data: Callable[[bytes], bytes]) -> Make:
    """A table of other bytes, with the hash that they have."""

    def make(folder: Path) -> None:
        rows = pq.read_metadata(folder / name).num_rows
        (folder / name).write_bytes(data((folder / name).read_bytes()))
        put_table(folder, name, rows)

    return make


def column(name: str, column_name: str, values: Callable[[int], Any]) -> Make:
    """A table in which one column has other values."""

    def make(folder: Path) -> None:
        table = pq.read_table(folder / name)
        at = table.schema.get_field_index(column_name)
        field = table.schema.field(at)
        pq.write_table(table.set_column(at, field, pa.array(values(len(table)), field.type)), folder / name)
        put_table(folder, name, len(table))

    return make


def many_columns(folder: Path) -> None:
    names = [f"c{number}" for number in range(50_000)]
    pq.write_table(pa.table([pa.array([0])] * len(names), names=names), folder / "packs.parquet")
    put_table(folder, "packs.parquet", 1)


def footer_of_billions(name: str) -> Make:
    """A table whose footer and whose entry in the manifest both say that it has four billion rows."""

    def make(folder: Path) -> None:
        table, rows, claimed = pq.read_table(folder / name), 12_345, 4_000_000_000
        buffer = io.BytesIO()
        repeated = table.slice(0, 1).take(pa.array(np.zeros(rows, np.int64)))
        pq.write_table(repeated, buffer, write_statistics=False, use_dictionary=False)
        (folder / name).write_bytes(claim_of_rows(buffer.getvalue(), rows, claimed))
        put_table(folder, name, claimed)

    return make


TABLE_KINDS: dict[str, Make] = {
    "documents-of-billions": footer_of_billions("documents.parquet"),
    "packs-of-billions": several(
        footer_of_billions("packs.parquet"),
        changed("counts.packs", 4_000_000_000),
        changed("config.packs_per_shard", 1),
    ),
    "parquet-cut": raw("packs.parquet", lambda data: data[: len(data) // 2]),
    "parquet-footer-of-gigabytes": raw("packs.parquet", lambda data: data[:-8] + b"\xff\xff\xff\x7f" + data[-4:]),
    "parquet-footer-negative": raw("documents.parquet", lambda data: data[:-8] + b"\xff\xff\xff\xff" + data[-4:]),
    "parquet-noise": raw("measures.parquet", lambda data: data[:4] + bytes(len(data) - 300) + data[-296:]),
    "parquet-many-columns": many_columns,
    "offsets-negative": column("packs.parquet", "offset", lambda n: [-5] * n),
    "offsets-far": column("packs.parquet", "offset", lambda n: [2**62] * n),
    "headers-huge": column("packs.parquet", "header_size", lambda n: [2**62] * n),
    "costs-nan": column("packs.parquet", "cost", lambda n: [float("nan")] * n),
    "costs-inf": column("packs.parquet", "cost", lambda n: [float("inf")] * n),
    "loads-wild": column(
        "measures.parquet", "gather_path", lambda n: np.random.default_rng(0).integers(-(2**63), 2**63 - 1, n)
    ),
    "lengths-negative": column("documents.parquet", "length", lambda n: [-(2**40)] * n),
    "lengths-huge": column("documents.parquet", "length", lambda n: [2**62] * n),
    "packs-of-documents-wild": column("documents.parquet", "pack_id", lambda n: [2**62, *[-7] * (n - 1)]),
    "starts-wild": column("documents.parquet", "start", lambda n: [2**60] * n),
    "tiles-negative": column("packs.parquet", "attention_tiles", lambda n: [-(2**40)] * n),
    "ids-long": column("documents.parquet", "doc_id", lambda n: ["x" * 2_000_000] * n),
}


def large_tables(rows: int) -> dict[str, Make]:
    """Tables that grow when they are read: zeros and repeated values, which compress to nothing."""

    def zeros(name: str, n: int) -> Make:
        def make(folder: Path) -> None:
            # whatever a column holds, its first row over and over
            first = pq.read_table(folder / name).slice(0, 1)
            part = min(n, 1 << 20)
            repeated = first.take(pa.array(np.zeros(part, np.int64)))
            with pq.ParquetWriter(folder / name, TABLES[name], compression="zstd") as writer:
                for _ in range(max(n // part, 1)):
                    writer.write_table(repeated)
            put_table(folder, name, max(n // part, 1) * part)

        return make

    def long_values(folder: Path) -> None:
        """A dictionary of one value of a mebibyte, named a million times."""
        table = pq.read_table(folder / "documents.parquet").slice(0, 1).take(pa.array(np.zeros(1 << 20, np.int64)))
        ids = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1 << 20, np.int32)), pa.array(["y" * (1 << 20)]))
        at = table.schema.get_field_index("doc_id")
        pq.write_table(table.set_column(at, "doc_id", ids), folder / "documents.parquet", store_schema=False)
        put_table(folder, "documents.parquet", 1 << 20)

    return {
        "bomb-of-documents": zeros("documents.parquet", rows),
        "bomb-of-rejects": several(_one_reject, zeros("rejects.parquet", rows)),
        "bomb-of-long-values": long_values,
    }


def _one_reject(folder: Path) -> None:
    schema = TABLES["rejects.parquet"]
    row = {field.name: "x" if pa.types.is_string(field.type) else 0 for field in schema}
    pq.write_table(pa.Table.from_pylist([row], schema), folder / "rejects.parquet")
