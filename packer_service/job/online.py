"""Packs of documents in memory, by the functions that measure, plan and write those of a job; no file is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pyarrow as pa

from preshard.packer_service.ingest.held import plain_row
from preshard.packer_service.ingest.model import PackedFor, packed_for
from preshard.packer_service.ingest.source.file import Fragment, RowReference, SourceFile
from preshard.packer_service.ingest.source.look import form_of_rows
from preshard.packer_service.ingest.source.rows import row_identity
from preshard.packer_service.job.planning.duplicates import settle_rows
from preshard.packer_service.job.planning.measure import measure_row, parse_ahead
from preshard.packer_service.job.planning.partition import CANONICAL, SIZES
from preshard.packer_service.job.writing.read import ShardDocument
from preshard.packer_service.job.writing.write import ShardBuilder
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.packer_service.plan.make import plan_documents
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.document_ids import hash_ids, id_stems
from preshard.schemas.errors import ConfigError, DocumentError
from preshard.schemas.tables import REJECTS, reason_columns

LABEL = "documents"
"""Name of the documents in messages, in place of a file's."""

CHOOSING = ("where", "duplicates", "mixture", "curriculum", "epochs")
"""Keys that choose documents among others, or say how often they come."""

_target = lru_cache(maxsize=2)(packed_for)
"""Kept from step to step: a model's folder is read once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldPacks:
    """Packs in memory, as a shard would hold them.

    Attributes:
        config: that they were packed with.
        target: the tokenizer and the model that they are for.
        samples: the bytes of all samples, one after the other.
        places: of each sample its ``offset``, ``size``, ``header_size`` and ``head_crc32c``, as ``packs.parquet``.
        rejects: rows of ``rejects.parquet``.
    """

    config: PackConfig
    target: PackedFor
    samples: bytes
    places: list[dict[str, int]]
    rejects: list[dict[str, str]]


def pack_held(rows: Sequence[Any], config: PackConfig, multiple_of: int = 1) -> HeldPacks:
    """Packs documents in memory.

    Args:
        rows: documents, each as a row of a source, with pictures and tensors in place of files.
        config: as of a job.
        multiple_of: number of packs is a multiple of it; the last ones hold padding alone if need be.

    Raises:
        ConfigError: the configuration does not hold, chooses documents, or the rows are of no form.
        OSError: a file that a row names cannot be read now, for no fault of the row.
    """
    default = PackConfig()
    if asked := [key for key in CHOOSING if getattr(config, key) != getattr(default, key)]:
        raise ConfigError(
            f"{' and '.join(asked)}: documents in memory are packed once each; choose them before, and leave the "
            f"{'keys' if len(asked) > 1 else 'key'} out"
        )
    if multiple_of < 1:
        raise ConfigError(f"multiple_of is {multiple_of}; give 1, or the number of data-parallel ranks")
    target = _target(config)
    file, measured, pieces = _measure(rows, config)
    documents, rejects = _settle(measured, file)
    packs = _plan(documents, pieces, file, config, target)
    packs += [[] for _ in range(-len(packs) % multiple_of)]
    builder = ShardBuilder(0, packs, config, target, Event())
    samples = [b"".join(parts) for parts in builder.samples()]
    offsets = accumulate(map(len, samples), initial=0)
    places = [
        {"offset": offset, "size": len(sample), **{name: int(row[name]) for name in ("header_size", "head_crc32c")}}
        for offset, sample, row in zip(offsets, samples, builder.rows.packs, strict=False)
    ]
    return HeldPacks(
        config=config,
        target=target,
        samples=b"".join(samples),
        places=places,
        rejects=rejects + builder.rows.rejects,
    )


def _measure(
    rows: Sequence[Any], config: PackConfig
) -> tuple[SourceFile, list[dict[str, Any]], list[Sequence[RenderedDocument]]]:
    """The rows as a file of them, one row of ``MEASURED`` for each piece or reject, and the pieces of each row."""
    named = SourceFile(
        label=LABEL, uri=str(Path.cwd() / LABEL), kind="memory", size=0, mtime_ns=0, renamed=config.rename_columns
    )
    plain = [named.named_row(_plain(row)) for row in rows]
    file = replace(named, form=form_of_rows(plain, LABEL, config))
    located = ((number, RowReference(offset=number, size=1), row) for number, row in enumerate(plain))
    fragment, measured, pieces = Fragment(file=file, start=0, end=len(plain)), list[dict[str, Any]](), []
    for row in parse_ahead(located, file, config, set()):
        found, own = measure_row(row, fragment, config)
        own_id = row.doc_id or row_identity(rows[row.number], config.ignore_columns)[0]
        doc_id = own_id or file.location(row.number + 1)
        measured += [{"piece": 0, **each, "doc_id": doc_id, "file": 0, "line": row.number + 1} for each in found]
        pieces.append(own)
    return file, measured, pieces


def _plain(row: Any) -> Any:
    try:
        return plain_row(row)
    except DocumentError as error:
        return error


def _settle(measured: Sequence[dict[str, Any]], file: SourceFile) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """The pieces to be packed, in canonical order, and the rejects, once rows of one id are settled."""
    firsts = [row for row in measured if row["piece"] == 0]
    times, stems = Counter(row["doc_id"] for row in firsts), id_stems(_ids(firsts)).to_pylist()
    shared = {stem for row, stem in zip(firsts, stems, strict=True) if times[row["doc_id"]] > 1}
    unread = {"content": None, "rendered": None, "is_stored": False}
    table, _ = settle_rows([unread | row for row, stem in zip(firsts, stems, strict=True) if stem in shared], [LABEL])
    settled = {row["line"]: row for row in table.to_pylist()}
    documents, rejects = list[dict[str, Any]](), list[dict[str, str]]()
    sources = sorted({row["source"] for row in measured})
    for each in measured:
        found = settled.get(each["line"], {"new_id": each["doc_id"], "equal": None})
        twin = {} if found["equal"] is None else reason_columns("plan", DocumentError("duplicate_row", found["equal"]))
        row = {**each, **twin, "doc_id": found["new_id"], "source_number": sources.index(each["source"])}
        if "code" not in row:
            documents.append(row)
        elif row["piece"] == 0:
            rejects.append({**row, "location": file.location(row["line"])})
    hashes = hash_ids(_ids(documents)).tolist()
    documents = [{**row, "id_hash": id_hash} for row, id_hash in zip(documents, hashes, strict=True)]
    rejects = [{name: row[name] for name in REJECTS.names} for row in rejects]
    return sorted(documents, key=itemgetter(*CANONICAL)), rejects


def _ids(rows: Sequence[dict[str, Any]]) -> pa.Array:
    return pa.array([row["doc_id"] for row in rows], pa.string())


def _plan(
    documents: Sequence[dict[str, Any]],
    pieces: Sequence[Sequence[RenderedDocument]],
    file: SourceFile,
    config: PackConfig,
    target: PackedFor,
) -> list[list[ShardDocument]]:
    """The documents of each pack, in the order of packs."""
    columns = {name: np.array([row[name] for row in documents], np.int64) for name in ("source_number", *SIZES)}
    once = dict.fromkeys(("pass_number", "stage"), np.zeros(len(documents), np.int64))
    plan = plan_documents(columns | once, config, layers=target.layers)
    packs: list[list[ShardDocument]] = [[] for _ in range(plan.n_packs)]
    for number, start, aligned, pack in zip(
        *(each.tolist() for each in (plan.document, plan.start, plan.aligned_length, plan.pack_id)), strict=True
    ):
        row = documents[number]
        place = {"start": start, "length": row["tokens"], "aligned_length": aligned, "copy_number": 0, "epoch": 0}
        rendered = pieces[row["line"] - 1][row["piece"]]
        packs[pack].append(ShardDocument(row={**row, **place}, file=file, source=row["source"], rendered=rendered))
    return packs
