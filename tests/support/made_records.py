"""Records of shards that nobody packed, made from random lengths, with the plan that they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from preshard.packer_service.job.finish import Finished, finish
from preshard.packer_service.job.writing.records import ShardRecord, encode_record, record_name
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.identity import PLAN_COLUMNS
from preshard.schemas.dataset.measures import MEASURES, measure_groups
from preshard.schemas.encode import TAR_END, encode_index
from preshard.schemas.manifest import SHARDS, WORK, ShardEntry, TokenizerEntry
from preshard.schemas.members import sample_key, shard_name
from preshard.schemas.tables import DOCUMENTS, PACKS, REJECTS

CONFIG = PackConfig(layouts=("contiguous",), ring_degrees=(1,), cp_sizes=(1, 2), packs_per_shard=4)
TOKENIZER = TokenizerEntry(
    name="t", sha256="0" * 64, vocab_size=9, bos_id=None, eos_id=1, pad_id=2, image_id=3, chat_template_sha256=None
)
TARGET: Any = SimpleNamespace(tokenizer=TOKENIZER, model=None, axes=1)
"""Target of a packing job."""


class MadeRecords:
    """A plan of so many shards, and their records; it stands for :class:`preshard.packer_service.job.plan.Planned`.

    Args:
        n_packs: number of packs.
        each: documents of a pack.
        config: the job's configuration.
        pieces: the first document of every second pack is the second piece of the one before it.
        lost: pack and place of documents that were lost in writing.
    """

    files: tuple[Any, ...] = ()
    unused_columns: ClassVar[dict[str, int]] = {}
    mixture = SimpleNamespace(left_out=0)
    n_numbered = 0
    n_duplicates = 0
    filtered: Mapping[str, int] = MappingProxyType({})
    phases = staticmethod(lambda _: [])

    def __init__(
        self,
        n_packs: int,
        *,
        each: int = 3,
        config: PackConfig = CONFIG,
        pieces: bool = False,
        lost: frozenset[tuple[int, int]] = frozenset(),
    ) -> None:
        self.n_packs, self.each, self.config, self.pieces, self.lost = n_packs, each, config, pieces, lost

    @property
    def n_shards(self) -> int:
        return -(-self.n_packs // self.config.packs_per_shard)

    @property
    def n_rows(self) -> int:
        return self.n_packs * self.each - (self.n_packs // 2 if self.pieces else 0)

    def rows(self) -> Iterator[pa.Table]:
        for first in range(0, self.n_packs, 4096):
            packs = range(first, min(first + 4096, self.n_packs))
            yield self._documents(packs).select(["doc_id", *PLAN_COLUMNS])

    def rejects(self) -> Iterator[pa.Table]:
        yield REJECTS.empty_table()

    def record(self, shard: int) -> ShardRecord:
        packs = self._packs(shard)
        planned = self._documents(packs)
        lost = np.array([place in self.lost for place in self._places(packs)], np.bool_)
        rejects = [
            {
                "doc_id": doc_id,
                "source": "s",
                "location": "x:1",
                "stage": "write",
                "code": "decode_failed",
                "message": "m",
            }
            for doc_id in planned["doc_id"].filter(pa.array(lost)).to_pylist()
        ]
        return ShardRecord(
            entry=ShardEntry(
                name=shard_name(shard), bytes=2048, sha256=TAR_SHA256, packs=len(packs), first_pack=packs.start
            ),
            seconds=0.25,
            tables={
                "packs.parquet": self._pack_rows(packs, shard),
                "documents.parquet": planned.filter(pa.array(~lost)),
                "rejects.parquet": pa.Table.from_pylist(rejects, schema=REJECTS),
                "measures.parquet": self._measures(packs),
            },
        )

    def write(self, folder: Path, shards: range | None = None) -> None:
        """Writes the records and, for each, a tar and an index that are as recorded; nothing is synced."""
        work = folder / WORK
        (folder / SHARDS).mkdir(parents=True, exist_ok=True)
        for shard in shards or range(self.n_shards):
            record = self.record(shard)
            path = work / record_name(shard)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode_record(record))
            (folder / SHARDS / record.entry.name).write_bytes(TAR)
            offsets = [*record.tables["packs.parquet"]["offset"].to_pylist(), len(TAR) - len(TAR_END)]
            (folder / SHARDS / f"{record.entry.name}.idx").write_bytes(encode_index(np.array(offsets, np.uint64)))

    def _packs(self, shard: int) -> range:
        first = shard * self.config.packs_per_shard
        return range(first, min(first + self.config.packs_per_shard, self.n_packs))

    def _places(self, packs: range) -> Iterator[tuple[int, int]]:
        return ((pack, place) for pack in packs for place in range(self.each))

    def _documents(self, packs: range) -> pa.Table:
        pack_id = np.repeat(np.arange(packs.start, packs.stop), self.each)
        place = np.tile(np.arange(self.each), len(packs))
        second = (place == 0) & (pack_id % 2 == 1) & self.pieces
        number = np.where(second, (pack_id - 1) * self.each, pack_id * self.each + place)
        columns: dict[str, Any] = {name: np.zeros(len(place), np.int64) for name in DOCUMENTS.names}
        columns |= {
            "doc_id": self._ids(number), "source": ["s"] * len(place),
            "piece": second.astype(np.int64), "pack_id": pack_id,
            "start": place * 16, "length": 3 + place, "aligned_length": np.full(len(place), 16),
            "truncated_tokens": place,
        }  # fmt: skip
        return pa.table(columns, schema=DOCUMENTS)

    @staticmethod
    def _ids(numbers: np.ndarray) -> pa.Array:
        digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 10, "0")
        return pc.binary_join_element_wise("document-", digits, "")

    def _pack_rows(self, packs: range, shard: int) -> pa.Table:
        numbers = np.arange(packs.start, packs.stop)
        columns: dict[str, Any] = {name: np.full(len(packs), at) for at, name in enumerate(PACKS.names)}
        columns |= {
            "pack_id": numbers, "key": [sample_key(n) for n in numbers], "shard": [shard_name(shard)] * len(packs),
            "index_in_shard": numbers - packs.start, "n_tokens": numbers, "cost": numbers / 7,
        }  # fmt: skip
        return pa.table(columns, schema=PACKS)

    def _measures(self, packs: range) -> pa.Table:
        return made_measures(np.arange(packs.start, packs.stop), self.config)


def finished(made: MadeRecords, out: Path, progress: Any, executor: PlainExecutor | None = None) -> Finished:
    """The dataset of a plan, finished from its records."""
    if not (out / WORK).exists():
        made.write(out)
    found = finish(
        Folder(str(out)),
        made,  # type: ignore[arg-type]
        n_shards=made.n_shards,
        config=made.config,
        target=TARGET,
        unread={},
        carried=[],
        executor=executor or PlainExecutor(),
        progress=progress,
    )
    found.write_manifest(Folder(str(out)))
    return found


def made_measures(packs: np.ndarray, config: PackConfig) -> pa.Table:
    """Rows of ``measures.parquet``, pack by pack, of numbers that no pack has."""
    groups = measure_groups(config)
    tables = []
    for number, group in enumerate(groups):
        seed = packs * 31 + number
        columns: dict[str, Any] = {name: pa.nulls(len(packs), field.type) for name, field in _fields()}
        columns |= {"pack_id": packs, "degree": np.full(len(packs), group.degree)}
        columns |= {name: (seed * 7 + at) % 1009 for at, name in enumerate(group.scalars)}
        if group.scheme:
            columns["scheme"] = pa.array([group.scheme] * len(packs))
        edges = np.arange(len(packs) + 1, dtype=np.int32) * group.degree
        for at, name in enumerate(group.loads):
            loads = (np.repeat(seed, group.degree) + np.arange(len(packs) * group.degree) * 11 + at) % 1009
            columns[name] = pa.ListArray.from_arrays(pa.array(edges), pa.array(loads))
        tables.append(pa.table(columns).cast(MEASURES))
    places = np.arange(len(packs) * len(groups)).reshape(len(groups), -1).T.ravel()
    return pa.concat_tables(tables).unify_dictionaries().take(pa.array(places))


def _fields() -> list[tuple[str, pa.Field]]:
    return [(field.name, field) for field in MEASURES]


TAR = bytes(2048)
TAR_SHA256 = "e5a00aa9991ac8a5ee3109844d84a55583bd20572ad3ffcd42792f3c36b183ad"
