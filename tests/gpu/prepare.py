"""Makes what the parts of ``make gpu`` read, in the project's own environment: packs, tiny models, layouts, estimates.

    .venv/bin/python tests/gpu/prepare.py [FOLDER] [--small]

A GPU's machine need not have what packs are made with. The folder says by a digest which code made it, and is read with
the same code alone: carry both together (``build/gpu`` lies in the checkout). ``--small`` makes what a rehearsal reads.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import common

sys.path.append(str(common.ROOT / "tests" / "benchmarks"))

import advice_packs
import dry_run as published
import mixtures
import numpy as np
from packed_models import IMAGE_MODELS, TEXT_MODELS, make_model
from step import CASES, config_of

from preshard.packer_service.layout.solve import solve_layouts
from preshard.packer_service.report.advice.dataset import advise_dataset
from preshard.packer_service.report.advice.question import make_question
from preshard.packer_service.runtime.progress import NoProgress
from preshard.schemas.config import PackConfig
from preshard.schemas.layout import SCHEMES
from preshard.schemas.model.families import FAMILIES
from preshard.trainer.extra.dry_run.run import dry_run

LENGTHS, DEGREES = (36_864, 131_072), (8, 16)
REHEARSED = ("qwen3", "qwen3_vl")
HALF_BILLION: dict[str, Any] = {
    **{"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    **{"num_key_value_heads": 8, "head_dim": 128},
}
"""Dimensions of Qwen3-0.6B, with the small vocabulary of the packs."""


def families(folder: Path, names: tuple[str, ...], documents: int = 6) -> None:
    """A tiny model of each family, and packs for it."""
    for name in names:
        if not (folder / name / "dataset" / "manifest.json").exists():
            shutil.rmtree(folder / name, ignore_errors=True)
            make_model(folder / name, name, NoProgress(), documents=documents)
            shutil.rmtree(folder / name / "source")


def layouts(folder: Path, lengths: tuple[int, ...], degrees: tuple[int, ...], kinds: tuple[str, ...]) -> None:
    """The mask of a pack of each mixture, and its layouts."""
    folder.mkdir(parents=True, exist_ok=True)
    for seq_len in lengths:
        config = PackConfig(seq_len=seq_len, ring_degrees=(1, *degrees), cp_sizes=(1, *degrees))
        for kind in kinds:
            path = folder / f"{kind.replace(' ', '-')}-{seq_len}.npz"
            if path.exists():
                continue
            if kind == "annotated":
                pack: Any = mixtures.packs(kind, 1, 5, seq_len=seq_len)[0]
            else:
                pack = advice_packs.made_packs(kind, config, 1, seed=5)[0]
            found = solve_layouts(
                pack.mask, segment_edges=pack.edges, schemes=SCHEMES, ring_degrees=list(degrees), block_size=128
            )
            arrays = {name: getattr(pack.mask, name) for name in ("doc_ids", "branch_ids", "group_ids")}
            for each in found:
                arrays |= {f"{each.name}.runs": each.runs, f"{each.name}.needs": each.needs}
            np.savez_compressed(path, **arrays)


def large(folder: Path) -> None:
    """One document of 36,864 tokens for Qwen3-VL-8B, and what its step is expected to take and to hold."""
    model = published.make_model(folder / "model", "qwen3_vl")
    packs = published.make_packs(folder / "dataset", "qwen3_vl", model, 36_864)
    expected: dict[str, Any] = {}
    for name, case in CASES.items():
        config = config_of(folder, case, device="cuda")
        counted = dry_run(config.model_copy(update={"dry_run": True}))
        expected[name] = {"dry run": counted.peak / 2**30, "rank": counted.rank}
        if config.compile is not False and not case.keys() & {"offload", "head_stride", "overlap"}:
            expected[name]["advise"] = _advised(packs, config)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1))


def _advised(packs: Path, config: Any) -> float | None:
    """Seconds of a step without the network."""
    question = make_question({"gpus": 8, "limit": 500, "recompute": config.recompute})
    for split in advise_dataset(str(packs), question).splits:
        same_place = (split.ulysses_degree, split.ring_degree) == (config.ulysses, config.ring)
        if same_place and split.kind == config.attention and (config.ring == 1 or split.layout == config.layout):
            return float(split.seconds.total - split.seconds.exchange)
    return None


def half_billion(folder: Path, tiny: Path) -> None:
    """A configuration of 0.5 billion parameters over the tiny Qwen3's packs."""
    if not folder.exists():
        shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("*.safetensors"))
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | HALF_BILLION))


def main() -> None:
    """Makes what is not there yet; of other code, everything."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path, nargs="?", default=common.ROOT / "build" / "gpu")
    arguments.add_argument("--small", action="store_true", help="what a rehearsal reads")
    given = arguments.parse_args()
    stamp = given.folder / "code.txt"
    if stamp.exists() and stamp.read_text() != common.code_digest():
        shutil.rmtree(given.folder)
    given.folder.mkdir(parents=True, exist_ok=True)
    every = (*TEXT_MODELS, *FAMILIES, *IMAGE_MODELS)
    families(given.folder / "families", REHEARSED if given.small else every)
    if given.small:
        layouts(given.folder / "layouts", (4096,), (8,), ("many short documents",))
    else:
        layouts(given.folder / "layouts", LENGTHS, DEGREES, (*advice_packs.KINDS, "annotated"))
        families(given.folder / "many", ("qwen3_vl",), documents=60)
        half_billion(given.folder / "half_billion", given.folder / "families" / "qwen3" / "model")
        large(given.folder / "large")
    stamp.write_text(common.code_digest())


if __name__ == "__main__":
    main()
