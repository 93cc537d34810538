"""Cost of a checkpoint's checksums: processor time of saving with and without them, and of checking.

python tests/benchmarks/checksums.py [FOLDER]    # a folder in memory (/dev/shm), so that no disk is measured
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from preshard.trainer.extra.checkpoint_check import SummedWriter, first_fault, join_sums

TENSORS, NUMBERS, REPEATS = 8, 2**25, 5
GB = TENSORS * NUMBERS * 4 / 1e9


def seconds_of_save(
    kind: type[dcp.FileSystemWriter], folder: Path, state: dict[str, torch.Tensor]
) -> tuple[float, dcp.FileSystemWriter]:
    shutil.rmtree(folder, ignore_errors=True)
    writer, began = kind(folder), time.process_time()
    dcp.save(dict(state), storage_writer=writer)
    return time.process_time() - began, writer


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    state = {f"weight {i}": torch.ones(NUMBERS) * i for i in range(TENSORS)}
    plain = min(seconds_of_save(dcp.FileSystemWriter, folder, state)[0] for _ in range(REPEATS))
    summed = min(seconds_of_save(SummedWriter, folder, state)[0] for _ in range(REPEATS))
    _, writer = seconds_of_save(SummedWriter, folder, state)
    assert isinstance(writer, SummedWriter)
    join_sums(folder, writer, {"run.json": b"{}"})
    checked = []
    for _ in range(REPEATS):
        began = time.process_time()
        assert first_fault(folder) is None
        checked.append(time.process_time() - began)
    shutil.rmtree(folder)
    print(f"saving {GB:.2f} GB: {plain:.2f} s without checksums, {summed:.2f} s with; checking: {min(checked):.2f} s")
    print(f"of 100 GB: {(summed - plain) / GB * 100:.0f} s more, and {min(checked) / GB * 100:.0f} s to check")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "/dev/shm/preshard-checksums"))
