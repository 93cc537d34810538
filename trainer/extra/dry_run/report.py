"""Report of a dry run, as lines of text."""

from __future__ import annotations

from collections import Counter

from preshard.schemas.files.printed import several
from preshard.schemas.model.memory import USABLE
from preshard.trainer.core.config import TrainConfig
from preshard.trainer.extra.dry_run.run import DryRun, dry_run
from preshard.trainer.extra.memory_check import GIB
from preshard.trainer.extra.waiting import doing

CLASSES = {"products": "products with weights", "attention": "attention", "other": "everything else"}


def report(config: TrainConfig) -> list[str]:
    """Counts a step of one rank and says what it found."""
    doing("counting a step of one rank on tensors without contents")
    return describe(dry_run(config))


def describe(run: DryRun) -> list[str]:
    """The figures, memory first, then what waits, then what is sent and run."""
    config, usable = run.config, USABLE * run.device
    fits = "fits" if run.peak <= usable else "does not fit"
    during = max(run.peaks, key=lambda phase: run.peaks[phase])
    estimate = "" if run.estimate is None else f"; estimated for the fullest pack: {_gib(run.estimate.parts.total)}"
    lines = [
        f"rank {run.rank} of {run.world} on an imagined {config.gpu}: --ulysses {config.ulysses} --ring {config.ring} "
        f"--attention {config.attention}, {config.dtype}, recompute {config.recompute}; no GPU has confirmed this",
        f"{'pack' if len(run.packs) == 1 else 'packs'} {', '.join(map(str, run.packs))}: "
        f"{several(run.tokens, 'token')} and {several(run.patches, 'patch')} on this rank",
        f"memory: at most {_gib(run.peak)} of {_gib(usable)} GiB, {fits}, in the {during}; {_gib(run.state)} between "
        f"steps{estimate}",
        "  " + ", ".join(f"{part} {_gib(size)}" for part, size in run.parts.items()),
        "  at most, by phase: " + ", ".join(f"{phase} {_gib(size)}" for phase, size in run.peaks.items()),
    ]
    if run.host:
        lines.append(f"  on the host: {_gib(run.host)}")
    lines += _places("waits for the device", run.waits)
    lines += _places("copies to the device that the host waits for", run.blocking)
    lines += _places("copies from memory that is not page-locked", run.pageable)
    ways = ("to device", "to host")
    there, back = (sum(size for (_, each), size in run.copied.items() if each == way) for way in ways)
    lines.append(f"copied to the device: {_gib(there)} GiB, to the host: {_gib(back)} GiB")
    lines.append("collectives:")
    for (phase, kind), (calls, size) in run.collectives.items():
        lines.append(f"  {phase} {kind}: {several(calls, 'call')}, {_gib(size)} GiB")
    lines.append("operators on the device:")
    for kind, name in CLASSES.items():
        lines.append(
            f"  {name}: {several(run.kernels_of(kind), 'call')}, {_gib(run.moved_by(kind))} GiB read and written"
        )
    return lines


def _places(what: str, places: Counter[str]) -> list[str]:
    return [f"{what}: {places.total()}", *(f"  {count} x {place}" for place, count in places.most_common())]


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}"
