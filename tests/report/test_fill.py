import numpy as np

from preshard.packer_service.plan.cost import CostModel, causal_area
from preshard.packer_service.plan.make import make_plan
from preshard.packer_service.report.fill import fill_of, plan_totals
from preshard.schemas.config import PackConfig, parse_config


def summary_of(tokens: list[int], images: list[int], max_images: int | None, window: int = 4, dp_sizes=()):
    lengths, crops = np.array(tokens, np.int64), np.array(images, np.int64)
    plan = make_plan(
        tokens=lengths, images=crops, areas=causal_area(lengths), seq_len=16, max_images=max_images, alignment=4,
        window=window, seed=0, cost_model=CostModel.of(PackConfig()),
    )  # fmt: skip
    alone = {"cp_sizes": [1], "ring_degrees": [1], "layouts": ["contiguous"]}
    config = parse_config({"seq_len": 16, "max_images": max_images, "order": {"window": window}, **alone})
    return plan, fill_of(plan_totals(plan, crops), plan.cost, config, dp_sizes=dp_sizes)


def test_padding_by_cause_by_hand() -> None:
    """Fails when a cause counts another's tokens. Aligned to 4, the documents take 12, 12 and 4 tokens; each has the
    images of a whole pack, so three packs of 16 hold 23 real tokens."""
    _, figures = summary_of([11, 9, 3], [2, 2, 2], 2)
    assert (figures.documents, figures.packs, figures.tokens, figures.padding_tokens) == (3, 3, 23, 25)
    assert figures.fill == 23 / 48
    assert (figures.packs_for_tokens, figures.packs_for_images) == (2, 3)
    assert figures.padding == {"alignment": 5, "image_budget": 16, "packing": 0, "remainder": 4}


def test_packs_beyond_both_needs_are_the_packings() -> None:
    """Fails when what the sizes make impossible is put down to a budget: two of 12 never share a pack of 16."""
    _, figures = summary_of([12, 12, 12, 12], [0, 0, 0, 0], None)
    assert (figures.packs, figures.packs_for_tokens, figures.packs_for_images) == (4, 3, 0)
    assert figures.padding == {"alignment": 0, "image_budget": 0, "packing": 16, "remainder": 0}


def test_causes_add_up_and_figures_describe_the_plan() -> None:
    """Fails when padding is counted twice or left out, or when percentiles are not costs of packs."""
    rng = np.random.default_rng(0)
    plan, figures = summary_of(rng.integers(1, 17, 300).tolist(), rng.integers(0, 6, 300).tolist(), 5, window=8)
    assert sum(figures.padding.values()) == figures.padding_tokens
    assert figures.tokens + figures.padding_tokens == plan.n_packs * 16
    assert list(figures.straggler_ratio) == [1, 2, 4, 8]
    assert set(figures.cost_percentiles.values()) <= set(plan.cost.tolist())
    assert figures.cost_percentiles[0] == plan.cost.min()
    assert figures.cost_percentiles[100] == plan.cost.max()


def test_sizes_that_no_step_has_are_left_out() -> None:
    """Fails when a data-parallel size above the number of packs gets the ratio of a step that no trainer can take."""
    _, figures = summary_of([16, 16, 16], [0, 0, 0], None, window=8)
    assert list(figures.straggler_ratio) == [1, 2]
    _, asked = summary_of([16, 16, 16], [0, 0, 0], None, window=8, dp_sizes=[2, 8])
    assert list(asked.straggler_ratio) == [2]


def test_an_empty_plan_has_figures() -> None:
    """Fails when a what-if of nothing divides by zero."""
    _, figures = summary_of([], [], 5)
    assert (figures.packs, figures.fill, figures.padding_tokens, figures.cost_percentiles) == (0, 0.0, 0, {})
