"""Batch of one context-parallel rank in one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float32, Int32, Int64, Shaped, UInt8
from torch import Tensor

from preshard.schemas.errors import ReaderError
from preshard.schemas.header import DocumentSpan, Unit
from preshard.schemas.layout import TokenLayout
from preshard.schemas.manifest import ModelEntry
from preshard.schemas.sequence import PADDING_DOC
from preshard.trainer.device import to_device
from preshard.trainer.families.family import normalise, picture_levels
from preshard.trainer.families.pictures import InputUnit

ON_HOST = ("image_edges", "pool_edges", "pool_positions", "picture_sizes", "unit_edges")
"""Tensors that plan exchanges and shapes. They are read on the CPU, since reading them on a device means waiting."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankBatch:
    """One pack as one rank sees it. It is read onto the CPU; dim ``local`` is this rank's slice, in slice order.

    Besides its own part, a rank holds what it needs to know about the others: the mask's arrays of the whole pack, the
    layout of every ring rank, and every rank's share of the crops. All of it comes from the header part.

    Attributes:
        pack_id: number of the pack in its dataset.
        dataset: number of the dataset in a mixture, in the order in which they were given; 0 for a single one.
        key: the pack's sample in its shard.
        step: step of the epoch, counted from where this pass over the epoch began.
        tokens: token ids.
        labels: the next token where there is loss, else ``IGNORE_INDEX``. They are shifted already; do not shift again.
        loss_weights: weight of each token's loss, 0 without loss.
        loss_tokens: local tokens with loss, ascending. A device that had to find them would make the host wait.
        position_ids: positions within the documents, for each axis: one, or time, height and width.
        columns: the dataset's columns of tokens by name, aligned with ``labels``: entry i belongs to the token that
            local token i predicts. 0 in padding, and where no token of the same document and branch follows.
        pool_ids: the row of the pack's pooled vision features that fills a token, -1 for text. Rows are numbered
            through the whole pack, so they index the concatenated features of all ranks.
        positions: the natural position of each local token: ``whole[positions]`` is the local slice of ``whole``.
        doc_ids: mask array of the whole pack in natural order (see ``preshard.schemas.sequence.MaskArrays``).
        branch_ids: the same.
        group_ids: the same.
        layout: runs of every ring rank, and the key blocks that each needs.
        pixels: this rank's crops as RGB, 0 to 255, one after the other; see ``pictures`` and ``images``.
        picture_sizes: height and width of each of these crops.
        crop_side: side of every crop in the generic way; None for a dataset that was packed for a model.
        documents: the documents of the whole pack, as ``KEY.json`` lists them: ``doc_ids`` number them, and
            ``columns`` of each are the values that it keeps.
        units: this rank's units in stored order, as ``KEY.json`` lists them; of one whose crops it shares with other
            ranks, its own part.
        unit_edges: unit i of these has the crops ``unit_edges[i]:unit_edges[i + 1]`` of this rank.
        model: the model that the dataset was packed for; None for the generic way.
        image_edges: rank r holds the crops ``image_edges[r]:image_edges[r + 1]`` of the pack.
        pool_edges: rank r makes the pooled rows ``pool_edges[r]:pool_edges[r + 1]`` of the pack.
        pool_positions: the natural position of the token that each pooled row of the pack fills, exactly one per row.
        total_loss_weight: sum of the loss weights of the whole pack, which every rank knows.
        sequence_edges: the pack in natural order as documents and the padding between and after them: sequence i is the
            tokens ``sequence_edges[i]:sequence_edges[i + 1]``.
        longest_sequence: tokens of the longest of these.
        padded_seq_edges: the same cut otherwise, as zigzag cuts it: documents with the padding that aligns the next
            one, and the gaps between and after them, which hold padding alone.
        not_causal: why the mask is not plain causal attention inside these sequences; empty where it is.
        cp_rank: this rank.
        bytes_read: bytes asked from the shard for this batch.
        reads: from a store or through a cache: ``requests``, ``retries`` after ones that failed or were slow,
            ``fetched_bytes`` that the store sent, and ``cached_bytes`` of the node's cache. Empty for a local dataset.
        state: for ``PackedDataset.load_state_dict``, to continue after this step. It is correct however far a
            ``DataLoader`` has read ahead.
        tiles: the tiles that this rank's attention will compute, as the loader's ``list_tiles`` lists them where the
            batch is read; None without one.
        levels: the crops as the model's encoder takes them, not yet normalised, in place of ``pixels``; see
            ``with_levels``.
    """

    pack_id: int
    dataset: int
    key: str
    step: int
    tokens: Int64[Tensor, "local"]
    labels: Int64[Tensor, "local"]
    loss_weights: Float32[Tensor, "local"]
    loss_tokens: Int64[Tensor, "counted"]
    position_ids: Int64[Tensor, "axes local"]
    pool_ids: Int64[Tensor, "local"]
    positions: Int64[Tensor, "local"]
    doc_ids: Int32[Tensor, "seq"]
    branch_ids: Int32[Tensor, "seq"]
    group_ids: Int32[Tensor, "seq"]
    layout: TokenLayout
    pixels: UInt8[Tensor, "bytes"]
    picture_sizes: Int64[Tensor, "crops 2"]
    crop_side: int | None
    documents: tuple[DocumentSpan, ...]
    units: tuple[Unit, ...]
    unit_edges: Int64[Tensor, "units_plus_1"]
    model: ModelEntry | None
    image_edges: Int64[Tensor, "cp_plus_1"]
    pool_edges: Int64[Tensor, "cp_plus_1"]
    pool_positions: Int64[Tensor, "pooled"]
    total_loss_weight: float
    sequence_edges: Int32[Tensor, "sequences_plus_1"]
    longest_sequence: int
    padded_seq_edges: Int32[Tensor, "padded_seqs_plus_1"]
    not_causal: str
    cp_rank: int
    bytes_read: int
    state: dict[str, Any]
    reads: Mapping[str, int] = field(default_factory=dict)
    tiles: Any = None
    levels: dict[str, Tensor] | None = None
    columns: Mapping[str, Shaped[Tensor, "local ..."]] = field(default_factory=dict)

    @property
    def preferences(self) -> tuple[bool, ...]:
        """Whether branch 1 of each document of the pack is an answer that is preferred to branch 2."""
        return tuple(span.preference for span in self.documents)

    @property
    def seq_len(self) -> int:
        return len(self.doc_ids)

    @property
    def cu_seqlens(self) -> Int32[Tensor, "sequences_plus_1"]:
        """Edges of the pack's sequences in natural order, for kernels of variable length (``flash_attn_varlen_func``).

        A document is one sequence; a row of tokens that holds several has one for each.
        Padding between and after documents has sequences of its own: a kernel computes something for it, which has no
        loss weight and which no document sees.

        Raises:
            ReaderError: the mask is not plain causal attention inside documents; says why.
        """
        self._check_causal("cu_seqlens")
        return self.sequence_edges

    @property
    def max_seqlen(self) -> int:
        """Tokens of the longest of these sequences.

        Raises:
            ReaderError: as for ``cu_seqlens``.
        """
        self._check_causal("max_seqlen")
        return self.longest_sequence

    @property
    def cu_seqlens_padded(self) -> Int32[Tensor, "padded_seqs_plus_1"]:
        """Edges of the documents with the padding that aligns the next one, as Megatron and Transformer Engine call it.

        Room i has the tokens ``edges[i]:edges[i] + document_lengths[i]`` of a document, and then padding; what is left
        of the pack is a room without a document. The ``cu_seqlens`` that go with them there are the running sums of
        ``document_lengths``. Transformer Engine deals the rooms to ranks as the layout zigzag does.

        Raises:
            ReaderError: as for ``cu_seqlens``.
        """
        self._check_rooms("cu_seqlens_padded")
        return self.padded_seq_edges

    @property
    def document_lengths(self) -> Int32[Tensor, "rooms"]:
        """Tokens of the document in each room of the pack, in natural order and without padding; 0 in a gap.

        Raises:
            ReaderError: as for ``cu_seqlens``.
        """
        self._check_rooms("document_lengths")
        real = torch.nn.functional.pad((self.doc_ids != PADDING_DOC).cumsum(0), (1, 0))
        return torch.diff(real[self.padded_seq_edges.long()]).int()

    @property
    def cu_seqlens_local(self) -> Int32[Tensor, "padded_seqs_plus_1"]:
        """Edges of the same rooms in this rank's slice, of which zigzag gives each rank an equal part.

        For ring attention that takes a rank's own (``zigzag_ring_flash_attn_varlen`` of zhuzilin/ring-flash-attention).

        Raises:
            ReaderError: as for ``cu_seqlens``, or the slice is of another layout or cut by ulysses.
        """
        self._check_rooms("cu_seqlens_local")
        cp_size = self.seq_len // len(self)
        if cp_size > 1 and (self.layout.scheme, self.layout.ring_degree) != ("zigzag", cp_size):
            raise ReaderError(
                f"slices of pack {self.pack_id}, of {self.layout.scheme} at ring_degree {self.layout.ring_degree} for "
                f"{cp_size} ranks, do not share each document equally: read with layout zigzag, ring_degree {cp_size}"
            )
        return self.padded_seq_edges // cp_size

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The batch's tensors by their names, for what takes a mapping; a column's is ``columns.NAME``."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        own = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        return own | {f"columns.{name}": values for name, values in self.columns.items()}

    def __len__(self) -> int:
        """Tokens of this rank's slice."""
        return len(self.tokens)

    def _check_causal(self, name: str) -> None:
        if self.not_causal:
            raise ReaderError(
                f"{name} of pack {self.pack_id} cannot be expressed this way: {self.not_causal}; use an attention "
                "that reads doc_ids, branch_ids and group_ids, as those of preshard.attention do"
            )

    def _check_rooms(self, name: str) -> None:
        self._check_causal(name)
        doc, branch = self.doc_ids, self.branch_ids
        parted = (doc[1:] == doc[:-1]) & (branch[1:] != branch[:-1]) & (branch[:-1] != 0) & (doc[1:] != PADDING_DOC)
        if bool(parted.any()):
            raise ReaderError(
                f"{name} of pack {self.pack_id} has a room for each document, and a row of several sequences "
                "is one document: take cu_seqlens, or pack each sequence as a row"
            )

    @property
    def pictures(self) -> list[UInt8[Tensor, "height width 3"]]:
        """This rank's crops, each of its own size: views of ``pixels``.

        Raises:
            ReaderError: they have become ``levels``.
        """
        if self.levels is not None:
            raise ReaderError("the batch's pictures have become levels for a PackedModel: read it without list_tiles")
        shapes = [(height, width, 3) for height, width in self.picture_sizes.tolist()]
        parts = self.pixels.split([height * width * channels for height, width, channels in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    @property
    def images(self) -> UInt8[Tensor, "crops height width 3"]:
        """This rank's crops in the generic way, where all have one size. Where the format says image, it counts crops.

        Raises:
            ReaderError: the dataset was packed for a model, whose crops differ in size.
        """
        if self.crop_side is None:
            raise ReaderError("crops of a dataset packed for a model differ in size: use batch.pictures")
        return self.pixels.view(-1, self.crop_side, self.crop_side, 3)

    @property
    def unit_order(self) -> list[int]:
        """This rank's units in the order of their tokens."""
        return sorted(range(len(self.units)), key=lambda number: self.units[number].start)

    def model_inputs(self) -> dict[str, Tensor]:
        """This rank's vision inputs in the model's own names: ``pixel_values``, ``image_grid_thw`` ...

        They are what its processor makes of these pictures in the order of their tokens, bit for bit if those are PNG.
        Empty without a unit.

        Raises:
            ReaderError: the dataset was packed for no model, or for one that reads only text.
        """
        levels = self.levels if self.levels is not None else self._cut()
        device = self.tokens.device
        moved = {name: to_device(tensor, device) for name, tensor in levels.items()}
        return normalise(self.model.settings if self.model is not None else {}, moved)

    def with_levels(self) -> RankBatch:
        """The same batch with its crops cut for the model's encoder: what is left for a device is to look levels up.

        A loader's worker does this for a ``PackedModel``. A batch that has no picture, or is for no model, stays as it
        is.
        """
        if self.levels is not None or self.model is None or not self.units:
            return self
        return replace(self, levels=self._cut(), pixels=self.pixels.new_empty(0))

    def _cut(self) -> dict[str, Tensor]:
        pictures = [picture.cpu().numpy() for picture in self.pictures]
        spans = list(pairwise(self.unit_edges.tolist()))
        units = [
            InputUnit(
                document=unit.document,
                medium=unit.medium,
                kind=unit.kind,
                grid=(unit.grid[0], unit.grid[1], unit.grid[2]),
                pictures=tuple(pictures[start:end]),
            )
            for unit, (start, end) in ((self.units[number], spans[number]) for number in self.unit_order)
        ]
        found = picture_levels(self.model.settings if self.model is not None else {}, units)
        return {name: torch.from_numpy(array) for name, array in found.items()}

    @property
    def start_image_idx(self) -> int:
        """First crop of the pack that this rank holds."""
        return int(self.image_edges[self.cp_rank])

    @property
    def end_image_idx(self) -> int:
        return int(self.image_edges[self.cp_rank + 1])

    @property
    def start_pool_idx(self) -> int:
        """First pooled row of the pack that this rank's crops make."""
        return int(self.pool_edges[self.cp_rank])

    @property
    def end_pool_idx(self) -> int:
        return int(self.pool_edges[self.cp_rank + 1])

    @property
    def max_num_tokens(self) -> int:
        """The largest number of pooled rows on any rank, to which every rank pads before features are gathered."""
        return int(torch.diff(self.pool_edges).max())

    def to(self, device: torch.device | str, non_blocking: bool = False) -> RankBatch:
        """The same batch with its tensors on a device, except those of ``ON_HOST`` and of ``levels`` all that are not
        pixels, which stay on the CPU.

        Args:
            device: the device.
            non_blocking: do not wait for the copies; what is not pinned yet is pinned first.
        """
        return self._with(lambda tensor: to_device(tensor, device) if non_blocking else tensor.to(device))

    def pin_memory(self) -> RankBatch:
        """The same batch in page-locked memory. A ``DataLoader`` with ``pin_memory`` calls this."""
        return self._with(lambda tensor: tensor.pin_memory())

    def _with(self, change: Callable[[Tensor], Tensor]) -> RankBatch:
        moved = {name: change(x) for name, x in self.tensors.items() if name not in ON_HOST}
        columns = {name: moved.pop(f"columns.{name}") for name in self.columns}
        changed: dict[str, Any] = {**moved, "columns": columns}
        if self.levels is not None:
            changed["levels"] = {
                name: change(tensor) if tensor.dtype == torch.uint8 else tensor for name, tensor in self.levels.items()
            }
        return replace(self, **changed)
