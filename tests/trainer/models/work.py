"""Operations of each followed model's forward pass on one document: the trainer's count beside torch's.

    python tests/trainer/models/work.py            # all models
    python tests/trainer/models/work.py jetmoe     # one of them

Torch counts the products that the unmodified model of ``transformers`` computes with eager attention, over a document
as long as one of the tiles in which the trainer counts scores.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from hand_made import pack_of
from scripts import load_script
from transformers_alone import load_transformers

from preshard.schemas.layout import TILE
from preshard.schemas.model.families import FAMILIES
from preshard.trainer.extra.work import TRAINING, StepWork
from preshard.trainer.models.load import load_model

VOCABULARY = 96


def measure(config: dict[str, Any]) -> tuple[float, float]:
    """The trainer's count of a forward pass, and torch's."""
    transformers, pack = load_transformers(), pack_of((TILE,), VOCABULARY)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config, default=str), encoding="utf-8")
        model: Any = load_model(folder, from_scratch=True)
    counted = StepWork.of(model).of_rank(pack) / TRAINING
    for part in (model.config, model.config.get_text_config()):
        part._experts_implementation = "eager"  # torch counts no products of groups
    reads_images = model.config.model_type in FAMILIES
    auto = transformers.AutoModelForImageTextToText if reads_images else transformers.AutoModelForCausalLM
    plain = auto.from_config(model.config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as torchs:
        plain(input_ids=pack.tokens[None], use_cache=False)
    return counted, torchs.get_total_flops()


def main(wanted: list[str]) -> None:
    torch.set_num_threads(1)
    for name, config in load_script(Path(__file__).with_name("followed.py")).every_followed():
        if not wanted or name in wanted:
            ours, theirs = measure(config)
            print(f"| {name} | {ours:,.0f} | {theirs:,} | {ours / theirs:.3f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
