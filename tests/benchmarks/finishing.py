"""Finishing and resuming a job of very many shards: time, requests, and the memory of the driver.

    python tests/benchmarks/finishing.py [--shards 20000] [--packs-per-shard 16] [--documents-per-pack 4]

The shards' records are made from random lengths, each with a tiny tar that is as recorded, so nothing is packed. Tasks
run in processes of their own, as many as there are CPUs; each step in a new driver. A request is a call that reads,
writes, lists or asks for one file or folder of the work folder or the dataset.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT), str(ROOT / "tests" / "support")]

from machine import hardware  # noqa: E402
from made_records import CONFIG, TARGET, MadeRecords  # noqa: E402

from preshard.packer_service.job.finish import finish  # noqa: E402
from preshard.packer_service.job.stages import kept_shards  # noqa: E402
from preshard.packer_service.runtime.progress import NoProgress  # noqa: E402
from preshard.packer_service.shards.store import Folder  # noqa: E402
from preshard.schemas.dataset.manifest_parts import decode_manifest_parts  # noqa: E402
from preshard.schemas.manifest import MANIFEST  # noqa: E402

ASKS = ("entries", "sizes", "size", "is_file", "exists", "read", "open", "stream", "write", "writer", "delete_all")
"""Methods of a folder that send a request."""


class Processes:
    """Runs tasks in processes of their own and notes the largest of them."""

    def __init__(self) -> None:
        self.tasks, self.peak, self.requests = 0, 0.0, Counter[str]()

    def run(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("forkserver")) as pool:
            running = {pool.submit(_in_a_process, function, item): i for i, item in enumerate(items)}
            for each in as_completed(running):
                result, peak, requests = each.result()
                self.tasks, self.peak = self.tasks + 1, max(self.peak, peak)
                self.requests += requests
                yield running[each], result


def _in_a_process(function: Callable[[Any], Any], item: Any) -> tuple[Any, float, Counter[str]]:
    requests = _count_requests()
    requests.clear()
    return function(item), _peak_mib(), requests


_COUNTED = Counter[str]()


def _count_requests() -> Counter[str]:
    """Counts the requests of this process from here on."""
    if not getattr(Folder.read, "counted", False):
        for name in ASKS:
            setattr(Folder, name, _counted(name, getattr(Folder, name)))
    return _COUNTED


def _counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(folder: Folder, *given: Any) -> Any:
        _COUNTED[name] += 1
        return method(folder, *given)

    call.counted = True  # type: ignore[attr-defined]
    return call


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _step(step: str, made: MadeRecords, out: Path) -> dict[str, Any]:
    executor, requests, before, began = Processes(), _count_requests(), _peak_mib(), time.monotonic()
    folder, cpu = Folder(str(out)), time.process_time()
    if step == "resume":
        kept = kept_shards(folder, made.n_shards, executor=executor, few_bytes=0, progress=NoProgress())
        assert kept.all()
    elif step == "finish":
        finish(
            folder,
            made,  # type: ignore[arg-type]
            n_shards=made.n_shards,
            config=made.config,
            target=TARGET,
            unread={},
            carried=[],
            executor=executor,
            progress=NoProgress(),
        ).write_manifest(folder)
    else:
        _, shards = decode_manifest_parts(folder.read(MANIFEST), MANIFEST)
        assert sum(shard.packs for shard in shards) == made.n_packs
    return {
        "seconds": time.monotonic() - began,
        "cpu": time.process_time() - cpu,
        "driver MiB": _peak_mib() - before,
        "driver's requests": sum(requests.values()),
        "tasks": executor.tasks,
        "largest task MiB": executor.peak,
        "tasks' requests": sum(executor.requests.values()),
    }


def _make(first: int, made: MadeRecords, out: Path) -> int:
    made.write(out, range(first, min(first + 256, made.n_shards)))
    return first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=20_000)
    parser.add_argument("--packs-per-shard", type=int, default=16)
    parser.add_argument("--documents-per-pack", type=int, default=4)
    parser.add_argument("--step", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    config = CONFIG.model_copy(update={"packs_per_shard": given.packs_per_shard})
    made = MadeRecords(given.shards * given.packs_per_shard, each=given.documents_per_pack, config=config)
    if given.step:
        print(json.dumps(_step(given.step[0], made, Path(given.step[1]))))
        return
    print(f"{hardware()}; {given.shards:,} shards, {made.n_packs:,} packs, {made.n_rows:,} documents", flush=True)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/tmp")) as temporary:
        out = Path(temporary) / "out"
        for _ in Processes().run(partial(_make, made=made, out=out), range(0, made.n_shards, 256)):
            pass
        for step in ("resume", "finish", "read the manifest"):
            words = [sys.executable, __file__, *sys.argv[1:], "--step", step, str(out)]
            found = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)
            print(f"{step}: " + ", ".join(f"{name} {value:,.1f}" for name, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
