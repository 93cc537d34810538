"""Memory of a rank while it trains as ``preshard.train`` does; estimates, in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from preshard.schemas.model.dimensions import ModelDimensions

USABLE = 0.9
"""Share of a device's memory that tensors may take: the rest is CUDA's own, its libraries' and lost between tensors."""

STATE_NUMBERS = 4
"""Numbers for each parameter: itself, its gradient and AdamW's two means."""


class Kept(NamedTuple):
    """Numbers that a layer keeps of each token, as multiples of the width of the residual stream, of all queries, of
    all keys and of the MLP; and, of the residual stream, what a norm's backward pass has in float32.
    """

    hidden: int
    queries: int
    keys: int
    inner: int
    norm: int


PLAIN, COMPILED = Kept(8, 6, 5, 4, 12), Kept(4, 3, 3, 3, 0)
"""Multiples of the widths that a layer of Qwen3 keeps: ``tests/benchmarks/advice_memory.py`` and ``dry_run.py`` count
them. A norm keeps copies in float32, which fused kernels make again. Plain Llama, without norms of queries and keys,
keeps 3 and 2 of these two."""

HIDDEN_SLOPES, INNER_SLOPES, VISION_SLOPES = 2, 3.5, 0.5
"""Gradients that a layer's backward pass has at once: multiples of the same widths; of the encoder, of what a layer
keeps. As ``tests/benchmarks/dry_run.py`` counts them."""

QUERIES_SLOPES, GATHER_SLOPES, COPY_SLOPES = 2.5, 3, 4
"""The same in attention: of the queries; of a rank's own keys where others' are gathered, in numbers of sums; and of
the copies of key heads that Ulysses deals to more ranks than there are: keys, values and the gradients of both."""

RING_QUERIES, RING_SLOPES = 3, 5
"""Copies of the queries in a ring, in the model's numbers and in those of sums: its kernel goes backward by one part of
the keys at a time."""

MOST_SUMMANDS = 8
"""Gradients of a weight that a compiled block has at once where its MLP takes tokens in tiles."""

VISION_KEPT = 20
"""The same of a layer of the vision encoder and its width: the same script counts 11 of the width and 2 of the MLP in a
layer of Qwen3-VL's, whose MLP is about four times as wide."""

