"""Question to the advisor: a number of devices, and every assumption that may be given another value."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from preshard.schemas.errors import ConfigError
from preshard.schemas.files.validation import first_violation
from preshard.schemas.model.devices import DEVICES, Device, DeviceName
from preshard.schemas.model.savings import Recompute
from preshard.schemas.sections import CostConfig, Width
from preshard.schemas.worded import legal_instead, meant

MAX_GPUS = 2**17
"""Most GPUs, more than any job has; splits are found among its divisors."""

MAX_SPLITS = 500
"""Most splits of an answer."""

Share = Annotated[float, Field(ge=1e-3, le=1)]
Rate = Annotated[float, Field(ge=1e-3, le=1e9)]
Bytes = Annotated[int, Field(ge=1, le=8)]

MODEL_KEYS = (
    *("hidden_size", "num_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"),
    "vocab_size",
)
"""Dimensions of the decoder, by their names in the configuration's ``cost``."""


class AdviceQuestion(BaseModel):
    """Number and kind of the devices, and assumptions about them, the links and the trainer.

    What is null comes from the kind of device, for the model's dimensions from the dataset's `cost`, and for
    `linear_efficiency` from operations and bytes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    gpus: int = Field(8, ge=1, le=MAX_GPUS, description="Devices that train together.", examples=[64])
    gpu: DeviceName = Field("h100", description="Their kind; decides the six values that follow.")
    peak_tflops: Rate | None = Field(None, description="Dense products of a device, in 10^12 operations per second.")
    memory_gb: Rate | None = Field(None, description="Memory of a device, in 10^9 bytes.")
    memory_gb_per_s: Rate | None = Field(None, description="Bandwidth of that memory, in 10^9 bytes/s.")
    node_gb_per_s: Rate | None = Field(None, description="Bandwidth inside a node, one direction, in 10^9 bytes/s.")
    network_gb_per_s: Rate | None = Field(
        None, description="Bandwidth of a device to other nodes, one direction, in 10^9 bytes/s."
    )
    gpus_per_node: int | None = Field(None, ge=1, le=MAX_GPUS, description="Devices of a node.")
    hidden_size: Width | None = Field(None, description="Width of the decoder.")
    num_layers: Width | None = Field(None, description="Layers of the decoder.")
    num_attention_heads: Width | None = Field(None, description="Query heads of the decoder.")
    num_key_value_heads: Width | None = Field(None, description="Key and value heads of the decoder.")
    head_dim: Width | None = Field(None, description="Width of a decoder head.")
    intermediate_size: Width | None = Field(None, description="Width of the decoder's SwiGLU.")
    vocab_size: Width | None = Field(None, description="Rows of the output projection.")
    linear_efficiency: Share | None = Field(
        None,
        description="Share of the peak that products with weights reach, with all that is between them; "
        "null is what follows from operations, bytes and the next two.",
    )
    product_efficiency: Share = Field(0.79, description="Share of the peak that products reach by themselves.")
    memory_efficiency: Share = Field(0.85, description="Share of the memory's bandwidth that other kernels reach.")
    attention_efficiency: Share = Field(
        0.4, description="Share of the peak that the attention kernel reaches over whole 128 x 128 tiles."
    )
    vision_efficiency: Share = Field(0.4, description="Share of the peak that the vision encoder reaches.")
    link_efficiency: Share = Field(0.8, description="Share of a link's bandwidth that messages reach.")
    latency_us: float = Field(20.0, ge=0, le=1e6, description="Time of an exchange besides its bytes, in 10^-6 s.")
    attention_backward: float = Field(
        2.75,
        ge=0,
        le=100,
        description="Time of attention's backward over that of its forward: five products to two, and slower ones.",
    )
    ring_backward: float = Field(
        4.1,
        ge=0,
        le=100,
        description="The same of a ring, for which FlexAttention runs the forward of each part again.",
    )
    compute_bytes: Bytes = Field(2, description="Bytes of a number that the model computes with; bfloat16 has 2.")
    sum_bytes: Bytes = Field(4, description="Bytes of a number that gradients are added in; float32 has 4.")
    state_bytes: float = Field(
        16.0,
        ge=0,
        le=64,
        description="Bytes of a parameter, its gradient and AdamW's two means, sharded over all ranks.",
    )
    logits_gb: float = Field(1.074, ge=0, le=1e6, description="Memory of logits at a time, in 10^9 bytes.")
    memory_share: Share = Field(0.9, description="Share of the memory that tensors may take.")
    recompute: Literal["auto", Recompute] = Field(
        "auto", description="What the backward pass computes again; auto is the least with which a split fits."
    )
    offload: Literal["auto", "none"] = Field(
        "auto",
        description="Whether inputs of blocks, and state, may go to the host where nothing else fits.",
    )
    host_gb_per_s: Rate = Field(
        50.0,
        description="Bandwidth between a device and its host, one direction, in 10^9 bytes/s; PCIe 5.0 has 63.",
    )
    host_memory_gb_per_s: Rate = Field(
        50.0, description="A device's share of its host's memory bandwidth, for AdamW there, in 10^9 bytes/s."
    )
    compiled: bool = Field(
        True, description="Whether the trainer fuses what lies between two attentions, as by default."
    )
    most_packs: int | None = Field(
        None, ge=1, le=2**31, description="Most packs of a step, where the global batch has a limit."
    )
    limit: int = Field(10, ge=1, le=MAX_SPLITS, description="Most splits in the answer, the fastest first.")

    @property
    def device(self) -> Device:
        """The kind of device, with the values that were given in place of its own."""
        kind = DEVICES[self.gpu]
        given = {name: getattr(self, name) for name in Device._fields if name != "source"}
        return kind._replace(**{name: value for name, value in given.items() if value is not None})

    def model_of(self, cost: CostConfig) -> CostConfig:
        """The model's dimensions, with those that were given in place of its own."""
        given = {name: getattr(self, name) for name in MODEL_KEYS if getattr(self, name) is not None}
        return cost.model_copy(update=given)


def make_question(values: dict[str, Any]) -> AdviceQuestion:
    """A question from options.

    Raises:
        ConfigError: a value is not legal; names it and says what is.
    """
    try:
        return AdviceQuestion.model_validate(values)
    except ValidationError as error:
        found = first_violation(error)
        if found.is_unknown_key:
            legal = [name for name in AdviceQuestion.model_fields if name not in ("gpus", "gpu", "limit")]
            near = meant(found.path, legal) or f"; legal are {', '.join(legal)}"
            raise ConfigError(f"--assume {found.path}: unknown{near}") from None
        raise ConfigError(f"--assume {found.path}={found.value!s:.80}: {legal_instead(error)}") from None
