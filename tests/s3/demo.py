"""The whole demo from and to S3: every byte as packed from and to a disk.

    python tests/s3/demo.py [--source FOLDER]

Makes the demo source (or takes ``FOLDER``), packs it on the disk, uploads it to moto's server on this machine, packs it
from there to there by the same command, verifies what is there, and compares all files. Exit status 1 if any differs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT), str(ROOT / "tests" / "benchmarks")]

from machine import hardware  # noqa: E402
from s3_server import s3_store  # noqa: E402


def preshard(*words: str) -> float:
    """Runs a command; its seconds."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-m", "preshard.packer_service", *words], cwd=ROOT, check=True)
    return time.monotonic() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, help="a demo source; it is made when there is none")
    given = parser.parse_args()
    print(hardware())
    with tempfile.TemporaryDirectory() as temporary, s3_store() as store:
        source, out = given.source or Path(temporary) / "source", Path(temporary) / "dataset"
        if given.source is None:
            preshard("demo-source", str(source))
        local = preshard("pack", str(source), "--max-rejects", "0.1", "--out", str(out))
        begin = time.monotonic()
        remote_source = store.upload(source, source.resolve().name)  # its name is in the locations of rejects
        upload = time.monotonic() - begin
        remote = preshard("pack", remote_source, "--max-rejects", "0.1", "--out", store.uri("dataset"))
        verify = preshard("verify", store.uri("dataset"))
        files = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
        del files["run.json"]
        there = store.files("dataset")
    different = sorted(name for name in files.keys() | there.keys() if files.get(name) != there.get(name))
    print(
        f"pack: {local:.1f} s on the disk, {remote:.1f} s from and to S3 (upload {upload:.1f} s, verify there "
        f"{verify:.1f} s); {len(files)} files, {sum(map(len, files.values())) / 1e6:.1f} MB, different: {different}"
    )
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
