"""The answer: splits with their estimated times and memory, and everything that was assumed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from preshard.packer_service.plan.records import Figures

Kind = Literal["none", "ulysses", "gather", "ring"]


class StepSeconds(Figures):
    """Parts of the time of a step, on the rank that takes longest. The parts add up to the total."""

    linear: float = Field(
        description="Outside attention: products with weights, norms and the like, logits, the optimiser."
    )
    attention: float = Field(description="An even share of the pack's tiles.")
    attention_waiting: float = Field(
        description="What the slowest rank has beyond that, and what the kernel of a ring computes again."
    )
    vision: float = Field(description="An even share of the vision encoder's work.")
    vision_waiting: float = Field(description="What the busiest rank has beyond that.")
    exchange: float = Field(
        description="Keys, values, heads and image features on their way while nothing is computed, and copied for it."
    )
    parameters: float = Field(description="Parameters and gradients on their way beyond what hides behind computing.")
    offload: float = Field(
        description="Transfers to the host and back beyond what hides behind computing, and AdamW there."
    )
    straggler: float = Field(description="What a step's most expensive pack takes beyond its mean pack.")
    total: float


class RankMemory(Figures):
    """Memory of one rank, in 10^9 bytes."""

    state: float = Field(description="Its part of parameters, gradients and the optimiser's state.")
    gathered: float = Field(description="Whole parameters of the blocks in use, of embedding and output projection.")
    activations: float = Field(description="What the forward pass keeps for the backward pass.")
    keys: float = Field(description="Keys and values of other ranks, with their gradients.")
    logits: float = Field(description="Logits, and the gradient of the output projection.")
    host: float = Field(description="What waits in the host's memory instead, which is no part of the total.")
    total: float


class SplitAdvice(Figures):
    """One way to split the packs of a step over all devices."""

    ulysses_degree: int = Field(description="Ranks that share a pack by heads.", examples=[4])
    ring_degree: int = Field(description="Ranks that share a pack by the layout's slices.", examples=[2])
    layout: str = Field(
        description="The token layout; all are the same at ring degree 1.", examples=["balanced_gather"]
    )
    kind: Kind = Field(description="How keys travel: what `--attention` of the trainer takes.")
    dp_size: int = Field(description="Packs of a step, side by side.", examples=[8])
    recompute: Literal["none", "selective", "full"] = Field(description="What the backward pass computes again.")
    mlp_tiles: int = Field(description="Parts in which MLPs take a rank's tokens, each computed again.")
    head_stride: int = Field(description="Key heads that `gather` fetches at a time; 0 is all.")
    offload: Literal["none", "host", "state", "all"] = Field(description="What waits in the host's memory.")
    fits: bool = Field(description="Whether a rank's memory suffices.")
    stored: bool = Field(
        description="Whether the dataset holds layout and image boundaries; else a reader derives them."
    )
    derived: bool = Field(
        description="Whether the layout was not packed, and its loads were derived from the masks of some packs."
    )
    seconds: StepSeconds
    memory: RankMemory
    tokens_per_step: int = Field(description="Real tokens of a step.")
    tokens_per_second: float = Field(description="Real tokens per second of one device.")
    speedup_over_zigzag: float | None = Field(
        description="Over zigzag at the same degrees; null where it is not there."
    )
    speedup_over_cp1: float | None = Field(description="Over a pack on each device; null where packs are too few.")
    reason: str = Field(description="What speaks for it, and what it loses, in a sentence.")
    options: str = Field(
        description="The trainer's options for it.", examples=["--ring 4 --layout balanced_gather --attention gather"]
    )


class Assumption(Figures):
    """A value that the estimates rest on."""

    name: str = Field(examples=["linear_efficiency"])
    value: float | int | str | None
    meaning: str
    source: str = Field(description="`given`, `default`, or where it is from.")


class Advice(Figures):
    """The fastest splits, and what they rest on: the figures of `preshard advise --json`."""

    gpus: int
    gpu: str
    packs: int = Field(description="Packs of the dataset.")
    sampled_packs: int = Field(description="Packs that the estimates are computed from.")
    seq_len: int
    parameters: int = Field(description="Parameters of the model, as its dimensions give them.")
    considered: int = Field(description="Splits that were estimated.")
    fitting: int = Field(description="Splits that fit into memory.")
    splits: list[SplitAdvice] = Field(description="The fastest of those that fit first, then those that do not.")
    cp1: SplitAdvice | None = Field(description="A whole pack on each device; null where packs are too few.")
    assumptions: list[Assumption]
    notes: list[str] = Field(description="What else limits the estimates.")
