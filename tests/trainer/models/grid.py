"""Trains Hugging Face models on packs in every way, and compares with each document alone.

    python tests/trainer/models/grid.py FOLDER --log LOG                     # every pair of choices: see below
    python tests/trainer/models/grid.py FOLDER --log LOG --full              # every combination: hours
    python tests/trainer/models/grid.py FOLDER --families internvl --splits 1x2 2x2 --layouts balanced_gather
    python tests/trainer/models/grid.py FOLDER --dtype float32 --families qwen3_vl

FOLDER gets the models and their packs, and keeps them. The choices are the model, the kind of attention, the layout,
the split, and the way: packs in parallel, axes that shard parameters, what saves memory. Most combinations of five
repeat what smaller ones show, so by default the cases are as few as it takes for any two choices to meet in one.

The reference is each document by itself through the unmodified model of transformers in one process (sdpa, float64). A
case takes all packs, one after the other, so gradients add up over them; with more packs at a time than divide their
number, it leaves out the last. A line shows the largest relative difference of loss, gradient norm, and any parameter's
gradient against the norm of the whole. Cases that LOG lists are not run again, and are counted. The exit status is 1 if
a difference is above 1e-6 in float64, 1e-4 in float32.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass, fields
from heapq import heapify, heapreplace
from itertools import combinations, groupby, product
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[3]), str(Path(__file__).parents[2] / "support")]

import torch  # noqa: E402
from gloo_pool import GlooPool  # noqa: E402
from packed_models import FAMILIES, IMAGE_MODELS, TEXT_MODELS, Right, compare, make_model, right_answers  # noqa: E402
from packed_ranks import train_on_packs  # noqa: E402

from preshard.packer_service.runtime.progress import ConsoleProgress  # noqa: E402
from preshard.trainer.core.mesh import CpFsdp  # noqa: E402

KINDS = ("ulysses", "ring", "gather", "hybrid")
LAYOUTS = ("contiguous", "zigzag", "balanced_ring", "balanced_gather")
SPLITS = ("1x1", "1x2", "2x1", "2x2", "1x4", "4x1", "2x4", "4x2", "1x8")
LIMITS = {"float64": 1e-6, "float32": 1e-4}


@dataclass(frozen=True, kw_only=True)
class Way:
    """Way to share parameters and packs among ranks, and to save memory.

    Attributes:
        name: in the table.
        dp_shard, dp_replicate: packs at a time.
        saving: arguments of ``save_memory``.
        cp_fsdp: which of the context-parallel axes shard the parameters.
        overlap: exchange one half of the heads while the other is computed.
    """

    name: str
    dp_shard: int = 1
    dp_replicate: int = 1
    saving: dict[str, Any] | None = None
    cp_fsdp: CpFsdp = "all"
    overlap: bool = False


LIST = (
    Way(name="plain"),
    Way(name="dp_shard 2", dp_shard=2),
    Way(name="dp_replicate 2", dp_replicate=2),
    Way(name="recomputed", saving={"recompute": "full"}),
    Way(name="all but attention", saving={"recompute": "selective"}),
    Way(name="offloaded, MLPs tiled", saving={"recompute": "full", "offload": "disk", "mlp_tiles": 3}),
    Way(name="overlapped", overlap=True),
    Way(name="cp-fsdp none", cp_fsdp="none"),
    Way(name="cp-fsdp ring_only", cp_fsdp="ring_only"),
    Way(name="cp-fsdp ulysses_only", cp_fsdp="ulysses_only"),
)
WAYS = {way.name: way for way in LIST}
MOST_RANKS = 8
HEADS = 4
"""Heads of the models that ``demo-model`` writes."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One combination. Its fields are the choices."""

    family: str
    split: str
    way: str
    kind: str
    layout: str

    @property
    def possible(self) -> bool:
        """Whether the tiny models, which have four heads, and eight processes can run it."""
        ulysses, ring = map(int, self.split.split("x"))
        ranks, way = ulysses * ring, WAYS[self.way]
        if ranks * way.dp_shard * way.dp_replicate > MOST_RANKS or (self.kind == "ulysses" and ranks > HEADS):
            return False
        if way.overlap:  # a rank of four has one head, and nothing to overlap with
            return (self.kind, self.split) == ("gather", "1x2") or (self.kind == "ulysses" and ranks == 2)
        return way.cp_fsdp == "all" or ranks > 1

    @property
    def pairs(self) -> set[tuple[str, ...]]:
        """Every two of the choices."""
        chosen = [f"{field.name}={getattr(self, field.name)}" for field in fields(self)]
        return set(combinations(chosen, 2))


