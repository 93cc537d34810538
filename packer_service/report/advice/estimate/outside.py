"""Time outside attention, from operations and from bytes: a roofline (Williams et al. 2009).

Products with weights take the longer of their operations and their operands; every other kernel takes its bytes. Bytes
are multiples of the model's widths, as a dry run counts the kernels of a Qwen3 (``tests/benchmarks/dry_run.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from preshard.packer_service.report.advice.question import AdviceQuestion
from preshard.schemas.model.dimensions import ModelDimensions
from preshard.schemas.model.savings import TILED_LOGITS_MIB, Saving


class Moved(NamedTuple):
    """Bytes that are read and written for a token in a layer, for each number of bfloat16 of the residual stream, of
    all queries, of all keys and of the MLP; and those of a norm that Qwen3 has not, for each of the residual stream.
    """

    hidden: float
    queries: float
    keys: float
    inner: float
    norm: float = 0.0

    def of(self, sizes: ModelDimensions) -> float:
        """Bytes of a token in a layer."""
        hidden = self.hidden + self.norm * (sizes.hidden_kept - PLAIN_KEPT) / KEPT_OF_A_NORM
        heads = self.queries * sizes.heads + self.keys * sizes.kv_heads
        return hidden * sizes.hidden + heads * sizes.head_dim + self.inner * sizes.inner


PLAIN_KEPT, KEPT_OF_A_NORM = 8, 5
"""Values of ``ModelDimensions.hidden_kept``: what Qwen3 has, and what a norm more adds."""

OPERANDS = Moved(14, 4, 4, 6)
"""Traffic of products with weights, in the forward pass; the backward pass has two products for each."""

FORWARD = {False: Moved(84, 56, 56, 10, 40), True: Moved(24, 6, 6, 6, 4)}
BACKWARD = {False: Moved(214, 148, 176, 48, 88), True: Moved(40, 46, 72, 18, 20)}
"""Traffic of all other kernels, with plain and with compiled blocks."""

LOGITS = 34 + 48
"""Bytes of a logit: forward, and computed again in the backward pass. The loss is not compiled. For each chunk of
tokens it also reads and writes the whole gradient of the output projection."""

GATHERED, OWNED = 22, 40
"""Bytes of each parameter, which a rank gathers twice and whose gradient it hands on, in the stream that computes; and
of each that it has, by casts, clipping and AdamW."""

KEYS, RING, HEADS = (3, 38), (19, 90, 20), (8, 12)
"""Bytes that copies around attention's exchanges read and write, forward and backward: for each number of the keys and
values that a rank gathers; for each of a rank's queries in each step of a ring, and backward of the keys; and for each
of queries, keys, values and outputs that Ulysses deals. Sums are in float32."""

TILED = 42
"""Bytes for each number of an MLP that takes its tokens in tiles, besides those of ``FORWARD`` and ``BACKWARD``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutsideAttention:
    """The work of a rank outside attention in one step of one pack, on one kind of device.

    Attributes:
        sizes: the model.
        question: devices and assumptions.
    """

    sizes: ModelDimensions
    question: AdviceQuestion

    def operations(self, tokens: float, saving: Saving) -> float:
        """Operations of products with weights. The logits are computed again in any case: they are never kept."""
        sizes = self.sizes
        products = self._passes(saving) * sizes.layers * sizes.layer_products + 4 * sizes.head_products
        if saving.tiled:  # the MLPs once more
            products += sizes.layers * 3 * sizes.hidden * sizes.inner
        return 2 * products * tokens

    def moved(self, tokens: float, saving: Saving, *, compiled: bool) -> float:
        """Bytes that kernels other than products and attention read and write for so many tokens."""
        sizes, forward = self.sizes, FORWARD[compiled]
        layer = (self._passes(saving) - 2) * forward.of(sizes) + BACKWARD[compiled].of(sizes)
        layer += saving.tiled * TILED * sizes.inner
        number, sums = self.question.compute_bytes, self.question.sum_bytes
        chunk = min(self.question.logits_gb * 1e9, TILED_LOGITS_MIB * 2**20 if saving.tiled else float("inf"))
        of_chunks = (number + 2 * sums) * sizes.head_products * sizes.vocab * (number + sums) / max(chunk, 1)
        return tokens * (sizes.layers * layer * number / 2 + LOGITS * sizes.vocab + of_chunks)

    def seconds(self, tokens: float, saving: Saving, gpus: int, *, compiled: bool | None = None) -> float:
        """Seconds of a rank with so many tokens; by the given efficiency, where one is given."""
        asked, device, sizes = self.question, self.question.device, self.sizes
        operations = self.operations(tokens, saving) / (device.peak_tflops * 1e12)
        if asked.linear_efficiency is not None:
            return operations / asked.linear_efficiency
        bandwidth = self.bandwidth
        operands = tokens * OPERANDS.of(sizes) * asked.compute_bytes / 2 + asked.compute_bytes * sizes.layer_parameters
        operands *= self._passes(saving) * sizes.layers
        products = max(operations / asked.product_efficiency, operands / bandwidth)
        moved = self.moved(tokens, saving, compiled=asked.compiled if compiled is None else compiled)
        parameters = (GATHERED + (not saving.on_host) * OWNED / gpus) * sizes.parameters
        return products + (moved + parameters) / bandwidth

    @property
    def bandwidth(self) -> float:
        """Bytes of the device's memory that kernels read and write in a second."""
        return self.question.device.memory_gb_per_s * 1e9 * self.question.memory_efficiency

    def efficiency(self, tokens: float, saving: Saving, gpus: int, *, compiled: bool) -> float:
        """The share of the peak that products reach in this time."""
        seconds = self.seconds(tokens, saving, gpus, compiled=compiled)
        return self.operations(tokens, saving) / (seconds * self.question.device.peak_tflops * 1e12)

    def _passes(self, saving: Saving) -> int:
        """Forward passes, and two for the backward pass."""
        return 3 if saving.recompute == "none" else 4
