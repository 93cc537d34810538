"""Runs the README's commands from rows to a trained model, with a tiny model and one process in place of GPUs.

    python tests/docs/first_commands.py README.md FOLDER

FOLDER/venv holds the installation whose commands run, and FOLDER/work is made for them. `make release` starts it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

INSTEAD = {
    r"^hf download .* --local-dir (\w+)$": r"preshard demo-model \1 --family qwen3_vl",
    r"--nproc-per-node \d+": "--nproc-per-node 1",
    r"--ring \d+ --layout \w+": "--from-scratch",  # the tiny model's folder has no weights
    r"--steps \d+": "--steps 2",
}
"""Commands that a machine without the Hub and without GPUs runs instead."""
DATASETS = "http://127.0.0.1:8000/v1/datasets"
PATIENCE = 900
"""Seconds until the service must have listed the dataset. It does so in three, but on a machine that does much else."""


def commands(readme: str) -> list[str]:
    """The commands below the heading, without comments, each on one line."""
    [block] = re.findall(r"^## Five commands\n.*?^```bash\n(hf download .*?)^```$", readme, re.MULTILINE | re.DOTALL)
    lines = block.replace("\\\n", " ").splitlines()
    return [re.sub(r"\s+", " ", line.partition(" #")[0]).strip() for line in lines]


def here(command: str) -> str:
    """A command as a machine without the Hub and without GPUs can run it."""
    for pattern, other in INSTEAD.items():
        command = re.sub(pattern, other, command)
    return command


def make_rows(folder: Path) -> None:
    """Writes rows.jsonl in the form of the README's row, and its pictures."""
    from skimage import data
    from skimage.io import imsave

    (folder / "images").mkdir()
    rows = []
    for name in ("chelsea", "coffee", "astronaut"):
        imsave(folder / "images" / f"{name}.jpg", getattr(data, name)())
        said = [{"from": "human", "value": "<image>\nWhat is this?"}, {"from": "gpt", "value": f"It is {name}."}]
        rows.append({"image": f"images/{name}.jpg", "conversations": said})
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def main(readme: str, folder: str) -> int:
    """Runs them in order; the first that fails ends with its status."""
    work, installed = Path(folder, "work"), Path(folder, "venv", "bin").absolute()
    work.mkdir()
    make_rows(work)
    environment = {**os.environ, "PATH": f"{installed}{os.pathsep}{os.environ['PATH']}"}
    for command in map(here, commands(Path(readme).read_text(encoding="utf-8"))):
        print(f"$ {command}", flush=True)
        if command.startswith("preshard serve"):
            status = _serve(command, work, environment)
        else:
            status = subprocess.run(command, shell=True, cwd=work, env=environment, check=False).returncode
        if status:
            return status
    return 0


def _serve(command: str, work: Path, environment: dict[str, str]) -> int:
    """Starts the service, asks it for its datasets, and ends it."""
    service = subprocess.Popen(command.split(), cwd=work, env=environment)
    try:
        until, names = time.monotonic() + PATIENCE, []
        while not names and service.poll() is None and time.monotonic() < until:
            time.sleep(0.5)
            with suppress(urllib.error.URLError), urllib.request.urlopen(DATASETS, timeout=30) as answer:
                names = [item["name"] for item in json.load(answer)["items"]]
        print(f"datasets: {', '.join(names)}", flush=True)
        return 0 if names else 1
    finally:
        service.terminate()
        service.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
