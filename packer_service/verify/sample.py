"""One sample against every rule of its own, and against its rows of the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from packer_service.layout.mask import MaskIndex
from packer_service.packs.balance import BalanceRows
from packer_service.packs.figures import pack_figures
from packer_service.verify import arrays, images, layouts
from packer_service.verify.tar import Member, RawSample
from packer_service.verify.verdict import Finding
from schemas.codec import (
    HEADER_MEMBERS,
    decode_head,
    decode_layouts,
    decode_sequence,
    image_member,
    sample_key,
)
from schemas.config import PackConfig
from schemas.errors import (
    BalanceInvalid,
    BoundariesInvalid,
    BoundariesNotOptimal,
    BranchesInvalid,
    DocumentRowInvalid,
    FormatError,
    GroupsInvalid,
    ImagesInvalid,
    LabelsInvalid,
    LayoutNeedsInvalid,
    LayoutNotPartition,
    LayoutSchemeInvalid,
    LayoutsInvalid,
    MembersInvalid,
    PackRowInvalid,
    PaddingInvalid,
    PoolingInvalid,
    PositionsInvalid,
    SampleHeadInvalid,
    SequenceInvalid,
    SpansInvalid,
    WeightsInvalid,
)
from schemas.layout import TokenLayout
from schemas.manifest import SampleHead, TokenizerEntry
from schemas.sequence import PackedSequence
from schemas.tables import BALANCE

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What the manifest and the tables say of a sample. None where the table itself cannot be read."""

    pack_id: int
    shard: str
    index_in_shard: int
    pack_row: dict[str, Any] | None
    document_rows: list[dict[str, Any]] | None
    balance_rows: pa.Table | None


@dataclass(kw_only=True)
class SampleCheck:
    """Runs the checks of a sample in an order in which each may trust what the ones before it found sound."""

    config: PackConfig
    tokenizer: TokenizerEntry
    findings: list[Finding] = field(default_factory=list)

    def run(self, raw: RawSample, expected: Expected) -> list[Finding]:
        """Every rule that the sample breaks; rules that rest on a broken one are not asked."""
        header, crops = self._members(raw, expected)
        if header is None:
            return self.findings
        head = self._decoded(lambda: decode_head(header[0].data, ""), SampleHeadInvalid)
        sequence = self._decoded(lambda: decode_sequence(header[1].data, self.config.seq_len, ""), SequenceInvalid)
        config = self.config
        stored = self._decoded(
            lambda: decode_layouts(header[2].data, config.seq_len, config.block_size, ""), LayoutsInvalid
        )
        if head is not None and head.pack_id != expected.pack_id:
            self.findings.append((SampleHeadInvalid, f"pack_id is {head.pack_id}, not {expected.pack_id}"))
        if head is not None:
            self._documents(head, expected)
        spans_hold = head is not None and self._holds(SpansInvalid, arrays.check_spans(head.documents, self.config))
        units_hold = head is not None and self._holds(PoolingInvalid, arrays.check_units(head, self.config))
        boundaries_hold = head is not None and units_hold and self._boundaries(head)
        index = None if sequence is None else MaskIndex.of(sequence.mask)
        if head is not None and sequence is not None and index is not None:
            arrays_hold = spans_hold and self._arrays(head, sequence, units_hold=units_hold)
            if arrays_hold:
                self._pack_row(raw, head, sequence, index, expected)
        layouts_hold = stored is not None and self._layouts(stored, index, head if spans_hold else None)
        if head is not None and units_hold and crops is not None:
            self._holds(ImagesInvalid, images.check_places(head, crops, self.config))
        if crops is not None:
            self._holds(ImagesInvalid, images.check_pixels(crops, self.config))
        if head is not None and stored is not None and index is not None and layouts_hold and boundaries_hold:
            self._holds(BalanceInvalid, _check_balance(expected, index, list(stored.values()), head))
        return self.findings

    def _holds(self, rule: type[FormatError], findings: Iterable[Finding]) -> bool:
        """Collects a check's findings; True when there are none.

        Bytes that nobody foresaw must not end the verdict on all others: what a check cannot cope with breaks its rule.
        """
        before = len(self.findings)
        try:
            self.findings.extend(findings)
        except Exception as error:
            self.findings.append((rule, f"cannot be checked ({type(error).__name__}: {error})"))
        return len(self.findings) == before

    def _decoded(self, decode: Callable[[], T], rule: type[FormatError]) -> T | None:
        """What a decoder gives, None when the bytes break a rule; catches all, for the reason of ``_holds``."""
        try:
            return decode()
        except FormatError as error:
            self.findings.append((type(error), error.detail))
        except Exception as error:
            self.findings.append((rule, f"cannot be decoded ({type(error).__name__}: {error})"))
        return None

    def _members(self, raw: RawSample, expected: Expected) -> tuple[list[Member] | None, list[Member] | None]:
        """The three members of the header part, and the crops; None where they are not as the format names them."""
        key = sample_key(expected.pack_id)
        first = [f"{key}.{extension}" for extension in HEADER_MEMBERS]
        names = [member.name for member in raw.members]
        crops = [image_member(key, i, self.config.image_format) for i in range(len(names) - len(first))]
        if names == first + crops:
            return raw.members[: len(first)], raw.members[len(first) :]
        at = next(
            (i for i, pair in enumerate(zip(names, first + crops, strict=False)) if pair[0] != pair[1]), len(names)
        )
        found = repr(names[at]) if at < len(names) else "missing"
        self.findings.append((MembersInvalid, f"member {at} is {found}, not {(first + crops)[at]!r}"))
        return (raw.members[: len(first)] if names[: len(first)] == first else None), None

    def _documents(self, head: SampleHead, expected: Expected) -> None:
        if expected.document_rows is not None:
            self._holds(DocumentRowInvalid, _check_documents(head, expected.document_rows))

    def _boundaries(self, head: SampleHead) -> bool:
        if not self._holds(BoundariesInvalid, images.check_boundaries(head, self.config)):
            return False
        self._holds(BoundariesNotOptimal, images.check_optimal(head))
        return True

    def _arrays(self, head: SampleHead, sequence: PackedSequence, *, units_hold: bool) -> bool:
        """Whether the arrays' documents and pooled rows are sound, so that figures can follow from them."""
        if not self._holds(SpansInvalid, arrays.check_doc_ids(sequence, head.documents)):
            return False
        n_documents = len(head.documents)
        self._holds(SequenceInvalid, arrays.check_tokens(sequence, self.tokenizer))
        self._holds(PaddingInvalid, arrays.check_padding(sequence, self.tokenizer))
        if self._holds(BranchesInvalid, arrays.check_branches(sequence)):
            self._holds(PositionsInvalid, arrays.check_positions(sequence, n_documents))
            self._holds(LabelsInvalid, arrays.check_labels(sequence))
            self._holds(WeightsInvalid, arrays.check_weights(sequence, n_documents, self.config))
        pooling = units_hold and self._holds(PoolingInvalid, arrays.check_pooling(sequence, head, self.tokenizer))
        if pooling:
            self._holds(GroupsInvalid, arrays.check_groups(sequence, head, self.config.bidirectional))
        return pooling

    def _layouts(self, stored: dict[str, TokenLayout], index: MaskIndex | None, head: SampleHead | None) -> bool:
        names_hold = self._holds(LayoutsInvalid, layouts.check_names(stored, self.config))
        if not self._holds(LayoutNotPartition, layouts.check_partitions(stored, self.config)):
            return False
        if head is not None:
            self._holds(LayoutSchemeInvalid, layouts.check_schemes(stored, head.documents, self.config))
        if index is not None and names_hold:
            self._holds(LayoutNeedsInvalid, layouts.check_needs(stored, index, self.config))
        return names_hold

    def _pack_row(
        self, raw: RawSample, head: SampleHead, sequence: PackedSequence, index: MaskIndex, expected: Expected
    ) -> None:
        if expected.pack_row is not None:
            self._holds(PackRowInvalid, _check_pack_row(raw, head, sequence, index, expected, self.config))


