"""Answer made from loads: every split estimated, the best first, with what the estimates rest on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from preshard.packer_service.report.advice.assumptions import PREMISES, assumptions_of
from preshard.packer_service.report.advice.estimate.loads import PackLoads
from preshard.packer_service.report.advice.estimate.memory import MemoryEstimate
from preshard.packer_service.report.advice.estimate.seconds import Estimate, PackSeconds
from preshard.packer_service.report.advice.estimate.split import (
    MOST,
    TILES,
    WHOLE,
    Saving,
    SplitChoice,
    possible_splits,
)
from preshard.packer_service.report.advice.figures import Advice, RankMemory, SplitAdvice, StepSeconds
from preshard.packer_service.report.advice.question import AdviceQuestion
from preshard.schemas.config import PackConfig
from preshard.schemas.model.dimensions import ModelDimensions
from preshard.schemas.model.savings import RECOMPUTE

NOTABLE = 0.005
"""Share of a step below which a loss is not named."""

LOSSES = {
    "attention_waiting": "waiting for the rank with most tiles",
    "vision_waiting": "waiting for the rank with most image work",
    "exchange": "exchanging keys and heads",
    "parameters": "gathering parameters",
    "offload": "moving to the host and back, and AdamW there",
    "straggler": "waiting for the most expensive pack",
}
"""Cause of the lost time of each part of a step that computes nothing."""


def reason_of(split: SplitAdvice, memory_gb: float, whole: SplitAdvice | None = None) -> str:
    """Reason for a split, and what most of its lost time goes to.

    Args:
        split: the split.
        memory_gb: memory of a rank that tensors may take.
        whole: a whole pack on each device, where that is among the splits.
    """
    where = _where(split)
    where += _costs(split)
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
"""Meaning of a way of recomputation, beside another that a whole pack would need."""


def _costs(split: SplitAdvice) -> str:
    """Means besides recomputation by which a split fits, and what that costs."""
    costs = []
    if split.mlp_tiles > 1:
        costs.append(f"--mlp-tiles {split.mlp_tiles} computes the MLPs once more")
    if split.head_stride:
        costs.append(f"--head-stride {split.head_stride} fetches keys in more messages")
    if split.offload != "none":
        costs.append(
            f"--offload {split.offload} takes {split.memory.host:,.0f} GB of the host's memory a rank and "
            f"{split.seconds.offload / split.seconds.total:.1%} of a step"
        )
    return f" ({'; '.join(costs)})" if costs else ""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Advisor:
    """Estimates splits of one dataset's packs for one model.

    Attributes:
        config: the dataset's configuration.
        sizes: the model that will train.
        question: devices and assumptions.
        loads: the packs, at least one.
        notes: what the answer is to say besides.
    """

    config: PackConfig
    sizes: ModelDimensions
    question: AdviceQuestion
    loads: PackLoads
    notes: tuple[str, ...] = ()

    @property
    def usable_gb(self) -> float:
        """Memory of a device that tensors may take."""
        return self.question.device.memory_gb * self.question.memory_share

    def estimates(self) -> list[SplitAdvice]:
        """Every split, with either kind of attention where there is a ring: the fastest of those that fit first."""
        found = _with_speedups([self._estimate(split) for split in self._splits()[:MOST]])
        ordered = sorted(found, key=lambda each: (not each.fits, -each.tokens_per_second))
        whole = next((each for each in ordered if each.ulysses_degree * each.ring_degree == 1), None)
        return [each.model_copy(update={"reason": reason_of(each, self.usable_gb, whole)}) for each in ordered]

    def advice(self) -> Advice:
        """The answer. Of both kinds of attention of a split it has the better."""
        best: dict[tuple[int, int, str], SplitAdvice] = {}
        for each in self.estimates():
            best.setdefault((each.ulysses_degree, each.ring_degree, each.layout), each)
        found = list(best.values())
        return Advice(
            gpus=self.question.gpus,
            gpu=self.question.gpu,
            packs=self.loads.n_packs,
            sampled_packs=self.loads.sampled,
            seq_len=self.config.seq_len,
            parameters=self.sizes.parameters,
            considered=len(found),
            fitting=sum(each.fits for each in found),
            splits=found[: self.question.limit],
            cp1=best.get((1, 1, WHOLE)),
            assumptions=assumptions_of(self.question, self.sizes, next(iter(found), None), self.config.seq_len),
            notes=[*self.notes, *self._limits(), *PREMISES],
        )

    def _splits(self) -> list[SplitChoice]:
        asked, most = self.question, self.loads.n_packs
        splits = possible_splits(self.config, self.loads.layouts, gpus=asked.gpus, heads=self.sizes.heads)
        return [split for split in splits if split.dp <= min(asked.most_packs or most, most)]

    def _estimate(self, split: SplitChoice) -> SplitAdvice:
        saving, memory = self._least_saving(split)
        estimate = Estimate(sizes=self.sizes, question=self.question, loads=self.loads, seq_len=self.config.seq_len)
        packs = estimate.of_packs(split, saving)
        moved, adamw = estimate.offload(split, saving, self.question.gpus)
        away = max(moved - float(packs.computing.mean()), 0.0) + adamw
        seconds = self._of_steps(packs, estimate.parameters(self.question.gpus), away, split.dp)
        tokens = float(self.loads.columns["n_tokens"].mean()) * split.dp
        return SplitAdvice(
            ulysses_degree=split.ulysses,
            ring_degree=split.ring,
            layout=split.layout,
            kind=split.kind,
            dp_size=split.dp,
            recompute=saving.recompute,
            mlp_tiles=TILES if saving.tiled else 1,
            head_stride=saving.head_stride,
            offload=saving.offload,
            fits=memory.total <= self.usable_gb,
            stored=self._is_stored(split),
            derived=(split.layout, split.ring) in self.loads.derived,
            seconds=seconds,
            memory=memory,
            tokens_per_step=round(tokens),
            tokens_per_second=tokens / seconds.total / self.question.gpus,
            speedup_over_zigzag=None,
            speedup_over_cp1=None,
            reason="",
            options=split.options(saving),
        )

    def _least_saving(self, split: SplitChoice) -> tuple[Saving, RankMemory]:
        """The cheapest way to save memory with which a split fits, or the one with least memory where none does."""
        asked = self.question
        memory = MemoryEstimate(
            sizes=self.sizes, question=asked, loads=self.loads, seq_len=self.config.seq_len, gpus=asked.gpus
        )
        ways = RECOMPUTE if asked.recompute == "auto" else (asked.recompute,)
        found = []
        for saving in split.savings(ways, self.sizes.kv_heads, offload=asked.offload == "auto"):
            found.append((saving, memory.of_rank(split, saving)))
            if found[-1][1].total <= self.usable_gb:
                return found[-1]
        return min(found, key=lambda each: each[1].total)

    def _of_steps(self, packs: PackSeconds, parameters: float, away: float, dp_size: int) -> StepSeconds:
        """Means over steps. All packs of a step wait for the one that takes longest."""
        parts = {field.name: float(getattr(packs, field.name).mean()) for field in fields(packs)}
        of_steps = packs.total[self.loads.steps(dp_size)]
        parts["straggler"] = float((of_steps.max(axis=1) - of_steps.mean(axis=1)).mean())
        parts["parameters"] = max(parameters - float(packs.computing.mean()), 0.0)
        parts["offload"] = away
        return StepSeconds(**parts, total=sum(parts.values()))

    def _is_stored(self, split: SplitChoice) -> bool:
        layout = split.ring == 1 or (split.layout in self.config.layouts and split.ring in self.config.ring_degrees)
        return layout and split.cp_size in self.config.cp_sizes

    def _limits(self) -> list[str]:
        """Reasons why this dataset cannot be estimated better, or at all."""
        loads, gpus, window = self.loads, self.question.gpus, self.config.order.window
        notes = []
        if loads.sampled < loads.n_packs:
            notes.append(f"{loads.sampled:,} of {loads.n_packs:,} packs were looked at, in blocks at equal distances")
        if loads.n_packs < gpus:
            notes.append(f"splits with more than {loads.n_packs:,} packs in a step, all that there are, are left out")
        if (splits := len(self._splits())) > MOST:
            notes.append(f"{splits} splits are possible, and the {MOST} over fewest ranks were estimated")
        notes += self._not_packed()
        if window % gpus:
            notes.append(f"data-parallel sizes that do not divide order.window {window} have steps of unequal packs")
        return notes

    def _not_packed(self) -> list[str]:
        """Layouts that the dataset does not hold: which of them were derived, and which cannot be."""
        notes, derived, packed = [], self.loads.derived, self.config.ring_degrees
        read = f"derived from the masks of {self.loads.masks:,} of the packs" if derived else ""
        if degrees := sorted({ring for _, ring in derived if ring not in packed}):
            notes.append(
                f"not packed for {_degrees(degrees)}: the loads of {_names(derived, degrees)} are {read}, and balanced "
                "layouts, which only packing can search for, are left out; pack with these among ring_degrees to "
                "compare them"
            )
        if degrees := sorted({ring for _, ring in derived if ring in packed}):
            notes.append(f"not among the packed layouts: the loads of {_names(derived, degrees)} are {read}")
        return notes


def _names(layouts: Iterable[tuple[str, int]], degrees: Sequence[int]) -> str:
    """Layouts at some ring degrees, each scheme once."""
    by_scheme: dict[str, list[int]] = {}
    for scheme, ring in sorted(layouts):
        if ring in degrees:
            by_scheme.setdefault(scheme, []).append(ring)
    return " and ".join(f"{scheme} at {_degrees(rings)}" for scheme, rings in by_scheme.items())


def _degrees(rings: Sequence[int]) -> str:
    return f"ring degree{'s' if len(rings) > 1 else ''} {_listed(rings)}"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _with_speedups(found: Sequence[SplitAdvice]) -> list[SplitAdvice]:
    """Each beside zigzag at its degrees, and beside a whole pack on each device."""
    speed: dict[tuple[int, int, str], float] = {}
    for each in found:
        key = each.ulysses_degree, each.ring_degree, each.layout
        speed[key] = max(speed.get(key, 0.0), each.tokens_per_second)

    def over(each: SplitAdvice, key: tuple[int, int, str]) -> float | None:
        return each.tokens_per_second / speed[key] if speed.get(key) else None

    return [
        each.model_copy(
            update={
                "speedup_over_cp1": over(each, (1, 1, WHOLE)),
                "speedup_over_zigzag": 1.0
                if each.ring_degree == 1
                else over(each, (each.ulysses_degree, each.ring_degree, "zigzag")),
            }
        )
        for each in found
    ]