def covering(cases: list[Case]) -> list[Case]:
    """Cases in which any two choices meet that meet at all: each time the one with most pairs that have not met yet."""
    pairs = [case.pairs for case in cases]
    left = set().union(*pairs)
    chosen: list[Case] = []
    # What a case would add only shrinks, so of what was counted earlier only the first needs to be counted again.
    queue = [(-len(own), number) for number, own in enumerate(pairs)]
    heapify(queue)
    while left:
        number = queue[0][1]
        heapreplace(queue, (-len(pairs[number] & left), number))
        if queue[0][1] == number:
            chosen.append(cases[number])
            left -= pairs[number]
    return chosen


def run(pool: GlooPool, folder: Path, right: Right, cases: list[Case], dtype: str) -> list[float]:
    """The difference of each of some cases of one model, split and way."""
    way = WAYS[cases[0].way]
    ulysses, ring = map(int, cases[0].split.split("x"))
    sent = [{"kind": case.kind, "layout": case.layout, "overlap": way.overlap} for case in cases]
    degrees = {"ulysses": ulysses, "ring": ring, "dp_shard": way.dp_shard, "dp_replicate": way.dp_replicate}
    answers = pool.run(train_on_packs, str(folder), sent, dtype, way.saving, way.cp_fsdp, **degrees)
    return [compare(of_ranks, right) for of_ranks in zip(*answers, strict=True)]


def read_log(log: Path | None, dtype: str) -> dict[Case, float]:
    """Findings of earlier runs."""
    lines = log.read_text(encoding="utf-8").splitlines() if log is not None and log.exists() else []
    entries = [json.loads(line) for line in lines]
    return {Case(**entry["case"]): entry["difference"] for entry in entries if entry["dtype"] == dtype}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    families = [*TEXT_MODELS, *IMAGE_MODELS, *(name for name in FAMILIES if "moe" not in name)]
    parser.add_argument("--families", nargs="*", default=families, metavar="FAMILY")
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    parser.add_argument("--layouts", nargs="*", default=LAYOUTS)
    parser.add_argument("--splits", nargs="*", default=SPLITS, help="ulysses x ring")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS), metavar="WAY")
    parser.add_argument("--dtype", choices=LIMITS, default="float64")
    parser.add_argument("--full", action="store_true", help="every combination, and not every pair")
    parser.add_argument("--log", type=Path, help="file of finished cases, one JSON object each")
    return parser.parse_args()


def main() -> None:
    given = parse()
    torch.set_num_threads(1)
    choices = product(given.families, given.splits, given.ways, given.kinds, given.layouts)
    names = [field.name for field in fields(Case)]
    every = [case for case in (Case(**dict(zip(names, each, strict=True))) for each in choices) if case.possible]
    cases = sorted(every if given.full else covering(every), key=lambda case: (case.family, case.split, case.way))
    found = {case: difference for case, difference in read_log(given.log, given.dtype).items() if case in cases}
    with tempfile.TemporaryDirectory() as stores:
        pool = GlooPool(Path(stores))
        for family, of_family in groupby((case for case in cases if case not in found), lambda case: case.family):
            folder = given.folder / family
            if not (folder / "model" / "model.safetensors").exists():
                make_model(folder, family, ConsoleProgress())
            right = right_answers(folder, family)
            for _, group in groupby(of_family, lambda case: (case.split, case.way)):
                together = list(group)
                for case, difference in zip(together, run(pool, folder, right, together, given.dtype), strict=True):
                    found[case] = difference
                    print(f"{family:<17}{case.kind:<9}{case.layout:<17}{case.split:<5}{case.way:<23}{difference:.1e}")
                    if given.log is not None:
                        with given.log.open("a", encoding="utf-8") as log:
                            entry = {"case": asdict(case), "dtype": given.dtype, "difference": difference}
                            log.write(json.dumps(entry) + "\n")
                sys.stdout.flush()
        pool.close()
    print(f"\n{len(found)} cases in {given.dtype}, largest relative difference:")
    for family in given.families:
        print(f"{family:<17}{max(found[case] for case in found if case.family == family):.1e}")
    sys.exit(not max(found.values()) <= LIMITS[given.dtype])


if __name__ == "__main__":
    main()
