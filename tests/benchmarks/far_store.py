"""What a store that answers late costs a job: packing from it, beside the same files on a disk.

    python tests/benchmarks/far_store.py [--images 300] [--milliseconds 30]

The source are rows of JSON with a photograph each, and what is packed from it is then packed again in another order.
The store is a server in this process, which waits before each answer. Everything runs in one process and its decoder's
process, so what is printed is what one task of a cluster takes; the other tasks wait for answers of their own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import skimage.data
from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT), str(ROOT / "tests" / "s3")]

from machine import hardware  # noqa: E402
from range_server import Asked, served_ranges  # noqa: E402
from repack import Mute  # noqa: E402

from preshard.packer_service.config import load_config  # noqa: E402
from preshard.packer_service.job.pack import pack  # noqa: E402
from preshard.packer_service.runtime.executors import PlainExecutor  # noqa: E402

SETTINGS = ["seq_len=8192", "max_images=128"]
SIZE = (640, 480)


def write_photographs(folder: Path, count: int) -> None:
    folder.mkdir()
    photographs = [Image.fromarray(getattr(skimage.data, name)()) for name in ("astronaut", "chelsea", "coffee")]
    rows = []
    for number in range(count):
        image = photographs[number % len(photographs)].rotate(number).resize(SIZE)
        image.save(folder / f"{number}.jpg", quality=90)
        rows.append({"id": str(number), "images": [f"{number}.jpg"], "text": f"<image> {'a picture ' * 20}"})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@contextmanager
def far(folder: Path, milliseconds: int) -> Iterator[Asked]:
    with served_ranges(folder, before=lambda _: time.sleep(milliseconds / 1000)) as server:
        yield server


def seconds(source: str, out: Path, settings: list[str]) -> float:
    shutil.rmtree(out, ignore_errors=True)
    begin = time.monotonic()
    pack([source], str(out), load_config(None, settings, [source]), PlainExecutor(), Mute())
    return time.monotonic() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--milliseconds", type=int, default=30, help="before each answer")
    given = parser.parse_args()
    print(hardware())
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source, dataset, out = folder / "source", folder / "dataset", folder / "out"
        write_photographs(source, given.images)
        seconds(str(source / "rows.jsonl"), dataset, SETTINGS)
        seconds(str(dataset), out, ["order.seed=1"])  # everything is loaded and compiled
        print(f"{given.images} photographs of {SIZE[0]} x {SIZE[1]} pixels")
        print("| packed | from | seconds | requests | times as long |")
        print("|---|---|---|---|---|")
        for what, where, name, settings in (
            ("rows and images", source, "rows.jsonl", SETTINGS),
            ("again", dataset, "", ["order.seed=1"]),
        ):
            near = seconds(str(where / name), out, settings)
            print(f"| {what} | a disk | {near:.2f} | | |")
            for milliseconds in (0, given.milliseconds):
                with far(where, milliseconds) as server:
                    uri = server.uri.replace("?", f"/{name}?") if name else server.uri
                    taken = seconds(uri, out, settings)
                    n_requests = sum(server.requests.values())
                what_store = f"a store, {milliseconds} ms"
                print(f"| {what} | {what_store} | {taken:.2f} | {n_requests:,} | {taken / near:.1f} |", flush=True)


if __name__ == "__main__":
    main()
