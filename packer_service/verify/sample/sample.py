"""One sample against every rule of its own, and against its rows of the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from preshard.packer_service.layout.area import area_by_rank, attention_area
from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.measures import ring_step_maxima
from preshard.packer_service.layout.needs import key_blocks_needed, keys_fetched
from preshard.packer_service.layout.tiles import tiles_by_rank, whole_tiles
from preshard.packer_service.verify.independent.attention import LayoutLoads, layout_loads, whole_mask
from preshard.packer_service.verify.independent.marks import Marks
from preshard.packer_service.verify.sample import arrays, images, layouts, marks, rows, units
from preshard.packer_service.verify.sample.rows import Expected
from preshard.packer_service.verify.tar import Member, RawSample
from preshard.packer_service.verify.verdict import Finding
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import (
    BoundariesInvalid,
    BoundariesNotOptimal,
    BranchesInvalid,
    ColumnsInvalid,
    DocumentRowInvalid,
    FormatError,
    GroupsInvalid,
    ImagesInvalid,
    LabelsInvalid,
    LayoutNeedsInvalid,
    LayoutNotPartition,
    LayoutSchemeInvalid,
    LayoutsInvalid,
    MarksInvalid,
    MeasuresInvalid,
    MemberChanged,
    MembersInvalid,
    PackRowInvalid,
    PaddingInvalid,
    PoolingInvalid,
    PositionsInvalid,
    PreferencesInvalid,
    SampleHeadInvalid,
    SequenceInvalid,
    SpansInvalid,
    TimesInvalid,
    UnitsInvalid,
    WeightsInvalid,
)
from preshard.schemas.header import SampleHead, decode_head
from preshard.schemas.layout import TokenLayout
from preshard.schemas.manifest import LayerMasks, ModelEntry, TokenizerEntry
from preshard.schemas.members import HEADER_MEMBERS, decode_layouts, decode_sequence, image_member, sample_key
from preshard.schemas.sequence import MaskArrays, PackedSequence, drop_groups


class SparseFigures:
    """Figures of one pack's mask, by the functions that packing uses."""

    def __init__(self, mask: MaskArrays, window: int | None = None) -> None:
        self._index = MaskIndex.of(mask).within(window)

    @cached_property
    def whole(self) -> tuple[int, int]:
        """Allowed pairs of the mask, and its tiles in natural order."""
        return attention_area(self._index), whole_tiles(self._index)

    def of_layout(self, layout: TokenLayout) -> LayoutLoads:
        """Loads and needs of a layout that is a partition into equal slices."""
        of = self._index, layout.runs, layout.ring_degree
        tiles = tiles_by_rank(*of)
        return LayoutLoads(
            attention=area_by_rank(*of).tolist(),
            tiles=tiles.sum(axis=1).tolist(),
            ring_steps=ring_step_maxima(tiles).tolist(),
            keys_fetched=keys_fetched(*of).tolist(),
            needs=key_blocks_needed(*of, layout.block_size),
        )


class IndependentFigures:
    """The same by :mod:`preshard.packer_service.verify.independent`."""

    def __init__(self, mask: MaskArrays, window: int | None = None) -> None:
        self._mask, self._window = mask, window

    @cached_property
    def whole(self) -> tuple[int, int]:
        return whole_mask(self._mask, self._window)

    def of_layout(self, layout: TokenLayout) -> LayoutLoads:
        return layout_loads(self._mask, layout.runs, layout.ring_degree, layout.block_size, self._window)


MaskFigures = SparseFigures | IndependentFigures
T = TypeVar("T")


