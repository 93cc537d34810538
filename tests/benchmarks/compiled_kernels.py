"""Compiles attention's kernels for GPUs that need not exist, and says what they take of a multiprocessor.

    python tests/benchmarks/compiled_kernels.py 80 90 100

Needs triton (the environment triton-3.9.0 of ``make test-matrix``) and, as a dry run, a C++ compiler. FlexAttention
with the mask's rule is lowered as a step lowers it, for bfloat16, 32 query heads, 8 key heads and a head_dim of 128,
for lengths of whole tiles and for others. A line of JSON for each kernel: its registers, the bytes of its stack, where
values go for which it has no register, and its shared memory, as NVIDIA's ``cuobjdump`` and triton give them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch._dynamo.device_interface
import torch._inductor.config
import torch._inductor.fx_passes.joint_graph
import torch._inductor.fx_passes.post_grad
import torch.nn.attention.flex_attention
import torch.utils._triton
import triton
from torch._guards import detect_fake_mode
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache
from torch._inductor.compile_fx import compile_fx
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from preshard.schemas.sequence import MaskArrays
from preshard.trainer.attention.kernels.flex import Flex, compiled_attention
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.extra.dry_run.guard import cuda_in_autograd

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
LENGTHS = {True: 1024, False: 1000}
"""Tokens, of whole tiles or not."""

SHARED = {80: 166_912, 90: 232_448, 100: 232_448}
"""Bytes of shared memory that a block may have, by architecture."""


class _LoweredError(Exception):
    """The kernels' sources are there; nothing runs."""


def imitate(architecture: int) -> None:
    """Makes this process find one GPU of an architecture, as far as Inductor and Triton ask for it."""
    capability = divmod(architecture, 10)
    properties = SimpleNamespace(
        name="NVIDIA H100" if architecture == 90 else "NVIDIA",
        **{"major": capability[0], "minor": capability[1], "multi_processor_count": 132, "total_memory": 80 * 2**30},
        **{"regs_per_multiprocessor": 65536, "max_threads_per_multi_processor": 2048, "max_threads_per_block": 1024},
        **{"warp_size": 32, "shared_memory_per_block_optin": SHARED[architecture], "gcnArchName": ""},
    )
    cuda: dict[str, Any] = {
        **{"is_available": True, "device_count": 1, "current_device": 0, "get_device_properties": properties},
        **{"get_device_capability": capability, "_exchange_device": 0, "_maybe_exchange_device": 0},
        **{"is_initialized": False, "get_rng_state": torch.zeros(1, dtype=torch.uint8), "set_rng_state": None},
        **{"device": nullcontext(), "_DeviceGuard": nullcontext()},
    }
    interface = {
        **{"is_available": True, "get_compute_capability": architecture, "get_device_properties": properties},
        **{"is_triton_capable": True, "raise_if_triton_unavailable": None},
    }
    _answer(torch.cuda, cuda)
    for name, value in interface.items():
        setattr(torch._dynamo.device_interface.CudaInterface, name, staticmethod(_always(value)))
    worker = torch._dynamo.device_interface.CudaInterface.Worker
    worker.get_device_properties, worker.current_device = staticmethod(_always(properties)), staticmethod(_always(0))
    torch.utils._triton.has_triton.cache_clear()


def _always(value: Any) -> Any:
    return lambda *_args, **_named: value


def _answer(target: Any, answers: dict[str, Any]) -> None:
    for name, value in answers.items():
        setattr(target, name, _always(value))


