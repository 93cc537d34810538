"""Tokens under loss, of the packs of a step and of the ranks of a pack, and the time that they take beside the rest.

    python tests/benchmarks/loss_balance.py [--documents 60000] [--packs 12]

Under loss are all of a text, of other documents the half of their text that follows the images, and half of each
annotation. A token without loss has no logits, so that a pack with more of them takes longer than its cost says, which
counts logits for all: ``with logits`` is the straggler of the cost with those of the tokens under loss alone, for an 8B
model. ``of ranks`` is the largest over the mean of the ring ranks of a pack.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from machine import hardware  # noqa: E402
from mixtures import MIXTURES, SEQ_LEN, Columns, columns, packs  # noqa: E402

from preshard.packer_service.layout.mask import MaskIndex  # noqa: E402
from preshard.packer_service.layout.solve import solve_layouts  # noqa: E402
from preshard.packer_service.plan.cost import CostModel, causal_area  # noqa: E402
from preshard.packer_service.plan.make import make_plan  # noqa: E402
from preshard.packer_service.plan.order import straggler_ratio  # noqa: E402
from preshard.schemas.config import PackConfig  # noqa: E402
from preshard.schemas.layout import SCHEMES, rank_positions  # noqa: E402

SIZES = (8, 64, 512)
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
        seq_len=SEQ_LEN, max_images=384, alignment=16, window=512, seed=0, cost_model=model,
    )  # fmt: skip
    loss = np.zeros(plan.n_packs, np.int64)
    np.add.at(loss, plan.pack_id, learnt(drawn)[plan.document])
    crops = np.zeros(plan.n_packs, np.int64)
    np.add.at(crops, plan.pack_id, images[plan.document])
    logits = 6 * model.model.hidden_size * model.model.vocab_size / 1e9
    whole = plan.cost - (SEQ_LEN - loss) * logits
    for of, values in (
        ("cost", plan.cost), ("tokens under loss", loss.astype(np.float64)), ("with logits", whole),
        ("encoder", crops.astype(np.float64)),
    ):  # fmt: skip
        cells = "".join(f"{straggler_ratio(values, size):>10.4f}" for size in SIZES)
        print(f"{name:<10} {of:<18}{cells}")
    encoder = float(crops.sum()) * model.vision_work_per_crop * 6 / 1e9 / plan.cost.sum()
    shares = f"{loss.sum() / SEQ_LEN / plan.n_packs:.1%} of all tokens under loss, encoder {encoder:.1%} of the cost"
    print(f"{name:<10} {plan.n_packs} packs, {shares}")


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
    print(f"largest over mean pack of a step\n{'':<29}" + "".join(f"{f'DP {size}':>10}" for size in SIZES))
    for name in MIXTURES:
        steps(name, given.documents)
    print(f"largest over mean rank of {RING}, {given.packs} packs\n{'':<29}{'mean':>10}{'worst':>10}")
    for name in MIXTURES:
        ranks(name, given.packs)


if __name__ == "__main__":
    main()
