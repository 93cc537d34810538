"""Evenness of a step: cost, the encoder's part of it by itself, and tokens under loss, also on the ranks of a pack.

    python tests/benchmarks/loss_balance.py [--documents 60000] [--packs 12]

Each figure of steps is that of packs ordered by cost alone -> as the planner orders them. ``both`` is the largest
work of the encoder plus the largest of the rest, over their means, as where ranks wait behind the encoder, too; its
``bound``, which no order is below, has each of the two in order of size. A token without loss has no logits, which
the cost counts for all: ``with logits`` leaves theirs out, for an 8B model, and ``labels known`` is an order by that.
Under loss are all of a text, of other documents the half of their text that follows the images, and half of each
annotation. On the ranks of a pack: the largest over the mean of the tokens under loss of its ring ranks.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from machine import hardware  # noqa: E402
from mixtures import MIXTURES, SEQ_LEN, Columns, columns, packs  # noqa: E402

from preshard.packer_service.layout.mask import MaskIndex  # noqa: E402
from preshard.packer_service.layout.solve import solve_layouts  # noqa: E402
from preshard.packer_service.plan.cost import CostModel, causal_area  # noqa: E402
from preshard.packer_service.plan.make import make_plan  # noqa: E402
from preshard.packer_service.plan.order import part_straggler, step_order, straggler_ratio  # noqa: E402
from preshard.schemas.config import PackConfig  # noqa: E402
from preshard.schemas.layout import SCHEMES, rank_positions  # noqa: E402

SIZES = (8, 64, 512)
WINDOW = 512
RING = 8


def learnt(drawn: Columns) -> np.ndarray:
    """Tokens under loss of each document."""
    shown = np.where(drawn.images > 0, drawn.text * 3 // 8, drawn.text)
    return np.where(drawn.annotations > 0, drawn.annotations * (drawn.annotation_tokens // 2), shown)


def steps(name: str, n: int) -> None:
    """Stragglers of the steps of a plan."""
    drawn, model = columns(name, n, 0), CostModel.of(PackConfig())
    images = drawn.images.astype(np.int64)
    plan = make_plan(
        tokens=drawn.tokens.astype(np.int64), images=images, areas=causal_area(drawn.tokens.astype(np.int64)),
        seq_len=SEQ_LEN, max_images=384, alignment=16, window=WINDOW, seed=0, cost_model=model,
    )  # fmt: skip
    loss = np.zeros(plan.n_packs, np.int64)
    np.add.at(loss, plan.pack_id, learnt(drawn)[plan.document])
    unused = (SEQ_LEN - loss) * (6 * model.model.hidden_size * model.model.vocab_size / 1e9)
    vision, rest, less = plan.vision, plan.cost - plan.vision, plan.cost - plan.vision - unused
    by_cost = step_order(plan.cost, window=WINDOW, seed=0)
    by_both = np.arange(plan.n_packs)
    by_less = step_order(vision + less, window=WINDOW, seed=0, vision=vision)
    rows = [
        ("cost", by_both, lambda order, size: straggler_ratio(plan.cost[order], size)),
        ("encoder", by_both, lambda order, size: part_straggler(vision[order], size)),
        ("both", by_both, lambda order, size: waited(vision[order], rest[order], size)),
        ("tokens under loss", by_both, lambda order, size: straggler_ratio(loss[order].astype(np.float64), size)),
        ("both, with logits", by_both, lambda order, size: waited(vision[order], less[order], size)),
        ("labels known", by_less, lambda order, size: waited(vision[order], less[order], size)),
    ]
    for of, order, figure in rows:
        cells = (f"{figure(by_cost, size):.4f} -> {figure(order, size):.4f}" for size in SIZES)
        print(f"{name:<10} {of:<18}" + "".join(f"{cell:>20}" for cell in cells))
    cells = (waited(np.sort(vision), np.sort(rest), size) for size in SIZES)
    print(f"{name:<10} {'bound of both':<18}" + "".join(f"{cell:>20.4f}" for cell in cells))
    shares = f"{loss.sum() / SEQ_LEN / plan.n_packs:.1%} of all tokens under loss"
    print(f"{name:<10} {plan.n_packs} packs, {shares}, encoder {vision.sum() / plan.cost.sum():.1%} of the cost")


def waited(vision: np.ndarray, rest: np.ndarray, size: int) -> float:
    """Time of steps whose ranks wait for each other behind the encoder, too, over that of steps of equal packs."""
    parts = [part[: len(part) // size * size].reshape(-1, size) for part in (vision, rest)]
    return sum(part.max(axis=1).sum() for part in parts) / sum(part.mean(axis=1).sum() for part in parts)


def ordering(n_packs: int = 1 << 20) -> None:
    """Time of ordering packs whose two costs have nothing to do with each other."""
    vision, rest = np.random.default_rng(0).random((2, n_packs))
    for window in (8, 64, 512):
        seconds = []
        for part in (None, vision):
            begun = time.process_time()
            step_order(vision + rest, window=window, seed=0, vision=part)
            seconds.append(time.process_time() - begun)
        print(f"order of {n_packs:,} packs, window {window}: {seconds[0]:.2f} -> {seconds[1]:.2f} s of processor time")


def ranks(name: str, n: int) -> None:
    """Largest over mean tokens under loss of the ring ranks of a pack, in each layout."""
    found: dict[str, list[float]] = {scheme: [] for scheme in SCHEMES}
    for pack in packs(name, n, 0):
        index = MaskIndex.of(pack.mask)
        own = (pack.mask.doc_ids >= 0) & (pack.mask.group_ids < 0)
        late = np.zeros(SEQ_LEN, np.bool_)  # behind the last image of its document, or the first half of a branch's end
        for document in range(int(pack.mask.doc_ids.max()) + 1):
            at = np.flatnonzero(pack.mask.doc_ids == document)
            shown, branch = pack.mask.group_ids[at] >= 0, pack.mask.branch_ids[at]
            if branch.any():
                for number in range(1, int(branch.max()) + 1):
                    answer = at[branch == number]
                    late[answer[len(answer) // 2 :]] = True
            elif shown.any():
                behind = at[int(np.flatnonzero(shown)[-1]) + 1 :]
                late[behind[len(behind) // 2 :]] = True
            else:
                late[at] = True
        for layout in solve_layouts(
            index, segment_edges=pack.edges, schemes=SCHEMES, ring_degrees=(RING,), block_size=128
        ):
            sums = [
                int((late & own)[rank_positions(layout.runs, ring_rank=rank, ulysses_degree=1, ulysses_rank=0)].sum())
                for rank in range(RING)
            ]
            found[layout.scheme].append(max(sums) / (sum(sums) / RING))
    for scheme, values in found.items():
        print(f"{name:<10} {scheme:<18}{np.mean(values):>10.3f}{max(values):>10.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--packs", type=int, default=12)
    given = parser.parse_args()
    print(hardware())
    print(f"largest over mean pack of a step\n{'':<29}" + "".join(f"{f'DP {size}':>20}" for size in SIZES))
    for name in MIXTURES:
        steps(name, given.documents)
    ordering()
    print(f"largest over mean rank of {RING}, {given.packs} packs\n{'':<29}{'mean':>10}{'worst':>10}")
    for name in MIXTURES:
        ranks(name, given.packs)


if __name__ == "__main__":
    main()
