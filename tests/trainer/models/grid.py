"""Trains Hugging Face models on packs in every way, and compares with each document alone.

    python tests/trainer/models/grid.py FOLDER                               # the whole grid in float64: hours
    python tests/trainer/models/grid.py FOLDER --families internvl --splits 1x2 2x2 --layouts balanced_gather
    python tests/trainer/models/grid.py FOLDER --dtype float32 --families qwen3_vl
    python tests/trainer/models/grid.py FOLDER --splits 2x2 --cp-fsdp none ring_only ulysses_only

FOLDER gets the models and their packs, and keeps them. The reference is each document by itself through the unmodified
model of transformers in one process (sdpa, float64). A case takes all packs, one after the other, so gradients add up
over them; with more packs at a time than divide their number, it leaves out the last. A line shows the largest relative
difference of loss, gradient norm, and any parameter's gradient against the norm of the whole. The exit status is 1 if
one is above 1e-6 in float64, 1e-4 in float32.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[3]), str(Path(__file__).parents[2] / "support")]

import torch  # noqa: E402
from gloo_pool import GlooPool  # noqa: E402
from packed_models import FAMILIES, TEXT_MODELS, compare, make_model, right_answers  # noqa: E402
from packed_ranks import train_on_packs  # noqa: E402

from packer_service.runtime.progress import ConsoleProgress  # noqa: E402
from trainer.distributed.mesh import SHARDING_AXES, CpFsdp  # noqa: E402

KINDS = ("ulysses", "ring", "gather", "hybrid")
LAYOUTS = ("contiguous", "zigzag", "balanced_ring", "balanced_gather")
SPLITS = ("1x1", "1x2", "2x1", "2x2", "1x4", "4x1", "2x4", "4x2", "1x8")
LIMITS = {"float64": 1e-6, "float32": 1e-4}


@dataclass(frozen=True, kw_only=True)
class Way:
    """How ranks share parameters and packs, and what they do to save memory.

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


ALONE = Way(name="")
OTHER_WAYS = (
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


def runs(
    splits: list[str], kinds: list[str], layouts: list[str], cp_fsdp: list[str]
) -> list[tuple[Way, str, list[dict[str, Any]]]]:
    """Every kind x layout x split, and the other ways on a few splits with three pairs of kind and layout."""
    cases: list[dict[str, Any]] = [{"kind": kind, "layout": layout} for kind, layout in product(kinds, layouts)]
    few = [case for case in cases if (case["kind"], case["layout"]) in SOME]
    found = [(ALONE, split, cases) for split in splits if "all" in cp_fsdp]
    for way, split in product(OTHER_WAYS, splits):
        # both axes are needed to tell one from the other; a rank of four has one head, and nothing to overlap with
        if way.cp_fsdp not in cp_fsdp or split not in (("1x2", "2x1") if way.cp_fsdp == "all" else ("2x1", "2x2")):
            continue
        chosen = [{**case, "overlap": True} for case in few if case["kind"] == "ulysses"] if way.overlap else few
        found += [(way, split, chosen)] if chosen else []
    return found


SOME = (("ring", "zigzag"), ("gather", "balanced_gather"), ("ulysses", "contiguous"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    families = [*TEXT_MODELS, *(name for name in FAMILIES if "moe" not in name)]
    parser.add_argument("--families", nargs="*", default=families, metavar="FAMILY")
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    parser.add_argument("--layouts", nargs="*", default=LAYOUTS)
    parser.add_argument("--splits", nargs="*", default=SPLITS, help="ulysses x ring")
    parser.add_argument("--cp-fsdp", nargs="*", default=list(SHARDING_AXES), choices=list(SHARDING_AXES))
    parser.add_argument("--dtype", choices=LIMITS, default="float64")
    given = parser.parse_args()
    torch.set_num_threads(1)
    worst: dict[str, float] = defaultdict(float)
    number = 0
    with tempfile.TemporaryDirectory() as stores:
        pool = GlooPool(Path(stores))
        for family in given.families:
            folder = given.folder / family
            if not (folder / "model" / "model.safetensors").exists():
                make_model(folder, family, ConsoleProgress())
            right = right_answers(folder, family)
            for way, split, cases in runs(given.splits, given.kinds, given.layouts, given.cp_fsdp):
                if way.dp_shard * way.dp_replicate > len(right.losses):
                    continue
                ulysses, ring = map(int, split.split("x"))
                degrees = {"dp_shard": way.dp_shard, "dp_replicate": way.dp_replicate}
                sent = (str(folder), cases, given.dtype, way.saving, way.cp_fsdp)
                answers = pool.run(train_on_packs, *sent, ulysses=ulysses, ring=ring, **degrees)
                for case, *of_ranks in zip(cases, *answers, strict=True):
                    found = compare(of_ranks, right)
                    worst[family], number = max(worst[family], found), number + 1
                    print(f"{family:<12}{case['kind']:<9}{case['layout']:<17}{split:<5}{way.name:<23}{found:.1e}")
                sys.stdout.flush()
        pool.close()
    print(f"\n{number} cases in {given.dtype}, largest relative difference:")
    for family, found in worst.items():
        print(f"{family:<12}{found:.1e}")
    sys.exit(not max(worst.values()) <= LIMITS[given.dtype])


if __name__ == "__main__":
    main()