@dataclass(kw_only=True)
class SampleCheck:
    """Runs the checks of a sample, in an order in which each can rely on what earlier ones found sound."""

    config: PackConfig
    tokenizer: TokenizerEntry
    model: ModelEntry | None = None
    marks: Marks | None = None
    findings: list[Finding] = field(default_factory=list)
    written: PackedSequence | None = None
    figures: MaskFigures | None = None
    window_figures: MaskFigures | None = None
    loads: dict[str, LayoutLoads] = field(default_factory=dict)
    window_loads: dict[str, LayoutLoads] = field(default_factory=dict)

    @property
    def masks(self) -> LayerMasks | None:
        """The model's layers, where some have a window that is shorter than packs."""
        return None if self.model is None else self.model.masks

    @property
    def independently(self) -> bool:
        """Whether figures of the mask were derived without the writer's functions."""
        return isinstance(self.figures, IndependentFigures) and bool(self.loads)

    def run(self, raw: RawSample, expected: Expected) -> list[Finding]:
        """Every rule that the sample breaks; rules that rest on a broken one are skipped."""
        header, crops = self._members(raw, expected)
        if header is None:
            return self.findings
        config = self.config
        head = self._decode(lambda: decode_head(header[0].data, ""), SampleHeadInvalid)
        axes = 1 if self.model is None else self.model.axes
        columns = config.columns_of_tokens
        sequence = self._decode(
            lambda: decode_sequence(header[1].data, config.seq_len, "", axes=axes, columns=columns), SequenceInvalid
        )
        stored = self._decode(
            lambda: decode_layouts(header[2].data, config.seq_len, config.block_size, ""), LayoutsInvalid
        )
        if sequence is not None:
            derive = IndependentFigures if expected.independent else SparseFigures
            masks, mask = self.masks, sequence.mask
            self.figures = derive(mask if masks is None or masks.groups == "all" else drop_groups(mask))
            self.window_figures = None if masks is None else derive(mask, masks.window)
        spans_hold = head is not None and self._head(head, expected)
        units_hold = head is not None and self._units(head, expected, spans_hold=spans_hold)
        if head is not None:
            self._holds(MemberChanged, rows.check_checksums(raw, head, expected))
        boundaries_hold = head is not None and units_hold and self._boundaries(head)
        if (
            head is not None
            and sequence is not None
            and spans_hold
            and self._arrays(head, sequence, expected, units_hold=units_hold)
        ):
            self._pack_row(raw, head, sequence, expected)
        layouts_hold = stored is not None and self._layouts(stored, head if spans_hold else None)
        if crops is not None:
            self._crops(head, crops, expected, units_hold=units_hold)
        if head is not None and stored is not None and layouts_hold and boundaries_hold:
            self._measures(expected, list(stored.values()), head)
        return self.findings

    def _holds(self, rule: type[FormatError], findings: Iterable[Finding]) -> bool:
        """Collects a check's findings. Returns whether it found nothing.

        Unforeseen bytes must not end the verdict on all others: what a check cannot cope with breaks its rule.
        """
        before = len(self.findings)
        try:
            self.findings.extend(findings)
        except Exception as error:  # unforeseen bytes can raise anything
            self.findings.append((rule, f"cannot be checked ({type(error).__name__}: {error})"))
        return len(self.findings) == before

    def _decode(self, decode: Callable[[], T], rule: type[FormatError]) -> T | None:
        """Returns the decoder's result, or None when bytes break a rule; catches all, for the reason of ``_holds``."""
        try:
            return decode()
        except FormatError as error:
            self.findings.append((type(error), error.detail))
        except Exception as error:  # unforeseen bytes can raise anything
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

    def _head(self, head: SampleHead, expected: Expected) -> bool:
        """Whether the spans are sound."""
        if head.pack_id != expected.pack_id:
            self.findings.append((SampleHeadInvalid, f"pack_id is {head.pack_id}, not {expected.pack_id}"))
        self._holds(SampleHeadInvalid, rows.check_spelling(head))
        self._holds(DocumentRowInvalid, rows.check_places(head, self.config))
        if expected.document_rows is not None:
            kept = dict(self.config.keep_columns)
            self._holds(DocumentRowInvalid, rows.check_document_rows(head, expected.document_rows, kept))
        return self._holds(SpansInvalid, arrays.check_spans(head.documents, self.config))

    def _units(self, head: SampleHead, expected: Expected, *, spans_hold: bool) -> bool:
        """Whether the bounds and the list of units are sound."""
        if not self._holds(PoolingInvalid, units.check_bounds(head, self.config, self.model)):
            return False
        listed = self._holds(UnitsInvalid, units.check_units(head, self.config, self.model))
        if listed and expected.may_be_cut is not None:
            self._holds(SampleHeadInvalid, rows.check_cuts(head, expected.may_be_cut))
        return listed and (not spans_hold or self._holds(UnitsInvalid, units.check_ranges(head)))

    def _boundaries(self, head: SampleHead) -> bool:
        if not self._holds(BoundariesInvalid, images.check_boundaries(head, self.config, self.model)):
            return False
        self._holds(BoundariesNotOptimal, images.check_optimal(head, self.model))
        return True

    def _arrays(self, head: SampleHead, sequence: PackedSequence, expected: Expected, *, units_hold: bool) -> bool:
        """Whether the arrays' documents and pooled rows are sound, so that figures can follow from them."""
        if not self._holds(SpansInvalid, arrays.check_doc_ids(sequence, head.documents)):
            return False
        self._holds(SequenceInvalid, arrays.check_tokens(sequence, self.tokenizer))
        self._holds(PaddingInvalid, arrays.check_padding(sequence, self.tokenizer))
        branches_hold = self._holds(BranchesInvalid, arrays.check_branches(sequence))
        if branches_hold:
            self._holds(LabelsInvalid, arrays.check_labels(sequence))
            self._holds(WeightsInvalid, arrays.check_weights(sequence))
            self._holds(ColumnsInvalid, arrays.check_columns(sequence, head.documents, expected.may_be_cut))
            self._holds(PreferencesInvalid, arrays.check_preferences(sequence, head.documents))
        row_ids = [self.tokenizer.image_id] if self.model is None else self.model.row_ids
        pooling = units_hold and self._holds(PoolingInvalid, arrays.check_pooling(sequence, head, row_ids))
        if branches_hold and (pooling or self.model is None):  # without a model, units do not touch positions
            self._holds(PositionsInvalid, arrays.check_positions(sequence, head, self.model))
        if pooling:
            tokens_hold = self._holds(UnitsInvalid, units.check_unit_tokens(sequence, head))
            if self.marks is not None and tokens_hold:
                of_units = marks.check_marks(sequence, head, self.marks, self.config, self.model)
                self.written = sequence if self._holds(MarksInvalid, of_units) else None
            groups = arrays.check_groups(sequence, head, self.config.bidirectional, self.model)
            self._holds(GroupsInvalid, groups)
        return pooling

    def _layouts(self, stored: dict[str, TokenLayout], head: SampleHead | None) -> bool:
        """Whether all layouts are there and are partitions, so that loads follow from them."""
        names_hold = self._holds(LayoutsInvalid, layouts.check_names(stored, self.config, self.masks))
        if not self._holds(LayoutNotPartition, layouts.check_partitions(stored, self.config)):
            return False
        if head is not None:
            self._holds(LayoutSchemeInvalid, layouts.check_schemes(stored, head.documents, self.config))
        if names_hold:
            self._holds(LayoutNeedsInvalid, self._needs(stored))
        return len(self.loads) == len(stored)

    def _needs(self, stored: dict[str, TokenLayout]) -> Iterator[Finding]:
        """Derives the loads of all layouts, and compares the needs that come with them."""
        if self.figures is None:
            return
        alike: dict[tuple[int, bytes], str] = {}  # with one rank all layouts are equal, and in short packs more
        for name, layout in stored.items():
            first = alike.setdefault(layouts.contents(layout), name)
            self.loads[name] = self.figures.of_layout(layout) if first == name else self.loads[first]
            yield from layouts.check_needs(f"{name}.needs", layout.needs, self.loads[name].needs)
            if self.window_figures is not None and layout.window_needs is not None:
                known = self.window_loads.get(first)
                found = self.window_loads[name] = known or self.window_figures.of_layout(layout)
                yield from layouts.check_needs(f"{name}.window_needs", layout.window_needs, found.needs)

    def _measures(self, expected: Expected, stored: list[TokenLayout], head: SampleHead) -> None:
        if self.figures is not None:
            window = None
            if self.masks is not None and self.window_figures is not None:
                window = rows.WindowLoads(self.window_loads, self.window_figures.whole[1], self.masks)
            found = rows.check_measures(expected, stored, self.loads, head, self.model, self.figures.whole[1], window)
            self._holds(MeasuresInvalid, found)

    def _pack_row(self, raw: RawSample, head: SampleHead, sequence: PackedSequence, expected: Expected) -> None:
        if expected.pack_row is not None and self.figures is not None:
            whole = self.figures.whole
            self._holds(
                PackRowInvalid, rows.check_pack_row(raw, head, sequence, whole, expected, self.config, self.masks)
            )

    def _crops(self, head: SampleHead | None, crops: list[Member], expected: Expected, *, units_hold: bool) -> None:
        sizes: list[tuple[int, int] | None] = [None] * len(crops)
        if self.model is None:
            sizes = [(self.config.vision.image_size,) * 2] * len(crops)
        elif head is not None and len(head.images) == len(crops):
            sizes = [(image.width, image.height) for image in head.images]
        if head is not None and units_hold:
            places = images.check_places(head, crops, self.config, self.model, expected.may_be_cut)
            if self._holds(ImagesInvalid, places) and self.marks is not None and self.written is not None:
                self._holds(TimesInvalid, marks.check_times(self.written, head, self.marks, expected.may_be_cut))
        self._holds(ImagesInvalid, images.check_pixels(crops, sizes, self.config))
