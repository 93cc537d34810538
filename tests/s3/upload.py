"""What a large shard in an object store costs: seconds, and memory beside that of the libraries.

    python tests/s3/upload.py [--mib 1024]

Writes blocks of random bytes through ``Folder.writer`` to moto's server on this machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT), str(ROOT / "tests" / "benchmarks")]

from machine import hardware  # noqa: E402
from s3_server import s3_store  # noqa: E402

from preshard.packer_service.shards.store import Folder  # noqa: E402

LOOK_SECONDS = 0.02


def private_kib() -> int:
    """Memory of this process that belongs to no file."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    [line] = [line for line in status if line.startswith("RssAnon:")]
    return int(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="size of the shard")
    given = parser.parse_args()
    print(hardware())
    block, most, over = os.urandom(1 << 20), [0], threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_SECONDS):
            most.append(max(most.pop(), private_kib()))

    with s3_store() as store:
        folder = Folder(store.uri("large"))
        folder.write("small.bin", b"1")
        before = private_kib()
        threading.Thread(target=watch, daemon=True).start()
        began = time.monotonic()
        with folder.writer("large.tar") as sink:
            for _ in range(given.mib):
                sink.write(block)
            staged = time.monotonic()
        ended = time.monotonic()
        over.set()
    print(
        f"{given.mib} MiB: {staged - began:.1f} s to stage, {ended - staged:.1f} s to upload, "
        f"{(most[0] - before) / 1024:.0f} MiB of memory at most"
    )


if __name__ == "__main__":
    main()
