"""Evenness with which the order of packs mixes sources: ``python tests/benchmarks/sources.py``, some seconds.

200,000 documents of three sources with length laws of their own, packs of 36,864 tokens and 384 images, window 64.
Prints, for texts alone and for texts, images and videos: how far a source's share of the tokens of a thousand packs
(the first, the second, ...) is from its share of all at most, the same for any thousand packs in a row, the same when
sources are not looked at while packing and ordering, the packs beside the fewest that could do, and the straggler ratio
at DP 64. Then, for datasets that are mixed while training, how far a dataset's share of any thousand packs is off at
most, by the window that all of them were packed with.
"""

from __future__ import annotations

import time

import numpy as np
from machine import hardware

from preshard.packer_service.plan.blend import STRETCH, tokens_by_source
from preshard.packer_service.plan.cost import CostModel, causal_area
from preshard.packer_service.plan.make import Plan, make_plan
from preshard.packer_service.plan.order import straggler_ratio
from preshard.schemas.config import PackConfig
from preshard.trainer.extra.mixture import turns, whole_shares

DOCUMENTS = 200_000

COMPILING = 20_000
"""Documents of a first plan, which compiles everything: more than a thousand packs."""

CONFIG = PackConfig()

WEIGHTS = ((0.7, 0.3), (0.5, 0.3, 0.2), (0.6, 0.25, 0.1, 0.05))
WINDOWS = (64, 32, 16, 8, 4)


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


def deviations(plan: Plan, source: np.ndarray) -> tuple[float, float]:
    """The largest difference of a source's share of a thousand packs from its share of all: aligned, and of any."""
    tokens = tokens_by_source(plan.pack_id, source[plan.document], plan.length, plan.n_packs)
    before = np.concatenate([np.zeros((1, tokens.shape[1]), np.int64), np.cumsum(tokens, axis=0)])
    rows = before[STRETCH:] - before[:-STRETCH]
    off = np.abs(rows / rows.sum(axis=1, keepdims=True) - tokens.sum(axis=0) / tokens.sum()).max(axis=1)
    return float(off[::STRETCH].max()), float(off.max())


def fewest(plan: Plan, images: np.ndarray) -> int:
    """Packs that the tokens or the images need."""
    return max(-(-int(plan.aligned_length.sum()) // CONFIG.seq_len), -(-int(images.sum()) // CONFIG.max_images))


def print_windows() -> None:
    """Prints the evenness for datasets that take turns of whole windows."""
    print("| weights |", " | ".join(map(str, WINDOWS)), "|")
    for weights in WEIGHTS:
        shares = np.array(whole_shares(weights))
        order = np.resize(turns(shares.tolist()), STRETCH * shares.sum())
        each = [off_in_any_stretch(np.repeat(order, window), shares / shares.sum()) for window in WINDOWS]
        print("|", ", ".join(map(str, weights)), "|", " | ".join(f"{off:.1%}" for off in each), "|")


def off_in_any_stretch(dataset: np.ndarray, shares: np.ndarray) -> float:
    """The largest difference of a dataset's share of any thousand packs in a row from its weight."""
    given = np.eye(len(shares), dtype=np.int64)[dataset]
    before = np.concatenate([np.zeros((1, len(shares)), np.int64), np.cumsum(given, axis=0)])
    return float(np.abs((before[STRETCH:] - before[:-STRETCH]) / STRETCH - shares).max())


def main() -> None:
    print(hardware())
    print("| sources | packs | over the fewest | off at most | any thousand | as one source | DP 64 | seconds more |")
    print("|---|---|---|---|---|---|---|---|")
    for draw in (texts, media):
        tokens, images, source = draw(0)
        planned(tokens[:COMPILING], images[:COMPILING], source[:COMPILING])
        seconds = []
        plans = []
        for sources in (source, None):
            started = time.process_time()
            plans.append(planned(tokens, images, sources))
            seconds.append(time.process_time() - started)
        even, alike = plans
        aligned, anywhere = deviations(even, source)
        print(
            f"| {draw.__name__} | {even.n_packs:,} | {even.n_packs / fewest(even, images):.5f} | {aligned:.2%} | "
            f"{anywhere:.2%} | {deviations(alike, source)[0]:.2%} | {straggler_ratio(even.cost, 64):.4f} | "
            f"{seconds[0] - seconds[1]:.2f} |"
        )
    print_windows()


if __name__ == "__main__":
    main()
