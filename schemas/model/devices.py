"""Figures of devices by their makers, as a starting point that every question may change."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args


class Device(NamedTuple):
    """A kind of device.

    Attributes:
        peak_tflops: dense products in bfloat16, in 10^12 operations per second.
        memory_gb: memory in 10^9 bytes.
        memory_gb_per_s: its bandwidth, in 10^9 bytes per second.
        node_gb_per_s: bandwidth to the other devices of a node, one direction, in 10^9 bytes per second.
        network_gb_per_s: bandwidth of one device to other nodes, one direction.
        gpus_per_node: devices of a node.
        source: where the figures are from.
    """

    peak_tflops: float
    memory_gb: float
    memory_gb_per_s: float
    node_gb_per_s: float
    network_gb_per_s: float
    gpus_per_node: int
    source: str


DeviceName = Literal["a100", "h100", "h200", "b200", "l40s", "cpu"]

_DATASHEET = "NVIDIA's datasheet, as its TensorRT-LLM cites it, of the"
"""``tensorrt_llm/auto_parallel/cluster_info.py`` at 16d2467 links each datasheet beside these figures (of an H200's
bfloat16 that with sparsity, twice as much). NVIDIA's guide to the DGX B200 has its memory and adapters; its peak and
64 TB/s over eight devices are quoted by others."""

DEVICES: dict[str, Device] = {
    "a100": Device(312, 80, 2039, 300, 25, 8, f"{_DATASHEET} A100 80GB SXM; a DGX A100's 200 Gb/s adapters"),
    "h100": Device(989, 80, 3350, 450, 50, 8, f"{_DATASHEET} H100 SXM, dense; a DGX H100's 400 Gb/s adapters"),
    "h200": Device(989, 141, 4800, 450, 50, 8, f"{_DATASHEET} H200 SXM, dense; a DGX H200's 400 Gb/s adapters"),
    "b200": Device(
        2250,
        180,
        8000,
        900,
        50,
        8,
        "NVIDIA's datasheet of the DGX B200, as others quote it, dense; its 400 Gb/s adapters",
    ),
    "l40s": Device(362, 48, 864, 32, 25, 8, f"{_DATASHEET} L40S, dense; PCIe 4.0 x16 and a 200 Gb/s adapter each"),
    "cpu": Device(
        0.035,
        8,
        41,
        2.7,
        2.7,
        2,
        "one core in float32: an Intel Xeon, by tests/benchmarks/advice.py; an AMD EPYC's memory",
    ),
}
"""Devices by the name that a question gives."""

assert set(DEVICES) == set(get_args(DeviceName))
