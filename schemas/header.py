"""The header part of a sample: ``KEY.json``, and the one reader of all three members, for trainer and service."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Protocol

from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from preshard.schemas.errors import MembersInvalid, PackRowInvalid, SampleHeadInvalid
from preshard.schemas.files.validation import first_violation
from preshard.schemas.layout import RankImages, TokenLayout
from preshard.schemas.manifest import Checksum, ModelEntry, Natural, StrictRecord, UnitKind, encoder_of
from preshard.schemas.members import (
    HEAD,
    HEADER_MEMBERS,
    LAYOUTS,
    SEQUENCE,
    TAR_BLOCK,
    check_member,
    decode_layouts,
    decode_sequence,
    sample_key,
)
from preshard.schemas.read_config import ReadConfig
from preshard.schemas.sequence import PackedSequence, TokenColumn


class DocumentSpan(StrictRecord):
    """Place of a document (or of a piece of one) in its pack, in tokens, and how much of everything it has.

    ``copy_number`` and ``epoch`` tell apart the places of a document that a mixture or several epochs take more than
    once. ``label_cut`` and ``medium_cut`` say what a cut at its end took apart, so that pieces can be joined again: the
    label of its last token, and a video whose later units are behind the cut. ``columns`` are those of the
    configuration's ``keep_columns``; left out where it names none. ``preference``, left out where false, says that its
    first branch is a better answer than its second.
    """

    doc_id: str
    piece: Natural
    copy_number: Natural
    epoch: Natural
    source: str
    start: Natural
    length: Natural
    aligned_length: Natural
    n_units: Natural
    n_images: Natural
    n_patches: Natural
    load: Natural
    label_cut: bool
    medium_cut: bool
    columns: dict[str, Kept] | None = None
    preference: bool = False

    @model_serializer(mode="wrap")
    def _leave_out_nothing(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out what few datasets have: each rank reads every span."""
        fields: dict[str, Any] = dump(self)
        unsaid = {"columns": None, "preference": False}
        return {key: value for key, value in fields.items() if key not in unsaid or value is not unsaid[key]}


class Unit(StrictRecord):
    """An image with its crops, or frames: a row of ``cum_image_bounds``, in stored order.

    Attributes:
        document: number of its span.
        medium: number of its image or video in the document.
        kind: one of :data:`UNIT_KINDS`.
        start: its first token, the marks that belong to it included.
        end: one past its last token, the same.
        grid: patches along time, height and width.
        patches: patches that the encoder sees.
        rows: pooled rows.
        load: the encoder's work, in multiplications of its forward pass.
        time_step: how much the temporal position grows from this unit to the next of its video.
    """

    document: Natural
    medium: Natural
    kind: UnitKind
    start: Natural
    end: Natural
    grid: Annotated[list[Natural], Field(min_length=3, max_length=3)]
    patches: Natural
    rows: Natural
    load: Natural
    time_step: Annotated[float, Field(ge=0)]


class StoredImage(StrictRecord):
    """One crop. ``offset`` is the distance in bytes from the tar header of the first crop to that of this one, and
    ``size`` the length of its content.

    ``unit`` is the row of ``cum_image_bounds`` that it belongs to; ``timestamp`` is in seconds from the clip's start,
    null for a still image.
    """

    doc_id: str
    unit: Natural
    width: Natural
    height: Natural
    timestamp: float | None
    offset: Natural
    size: Natural
    crc32c: Checksum


class SampleHead(StrictRecord):
    """``KEY.json``.

    ``cum_image_bounds`` and ``cum_token_pooling_bounds`` count crops and pooled rows up to and including each unit.
    ``crc32c`` has the checksums of the other two members of the header part, by their extensions.
    ``image_shard_boundaries`` maps CP size, then rank, to that rank's part: ``preshard.schemas.layout.RankImages``.
    """

    pack_id: Natural
    crc32c: dict[str, Checksum]
    documents: list[DocumentSpan]
    units: list[Unit]
    cum_image_bounds: list[Natural]
    cum_token_pooling_bounds: list[Natural]
    image_shard_boundaries: dict[str, dict[str, RankImages]]
    images: list[StoredImage]

    @property
    def token_order(self) -> list[int]:
        """Numbers of the units, which stand as they are stored, in the order of their tokens."""
        return sorted(range(len(self.units)), key=lambda number: self.units[number].start)


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleHeader:
    """Contents of the header part of a sample: everything but the crops."""

    head: SampleHead
    sequence: PackedSequence
    layouts: dict[str, TokenLayout]


