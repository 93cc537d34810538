"""Runs tests with other versions: of torch and transformers, each with each, of Python, and of other trainers.

    .venv/bin/python tests/matrix/run.py [TORCH-TRANSFORMERS ...] [PYTHON ...] [TRAINER ...]

Started by `make test-matrix`. Each pair of versions and each trainer has an environment in .venv-matrix, which is kept
for the next time; one takes 6 GB where the package index has its torch only for CUDA.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

REPOSITORY = Path(__file__).parents[2]
HERE = REPOSITORY / "tests" / "matrix"
FOLDER = REPOSITORY / ".venv-matrix"


def constraints(pins: list[str]) -> str:
    """The project's constraints with other versions of some packages."""
    instead = {_name(pin): pin for pin in pins}
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.startswith("#") or _name(line) not in instead]
    return "\n".join([*kept, *instead.values(), ""])


def _name(pin: str) -> str:
    return re.sub("[-_.]+", "-", pin.partition("==")[0]).lower()


def interpreter(version: str) -> str:
    """A Python of this version: one of this machine, or one that uv fetches.

    Raises:
        OSError: there is none.
    """
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for found in (shutil.which(f"python{version}"), *pyenv):
        # one of pyenv's shims may be there without a version behind it
        if found and subprocess.run([str(found), "--version"], capture_output=True, check=False).returncode == 0:
            return str(found)
    uv = [sys.executable, "-m", "uv", "python"]
    subprocess.run([*uv, "install", "--quiet", version], check=False)
    fetched = subprocess.run([*uv, "find", "--managed-python", version], capture_output=True, text=True, check=False)
    if fetched.returncode:
        raise OSError(f"no Python {version} on this machine, and uv fetches none")
    return fetched.stdout.strip()


def install(
    folder: Path, pins: list[str], packages: list[str], alone: list[str], interpreter: str = sys.executable
) -> Path:
    """An environment with these versions, made anew unless it has them; gives its Python."""
    python, asked = folder / "bin" / "python", folder / "constraints.txt"
    wanted = constraints(pins)
    if asked.exists() and asked.read_text(encoding="utf-8") == wanted:
        return python
    subprocess.run([interpreter, "-m", "venv", "--clear", str(folder)], check=True)
    making = folder / "making.txt"
    making.write_text(wanted, encoding="utf-8")
    tools = ["-r", str(HERE / "requirements.txt"), "-e", *packages]
    installer = [str(python), "tests/support/install.py", "-c", str(making), *tools]
    subprocess.run(installer, cwd=REPOSITORY, check=True)
    if alone:
        subprocess.run([*installer[:2], "--no-deps", *alone], cwd=REPOSITORY, check=True)
    making.rename(asked)
    return python


def run(name: str, python: Path, tests: list[str], without: str = "") -> tuple[str, bool]:
    """Runs tests with an environment, but those marked ``slow``; a line of what came out, and whether all passed."""
    report, started = FOLDER / f"{name}.xml", time.monotonic()
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "--quiet", "-n", os.environ.get("WORKERS", "2"), f"--junitxml={report}"]
    command += ["-m", "not cluster and not slow", *tests, *(["-k", f"not ({without})"] if without else [])]
    done = subprocess.run(command, cwd=REPOSITORY, check=False)
    if not report.exists():
        return f"no test ran: pytest ended with {done.returncode}", False
    suite = ElementTree.parse(report).getroot()[0]
    ran, skipped = int(suite.attrib["tests"]), int(suite.attrib["skipped"])
    bad = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    minutes = (time.monotonic() - started) / 60
    return f"{ran - skipped - bad} passed, {bad} failed, {skipped} skipped, {minutes:.1f} min", done.returncode == 0


def main(chosen: list[str]) -> int:
    """Runs all pairs, or those that are named, and prints a line for each."""
    table: dict[str, Any] = tomllib.loads((HERE / "versions.toml").read_text(encoding="utf-8"))
    usual = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = {
        f"{one}-{other}": (one, other)
        for one, other in product(table["torch"], table["transformers"])
        if table["torch"][one].get("with", other) == other and table["transformers"][other].get("with", one) == one
        if not {f"torch=={one}", f"transformers=={other}"} <= {*usual}  # which all other tests run with
    }
    pythons = table["pythons"]
    known = [*pairs, *pythons["versions"], *table["trainers"]]
    if unknown := set(chosen) - set(known):
        print(f"nothing to run is called {min(unknown)}; take some of {', '.join(known)}", file=sys.stderr)
        return 2
    lines, all_good = [], True
    for name in chosen or known:
        if name in pythons["versions"]:
            print(f"==> Python {name}", flush=True)
            python = install(FOLDER / f"python-{name}", [], pythons["packages"], [], interpreter(name))
            said, good = run(f"python-{name}", python, pythons["tests"])
            lines.append(f"Python {name}: {said}")
            all_good &= good
            continue
        if trainer := table["trainers"].get(name):
            print(f"==> {name}", flush=True)
            python = install(FOLDER / name, trainer["pins"], trainer["packages"], trainer.get("alone", []))
            said, good = run(name, python, trainer["tests"])
            lines.append(f"{name}: {said}")
            all_good &= good
            continue
        torch, transformers = pairs[name]
        of_torch, of_transformers = table["torch"][torch], table["transformers"][transformers]
        pins = [f"torch=={torch}", f"transformers=={transformers}"]
        pins += of_torch.get("pins", []) + of_transformers.get("pins", [])
        print(f"==> torch {torch}, transformers {transformers}", flush=True)
        python = install(FOLDER / name, pins, [".[pack,train,demo]"], [])
        without = [each["without"] for each in (of_torch, of_transformers) if "without" in each]
        said, good = run(name, python, table["tests"], " or ".join(without))
        lines.append(f"torch {torch}, transformers {transformers}: {said}")
        all_good &= good
    print(*lines, sep="\n")
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