def lower(architecture: int, length: int) -> dict[str, str]:
    """The sources of the kernels for packs of a length, forward and backward, by their names."""
    sources: dict[str, str] = {}

    def take(_self: Any, name: str, source: str, device_str: str = "cuda") -> Any:
        sources[name] = source
        return SimpleNamespace(run=None)

    def backend(graph: Any, _inputs: Any) -> Any:
        given = [node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"]
        mode = detect_fake_mode(given)
        assert mode is not None
        with mode:
            moved = [_on_cuda(each) if isinstance(each, torch.Tensor) else each for each in given]
        imitate(architecture)
        with cuda_in_autograd(), torch.autograd.set_multithreading_enabled(False):
            compile_fx(graph, moved)
        raise _LoweredError

    AsyncCompile.triton, AsyncCompile.wait = take, _always(None)  # type: ignore[method-assign,assignment]
    torch.nn.attention.flex_attention._validate_device = _always(None)
    for passes in (torch._inductor.fx_passes.joint_graph, torch._inductor.fx_passes.post_grad):
        passes.lazy_init = _always(None)  # type: ignore[attr-defined] # patterns, which it would try on a device
    _answer(torch._C, {"_cuda_getCurrentRawStream": 0})
    _answer(torch._C._dynamo.guards, {"_empty_strided_cuda": None})
    documents = np.sort(np.arange(length, dtype=np.int32) % 4)
    none = np.full(length, -1, np.int32)
    mask = MaskTensors.from_arrays(MaskArrays(doc_ids=documents, branch_ids=np.zeros_like(none), group_ids=none))
    kernel = Flex(attention=compiled_attention(backend))
    shape = (length, HEAD_DIM)
    q, k, v = (
        torch.zeros(heads, *shape, dtype=torch.bfloat16, requires_grad=True) for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    with torch._inductor.config.patch(force_disable_caches=True, compile_threads=1):
        try:
            kernel._attend(q, k, v, kernel.prepare(mask, mask))
        except Exception as error:
            if "_LoweredError" not in f"{type(error)} {error}":
                raise
    return {name: source for name, source in sources.items() if "_tem_" in name}


def _on_cuda(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cuda")
    return made.requires_grad_(tensor.requires_grad)


class _Driver:
    """Triton's, of a device that is not there."""

    def __init__(self, architecture: int) -> None:
        self.target = GPUTarget("cuda", architecture, 32)
        answers = {"get_current_target": self.target, "get_current_device": 0, "get_current_stream": 0}
        _answer(self, {**answers, "is_active": True, "get_device_capability": divmod(architecture, 10)})
        _answer(self, {"get_active_torch_device": torch.device("cuda", 0), "get_device_interface": torch.cuda})


def measure(name: str, source: str, architecture: int) -> dict[str, Any]:
    """Resources that a kernel takes, compiled for an architecture."""
    tuner = getattr(PyCodeCache.load(source), name)
    [config], meta = tuner.configs, tuner.triton_meta
    arguments = tuner.fn.arg_names
    signature = {each: meta["signature"].get(each, "constexpr") for each in arguments}
    constants = {(arguments.index(each),): value for each, value in (meta["constants"] | config.kwargs).items()}
    made = triton.compile(
        ASTSource(tuner.fn, signature, constants, meta["configs"][0]),
        target=GPUTarget("cuda", architecture, 32),
        options={"num_warps": config.num_warps, "num_stages": config.num_stages},
    )
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        found = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    registers, stack = map(int, re.findall(r"REG:(\d+) STACK:(\d+)", found.stdout)[-1])
    return {"registers": registers, "stack": stack, "shared": made.metadata.shared, "warps": config.num_warps}


def main(architecture: int) -> None:
    """Prints a line for each kernel of one architecture, in a process of its own."""
    triton.runtime.driver.set_active(_Driver(architecture))
    for whole, length in LENGTHS.items():
        for name, source in lower(architecture, length).items():
            assert f"IS_DIVISIBLE : tl.constexpr = {whole}" in source, name
            kernel = "backward" if "backward" in name else "forward"
            found = measure(name, source, architecture)
            print(
                json.dumps({"architecture": architecture, "whole_tiles": whole, "kernel": kernel, **found}), flush=True
            )
        torch._dynamo.reset()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(int(sys.argv[1]))
    else:
        for each in sys.argv[1:]:
            subprocess.run([sys.executable, __file__, each], check=True)
