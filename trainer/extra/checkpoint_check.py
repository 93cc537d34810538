"""Checksums of a checkpoint's files: each rank takes those of its own while it writes them, and a share to check."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import google_crc32c
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem

from preshard.trainer.core.checkpoint import step_of, whole_checkpoints
from preshard.trainer.core.processes import first_problem

CHECKSUMS = "checksums.json"
"""File of a checkpoint that has the size and the CRC-32C of each of the others, by their names."""

PIECE = 2**20
"""Bytes that are summed at a time: few enough to stay in a processor's cache between two looks at them."""

Sum = tuple[int, int]
"""Size and CRC-32C of a file."""


class SummedFile(io.BufferedWriter):
    """A new file, and the sum of what has been written to it."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self.size = self.crc = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PIECE):
            # the library takes nothing but bytes
            self.crc = google_crc32c.extend(self.crc, bytes(view[start : start + PIECE]))
        self.size += len(view)
        return super().write(data)


class SummedFiles(FileSystem):
    """The files of one rank, with their sums by name."""

    def __init__(self) -> None:
        self.sums: dict[str, Sum] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        with SummedFile(Path(path)) as file:
            yield file
        self.sums[Path(path).name] = file.size, file.crc

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.sums[Path(new_path).name] = self.sums.pop(Path(path).name)


class SummedWriter(FileSystemWriter):
    """Writes a checkpoint as torch does, and beside each rank's files a file with their sums."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fs = self.summed = SummedFiles()

    def write_data(self, plan: Any, planner: Any) -> Any:
        written = super().write_data(plan, planner)
        write_synced(sums_of_rank(Path(self.path), dist.get_rank()), json.dumps(self.summed.sums).encode())
        return written


def sums_of_rank(folder: Path, rank: int) -> Path:
    """File in which a rank leaves the sums of its files until the checkpoint is whole."""
    return folder / f"checksums-{rank}.json"


def join_sums(folder: Path, writer: SummedWriter, more: dict[str, bytes]) -> None:
    """Writes further files and the sums of all, in place of those that ranks have left. Rank 0 calls it alone.

    Args:
        folder: of the checkpoint, where all ranks have written.
        writer: of rank 0, which has written what torch says of all ranks' files.
        more: contents of the other files, by their names.

    Raises:
        OSError: a file cannot be read or written, such as that of a rank which has written elsewhere.
    """
    of_ranks = [sums_of_rank(folder, rank) for rank in range(dist.get_world_size())]
    sums: dict[str, Any] = {}
    for path in of_ranks:
        sums |= json.loads(path.read_bytes())
    sums |= writer.summed.sums
    for name, content in more.items():
        write_synced(folder / name, content)
        sums[name] = len(content), google_crc32c.value(content)
    write_synced(folder / CHECKSUMS, json.dumps(sums, indent=1, sort_keys=True).encode())
    for path in of_ranks:
        path.unlink()


def first_fault(checkpoint: Path, share: int = 0, shares: int = 1) -> str | None:
    """First fault of a checkpoint's files, if any: one is missing, or not as it was written.

    Args:
        checkpoint: its folder.
        share: which of the files to read; every process that takes one of ``shares`` reads others.
        shares: how many there are.
    """
    try:
        stored = json.loads((checkpoint / CHECKSUMS).read_bytes())
        sums = {str(name): (int(size), int(crc)) for name, (size, crc) in stored.items()}
    except (OSError, ValueError, ArithmeticError, TypeError, AttributeError) as error:
        return f"{CHECKSUMS} cannot be read: {getattr(error, 'strerror', None) or type(error).__name__}"
    for name in sorted(sums, key=lambda name: (-sums[name][0], name))[share::shares]:
        size, crc = sums[name]
        try:
            found = _sum(checkpoint / name)
        except OSError as error:
            return f"{name} cannot be read: {error.strerror or type(error).__name__}"
        if found[0] != size:
            return f"{name} has {found[0]:,} bytes, not {size:,}"
        if found[1] != crc:
            return f"{name} has CRC-32C {found[1]:08x}, not {crc:08x}"
    return None


def _sum(path: Path) -> Sum:
    size = crc = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE):
            size += len(piece)
            crc = google_crc32c.extend(crc, piece)
    return size, crc


def write_synced(path: Path, content: bytes) -> None:
    """Writes a file that is on the disk when this returns."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


T = TypeVar("T")


def find_damaged(folder: Path) -> dict[str, str]:
    """Checkpoints that are newer than the newest sound one, each with what is wrong with it.

    All ranks of a job call this, and each reads its share of the files. A process alone reads all of them.
    """
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    names = sorted(
        (path.name for path in whole_checkpoints(folder)), key=lambda name: step_of(Path(name)), reverse=True
    )
    if len({tuple(each) for each in _of_ranks(names)}) > 1:
        return {}  # they see different folders, which is said elsewhere
    damaged: dict[str, str] = {}
    for name in names:
        faults = [fault for fault in _of_ranks(first_fault(folder / name, rank, ranks)) if fault is not None]
        if not faults:
            break
        damaged[name] = faults[0]
    return damaged


def find_unshared(folder: Path) -> str | None:
    """Reason why ranks cannot write checkpoints into a folder together, in a line, or None. All ranks call this."""
    names = [f"unfinished-{uuid4().hex}"]
    dist.broadcast_object_list(names)
    probe, problem = folder / names[0], None
    try:
        probe.mkdir(parents=True, exist_ok=True)
        (probe / str(dist.get_rank())).touch()
    except OSError as error:
        problem = f"--checkpoint is {folder}, which cannot be written ({error.strerror or error})"
    if (problem := first_problem(problem)) is None:
        missing = [rank for rank in range(dist.get_world_size()) if not (probe / str(rank)).exists()]
        if missing:
            problem = (
                f"--checkpoint is {folder}, where rank {dist.get_rank()} does not find what rank {missing[0]} has "
                "written; all ranks must see the same files: give a path of a filesystem that they share"
            )
        problem = first_problem(problem)
    shutil.rmtree(probe, ignore_errors=True)
    return problem


def _of_ranks(mine: T) -> list[T]:
    """Values of all ranks; alone, that of this process."""
    if not dist.is_initialized():
        return [mine]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return every
