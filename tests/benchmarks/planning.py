"""Planning: documents a second, packs against the lower bound, straggler ratios and memory.

    python tests/benchmarks/planning.py [--documents 1000000] [--ten-million MIXTURE] [--quick]
    python tests/benchmarks/planning.py --windows    # how far costs follow the tiles of models with windows

Every timing runs on one core in this process. The baseline is the published method of TRL's ``pack_dataset``: best-fit
decreasing with a segment tree over the free tokens, in pure Python, written here from its description; it knows tokens
alone, while ours keeps both budgets. The mixtures are those of ``mixtures.py``, and one whose two budgets both bind.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections import defaultdict, deque
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from layouts import WINDOWED  # noqa: E402
from machine import hardware  # noqa: E402
from mixtures import MIXTURES, SEQ_LEN, lengths, packs  # noqa: E402

from preshard.packer_service.layout.area import attention_area  # noqa: E402
from preshard.packer_service.layout.mask import MaskIndex, full_and_window  # noqa: E402
from preshard.packer_service.layout.tiles import whole_tiles  # noqa: E402
from preshard.packer_service.plan.best_fit import best_fit  # noqa: E402
from preshard.packer_service.plan.cost import CostModel, causal_area, document_tiles, pack_cost  # noqa: E402
from preshard.packer_service.plan.kinds import kinds_of, lower_bound  # noqa: E402
from preshard.packer_service.plan.make import make_plan  # noqa: E402
from preshard.packer_service.plan.order import step_order, straggler_ratio  # noqa: E402
from preshard.packer_service.plan.pack import fewest_packs, pack_documents  # noqa: E402
from preshard.schemas.config import PackConfig  # noqa: E402
from preshard.schemas.sequence import MaskArrays, drop_groups  # noqa: E402

ALIGNMENT, MAX_IMAGES, WINDOW = 16, 384, 64


class SegmentTree:
    """Largest used leaf at or above a value: leaf v holds v while some pack has v free tokens, else 0."""

    def __init__(self, limit: int) -> None:
        self.size = 1 << limit.bit_length()
        self.tree = [0] * (2 * self.size)

    def set(self, value: int, present: bool) -> None:
        node = self.size + value
        self.tree[node] = value if present else 0
        while node > 1:
            node >>= 1
            self.tree[node] = max(self.tree[2 * node], self.tree[2 * node + 1])

    def smallest_at_least(self, value: int) -> int:
        node = 1
        while node < self.size:
            node = 2 * node if self.tree[2 * node] >= value else 2 * node + 1
        return self.tree[node]


def pure_python_best_fit(tokens: np.ndarray, seq_len: int) -> list[list[int]]:
    """Best-fit decreasing by tokens: the documents of each pack."""
    tree = SegmentTree(seq_len)
    tree.set(seq_len, True)
    packs: list[list[int]] = []
    by_free: dict[int, deque[int]] = defaultdict(deque)
    for document in np.argsort(-tokens, kind="stable").tolist():
        need = int(tokens[document])
        free = tree.smallest_at_least(need)
        if free < seq_len:
            pack = by_free[free].popleft()
            if not by_free[free]:
                tree.set(free, False)
        else:
            pack = len(packs)
            packs.append([])
        packs[pack].append(document)
        by_free[free - need].append(pack)
        if free > need:
            tree.set(free - need, True)
    return packs


def even_video(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The mixture with frame counts drawn evenly from 8 to 384: with 384 images a pack, both budgets bind."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(3, n, p=[0.35, 0.40, 0.25])
    text = np.where(kind == 0, 500, np.where(kind == 1, 120, 150)) * np.exp(
        np.where(kind == 0, 1.0, 0.7) * rng.standard_normal(n)
    )
    images = np.where(kind == 0, 0, np.where(kind == 1, rng.integers(1, 10, n), rng.integers(8, 385, n)))
    tokens = np.maximum(16, np.rint(text)).astype(np.int64) + images * np.where(
        kind == 1, 146, 81 + rng.integers(4, 7, n)
    )
    return np.minimum(tokens, SEQ_LEN), images.astype(np.int64)


DRAWN = {**{name: partial(lengths, name) for name in MIXTURES}, "even_video": even_video}


def aligned(tokens: np.ndarray) -> np.ndarray:
    return -(-tokens // ALIGNMENT) * ALIGNMENT


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def speed(n: int) -> None:
    print(f"\npacking speed, {n:,} documents aligned to {ALIGNMENT}")
    for name, draw in DRAWN.items():
        tokens, images = draw(n, 1)
        tokens = aligned(tokens)
        begin = time.perf_counter()
        baseline = len(pure_python_best_fit(tokens, SEQ_LEN))
        python_rate = n / (time.perf_counter() - begin)
        print(
            f"  {name:12s} pure-Python segment tree, tokens alone  {python_rate:12,.0f} documents/s "
            f"{baseline:10,} packs"
        )
        for label, limit in (
            ("tokens alone", None),
            (f"and {MAX_IMAGES} images", MAX_IMAGES),
            ("both bind", balanced(tokens, images)),
        ):
            begin = time.perf_counter()
            packs = pack_documents(tokens, images, seq_len=SEQ_LEN, max_images=limit).max() + 1
            rate = n / (time.perf_counter() - begin)
            needed = lower_bound(kinds_of(tokens, images, seq_len=SEQ_LEN, max_images=limit))
            print(
                f"  {'':12s} preshard, {label:29s} {rate:12,.0f} documents/s {packs:10,} packs, "
                f"{packs / needed:.5f} x the bound, {rate / python_rate:5.1f} x as fast"
            )


def balanced(tokens: np.ndarray, images: np.ndarray) -> int:
    """The image budget at which both budgets need the same number of packs."""
    return max(int(images.max()), int(images.sum() * SEQ_LEN // tokens.sum()))


def fill(n: int) -> None:
    print(f"\npacks against max(ceil(tokens / seq_len), ceil(images / max_images)), {n:,} documents")
    print("  mixture       seed  max_images  bound by   lower bound   packs  ratio     plain best fit  seconds")
    for name, draw in DRAWN.items():
        for seed in (0, 1):
            tokens, images = draw(n, seed)
            tokens = aligned(tokens)
            even, least = balanced(tokens, images), int(images.max())
            limits = {MAX_IMAGES, even, int(1.05 * even), max(least, int(0.9 * even))}
            for limit in sorted(limit for limit in limits if limit >= least):
                fill_row(name, seed, tokens, images, limit)


def fill_row(name: str, seed: int, tokens: np.ndarray, images: np.ndarray, limit: int) -> None:
    kinds = kinds_of(tokens, images, seq_len=SEQ_LEN, max_images=limit)
    needed = lower_bound(kinds)
    plain = best_fit(kinds.tokens, kinds.images, kinds.count, kinds.max_tokens, kinds.max_images).max() + 1
    begin = time.perf_counter()
    packs = pack_documents(tokens, images, seq_len=SEQ_LEN, max_images=limit).max() + 1
    seconds = time.perf_counter() - begin
    shares = tokens.sum() / SEQ_LEN / needed, images.sum() / limit / needed
    bound = "both" if min(shares) > 0.97 else "tokens" if shares[0] > shares[1] else "images"
    print(
        f"  {name:12s} {seed:5d} {limit:11d}  {bound:8s} {needed:12,d} {packs:7,d}  {packs / needed:.5f} "
        f"{plain / needed:14.5f} {seconds:9.2f}"
    )


def alike(values: np.ndarray, pack: np.ndarray) -> float:
    """Intraclass correlation of values by pack: one-way analysis of variance, packs of unequal size (Donner 1986)."""
    each, values = np.bincount(pack), values.astype(np.float64)
    n_packs, mean = len(each), np.bincount(pack, weights=values) / each
    between = (each * (mean - values.mean()) ** 2).sum() / (n_packs - 1)
    within = ((values - mean[pack]) ** 2).sum() / (len(values) - n_packs)
    usual = (len(values) - (each.astype(np.float64) ** 2).sum() / len(values)) / (n_packs - 1)
    return float((between - within) / (between + (usual - 1) * within))


def neighbours(n: int) -> None:
    """Prints, by size alone and by seed, the number of packs, evenness of steps, and likeness of lengths in a pack."""
    print(f"\nwhich documents share a pack, {n:,} documents, window {WINDOW}; by size alone -> by the seed")
    print("  mixture      max_images  fill                  straggler, DP 64     intraclass correlation  again*")
    for name, draw in DRAWN.items():
        tokens, images = draw(n, 0)
        for limit in (None, MAX_IMAGES):
            columns = {"tokens": tokens, "images": images, "areas": causal_area(tokens)}
            rules = {"seq_len": SEQ_LEN, "max_images": limit, "alignment": ALIGNMENT, "window": WINDOW}
            plans = [make_plan(**columns, **rules, seed=seed, cost_model=CostModel.of(PackConfig())) for seed in (0, 1)]
            sizes = kinds_of(aligned(tokens), images, seq_len=SEQ_LEN, max_images=limit)
            by_size = np.empty(n, np.int64)
            by_size[sizes.documents] = fewest_packs(sizes)
            costs = pack_cost(
                CostModel.of(PackConfig()), seq_len=SEQ_LEN,
                tiles=np.bincount(by_size, document_tiles(tokens, causal_area(tokens))),
                loads=np.bincount(by_size, images * CostModel.of(PackConfig()).vision_work_per_crop).astype(np.int64),
            )  # fmt: skip
            before = costs[step_order(costs, window=WINDOW, seed=0)]
            pack = np.empty((2, n), np.int64)
            for number, plan in enumerate(plans):
                pack[number, plan.document] = plan.pack_id
            cells = [
                (tokens.sum() / SEQ_LEN / len(before), tokens.sum() / SEQ_LEN / plans[0].n_packs, ".5f"),
                (straggler_ratio(before, 64), straggler_ratio(plans[0].cost, 64), ".4f"),
                (alike(tokens, by_size), alike(tokens, pack[0]), "+.3f"),
            ]
            print(
                f"  {name:12s} {limit or 'none':>10}  "
                + "   ".join(f"{f'{old:{form}} -> {new:{form}}':20s}" for old, new, form in cells)
                + f"   {again(*pack):.1%}"
            )
    print(
        "  * of the pairs of documents that share a pack, and follow one another in it, those that another seed keeps"
    )


def again(one: np.ndarray, other: np.ndarray) -> float:
    """Share of neighbours in a pack that share a pack again."""
    order = np.argsort(one, kind="stable")
    a, b = order[:-1], order[1:]
    together = one[a] == one[b]
    return float((other[a] == other[b])[together].mean())


def stragglers(n: int) -> None:
    print(f"\nstraggler ratio, {n:,} documents, window {WINDOW} (in brackets: the same packs in random order)")
    sizes = (2, 8, 16, 32, 64)
    print("  mixture      " + "".join(f"{f'DP {size}':>20s}" for size in sizes))
    for name in MIXTURES:
        tokens, images = lengths(name, n, 0)
        plan = make_plan(
            tokens=tokens, images=images, areas=causal_area(tokens), seq_len=SEQ_LEN, max_images=MAX_IMAGES,
            alignment=ALIGNMENT, window=WINDOW, seed=0, cost_model=CostModel.of(PackConfig()),
        )  # fmt: skip
        random = np.random.default_rng(0).permutation(plan.cost)
        cells = [f"{straggler_ratio(plan.cost, size):.4f} ({straggler_ratio(random, size):.3f})" for size in sizes]
        print(f"  {name:12s} " + "".join(f"{cell:>20s}" for cell in cells))


def whole_plan(name: str, n: int) -> None:
    tokens, images = DRAWN[name](n, 2)
    before, begin = peak_mib(), time.perf_counter()
    plan = make_plan(
        tokens=tokens, images=images, areas=causal_area(tokens), seq_len=SEQ_LEN, max_images=MAX_IMAGES,
        alignment=ALIGNMENT, window=WINDOW, seed=0, cost_model=CostModel.of(PackConfig()),
    )  # fmt: skip
    seconds, after = time.perf_counter() - begin, peak_mib()
    print(
        f"\nwhole plan, {name}, {n:,} documents: {plan.n_packs:,} packs, {seconds:.2f} s, the process's memory peaks "
        f"at {after:,.0f} MiB ({before:,.0f} MiB before the plan, while the mixture was drawn)"
    )


def windows(n: int = 64, dp: int = 4) -> None:
    """Costs by the full mask alone and by both masks, beside those of the tiles that are there."""
    print(f"\n{n} packs of {SEQ_LEN:,} tokens; cost by the full mask -> by both, over the cost of real tiles")
    print(f"  mixture    layers like   mean, spread (SD), correlation, straggler ratio at DP {dp} (by the real costs)")
    for mixture in ("mixed", "annotated", "long"):
        drawn = packs(mixture, n, 0)
        for name, layers in WINDOWED.items():
            models, found = (CostModel.of(PackConfig()), CostModel.of(PackConfig(), layers)), []
            for pack in drawn:
                mask = pack.mask if name == "Gemma 3" else drop_groups(pack.mask)
                edges = np.flatnonzero(np.diff(mask.doc_ids, prepend=-2, append=-2))
                spans = [slice(*span) for span in pairwise(edges.tolist()) if mask.doc_ids[span[0]] >= 0]
                sizes = np.array([span.stop - span.start for span in spans])
                areas = np.array([area_of(mask, span) for span in spans])
                both = [whole_tiles(each) for each in full_and_window(MaskIndex.of(mask), layers)]
                real = np.dot(models[1].weights, both) / sum(models[1].weights)
                found.append((*(m.attended_tiles(sizes, areas).sum() / sum(m.weights) for m in models), real))
            loads = np.array([pack.images for pack in drawn]) * models[0].vision_work_per_crop
            costs = [pack_cost(models[0], seq_len=SEQ_LEN, tiles=each, loads=loads) for each in np.array(found).T]
            even = [straggler_ratio(costs[2][step_order(cost, window=n // 4, seed=0)], dp) for cost in costs]
            ratios = [cost / costs[2] for cost in costs[:2]]
            shown = [
                " -> ".join(f"{each.mean():.3f}" for each in ratios),
                " -> ".join(f"{each.std():.4f}" for each in ratios),
                " -> ".join(f"{np.corrcoef(each, costs[2])[0, 1]:.4f}" for each in costs[:2]),
                " -> ".join(f"{each:.4f}" for each in even[:2]) + f" ({even[2]:.4f})",
            ]
            print(f"  {mixture:10s} {name:12s}  {', '.join(shown)}", flush=True)


def area_of(mask: MaskArrays, span: slice) -> int:
    """Allowed pairs of one document."""
    branches, groups, n = mask.branch_ids[span], mask.group_ids[span], span.stop - span.start
    if branches.any():
        return attention_area(MaskArrays(doc_ids=branches * 0, branch_ids=branches, group_ids=groups))
    members = np.bincount(groups[groups >= 0])
    return n * (n + 1) // 2 + int((members * (members - 1) // 2).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--documents", type=int, default=1_000_000, help="documents of the speed table")
    parser.add_argument("--ten-million", choices=list(DRAWN), help="plan ten million documents of a mixture, no more")
    parser.add_argument("--windows", action="store_true", help="costs of models with windows, no more")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    given = parser.parse_args()
    part = 10 if given.quick else 1
    print(f"{hardware()}, one core used")
    if given.windows:
        windows()
        return
    begin = time.perf_counter()
    pack_documents(*even_video(300, 0), seq_len=SEQ_LEN, max_images=MAX_IMAGES)
    print(f"compiling, or loading from numba's cache: {time.perf_counter() - begin:.1f} s")
    if given.ten_million:
        whole_plan(given.ten_million, 10_000_000 // part)
        return
    speed(given.documents // part)
    fill(100_000 // part)
    neighbours(100_000 // part)
    stragglers(100_000 // part)
    whole_plan("mixed", given.documents // part)


if __name__ == "__main__":
    main()