BLOCKS_GATHERED = 2
"""Blocks whose parameters are whole at a time: one in use, and the next on its way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankShare:
    """Share of a pack on the rank that holds most.

    Attributes:
        tokens: of its slice.
        patches, rows: of the vision encoder, and the rows of features that it makes of them.
        keys: tokens whose keys and values it holds while a layer is computed, its own included; 0 where none travel.
        key_heads: heads of these.
        copied_heads: copies of key heads that Ulysses deals besides.
        tables: bytes of attention's tables of tiles, as ``preshard.schemas.layout.table_bytes`` has them for a call.
        in_parts: whether attention goes backward for one part of the keys at a time, as a ring does.
    """

    tokens: float
    patches: float
    rows: float
    keys: float
    key_heads: float
    tables: float = 0.0
    in_parts: bool = False
    copied_heads: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryParts:
    """Bytes of one rank.

    Attributes:
        state: its part of parameters and the optimiser's state, and of the gradients that are there.
        gathered: whole parameters of the blocks in use, of embedding and output projection, and whole gradients.
        activations: what the forward pass keeps for the backward pass, and what a layer has in use.
        keys: keys and values of other ranks, with their gradients; and attention's tables of tiles.
        logits: logits, and the gradient of the output projection.
        host: what waits in the host's memory, which is no part of the total.
    """

    state: float
    gathered: float
    activations: float
    keys: float
    logits: float
    host: float = 0.0

    @property
    def on_device(self) -> dict[str, float]:
        """The parts but what is on the host."""
        return {name: value for name, value in asdict(self).items() if name != "host"}

    @property
    def total(self) -> float:
        return sum(self.on_device.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Trains:
    """Trained part of a model, where that is not all of it.

    Attributes:
        trained, frozen: numbers in parameters of either kind, adapters among the trained ones.
        blocks: whether the decoder's own weights are trained, in whole or in part.
        head: the same of the output projection.
        encoder: whether anything that makes features is trained: without, the encoder takes no backward pass.
    """

    trained: int
    frozen: int
    blocks: bool
    head: bool
    encoder: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingMemory:
    """Training of a model, as far as memory depends on it.

    Attributes:
        sizes: the model.
        shards: ranks that a parameter is spread over.
        compute_bytes, sum_bytes: of a number that the model computes with, and that gradients are added in.
        state_bytes: of a parameter, its gradient and the optimiser's state.
        logits_bytes: the most that logits may take at a time.
        recompute: one of :data:`RECOMPUTE`.
        offload: whether inputs of blocks that are computed again wait on the host, or on a disk.
        on_host: whether parameters, gradients and the optimiser's state stay on the host.
        mlp_tiles: parts in which the MLPs take a rank's tokens, each computed again.
        compiled: whether what lies between two attentions is fused.
        trains: None if the whole model does.
    """

    sizes: ModelDimensions
    shards: int
    compute_bytes: int
    sum_bytes: int
    state_bytes: float
    logits_bytes: float
    recompute: str
    offload: bool = False
    on_host: bool = False
    mlp_tiles: int = 1
    compiled: bool = False
    trains: Trains | None = None

    def of_rank(self, share: RankShare) -> MemoryParts:
        """Memory of a rank with such a share of a pack, in the moment of a step in which it is largest."""
        trains = self.trains or Trains(trained=self.sizes.parameters, frozen=0, blocks=True, head=True, encoder=True)
        largest = max(self._moments(share, trains), key=lambda parts: parts.total)
        return replace(largest, keys=largest.keys + share.tables, host=self._host(share, trains))

    def _host(self, share: RankShare, trains: Trains) -> float:
        sizes, taken = self.sizes, self.state_bytes * trains.trained + self.sum_bytes * trains.frozen
        inputs = share.tokens * sizes.layers * sizes.hidden
        inputs += share.patches * sizes.vision_layers * sizes.vision_width * trains.encoder
        return self.on_host * taken / self.shards + self.offload * self.compute_bytes * inputs

    def _moments(self, share: RankShare, trains: Trains) -> Iterator[MemoryParts]:
        """The moments that can be the largest, in the order of a step."""
        sizes, number, sums = self.sizes, self.compute_bytes, self.sum_bytes
        between = ((self.state_bytes - sums) * trains.trained + sums * trains.frozen) / self.shards
        after = between + sums * trains.trained / self.shards
        staged = 0.0  # parts of blocks on their way from the host, or of their gradients to it
        if self.on_host:
            between = after = 0.0
            staged = BLOCKS_GATHERED * (number + sums) * sizes.layer_parameters / self.shards
        of_encoder, encoder_in_use = self._encoder(share, trained=trains.encoder)
        decoder = share.tokens * sizes.layers * self._kept()
        head, block = sizes.head_products, sizes.layer_parameters
        apart = 0 if sizes.tied else head  # embedding and output projection are each gathered by themselves
        root = sizes.embeddings - 2 * apart + sizes.vision_rest
        summed = number + sums if number != sums else number
        chunk = min(self.logits_bytes, share.tokens * sizes.vocab * summed)
        yield MemoryParts(
            state=between,
            gathered=number * (root + apart + block),
            activations=decoder + of_encoder,
            keys=0,
            logits=chunk + summed * head * trains.head,
        )
        slopes = number * (head - apart) * trains.head  # whole until the backward pass ends
        whole = number * (root + BLOCKS_GATHERED * block + block * trains.blocks) + staged
        summands = (min(self.mlp_tiles, MOST_SUMMANDS) - 1) * number * 3 * sizes.hidden * sizes.inner
        of_tiles = summands * self.compiled * trains.blocks
        mlp, attention = (share.tokens * numbers for numbers in self._in_use(share))
        keys = share.key_heads * sizes.key_and_value * share.keys * max(number + summed, 2 * sums)
        last = sums * block * trains.blocks  # sums are there until the next ones are made: of the block before,
        first = max(sums * apart * trains.head, last)  # and before all blocks, of the output projection
        ends = (sizes.embeddings - apart) * (trains.head or trains.blocks)  # whose sums come when all else is done
        blocks = after - sums * (0 if self.on_host else ends + sizes.vision_parameters * trains.encoder) / self.shards
        for state, kept, sent in ((between, decoder, first), (blocks, decoder / max(sizes.layers, 1), last)):
            in_use, gathered = kept + of_encoder, whole + sent
            yield MemoryParts(
                state=state, gathered=gathered + of_tiles, activations=in_use + mlp, keys=0, logits=slopes
            )
            yield MemoryParts(state=state, gathered=gathered, activations=in_use + attention, keys=keys, logits=slopes)
        yield MemoryParts(
            state=after,
            gathered=number * root,
            activations=of_encoder + encoder_in_use,
            keys=0,
            logits=slopes,
        )
        rest = max(ends, apart and sizes.vision_rest * trains.encoder)
        rest += sizes.vision_rest * trains.encoder * (not apart)
        summed_rest = (number + sums + self.on_host * sums / self.shards) * rest
        yield MemoryParts(state=after, gathered=summed_rest, activations=0, keys=0, logits=0)

    def _kept(self) -> float:
        """Bytes of a token that a layer keeps for the backward pass."""
        sizes, given = self.sizes, 0 if self.offload else self.sizes.hidden
        attention = sizes.heads * sizes.head_dim
        of_mlp = self._widths().inner * sizes.inner if self.mlp_tiles == 1 else 0
        numbers = {
            "none": self._layer() + of_mlp,
            "selective": given + attention,
            "full": given,
        }[self.recompute]
        return self.compute_bytes * numbers

    def _widths(self) -> Kept:
        """Multiples of widths kept by a layer. Norms that Qwen3 lacks keep input and result, plain ones also copies."""
        if not self.compiled:
            return PLAIN._replace(hidden=self.sizes.hidden_kept)
        return COMPILED._replace(hidden=COMPILED.hidden + 2 * (self.sizes.hidden_kept > PLAIN.hidden))

    def _layer(self) -> float:
        """Numbers of a token that a layer keeps, without its MLP."""
        sizes, kept = self.sizes, self._widths()
        return kept.hidden * sizes.hidden + (kept.queries * sizes.heads + kept.keys * sizes.kv_heads) * sizes.head_dim

    def _in_use(self, share: RankShare) -> tuple[float, float]:
        """Bytes of a token that the backward pass of a layer has besides: in its MLP or the norm before it, and in its
        attention, when half of the layer has gone backward.
        """
        sizes, kept, again, tiled = self.sizes, self._widths(), self.recompute != "none", self.mlp_tiles > 1
        made = self._layer() if again else 0
        inner = (kept.inner * (again or tiled) + INNER_SLOPES) * sizes.inner / self.mlp_tiles
        slopes = (HIDDEN_SLOPES + 2 * (self.compiled and tiled)) * sizes.hidden
        norm = (kept.norm - kept.hidden / 4) * sizes.hidden
        gone = kept.hidden / 2 * sizes.hidden
        sums = self.sum_bytes / self.compute_bytes
        if share.in_parts:
            own = (RING_QUERIES + sums * RING_SLOPES) * sizes.heads
        else:
            own = QUERIES_SLOPES * sizes.heads + sums * GATHER_SLOPES * sizes.kv_heads * (share.keys > 0)
        own = (own + COPY_SLOPES * share.copied_heads) * sizes.head_dim
        return (
            self.compute_bytes * (made + max(inner + slopes, norm)),
            self.compute_bytes * (made - gone + own + sizes.hidden),
        )

    def _encoder(self, share: RankShare, *, trained: bool) -> tuple[float, float]:
        """Bytes of the patches and of the rows that are made of them, which are not computed again; and what a layer
        has in use besides.
        """
        layer, given = VISION_KEPT * self.sizes.vision_width, 0 if self.offload else self.sizes.vision_width
        if not trained:  # nothing is kept, and one layer is in use at a time
            return 0.0, self.compute_bytes * share.patches * layer
        kept = layer if self.recompute == "none" else given
        rows = share.rows * self.sizes.vision_row
        in_use = share.patches * layer * (VISION_SLOPES + (self.recompute != "none"))
        return self.compute_bytes * (
            share.patches * self.sizes.vision_layers * kept + rows
        ), self.compute_bytes * in_use