def _check_documents(head: SampleHead, rows: list[dict[str, Any]]) -> Iterator[Finding]:
    """``documents.parquet`` says of this pack what KEY.json says."""
    if len(rows) != len(head.documents):
        yield DocumentRowInvalid, f"documents.parquet has {len(rows)} rows of this pack, not {len(head.documents)}"
    for number, (row, span) in enumerate(zip(rows, head.documents, strict=False)):
        for name, value in span.model_dump().items():
            if row[name] != value:
                yield (
                    DocumentRowInvalid,
                    f"documents.parquet has {name} {row[name]!r} for documents[{number}], not {value!r}",
                )


def _check_pack_row(
    raw: RawSample,
    head: SampleHead,
    sequence: PackedSequence,
    index: MaskIndex,
    expected: Expected,
    config: PackConfig,
) -> Iterator[Finding]:
    """``packs.parquet`` says of this pack what its bytes say."""
    assert expected.pack_row is not None
    lengths = np.array([span.length for span in head.documents], np.int64)
    n_images = head.cum_image_bounds[-1] if head.cum_image_bounds else 0
    crops = raw.members[len(HEADER_MEMBERS) :]
    first_crop = crops[0].offset if crops else raw.end
    derived = {
        **pack_figures(expected.pack_id, sequence, index, lengths, n_images, config),
        "shard": expected.shard,
        "index_in_shard": expected.index_in_shard,
        "offset": raw.offset,
        "header_size": first_crop - raw.offset,
        "size": raw.end - raw.offset,
    }
    for name, found in expected.pack_row.items():
        if found != derived[name]:
            yield PackRowInvalid, f"packs.parquet has {name} {found!r}, not {derived[name]!r}"


def _check_balance(
    expected: Expected, index: MaskIndex, stored: list[TokenLayout], head: SampleHead
) -> Iterator[Finding]:
    """``balance.parquet`` has the loads that follow from the mask, the layouts and the boundaries."""
    if expected.balance_rows is None:
        return
    derived = BalanceRows()
    derived.add_pack(expected.pack_id, index, stored, head.image_shard_boundaries)
    asked, found = derived.columns, {name: expected.balance_rows[name].to_pylist() for name in BALANCE.names}
    if found == asked:
        return
    columns = [list(zip(*(rows[name] for name in BALANCE.names), strict=True)) for rows in (found, asked)]
    if len(columns[0]) != len(columns[1]):
        yield BalanceInvalid, f"balance.parquet has {len(columns[0])} rows of this pack, not {len(columns[1])}"
    wrong = [(a, b) for a, b in zip(*columns, strict=False) if a != b]
    if wrong:
        others = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        yield (
            BalanceInvalid,
            f"balance.parquet has {wrong[0][0]}, not {wrong[0][1]} ({', '.join(BALANCE.names)}){others}",
        )
