import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.packer_service.plan.cost import CostModel, causal_area, document_tiles, pack_cost
from preshard.packer_service.plan.make import Plan, make_plan
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import PlanError

SIZES = st.lists(st.tuples(st.integers(1, 64), st.integers(0, 5)), max_size=60)


def plan_of(sizes: list[tuple[int, int]], **changes: object) -> Plan:
    tokens = np.array([t for t, _ in sizes], np.int64)
    images = np.array([i for _, i in sizes], np.int64)
    arguments = {
        "tokens": tokens,
        "images": images,
        "areas": causal_area(tokens),
        "seq_len": 64,
        "max_images": 5,
        "alignment": 1,
        "window": 4,
        "seed": 0,
        "cost_model": CostModel.of(PackConfig()),
    }
    return make_plan(**{**arguments, **changes})  # type: ignore[arg-type]


@settings(deadline=None)
@given(sizes=SIZES, alignment=st.sampled_from([1, 2, 8, 64]), window=st.integers(1, 9), seed=st.integers(0, 9))
def test_a_plan_holds_every_document_once_and_no_pack_is_over(
    sizes: list[tuple[int, int]], alignment: int, window: int, seed: int
) -> None:
    """Fails when ordering or placing loses a document, lets two overlap, or breaks alignment or a budget."""
    plan = plan_of(sizes, alignment=alignment, window=window, seed=seed)
    assert sorted(plan.document) == list(range(len(sizes)))
    assert plan.pack_edges[0] == 0
    assert plan.pack_edges[-1] == plan.n_documents == len(sizes)
    assert len(plan.cost) == plan.n_packs
    for pack in range(plan.n_packs):
        rows = plan.rows(pack)
        documents = plan.document[rows]
        assert len(documents) > 0
        assert (plan.pack_id[rows] == pack).all()
        assert (np.diff(documents) > 0).all()
        assert plan.length[rows].tolist() == [sizes[d][0] for d in documents]
        assert plan.start[rows].tolist() == [0, *np.cumsum(plan.aligned_length[rows])[:-1]]
        assert (plan.start[rows] % alignment == 0).all()
        assert (plan.aligned_length[rows] - plan.length[rows] < alignment).all()
        assert plan.aligned_length[rows].sum() <= 64
        assert sum(sizes[d][1] for d in documents) <= 5


@settings(deadline=None)
@given(sizes=SIZES, data=st.data())
def test_a_plan_does_not_depend_on_the_order_of_equal_documents(
    sizes: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Fails when the packing depends on where documents of the same size stand in the table."""
    shuffled = data.draw(st.permutations(sizes))
    ours, other = plan_of(sizes), plan_of(shuffled)
    assert ours.pack_edges.tolist() == other.pack_edges.tolist()
    assert ours.cost.tolist() == other.cost.tolist()
    for pack in range(ours.n_packs):
        kinds = [sizes[d] for d in ours.document[ours.rows(pack)]]
        assert sorted(kinds) == sorted(shuffled[d] for d in other.document[other.rows(pack)])


def test_no_documents_make_no_packs() -> None:
    """Fails when a source whose documents were all rejected ends in a traceback."""
    plan = plan_of([])
    assert (plan.n_packs, plan.n_documents, plan.pack_edges.tolist()) == (0, 0, [0])


def test_the_cost_of_a_pack_can_be_computed_again_from_what_is_written() -> None:
    """Fails when plan and report disagree: a written pack knows its lengths, but its area only as a whole."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 3000, 400)
    areas = causal_area(tokens) - rng.integers(0, tokens)
    images = rng.integers(0, 9, 400)
    model = CostModel.of(PackConfig())
    plan = make_plan(
        tokens=tokens,
        images=images,
        areas=areas,
        seq_len=4096,
        max_images=40,
        alignment=16,
        window=8,
        seed=0,
        cost_model=model,
    )
    for pack in range(plan.n_packs):
        documents = plan.document[plan.rows(pack)]
        lengths = plan.length[plan.rows(pack)]
        spread = causal_area(lengths)
        spread[0] += areas[documents].sum() - spread.sum()
        again = pack_cost(
            model,
            seq_len=4096,
            tiles=document_tiles(lengths, spread).sum(keepdims=True),
            loads=images[documents].sum(keepdims=True) * model.vision_work_per_crop,
        )
        assert again[0] == plan.cost[pack]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alignment": 0}, "alignment is 0"),
        ({"alignment": 48}, "document 1 has 96 tokens, a pack holds at most 64"),
        ({"window": 0}, "order.window is 0"),
        ({"areas": np.ones(1, np.int64)}, "2 documents have tokens but 1 have areas"),
        ({"areas": np.ones(3, np.int64)}, "2 documents have tokens but 3 have areas"),
        ({"tokens": np.array([3, 0])}, "document 1 has tokens 0"),
        ({"max_images": 1}, "document 1 has 2 images, a pack holds at most 1; raise max_images"),
        ({"cost_model": None, "seq_len": 49}, "document 1 has 50 tokens, a pack holds at most 49; raise seq_len"),
    ],
)
def test_impossible_input_is_refused_with_what_would_do(changes: dict[str, object], message: str) -> None:
    """Fails when an impossible plan comes out as a traceback or, worse, as a plan."""
    with pytest.raises(PlanError, match=message):
        plan_of([(3, 0), (50, 2)], **changes)
