"""How evenly the order of packs mixes sources: ``python tests/benchmarks/sources.py``, some seconds.

200,000 documents of three sources with length laws of their own, packs of 36,864 tokens and 384 images, window 64.
Prints, for texts alone and for texts, images and videos: how far a source's share of the tokens of a thousand packs
(the first, the second, ...) is from its share of all at most, the same with groups of packs in random order, and the
straggler ratio at DP 64.
"""

from __future__ import annotations

import time

import numpy as np
from machine import hardware

from packer_service.plan.blend import STRETCH, tokens_by_source
from packer_service.plan.cost import CostModel, causal_area
from packer_service.plan.make import make_plan
from packer_service.plan.order import straggler_ratio
from packer_service.plan.plan import Plan
from schemas.config import PackConfig

DOCUMENTS = 200_000
CONFIG = PackConfig()


def texts(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, images and sources: short, middling and long texts."""
    rng = np.random.default_rng(seed)
    source = rng.choice(3, DOCUMENTS, p=[0.5, 0.3, 0.2])
    laws = [rng.lognormal(mean, spread, DOCUMENTS) for mean, spread in ((6.5, 0.8), (7.5, 0.6), (8.8, 0.7))]
    return np.choose(source, laws), np.zeros(DOCUMENTS, np.int64), source


def media(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same for texts, conversations about up to 8 images, and videos of 8 to 384 frames."""
    rng = np.random.default_rng(seed)
    source = rng.choice(3, DOCUMENTS, p=[0.5, 0.3, 0.2])
    images = np.choose(source, [np.zeros(DOCUMENTS), *(rng.integers(*ends, DOCUMENTS) for ends in ((1, 9), (8, 385)))])
    texts_of = np.choose(np.minimum(source, 1), [rng.lognormal(6.5, 0.8, DOCUMENTS), rng.integers(20, 600, DOCUMENTS)])
    return 85 * images + texts_of, images.astype(np.int64), source


def planned(tokens: np.ndarray, images: np.ndarray, source: np.ndarray | None) -> Plan:
    lengths = tokens.clip(16, CONFIG.seq_len).astype(np.int64)
    return make_plan(
        tokens=lengths,
        images=images,
        areas=causal_area(lengths),
        seq_len=CONFIG.seq_len,
        max_images=CONFIG.max_images,
        alignment=CONFIG.alignment,
        window=CONFIG.order.window,
        seed=CONFIG.order.seed,
        cost_model=CostModel.of(CONFIG),
        sources=source,
    )


def deviation(plan: Plan, source: np.ndarray) -> float:
    """The largest difference of a source's share of a thousand packs from its share of all."""
    tokens = tokens_by_source(plan.pack_id, source[plan.document], plan.length, plan.n_packs)
    whole = tokens[: len(tokens) // STRETCH * STRETCH].reshape(-1, STRETCH, tokens.shape[1]).sum(axis=1)
    return float(np.abs(whole / whole.sum(axis=1, keepdims=True) - tokens.sum(axis=0) / tokens.sum()).max())


def main() -> None:
    print(hardware())
    print("| sources | packs | off its share at most | in random order | straggler ratio, DP 64 | seconds more |")
    print("|---|---|---|---|---|---|")
    for draw in (texts, media):
        tokens, images, source = draw(0)
        planned(tokens[:5000], images[:5000], source[:5000])  # compiles
        seconds = []
        plans = []
        for sources in (source, None):
            started = time.process_time()
            plans.append(planned(tokens, images, sources))
            seconds.append(time.process_time() - started)
        blended, shuffled = plans
        print(
            f"| {draw.__name__} | {blended.n_packs:,} | {deviation(blended, source):.2%} | "
            f"{deviation(shuffled, source):.2%} | {straggler_ratio(blended.cost, 64):.4f} | "
            f"{seconds[0] - seconds[1]:.2f} |"
        )


if __name__ == "__main__":
    main()