class ArraySizes(Protocol):
    """Sizes of a sample's arrays, from the configuration: the whole of it, or what readers take of it."""

    @property
    def seq_len(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def columns_of_tokens(self) -> tuple[TokenColumn, ...]: ...


def decode_header(
    data: bytes, pack_id: int, head_crc32c: int, config: ArraySizes, *, axes: int, where: str
) -> SampleHeader:
    """Decodes a header part: its three members, one after the other, with nothing behind them.

    Args:
        data: bytes of the shard from the sample's first tar header to its first crop's.
        pack_id: the pack that should lie there.
        head_crc32c: checksum of the head, from ``packs.parquet``; the head has those of the other members.
        config: the dataset's configuration.
        axes: axes of ``position_ids``.
        where: how errors name the sample.

    Raises:
        MembersInvalid: other members than the head, the sequence and the layouts, under the pack's key.
        MemberChanged: a member has other bytes than were written.
        SampleHeadInvalid, SequenceInvalid, ColumnsInvalid, LayoutsInvalid: a member is not what the format says.
        PackRowInvalid: the head is of another pack.
    """
    members, at = {}, 0
    for extension in HEADER_MEMBERS:
        members[extension], at = read_member(data, at, f"{sample_key(pack_id)}.{extension}", where)
    if at != len(data):
        raise MembersInvalid(where, f"header part ends after {at} bytes, not {len(data)}")
    check_member(members[HEAD], head_crc32c, f"{where}.{HEAD}")
    head = decode_head(members[HEAD], f"{where}.{HEAD}")
    for extension in (SEQUENCE, LAYOUTS):
        check_member(members[extension], stored_checksum(head, extension, where), f"{where}.{extension}")
    if head.pack_id != pack_id:
        raise PackRowInvalid(where, f"holds pack {head.pack_id}, not {pack_id}")
    bounds = [0, *head.cum_token_pooling_bounds]
    counted = [end - start for start, end in pairwise(bounds)]
    if [unit.rows for unit in head.units] != counted:  # as many rows of features are made
        raise SampleHeadInvalid(f"{where}.{HEAD}", "rows of units differ from cum_token_pooling_bounds")
    return SampleHeader(
        head=head,
        sequence=decode_sequence(
            members[SEQUENCE], config.seq_len, f"{where}.{SEQUENCE}", axes=axes, columns=config.columns_of_tokens
        ),
        layouts=decode_layouts(members[LAYOUTS], config.seq_len, config.block_size, f"{where}.{LAYOUTS}"),
    )


PATCHES_OF_A_ROW = 16
"""Most patches that become one row, of any family: Gemma 3 pools 4 x 4."""

LARGEST_PICTURES = 178_956_970
"""Pixels of a pack's crops where no encoder says how many they may have: the largest picture that is packed."""


def most_pixels(config: ReadConfig, model: ModelEntry | None) -> int:
    """Most pixels of a pack's crops: what fills more rows than the pack has tokens is in no pack.

    Of a model, a crop has up to a patch more than its patches on each side, so at most four times their pixels.

    Args:
        config: the dataset's configuration.
        model: of its manifest; None for the generic way.
    """
    if model is None:
        crops = min(config.max_images or config.seq_len, config.seq_len)
        return crops * config.vision.image_size**2
    encoder = encoder_of(model.settings)
    if encoder is None:
        return LARGEST_PICTURES
    patches = min(config.max_patches or 2**62, PATCHES_OF_A_ROW * config.seq_len)
    height, width = encoder.patch_size
    return 4 * patches * height * width * encoder.temporal_patch_size


def decode_head(data: bytes, where: str) -> SampleHead:
    """Raises SampleHeadInvalid: not JSON, or a field is missing, unknown or has the wrong type."""
    try:
        return SampleHead.model_validate_json(data)
    except ValidationError as error:
        raise SampleHeadInvalid(where, str(first_violation(error))) from None


def stored_checksum(head: SampleHead, extension: str, where: str) -> int:
    """The checksum that a head has of another member of the header part.

    Raises:
        SampleHeadInvalid: it has none.
    """
    if extension not in head.crc32c:
        raise SampleHeadInvalid(f"{where}.{HEAD}", f"crc32c has no {extension}; it has {', '.join(head.crc32c)}")
    return head.crc32c[extension]


def read_member(data: bytes, at: int, name: str, where: str) -> tuple[bytes, int]:
    """Content of the tar member that begins at a byte, and where the next one begins.

    Raises:
        MembersInvalid: no header there, of another name, or it reaches past the end.
    """
    try:
        info = tarfile.TarInfo.frombuf(data[at : at + TAR_BLOCK], "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError) as error:
        raise MembersInvalid(where, f"byte {at}: no tar header of {name} ({error})") from None
    begin = at + TAR_BLOCK
    if info.name != name or begin + info.size > len(data):
        raise MembersInvalid(where, f"byte {at}: {info.name} of {info.size} bytes, not a whole {name}")
    return data[begin : begin + info.size], begin + -(-info.size // TAR_BLOCK) * TAR_BLOCK


Kept = str | int | float | bool | None
"""Value of a document in such a column; None where its row has nothing."""
