"""Arguments, data, clocks, and rows that are written as they come: what the parts of ``make gpu`` share."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402

FAULTS = ("mask", "scale", "rank")
"""Faults to plant: a mask that lets one token see too much, attention 1% too large, and a rank that is left out."""


@dataclass(kw_only=True)
class Given:
    """Settings of a part's run.

    Attributes:
        device: ``cuda``, or ``cpu`` for a rehearsal, which takes everything in small.
        data: what ``prepare.py`` made.
        out: folder of the figures.
        ends: when no new row is begun, on ``time.monotonic``.
        plant: one of ``FAULTS`` or nothing.
        only: names of the rows or tables that are wanted, all of them if empty.
    """

    device: str
    data: Path
    out: Path
    ends: float
    plant: str = ""
    only: tuple[str, ...] = ()

    @property
    def small(self) -> bool:
        return self.device == "cpu"

    @property
    def over(self) -> bool:
        return time.monotonic() > self.ends

    def chosen(self, names: Iterable[str]) -> list[str]:
        """Names of a part that are wanted: all of them if none is."""
        every = list(names)
        return [name for name in every if name in self.only] or every


ALL_ROWS = 1e6
"""Seconds for a rehearsal, which leaves out no row on a machine that is busy."""


def parse(parts: tuple[str, ...], arguments: list[str] | None = None) -> tuple[str, Given]:
    """The part and how it is to run, from a command line."""
    parser = argparse.ArgumentParser(description="Measures the trainer on one GPU, or rehearses that on a CPU.")
    parser.add_argument("part", choices=parts)
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, in small")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "gpu", help="what tests/gpu/prepare.py made")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "gpu")), help="folder of the figures")
    parser.add_argument("--seconds", type=float, default=420, help="after which no new row is begun")
    parser.add_argument("--plant", choices=FAULTS, default="", help="a fault that has to turn the table red")
    parser.add_argument(
        "--only",
        default="",
        help="what to measure alone, by names parted by semicolons: tables and masks of exact, cases of step, "
        "models of learn, beside or layouts of kernel",
    )
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    device = "cpu" if given.rehearse else "cuda"
    only = tuple(filter(None, given.only.split(";")))
    ends = time.monotonic() + (given.seconds if device == "cuda" else ALL_ROWS)
    return given.part, Given(device=device, data=given.data, out=given.out, ends=ends, plant=given.plant, only=only)


def code_digest() -> str:
    """A digest of ``schemas``, which say what is in a pack. What is mended in the trainer needs no other packs."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "schemas").rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def check_data(data: Path) -> None:
    """Ends the program unless the data were made by this code."""
    stamp = data / "code.txt"
    if not stamp.exists():
        sys.exit(f"{data} has no code.txt; run: .venv/bin/python tests/gpu/prepare.py {data}")
    if (made := stamp.read_text().strip()) != code_digest():
        anew = f".venv/bin/python tests/gpu/prepare.py {data}"
        sys.exit(f"{data} was made by code {made}, this is {code_digest()}; run: {anew}")


def machine(device: str) -> dict[str, Any]:
    """Card, driver and versions."""
    found: dict[str, Any] = {"python": platform.python_version(), "cpus": os.cpu_count(), "code": code_digest()}
    for name in ("torch", "triton", "transformers", "numpy", "pyarrow", "pydantic"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    if device == "cuda":
        card = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": card.name,
            "memory_gib": round(card.total_memory / 2**30, 2),
            "sms": card.multi_processor_count,
        }
        found["cuda"], found["driver"] = torch.version.cuda, _driver()
    return found


def _driver() -> str | None:
    path = Path("/proc/driver/nvidia/version")
    return path.read_text().split("  ")[1] if path.exists() else None


@dataclass
class Table:
    """Rows that are printed as they come and written after each, so that a run that is killed keeps them.

    A row is red if its ``verdict`` is there and is not ``ok``.
    """

    path: Path
    columns: list[str]
    head: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        print(f"{self.path.name}\n| {' | '.join(self.columns)} |", flush=True)

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        print(f"| {' | '.join(_shown(row.get(name, '')) for name in self.columns)} |", flush=True)
        written = json.dumps({"head": self.head, "rows": self.rows}, indent=1, default=str)
        self.path.write_text(written, encoding="utf-8")

    @contextmanager
    def row(self, **named: Any) -> Iterator[dict[str, Any]]:
        """A row to be filled. An error becomes its verdict, and the next row is begun."""
        made, began = dict(named), time.monotonic()
        try:
            yield made
        except Exception as error:  # one failure must not cost what comes after it
            made["verdict"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            made["trace"] = traceback.format_exc()[-3000:]
        made["s"] = round(time.monotonic() - began, 1)
        self.add(made)

    @property
    def red(self) -> int:
        return sum(row.get("verdict", "ok") != "ok" for row in self.rows)


def _shown(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.1e}" if value and not 1e-2 <= abs(value) < 1e5 else f"{value:.3f}".rstrip("0").rstrip(".")


def exact_products() -> None:
    """Products and convolutions in float32 are computed in float32, not in TF32."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def apart(found: torch.Tensor, right: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is right."""
    a, b = found.detach().double().cpu(), right.detach().double().cpu()
    return float((a - b).norm() / (b.norm() or 1.0))


def wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def milliseconds(call: Callable[[], Any], device: str, *, repeat: int = 3, warm: int = 1) -> float:
    """Median of a call's time on the device."""
    for _ in range(warm):
        call()
    if device != "cuda":
        times = []
        for _ in range(repeat):
            began = time.perf_counter()
            call()
            times.append(1000 * (time.perf_counter() - began))
        return statistics.median(times)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeat)]
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


def peak_product(device: str) -> float:
    """TFLOP/s of a product of large bfloat16 matrices of random numbers."""
    n = 256 if device == "cpu" else 8192
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * n**3 / milliseconds(lambda: a @ b, device, repeat=10, warm=3) / 1e9


def flex_for(device: str) -> Callable[..., Any]:
    """FlexAttention as the trainer compiles it; on a CPU as it is, which makes a dense matrix."""
    if device == "cuda":
        from preshard.trainer.attention.kernels.flex import compiled_attention

        return compiled_attention()
    import torch.nn.attention.flex_attention as module

    module._validate_device = lambda *_: None  # refuses a backward on a CPU, wrongly
    return module.flex_attention
