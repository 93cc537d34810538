"""Time of a step on its slowest rank, pack by pack: a model of kernels that run at a known speed.

Kernels are counted as in the costs of ``packs.parquet``: attention in whole tiles (Dong et al. 2024, FlexAttention),
the vision encoder by the loads of its units; what lies outside both also by its bytes. Messages are counted as
``docs/attention.md`` does, and take their bytes over the bandwidth of the slowest link on their way (Fang and Zhao
2024, USP; Rajbhandari et al. 2020, ZeRO, for parameters).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from preshard.packer_service.report.advice.estimate.loads import PackLoads
from preshard.packer_service.report.advice.estimate.outside import HEADS, KEYS, RING, OutsideAttention
from preshard.packer_service.report.advice.estimate.split import SplitChoice
from preshard.packer_service.report.advice.question import AdviceQuestion
from preshard.schemas.model.dimensions import ModelDimensions
from preshard.schemas.model.savings import Saving

PerPack = Float64[np.ndarray, "packs"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackSeconds:
    """Seconds of the slowest rank for each pack."""

    linear: PerPack
    attention: PerPack
    attention_waiting: PerPack
    vision: PerPack
    vision_waiting: PerPack
    exchange: PerPack

    @property
    def computing(self) -> PerPack:
        return self.linear + self.attention + self.attention_waiting + self.vision + self.vision_waiting

    @property
    def total(self) -> PerPack:
        return self.computing + self.exchange


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """Times of messages between the ranks of a job."""

    question: AdviceQuestion

    def spread(self, sent: Float64[np.ndarray, "..."] | float, ranks: int, near: int) -> Float64[np.ndarray, "..."]:
        """Bytes that a rank exchanges with all others of its group.

        Args:
            sent: bytes.
            ranks: ranks of the group.
            near: those of them in the same node. What goes to them and to others travels at the same time.
        """
        if ranks == 1:
            return np.zeros_like(sent, np.float64)
        far = (ranks - min(near, ranks)) / (ranks - 1)
        device = self.question.device
        over = np.maximum(far / device.network_gb_per_s, (1 - far) / device.node_gb_per_s)
        return np.asarray(sent) * over / (1e9 * self.question.link_efficiency) + self.question.latency_us * 1e-6

    def hop(self, sent: float, *, far: bool) -> float:
        """Bytes that every rank of a ring passes on."""
        device = self.question.device
        speed = device.network_gb_per_s if far else device.node_gb_per_s
        return sent / (speed * 1e9 * self.question.link_efficiency) + self.question.latency_us * 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Estimates for one model on one kind of device.

    Attributes:
        sizes: the model.
        question: devices and assumptions.
        loads: the packs.
        seq_len: tokens of a pack.
    """

    sizes: ModelDimensions
    question: AdviceQuestion
    loads: PackLoads
    seq_len: int

    def of_packs(self, split: SplitChoice, saving: Saving) -> PackSeconds:
        """Seconds for each sampled pack.

        Args:
            split: the split.
            saving: what is computed again: all but attention and its exchange of keys with ``selective``; and the keys
                that travel at a time.
        """
        linear = self._linear(split, saving) + self._expanding(split, saving)
        even, path, exchange = self._attention(split, saving)
        vision, busiest = self._vision(split, saving)
        return PackSeconds(
            linear=linear,
            attention=even,
            attention_waiting=path - even,
            vision=vision,
            vision_waiting=busiest - vision,
            exchange=exchange + self._heads(split, saving) + self._features(split),
        )

    def parameters(self, gpus: int) -> float:
        """Gathering all parameters for the forward and for the backward pass, and adding up their gradients."""
        if gpus == 1:
            return 0.0
        asked, device = self.question, self.question.device
        sent = self.sizes.parameters * (2 * asked.compute_bytes + asked.sum_bytes)
        near = min(gpus, device.gpus_per_node)
        nodes = -(-gpus // near)
        inside = sent * (1 - 1 / gpus) / device.node_gb_per_s
        between = sent * (1 - 1 / nodes) / (near * device.network_gb_per_s)
        return max(inside, between) / (1e9 * asked.link_efficiency)

    def turns(self, split: SplitChoice, saving: Saving) -> int:
        """Number of turns in which a rank gathers its key heads; it expands those that it takes from one latent."""
        if self._latents_travel(split):
            return 1
        own = split.heads_on_the_way(self.sizes.kv_heads) // split.ulysses
        return -(-own // (saving.head_stride or own))

    def offload(self, split: SplitChoice, saving: Saving, gpus: int) -> tuple[float, float]:
        """Seconds of transfers between a device and its host in a step, one way at a time, and of AdamW on the host,
        which nothing hides: it reads four numbers of each parameter and writes three.
        """
        asked, sizes, own = self.question, self.sizes, self.sizes.parameters / gpus
        inputs = saving.inputs_wait * asked.compute_bytes * sizes.layers * sizes.hidden * self.seq_len / split.cp_size
        there = inputs + saving.on_host * 2 * asked.sum_bytes * own
        return (
            there / (1e9 * asked.host_gb_per_s * asked.link_efficiency),
            saving.on_host * 7 * asked.sum_bytes * own / (1e9 * asked.host_memory_gb_per_s),
        )

    def _linear(self, split: SplitChoice, saving: Saving) -> float:
        outside = OutsideAttention(sizes=self.sizes, question=self.question)
        return outside.seconds(self.seq_len / split.cp_size, saving, split.cp_size * split.dp)

    def _vision(self, split: SplitChoice, saving: Saving) -> tuple[PerPack, PerPack]:
        """An even share, and the share of the busiest rank."""
        times = 3 if saving.recompute == "none" else 4
        each = 2 * times / self._speed(self.question.vision_efficiency)
        whole = self.loads.columns["load"].astype(np.float64)
        return whole / split.cp_size * each, self.loads.largest_image_load(split.cp_size) * each

    def _attention(self, split: SplitChoice, saving: Saving) -> tuple[PerPack, PerPack, PerPack]:
        """An even share of the tiles, the critical path, and the exchanges of keys that nothing hides."""
        asked = self.question
        tile = self.sizes.tile_flops / split.ulysses / self._speed(asked.attention_efficiency)
        again = 1 if saving.recompute == "full" else 0
        once = 1 + asked.attention_backward + again
        tiles = self.loads.columns["attention_tiles"]
        even = tiles / split.ring * tile * once
        if split.ring == 1:
            return even, even, np.zeros(len(tiles))
        layout = self.loads.layouts[split.layout, split.ring]
        key = self._key_bytes(split)
        if split.kind == "gather":
            near = self._near_in_ring(split)
            links, sends = Links(question=asked), 2 + again
            sent = layout.moved_keys * (self._sent_numbers(split) * (sends * asked.compute_bytes + asked.sum_bytes))
            messages = (sends + 1) * self.sizes.layers * self.turns(split, saving)
            waiting = links.spread(sent, split.ring, near) + messages * asked.latency_us * 1e-6
            held = layout.moved_keys + self.seq_len / split.ring
            waiting += self._copying(held * key * (KEYS[0] * (1 + again) + KEYS[1]))
            return even, layout.gather_path * tile * once, np.where(layout.moved_keys > 0, waiting, 0.0)
        return (
            even,
            layout.ring_steps.sum(axis=0) * tile * (1 + asked.ring_backward + again),
            self._ring(split, saving),
        )

    def _ring(self, split: SplitChoice, saving: Saving) -> PerPack:
        """Transfers of a ring that take longer than the step they run beside, and the last one, beside which none runs.

        The backward pass sends keys round again, and their gradients one step behind.
        """
        asked, layers = self.question, self.sizes.layers
        steps = self.loads.layouts[split.layout, split.ring].ring_steps
        tile = self.sizes.tile_flops / layers / split.ulysses / self._speed(asked.attention_efficiency)
        far = split.ring > self._near_in_ring(split)
        key = self._sent_numbers(split) / layers * self.seq_len / split.ring
        links = Links(question=asked)
        keys = links.hop(key * asked.compute_bytes, far=far)
        gradients = links.hop(key * asked.sum_bytes, far=far)
        forward = np.maximum(keys - steps[:-1] * tile, 0).sum(axis=0)
        hops = np.full(split.ring, keys + gradients)
        hops[0], hops[-1] = keys, gradients
        backward = np.maximum(hops[:, None] - steps * tile * asked.ring_backward, 0).sum(axis=0) + gradients
        again = 2 if saving.recompute == "full" else 1
        queries = self.sizes.heads * self.sizes.head_dim / split.ulysses * (RING[0] * again + RING[1])
        copied = self.seq_len * (queries * layers + self._key_bytes(split) * RING[2])  # a slice in every step
        return layers * (forward * again + backward) + self._copying(copied)

    def _heads(self, split: SplitChoice, saving: Saving) -> float:
        """The heads of queries, keys, values and outputs, dealt among the ranks of Ulysses and back."""
        if split.ulysses == 1:
            return 0.0
        asked, sizes = self.question, self.sizes
        share = self.seq_len / split.cp_size * (split.ulysses - 1) / split.ulysses
        times = 2 if saving.recompute == "none" else 3
        numbers = sizes.heads * sizes.key_and_value * sizes.layers + self._sent_numbers(split) * split.ulysses
        sent = times * numbers * share * asked.compute_bytes
        messages = times * 2 * sizes.layers * asked.latency_us * 1e-6
        copied = numbers * self.seq_len / split.cp_size * (HEADS[0] * (times - 1) + HEADS[1])
        sending = float(Links(question=asked).spread(sent, split.ulysses, asked.device.gpus_per_node))
        return sending + messages + self._copying(copied)

    def _features(self, split: SplitChoice) -> PerPack:
        """Image features on their way to the ranks of their tokens, and gradients back."""
        rows = self.loads.columns["n_pooled_tokens"] / split.cp_size
        sent = 2 * rows * self.sizes.hidden * self.question.compute_bytes
        if split.cp_size == 1:
            return np.zeros(len(rows))
        waiting = Links(question=self.question).spread(sent, split.cp_size, self.question.device.gpus_per_node)
        return np.where(rows > 0, waiting, 0.0)

    def _key_bytes(self, split: SplitChoice) -> float:
        """Numbers of a token's keys and values on one rank, over all layers."""
        heads = split.heads_on_the_way(self.sizes.kv_heads) / split.ulysses
        return heads * self.sizes.key_and_value * self.sizes.layers

    def _latents_travel(self, split: SplitChoice) -> bool:
        """Whether keys and values of a rank's heads are more numbers than what they are expanded from."""
        heads = split.heads_on_the_way(self.sizes.kv_heads) // split.ulysses
        latent = self.sizes.latent + self.sizes.shared
        return split.cp_size > 1 and 0 < latent < heads * self.sizes.key_and_value

    def _sent_numbers(self, split: SplitChoice) -> float:
        """Numbers of a token that travel for keys and values of a rank's heads, over all layers."""
        if self._latents_travel(split):
            return (self.sizes.latent + self.sizes.shared) * self.sizes.layers
        return self._key_bytes(split)

    def _expanding(self, split: SplitChoice, saving: Saving) -> PerPack:
        """Expanding the latents that a rank gets for its heads, once more in the backward pass, beyond what is counted
        as the projection of its own tokens.
        """
        if not self._latents_travel(split):
            return np.zeros(self.loads.sampled)
        held: Any = self.seq_len
        if split.kind == "gather" and split.ring > 1:
            held = self.loads.layouts[split.layout, split.ring].moved_keys + self.seq_len / split.ring
        counted = (3 if saving.recompute == "none" else 4) * self.seq_len / split.cp_size
        times = 5 if saving.recompute == "full" else 4
        efficiency = self.question.linear_efficiency or self.question.product_efficiency
        more = np.maximum(times * held / split.ulysses - counted, 0)
        return np.full(
            self.loads.sampled, 2 * self.sizes.expanding * self.sizes.layers * more / self._speed(efficiency)
        )

    def _near_in_ring(self, split: SplitChoice) -> int:
        """Ranks of a ring in the same node; they stand ``ulysses`` apart."""
        return max(self.question.device.gpus_per_node // split.ulysses, 1)

    def _copying(self, moved: Any) -> Any:
        """Seconds for bytes that are read and written on the device."""
        return moved / OutsideAttention(sizes=self.sizes, question=self.question).bandwidth

    def _speed(self, efficiency: float) -> float:
        """Operations per second."""
        return self.question.device.peak_tflops * 1e12 * efficiency
