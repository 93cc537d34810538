"""Why a split is as fast as it is, in a sentence."""

from __future__ import annotations

from preshard.packer_service.report.advice.figures import SplitAdvice

NOTABLE = 0.005
"""Share of a step below which a loss is not named."""

LOSSES = {
    "attention_waiting": "waiting for the rank with most tiles",
    "vision_waiting": "waiting for the rank with most image work",
    "exchange": "exchanging keys and heads",
    "parameters": "gathering parameters",
    "straggler": "waiting for the most expensive pack",
}
"""What a part of a step that computes nothing is lost to."""


def reason_of(split: SplitAdvice, memory_gb: float, whole: SplitAdvice | None = None) -> str:
    """What speaks for a split, and what most of its lost time goes to.

    Args:
        split: the split.
        memory_gb: memory of a rank that tensors may take.
        whole: a whole pack on each device, where that is among the splits.
    """
    where = _where(split)
    if whole is not None and whole.recompute != split.recompute and split.fits:
        where += f", and as packs are shared, {WITH[split.recompute]}"
    if not split.fits:
        return f"{where}; a rank needs {split.memory.total:.0f} GB and may use {memory_gb:.0f}."
    return f"{where}; {_lost(split)}."


WITH = {
    "none": "nothing has to be computed again for want of memory",
    "selective": "attention need not be computed again for want of memory",
    "full": "everything is computed again",
}
"""What a way of recomputation means, beside another that a whole pack would need."""


def _where(split: SplitAdvice) -> str:
    ranks = split.ulysses_degree * split.ring_degree
    if ranks == 1:
        return "A device holds a whole pack, so nothing is exchanged and no rank waits inside a pack"
    if split.ring_degree == 1:
        return f"The heads are dealt to {ranks} ranks, so that every layout is even"
    even = split.seconds.attention
    path = (even + split.seconds.attention_waiting) / even if even else 1.0
    over = split.speedup_over_zigzag
    gain = f", {over:.2f} x zigzag's speed" if over and split.layout != "zigzag" and over >= 1 + NOTABLE else ""
    heads = f" after heads are dealt to {split.ulysses_degree}" if split.ulysses_degree > 1 else ""
    return f"The slowest of {split.ring_degree} slices computes {path:.2f} x an even share of the tiles{heads}{gain}"


def _lost(split: SplitAdvice) -> str:
    shares = (
        {name: getattr(split.seconds, name) / split.seconds.total for name in LOSSES} if split.seconds.total else {}
    )
    named = sorted((name for name in shares if shares[name] >= NOTABLE), key=lambda name: -shares[name])[:2]
    if not named:
        return "hardly any time is lost to waiting"
    return "of a step, " + " and ".join(f"{shares[name]:.1%} is {LOSSES[name]}" for name in named)
