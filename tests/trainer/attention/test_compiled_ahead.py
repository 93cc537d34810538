"""Attention's kernels, compiled for GPUs that need not exist, take no more of them than when this was written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed; make test-matrix has it in the environment triton-3.9.0")

from preshard.trainer.extra.dry_run import guard

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(guard.compiler() is None, reason="no C++ compiler to build trainer/extra/dry_run/guard.cpp"),
]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "compiled_kernels.py"

RECORDED = {
    80: {("forward", True): (239, 0), ("forward", False): (255, 16), ("backward", True): (255, 752)},
    90: {("forward", True): (164, 0), ("forward", False): (222, 0), ("backward", True): (255, 360)},
    100: {("forward", True): (170, 0), ("forward", False): (222, 0), ("backward", True): (255, 1544)},
}
"""Registers and bytes of stack by architecture, for whole tiles or not, with torch 2.13 and triton 3.9."""

SHARED = {80: 104_448, 90: 171_008, 100: 203_840}
"""The most bytes of shared memory of a block."""


@pytest.mark.parametrize("architecture", RECORDED)
def test_kernels_take_no_more_than_they_did(architecture: int) -> None:
    """Fails when a change of the mask's rule or of options makes a kernel spill, not fit, or not compile; or when whole
    tiles are checked against lengths again.
    """
    command = [sys.executable, str(SCRIPT), str(architecture)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = {(line["kernel"], line["whole_tiles"]): (line["registers"], line["stack"]) for line in lines}
    assert len(found) == 4
    for kernel, (registers, stack) in RECORDED[architecture].items():
        assert found[kernel][0] <= registers
        assert found[kernel][1] <= 1.05 * stack
    assert max(line["shared"] for line in lines) <= SHARED[architecture]
