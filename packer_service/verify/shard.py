"""One shard: its bytes, its index, its samples. The unit of work of a verifying process."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import pyarrow as pa

from preshard.packer_service.shards.store import Folder
from preshard.packer_service.verify.independent.marks import Marks
from preshard.packer_service.verify.pieces import MAY_BE_CUT
from preshard.packer_service.verify.sample.rows import Expected
from preshard.packer_service.verify.sample.sample import SampleCheck
from preshard.packer_service.verify.tar import RawSample, TarScan
from preshard.packer_service.verify.verdict import Faults, Finding
from preshard.schemas.config import PackConfig
from preshard.schemas.encode import TAR_END, decode_index
from preshard.schemas.errors import IndexInvalid, MembersInvalid, PackRowInvalid, ShardChanged, ShardMissing
from preshard.schemas.files.filesystem import FileRefusedError
from preshard.schemas.manifest import SHARDS, ModelEntry, ShardEntry, TokenizerEntry
from preshard.schemas.members import HEADER_MEMBERS, sample_key

OF_TABLE = ("pack_id", "truncated_tokens", MAY_BE_CUT)
"""Columns of the rows of documents that ``KEY.json`` does not have."""

INDEX_BYTES, SPARE_BYTES = 8, 1 << 20
"""Bytes of an offset in an index; and bytes more than it should have that are read of one, to say what it has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardTask:
    """A shard and what the manifest and the tables say of it. Rows are None where their table cannot be read.

    ``independent`` are the packs whose figures are derived without the writer's functions, and ``marks`` those of units
    and times, None where nothing says them.
    """

    location: str
    entry: ShardEntry
    config: PackConfig
    tokenizer: TokenizerEntry
    model: ModelEntry | None
    pack_rows: list[dict[str, Any]] | None
    document_rows: list[dict[str, Any]] | None
    measure_rows: pa.Table | None
    measures_per_pack: int
    independent: Container[int] = ()
    marks: Marks | None = None

    @property
    def file(self) -> str:
        return f"{SHARDS}/{self.entry.name}"

    def expected(self, index: int) -> Expected:
        """Values that the manifest and the tables state for one sample of the shard."""
        pack_id, rows, per_pack = self.entry.first_pack + index, self.pack_rows, self.measures_per_pack
        known = self.document_rows is not None
        documents, by_pack = self.document_rows or (), itemgetter("pack_id")
        first, end = (bisect(documents, pack_id, key=by_pack) for bisect in (bisect_left, bisect_right))
        own = documents[first:end]
        return Expected(
            pack_id=pack_id,
            shard=self.entry.name,
            index_in_shard=index,
            pack_row=rows[index] if rows is not None and index < len(rows) else None,
            document_rows=[{name: row[name] for name in row if name not in OF_TABLE} for row in own] if known else None,
            may_be_cut=[row[MAY_BE_CUT] for row in own] if known else None,
            measure_rows=None if self.measure_rows is None else self.measure_rows.slice(index * per_pack, per_pack),
            independent=pack_id in self.independent,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardVerdict:
    """Faults of a shard, and how much of it was read."""

    faults: Faults = field(default_factory=Faults)
    checked: Counter[str] = field(default_factory=Counter)


def check_shard(task: ShardTask) -> ShardVerdict:
    """Reads a shard once, one sample in memory at a time, and names every rule that it breaks."""
    verdict, folder = ShardVerdict(), Folder(task.location) / SHARDS
    size = folder.size(task.entry.name)
    if size is None:
        verdict.faults.extend([(ShardMissing, "is not there")], task.file)
        return verdict
    most = INDEX_BYTES * (min(task.entry.packs, task.config.packs_per_shard) + 1)
    offsets, index_findings = _read_index(folder, f"{task.entry.name}.idx", most)
    found: list[int] = []
    indices: list[int] = []
    with folder.stream(task.entry.name) as stream:
        tar = TarScan(file=stream, size=size, resume=sorted(offsets or []))
        for raw in tar.samples():
            found.append(raw.offset)
            _check_sample(task, raw, indices, verdict)
    faults = verdict.faults
    faults.extend(_changed(task.entry, size, tar.hash.hexdigest() if tar.is_whole else None), task.file)
    faults.extend(tar.findings, task.file)
    faults.extend(index_findings, f"{task.file}.idx")
    if offsets is not None and not tar.broken:
        faults.extend(_check_index(offsets, [*found, size - len(TAR_END)]), f"{task.file}.idx")
    if not tar.broken:
        faults.extend(_missing(task.entry, indices), task.file)
    if task.pack_rows is not None and len(task.pack_rows) != task.entry.packs:
        lacking = f"packs.parquet has {len(task.pack_rows)} rows of this shard, not {task.entry.packs}"
        faults.extend([(PackRowInvalid, lacking)], task.file)
    verdict.checked["shards"] += 1
    return verdict


def _check_sample(task: ShardTask, raw: RawSample, before: list[int], verdict: ShardVerdict) -> None:
    """Checks a sample as the pack that its key names, and adds its place in the shard to those before it."""
    index = _index_of(raw.key, task.entry)
    if index is None or (before and index <= before[-1]):
        wrong = "is not the key of a pack of this shard" if index is None else "comes twice, or out of order"
        verdict.faults.extend([(MembersInvalid, f"{raw.key!r:.80} at byte {raw.offset} {wrong}")], task.file)
        return
    before.append(index)
    check = SampleCheck(config=task.config, tokenizer=task.tokenizer, model=task.model, marks=task.marks)
    verdict.faults.extend(check.run(raw, task.expected(index)), task.file, raw.key)
    verdict.checked["packs"] += 1
    verdict.checked["independent"] += check.independently
    verdict.checked["images"] += max(len(raw.members) - len(HEADER_MEMBERS), 0)


def _index_of(key: str, entry: ShardEntry) -> int | None:
    if not (key.isascii() and key.isdigit() and len(key) < 20):
        return None
    index = int(key) - entry.first_pack
    return index if key == sample_key(int(key)) and 0 <= index < entry.packs else None


def _read_index(folder: Folder, name: str, most: int) -> tuple[list[int] | None, list[Finding]]:
    if not folder.is_file(name):
        return None, []
    try:
        return [int(offset) for offset in decode_index(folder.read(name, SPARE_BYTES + most))], []
    except FileRefusedError as error:
        return None, [(IndexInvalid, str(error).removeprefix(f"{name}: "))]
    except ValueError as error:
        return None, [(IndexInvalid, str(error))]


def _changed(entry: ShardEntry, size: int, sha256: str | None) -> Iterator[Finding]:
    if size != entry.bytes:
        yield ShardChanged, f"has {size} bytes; the manifest says {entry.bytes}"
    elif sha256 is not None and sha256 != entry.sha256:
        yield ShardChanged, f"has the SHA-256 {sha256}; the manifest says {entry.sha256}"


def _check_index(offsets: list[int], found: list[int]) -> Iterator[Finding]:
    if len(offsets) != len(found):
        yield IndexInvalid, f"has {len(offsets)} offsets, not {len(found)}: one per sample, and where the last one ends"
    for number, (said, asked) in enumerate(zip(offsets, found, strict=False)):
        if said != asked:
            yield IndexInvalid, f"offset {number} is {said}, not {asked}"


def _missing(entry: ShardEntry, found: list[int]) -> Iterator[Finding]:
    if len(found) != entry.packs:
        last = entry.first_pack + entry.packs - 1
        yield MembersInvalid, f"holds {len(found)} of the {entry.packs} packs {entry.first_pack} to {last}"
