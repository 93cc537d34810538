"""Faults that were once here, put back one at a time, each of which the drawn files must find.

    nice python tests/hostile/planted.py [--files 400] [--seed 0] [FAULT ...]

Each is planted in a copy of the tree, and :mod:`files` draws in it until something differs. Prints after how many files
that was. Exit status 1 if one is not found.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
TREES = ("preshard", "packer_service", "schemas", "tests/hostile")
INGEST = "packer_service/ingest"
VALUES = f"{INGEST}/source/containers/arrow_values.py"
TARS = f"{INGEST}/source/containers/tar_samples.py"
TYPES = "packer_service/job/planning/column_types.py"


@dataclass(frozen=True)
class Fault:
    """A change of one file.

    Attributes:
        generator: draws the files that find it.
        file: is changed.
        right: what stands there, once.
        wrong: what stands there then.
    """

    generator: str
    file: str
    right: str
    wrong: str


FAULTS = {
    "maps as pairs": Fault(
        "tables",
        VALUES,
        "    return lambda pairs: {\n"
        "        _key(k if key is None else key(k)): v if v is None or item is None else item(v) for k, v in pairs\n"
        "    }\n",
        "    return lambda pairs: [\n"
        "        [k if key is None else key(k), v if v is None or item is None else item(v)] for k, v in pairs\n"
        "    ]\n",
    ),
    "nulls for keys that are missing": Fault(
        "tables",
        VALUES,
        "        name: of_field[name](value) if name in of_field else value\n"
        "        for name, value in fields.items()\n"
        "        if value is not None\n",
        "        name: of_field[name](value) if name in of_field and value is not None else value\n"
        "        for name, value in fields.items()\n",
    ),
    "JSON columns as text": Fault(
        "tables", VALUES, "return json.loads if is_json(kind)", "return str if is_json(kind)"
    ),
    "times of nanoseconds rounded": Fault("tables", VALUES, """.strip("0")), 9)""", """.strip("0")), 6)"""),
    "integers through float in where": Fault(
        "tables",
        TYPES,
        "    return value if value is None or isinstance(value, str) else json.dumps(value)\n",
        "    return value if value is None or isinstance(value, str) else json.dumps(\n"
        "        float(value) if type(value) is int else value\n"
        "    )\n",
    ),
    "zero bytes between gzip members": Fault(
        "tables", f"{INGEST}/source/containers/compressed.py", 'if file.compression == "gzip":', "if False:"
    ),
    "TIFF turned twice": Fault(
        "pictures", f"{INGEST}/media/image.py", 'None if image.format == "TIFF" else _UPRIGHT', "_UPRIGHT"
    ),
    "links as empty files": Fault("tars", TARS, "    if member.link is None or links is None:\n", "    if True:\n"),
    "sparse files without holes": Fault(
        "tars",
        TARS,
        "    if len(parts) == 1 and len(parts[0]) == member.size:\n        return parts[0]\n",
        "    if parts:\n        return b''.join(parts)\n",
    ),
    "times that go back": Fault(
        "videos", f"{INGEST}/media/line.py", "if self._begins_another(group[0], known):", "if False:"
    ),
    "parts by key frames alone": Fault(
        "videos", f"{INGEST}/media/line.py", "            if self._parts.seam is not None:", "            if False:"
    ),
}  # fmt: skip


def found_after(fault: Fault, files: int, seed: int) -> tuple[int, str] | None:
    """Number of files drawn until something differed, and the line that says so; None if nothing did."""
    with tempfile.TemporaryDirectory(prefix="preshard-planted-") as folder:
        copy = Path(folder)
        for tree in TREES:
            shutil.copytree(CHECKOUT / tree, copy / tree, symlinks=True)
        path = copy / fault.file
        text = path.read_text()
        if text.count(fault.right) != 1:
            raise SystemExit(f"{fault.file} has not once: {fault.right}")
        path.write_text(text.replace(fault.right, fault.wrong))
        draws = [sys.executable, str(copy / "tests/hostile/files.py"), "--only", fault.generator, "--until-one-differs"]
        done = subprocess.run(
            [*draws, "--files", str(files), "--seed", str(seed)], cwd=copy, capture_output=True, text=True, check=False
        )
    line = next((line for line in done.stdout.splitlines() if line.startswith("DIFFERS")), None)
    number = re.search(r"^([\d,]+) files?,", done.stdout, re.MULTILINE)
    if number is None:
        raise SystemExit(done.stderr)
    return None if line is None else (int(number.group(1).replace(",", "")), line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of {', '.join(FAULTS)}")
    parser.add_argument("--files", type=int, default=400, help="at most so many are drawn for each")
    parser.add_argument("--seed", type=int, default=0, help="that of the first case")
    given = parser.parse_args()
    lost = 0
    for name in given.faults or FAULTS:
        found = found_after(FAULTS[name], given.files, given.seed)
        lost += found is None
        print(f"{name:<34} {'NOT FOUND' if found is None else f'{found[0]:>5} files: {found[1][:120]}'}", flush=True)
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()
