"""Advice from loads made by hand: each part of a step's time, memory, the order of splits, what is assumed."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from preshard.packer_service.demo.families import FAMILIES
from preshard.packer_service.demo.model import model_config, tiny_model
from preshard.packer_service.report.advice.answer import Advisor
from preshard.packer_service.report.advice.assumptions import assumptions_of
from preshard.packer_service.report.advice.dataset import advised_model
from preshard.packer_service.report.advice.estimate.loads import (
    COLUMNS,
    SAMPLED_PACKS,
    PackLoads,
    SlowestRank,
    read_pack_loads,
    sampled_spans,
)
from preshard.packer_service.report.advice.estimate.memory import MemoryEstimate
from preshard.packer_service.report.advice.estimate.seconds import Estimate, PackSeconds
from preshard.packer_service.report.advice.estimate.split import MOST, SplitChoice
from preshard.packer_service.report.advice.figures import SplitAdvice
from preshard.packer_service.report.advice.model import configured_sizes, folder_sizes
from preshard.packer_service.report.advice.question import AdviceQuestion, make_question
from preshard.packer_service.report.measures import SampledMeasures
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.measures import MeasureOrder
from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import LayerMasks
from preshard.schemas.model.dimensions import ModelDimensions
from preshard.schemas.model.savings import Saving
from tests.benchmarks.published_runs import FRAME, FRAMES, RUNS, Run, dimensions, estimate
from tests.support.made_records import made_measures

SEQ_LEN, TILES = 1024, 64
CONFIG = PackConfig(
    seq_len=SEQ_LEN,
    block_size=128,
    layouts=("contiguous", "zigzag", "balanced_ring"),
    ring_degrees=(1, 2),
    cp_sizes=(1, 2),
)
SIZES = ModelDimensions(
    hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, value_dim=16, vocab=1000, inner=128, stored_inner=128,
    tied=False, vision_parameters=0, vision_width=32, vision_layers=2, source="a test",
)  # fmt: skip
PLAIN = dict.fromkeys(
    ("peak_tflops", "linear_efficiency", "attention_efficiency", "vision_efficiency", "link_efficiency"), 1.0
) | {
    "latency_us": 0.0,
    "memory_gb_per_s": 1e9,
    "node_gb_per_s": 1e9,
    "network_gb_per_s": 1e9,
    "memory_gb": 1e3,
    "recompute": "none",
}
"""One operation takes 10**-12 s, and messages no time."""


def asked(**values: Any) -> AdviceQuestion:
    return make_question({"gpus": 2, **PLAIN, "attention_backward": 2.5, "ring_backward": 3.5, **values})


def loads(
    packs: int = 1, *, path: int = 40, steps: tuple[int, int] = (30, 20), keys: int = 100, **columns: int
) -> PackLoads:
    """Equal packs of 64 tiles in two slices: the slowest computes ``path``, in the two steps of a ring ``steps``."""
    values = {"n_tokens": 1000, "n_units": 0, "attention_tiles": TILES, **columns}
    even = SlowestRank(
        gather_path=np.full(packs, TILES // 2),
        ring_steps=np.full((2, packs), TILES // 4),
        most_keys=np.full(packs, 512),
    )
    uneven = SlowestRank(
        gather_path=np.full(packs, path),
        ring_steps=np.repeat(np.array(steps)[:, None], packs, axis=1),
        most_keys=np.full(packs, keys),
    )
    return PackLoads(
        n_packs=packs,
        spans=(range(packs),),
        columns={name: np.full(packs, values.get(name, 0)) for name in COLUMNS},
        layouts={("zigzag", 2): uneven, ("balanced_ring", 2): even},
        images={2: np.full(packs, 80)},
    )


def split(ulysses: int = 1, ring: int = 1, layout: str = "zigzag", kind: Any = "none", dp: int = 1) -> SplitChoice:
    return SplitChoice(ulysses=ulysses, ring=ring, layout=layout, kind=kind, dp=dp)


def seconds(
    of: SplitChoice,
    question: AdviceQuestion,
    packs: PackLoads | None = None,
    recompute: Any = "none",
    sizes: ModelDimensions = SIZES,
) -> PackSeconds:
    estimate = Estimate(sizes=sizes, question=question, loads=packs or loads(), seq_len=SEQ_LEN)
    return estimate.of_packs(of, Saving(recompute=recompute))


TILE_SECONDS = 4 * 128 * 128 * 4 * 16 * 2 / 1e12
"""A tile's forward pass over two layers."""


def test_a_whole_pack_costs_its_products_and_its_tiles() -> None:
    """Fails when the backward pass counts otherwise than twice (products) and 2.5 times (attention) the forward."""
    found = seconds(split(), asked())
    layer = 64 * (2 * 16 * (4 + 2) + 3 * 128)
    assert found.linear[0] == pytest.approx(2 * SEQ_LEN * (3 * 2 * layer + 4 * 64 * 1000) / 1e12)
    assert found.attention[0] == pytest.approx(TILES * TILE_SECONDS * 3.5)
    assert found.total[0] == pytest.approx(found.linear[0] + found.attention[0])


@pytest.mark.parametrize(("recompute", "forwards"), [("none", 3), ("selective", 4), ("full", 4)])
def test_what_is_computed_again_costs_time(recompute: Any, forwards: int) -> None:
    """Fails when selective recomputation pays for attention again, or full does not."""
    found = seconds(split(), asked(), recompute=recompute)
    layer = 64 * (2 * 16 * (4 + 2) + 3 * 128)
    assert found.linear[0] == pytest.approx(2 * SEQ_LEN * (forwards * 2 * layer + 4 * 64 * 1000) / 1e12)
    assert found.attention[0] == pytest.approx(TILES * TILE_SECONDS * (4.5 if recompute == "full" else 3.5))


def test_what_is_no_product_costs_its_bytes() -> None:
    """Fails when time outside attention is that of products alone, compiled blocks cost what plain ones do, what is
    computed again moves nothing, or products of few tokens do not wait for their weights.
    """
    free = {"linear_efficiency": None, "product_efficiency": 1.0, "memory_efficiency": 1.0, "peak_tflops": 1e6}
    slow = asked(**free, memory_gb_per_s=1.0)
    widths = {"hidden": 64, "queries": 4 * 16, "keys": 2 * 16, "inner": 128}
    operands = 14 * 64 + 4 * (4 + 2) * 16 + 6 * 128
    weights = 64 * (2 * 16 * (4 + 2) + 3 * 128)
    parameters = (22 + 40) * SIZES.parameters
    for compiled, recompute, of_a_layer in (
        (False, "none", {"hidden": 84 + 214, "queries": 56 + 148, "keys": 56 + 176, "inner": 10 + 48}),
        (True, "none", {"hidden": 24 + 40, "queries": 6 + 46, "keys": 6 + 72, "inner": 6 + 18}),
        (True, "selective", {"hidden": 48 + 40, "queries": 12 + 46, "keys": 12 + 72, "inner": 12 + 18}),
    ):
        moved = 2 * sum(each * widths[name] for name, each in of_a_layer.items()) + (34 + 48) * 1000
        moved += 10 * 64 * 1000 * 6 * 1000 / 1.074e9  # the gradient of the output projection, a chunk at a time
        read = (3 if recompute == "none" else 4) * 2 * (SEQ_LEN * operands + 2 * weights)
        found = seconds(split(), slow.model_copy(update={"compiled": compiled}), recompute=recompute).linear[0]
        assert found == pytest.approx((SEQ_LEN * moved + read + parameters) / 1e9, rel=1e-6)
    fast = asked(**free | {"peak_tflops": 1.0})
    assert seconds(split(), fast).linear[0] == pytest.approx(seconds(split(), asked()).linear[0], rel=1e-3)


def test_a_gather_waits_for_its_slowest_rank_and_a_ring_at_every_step() -> None:
    """Fails when a ring is charged for its slowest rank as a whole, or without the forward that its kernel repeats."""
    even = TILES / 2 * TILE_SECONDS * 3.5
    gather, ring = (seconds(split(ring=2, kind=kind), asked()) for kind in ("gather", "ring"))
    assert gather.attention_waiting[0] == pytest.approx((40 - 32) * TILE_SECONDS * 3.5)
    assert ring.attention[0] == pytest.approx(even)
    assert ring.attention[0] + ring.attention_waiting[0] == pytest.approx((30 + 20) * TILE_SECONDS * 4.5)


@pytest.mark.parametrize(("recompute", "sends"), [("none", 2), ("selective", 2), ("full", 3)])
def test_gathered_keys_are_not_hidden_and_gradients_travel_in_float32(recompute: Any, sends: int) -> None:
    """Fails when keys are sent once, as in a forward pass alone, again for attention that is kept, or gradients in the
    width of keys.
    """
    found = seconds(split(ring=2, kind="gather"), asked(node_gb_per_s=1.0), recompute=recompute)
    keys = 100 * 2 * 2 * 16 * 2  # tokens, keys and values, heads, width, layers
    assert found.exchange[0] == pytest.approx(keys * (sends * 2 + 4) / 1e9)


def test_a_ring_hides_what_is_shorter_than_its_steps() -> None:
    """Fails when transfers are added to the steps they run beside, or the last one, beside which none runs, is lost."""
    slice_keys = 512 * 2 * 2 * 16  # of a layer
    fast = seconds(split(ring=2, kind="ring"), asked(node_gb_per_s=100.0))
    assert fast.exchange[0] == pytest.approx(2 * slice_keys * 4 / 100e9, rel=1e-4)  # and copies
    slow = seconds(split(ring=2, kind="ring"), asked(node_gb_per_s=1e-3))
    steps = TILE_SECONDS / 2 * np.array([30, 20])
    keys, gradients = (slice_keys * size / 1e6 for size in (2, 4))
    backward = (keys - 3.5 * steps[0]) + (gradients - 3.5 * steps[1]) + gradients
    assert slow.exchange[0] == pytest.approx(2 * ((keys - steps[0]) + backward))


def test_dealt_heads_are_even_and_travel_there_and_back() -> None:
    """Fails when the copies of two key heads that four ranks take are left out."""
    found = seconds(split(ulysses=4, kind="ulysses"), asked(gpus=4, node_gb_per_s=1.0))
    assert found.attention_waiting[0] == 0
    assert found.attention[0] == pytest.approx(TILES * TILE_SECONDS * 3.5 / 4)
    assert found.exchange[0] == pytest.approx(2 * 2 * (4 + 4) * 16 * SEQ_LEN / 4 * 3 / 4 * 2 * 2 / 1e9)


LATENT = replace(SIZES, latent=20, shared=4)
"""Keys and values of 64 numbers from 24."""


@pytest.mark.parametrize(
    ("of", "numbers"),
    [
        (split(ring=2, kind="gather"), 100 * 24 * (2 * 2 + 4)),
        (split(ulysses=2, kind="ulysses"), SEQ_LEN // 2 // 2 * (4 * 2 * 16 + 24 * 2) * 2 * 2),
        (split(ulysses=4, kind="ulysses"), SEQ_LEN // 4 * 3 // 4 * (4 * 2 * 16 + 24 * 4) * 2 * 2),
    ],
)
def test_a_latent_travels_in_the_place_of_its_keys(of: SplitChoice, numbers: int) -> None:
    """Fails when a model's latents are charged as its keys and values, or the other way."""
    link = asked(gpus=4, node_gb_per_s=1.0)
    assert seconds(of, link, sizes=LATENT).exchange[0] == pytest.approx(2 * numbers / 1e9)
    wide = replace(LATENT, latent=61)
    assert seconds(of, link, sizes=wide).exchange[0] == seconds(of, link).exchange[0]


@pytest.mark.parametrize(("recompute", "times", "counted"), [("none", 4, 3), ("selective", 4, 4), ("full", 5, 4)])
def test_latents_are_expanded_where_they_arrive(recompute: Any, times: int, counted: int) -> None:
    """Fails when expanding costs a rank its own tokens alone, or no more where attention is computed again."""
    each = 2 * 2 * 20 * 4 * (32 - 4) / 1e12

    def more(of: SplitChoice) -> float:
        found, plain = (seconds(of, asked(), recompute=recompute, sizes=sizes) for sizes in (LATENT, SIZES))
        return float((found.linear - plain.linear)[0])

    own = counted * SEQ_LEN / 2
    assert more(split()) == 0
    assert more(split(ring=2, kind="gather")) == pytest.approx(each * (times * (100 + SEQ_LEN / 2) - own))
    assert more(split(ring=2, kind="ring")) == pytest.approx(each * (times * SEQ_LEN - own))
    assert more(split(ulysses=2, kind="ulysses")) == pytest.approx(each * (times * SEQ_LEN / 2 - own))


@pytest.mark.parametrize(
    ("of", "moved"),
    [
        (split(ring=2, kind="gather"), (100 + SEQ_LEN // 2) * 2 * 2 * 16 * 2 * (3 + 38)),
        (split(ring=2, kind="ring"), SEQ_LEN * 2 * (4 * 16 * (19 + 90) + 2 * 2 * 16 * 20)),
        (split(ulysses=2, kind="ulysses"), SEQ_LEN // 2 * 2 * 2 * (4 + 2) * 16 * (8 + 12)),
    ],
)
def test_exchanges_copy(of: SplitChoice, moved: int) -> None:
    """Fails when what is copied before and after an exchange takes no time: gathered keys, queries in each step of a
    ring, dealt heads.
    """
    slow, fast = (seconds(of, asked(memory_gb_per_s=speed, memory_efficiency=1.0)) for speed in (1.0, 1e9))
    assert slow.exchange[0] - fast.exchange[0] == pytest.approx(moved / 1e9)


def test_what_leaves_a_node_takes_the_slower_link() -> None:
    """Fails when ranks of several nodes are charged the speed of one, or all traffic the network's."""
    one, two = (
        seconds(
            split(ulysses=4, kind="ulysses"), asked(gpus=4, node_gb_per_s=10.0, network_gb_per_s=1.0, gpus_per_node=n)
        )
        for n in (4, 2)
    )
    assert two.exchange[0] / one.exchange[0] == pytest.approx(10 * 2 / 3)
    ring = split(ring=2, kind="ring")
    near, far = (
        seconds(ring, asked(node_gb_per_s=10.0, network_gb_per_s=1.0, gpus_per_node=n)).exchange[0] for n in (2, 1)
    )
    assert far > near


def test_images_wait_for_the_busiest_rank() -> None:
    """Fails when vision is shared evenly, or a CP size that is not stored is taken for perfect."""
    packs = loads(load=100, n_units=3, n_patches=10)
    two = seconds(split(ulysses=2, kind="ulysses"), asked(), packs)
    assert (two.vision[0], two.vision_waiting[0]) == pytest.approx((50 * 6e-12, 30 * 6e-12))
    four = seconds(split(ulysses=4, kind="ulysses"), asked(gpus=4), packs)
    assert four.vision[0] + four.vision_waiting[0] == pytest.approx(100 / 3 * 6e-12)


def advise(question: AdviceQuestion, packs: PackLoads) -> list[SplitAdvice]:
    return Advisor(config=CONFIG, sizes=SIZES, question=question, loads=packs).estimates()


def test_the_fastest_comes_first_and_speedups_are_over_what_they_say() -> None:
    """Fails when a step is compared by its seconds instead of by its tokens."""
    found = advise(asked(), loads(8))
    speeds = [each.tokens_per_second for each in found]
    assert speeds == sorted(speeds, reverse=True)
    by = {(each.ulysses_degree, each.ring_degree, each.layout, each.kind): each for each in found}
    whole, even = by[1, 1, "contiguous", "none"], by[1, 2, "balanced_ring", "gather"]
    assert whole.dp_size == 2
    assert even.dp_size == 1
    assert even.speedup_over_cp1 == pytest.approx(even.tokens_per_second / whole.tokens_per_second)
    assert even.speedup_over_zigzag == pytest.approx(
        even.tokens_per_second / by[1, 2, "zigzag", "gather"].tokens_per_second
    )
    assert even.speedup_over_zigzag > 1
    assert sum(
        getattr(even.seconds, name) for name in type(even.seconds).model_fields if name != "total"
    ) == pytest.approx(even.seconds.total)


def test_a_step_waits_for_its_most_expensive_pack() -> None:
    """Fails when stragglers are taken over all packs instead of step by step, or steps begin inside a window."""
    packs = loads(4)
    packs.columns["attention_tiles"][:] = [10, 30, 50, 50]
    [whole] = [each for each in advise(asked(), packs) if each.dp_size == 2]
    assert whole.seconds.straggler == pytest.approx((10 + 0) / 2 * TILE_SECONDS * 3.5)


def test_what_does_not_fit_comes_last_and_says_so() -> None:
    """Fails when a split that no device can hold is recommended for its speed."""
    found = advise(asked(memory_gb=0.0055, logits_gb=0.0, offload="none"), loads(8, keys=0))
    fits = [each.fits for each in found]
    assert fits == sorted(fits, reverse=True)
    assert set(fits) == {True, False}
    assert "may use" in found[-1].reason
    assert "may use" not in found[0].reason


def test_as_little_is_computed_again_as_fits() -> None:
    """Fails when recomputation is chosen where it is not needed, or not chosen where only it fits."""
    ways = [
        advise(asked(memory_gb=memory, logits_gb=0.0, recompute="auto"), loads(8))[-1].recompute
        for memory in (1000.0, 0.022, 0.001)
    ]
    assert ways[0] == "none"
    assert ways[-1] == "full"


def test_what_saves_memory_is_proposed_with_its_cost() -> None:
    """Fails when a split that would fit with fewer keys at a time, with tiles or with state on the host is said not to
    fit, when more is saved than needed, or when the sentence does not say what it costs.
    """
    of, question = split(ring=2, kind="gather"), asked(recompute="auto", logits_gb=0.0, memory_share=1.0)
    memory = MemoryEstimate(sizes=SIZES, question=question, loads=loads(8), seq_len=SEQ_LEN, gpus=2)
    ways = list(of.savings(("none", "selective", "full"), SIZES.kv_heads, offload=True))
    held = [memory.of_rank(of, way).total for way in ways]
    assert {way.head_stride for way in ways} == {0, 1}
    assert {way.offload for way in ways} == {"none", "host", "all"}
    for limit in set(held):
        wanted = question.model_copy(update={"memory_gb": limit})
        [found] = [each for each in advise(wanted, loads(8)) if (each.layout, each.kind) == (of.layout, of.kind)]
        first = next(way for way, each in zip(ways, held, strict=True) if each <= limit)
        assert found.fits
        assert (found.recompute, found.head_stride, found.offload) == (
            first.recompute,
            first.head_stride,
            first.offload,
        )
        assert found.options == of.options(first)
    least = next(each for each in advise(question.model_copy(update={"memory_gb": min(held)}), loads(8)) if each.fits)
    assert "--offload all" in least.options
    assert "--offload all takes 0 GB of the host's memory a rank and" in least.reason
    away, estimate = ways[-1], Estimate(sizes=SIZES, question=question, loads=loads(8), seq_len=SEQ_LEN)
    moved, adamw = estimate.offload(of, away, 2)
    assert adamw == pytest.approx(7 * 4 * SIZES.parameters / 2 / 50e9)
    assert moved == pytest.approx((2 * 4 * SIZES.parameters / 2 + 2 * 2 * 64 * SEQ_LEN / 2) / 50e9)
    assert estimate.turns(of, Saving(recompute="full", head_stride=1)) == 2


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run[0]} {run[2]} {run[3]}")
def test_what_others_fit_fits_here(run: Run) -> None:
    """Fails when the trainer or advice says of a run that others have published that it does not fit on its GPUs."""
    _, _, tokens, gpus, _ = run
    assert estimate(run).fits
    images = {"n_units": FRAMES, "n_patches": FRAMES * FRAME[0], "n_pooled_tokens": FRAMES * FRAME[1]}
    packs = loads(8, keys=tokens, **(images if dimensions(run).vision_layers else {}))
    question, config = make_question({"gpus": gpus}), CONFIG.model_copy(update={"seq_len": tokens})
    found = Advisor(config=config, sizes=dimensions(run), question=question, loads=packs).estimates()
    [ulysses] = [each for each in found if (each.ulysses_degree, each.ring_degree) == (gpus, 1)]
    assert ulysses.fits


def test_memory_falls_with_ranks_and_with_recomputation() -> None:
    """Fails when activations do not shrink with the slice, or state with the number of devices."""

    def memory(gpus: int, recompute: Any, **degrees: int) -> Any:
        estimate = MemoryEstimate(sizes=SIZES, question=asked(gpus=gpus), loads=loads(), seq_len=SEQ_LEN, gpus=gpus)
        return estimate.of_rank(split(**degrees), Saving(recompute=recompute))

    assert memory(4, "none").state == pytest.approx(memory(2, "none").state / 2)
    assert memory(2, "none", ulysses=2).activations == pytest.approx(memory(2, "none").activations / 2)
    kept = [memory(2, way).activations for way in ("none", "selective", "full")]
    assert kept == sorted(kept, reverse=True)
    assert len(set(kept)) == 3


def test_splits_need_packs_heads_and_slices_that_divide() -> None:
    """Fails when a step needs more packs than there are, or heads, tokens or devices do not divide."""
    found = advise(asked(gpus=16), loads(4))
    assert {each.dp_size for each in found} == {2, 4}  # 4 heads and a ring of 2: at most 8 ranks share a pack
    assert not advise(asked(gpus=3), loads(2))
    assert {each.dp_size for each in advise(asked(gpus=16, most_packs=2), loads(64))} == {2}


def test_large_datasets_are_sampled_evenly_and_always_alike() -> None:
    """Fails when a million packs are all read, or only the first ones."""
    small = MeasureOrder.of(CONFIG, 50)
    assert sampled_spans(small) == (range(50),)
    large = MeasureOrder.of(CONFIG, 10_000_000)
    spans = sampled_spans(large)
    assert sum(map(len, spans)) == SAMPLED_PACKS
    blocks = [(span.start // large.block_packs, (span.stop - 1) // large.block_packs) for span in spans]
    assert all(first == last for first, last in blocks)  # one read for each
    middles = [(span.start + span.stop) / 2 / 10_000_000 for span in spans]
    assert np.allclose(np.diff(middles), 1 / len(spans), atol=0.02)
    for packs in range(SAMPLED_PACKS + 1, SAMPLED_PACKS + 9):
        spans = sampled_spans(MeasureOrder.of(CONFIG, packs))
        assert all(one.stop <= other.start for one, other in pairwise(spans))
        assert spans[-1].stop <= packs
    assert sampled_spans(MeasureOrder.of(CONFIG, 0)) == ()


def test_loads_are_read_by_their_columns() -> None:
    """Fails when tiles, steps or keys are taken for one another, or degrees are read that do not divide the devices."""
    measures = SampledMeasures(config=CONFIG, rows=made_measures(np.arange(3), CONFIG))
    rows = {(row["scheme"], row["degree"]): row for row in measures.rows.to_pylist() if row["pack_id"] == 1}
    found = read_pack_loads(measures, lambda _: np.arange(3), gpus=2)
    layout, stored = found.layouts["zigzag", 2], rows["zigzag", 2]
    assert (layout.gather_path[1], layout.most_keys[1]) == (stored["gather_path"], stored["most_keys"])
    assert layout.ring_steps[:, 1].tolist() == stored["ring_steps"]
    assert found.images[2][1] == rows[None, 2]["most_image_load"]
    found = read_pack_loads(measures, lambda _: np.arange(3), gpus=3)
    assert {ring for _, ring in found.layouts} == {*found.images} == {1}


def test_layers_with_a_window_are_counted_by_their_own_tiles() -> None:
    """Fails when all layers are taken for full ones, or memory for the keys of the layers that need few."""
    rows = made_measures(np.arange(3), CONFIG)
    for name in ("attention_tiles", "gather_path", "most_keys"):
        halved = pc.divide(rows[name], 2)
        rows = rows.set_column(rows.schema.get_field_index(f"window_{name}"), f"window_{name}", halved)
    rows = rows.set_column(rows.schema.get_field_index("window_ring_steps"), "window_ring_steps", rows["ring_steps"])
    measures, layers = (
        SampledMeasures(config=CONFIG, rows=rows),
        LayerMasks(full_layers=1, window_layers=5, window=64, groups="all"),
    )
    full = read_pack_loads(measures, lambda _: np.full(3, 1000), gpus=2)
    both = read_pack_loads(measures, lambda _: np.full(3, 1000), gpus=2, layers=layers)
    one, other = full.layouts["zigzag", 2], both.layouts["zigzag", 2]
    assert one.gather_path.min() > 10
    assert np.allclose(other.gather_path, (one.gather_path + 5 * (one.gather_path // 2)) / 6, atol=0.51)
    assert np.array_equal(other.ring_steps, one.ring_steps)
    assert np.array_equal(other.most_keys, one.moved_keys)
    assert (other.moved_keys < one.moved_keys).all()
    assert both.columns["load"].tolist() == full.columns["load"].tolist()
    assert both.columns["attention_tiles"].tolist() != full.columns["attention_tiles"].tolist()


def test_steps_begin_where_a_trainers_do() -> None:
    """Fails when a block of packs in the middle begins a step at its own first pack."""
    packs = loads(10)
    middle = PackLoads(n_packs=100, spans=(range(3, 8), range(20, 25)), columns=packs.columns, layouts={}, images={})
    assert middle.steps(2).tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert middle.steps(64).tolist() == [list(range(10))]


def test_every_assumption_is_in_the_answer_with_its_source() -> None:
    """Fails when an option has no line in the answer, or what was given cannot be told from a default."""
    question = make_question({"gpus": 2, "gpu": "a100", "latency_us": "7", "head_dim": 32})
    advice = Advisor(config=CONFIG, sizes=SIZES, question=question, loads=loads(4)).advice()
    by = {each.name: each for each in advice.assumptions}
    assert set(by) == set(AdviceQuestion.model_fields) - {"gpus", "gpu", "limit"}
    assert (by["peak_tflops"].value, by["latency_us"].value) == (312, 7.0)
    assert "A100" in by["peak_tflops"].source
    assert (by["latency_us"].source, by["link_efficiency"].source) == ("given", "default")
    reached, source = by["linear_efficiency"].value, by["linear_efficiency"].source
    plain = float(source.removeprefix("estimated, of the first split; ").removesuffix(" with plain blocks"))
    assert isinstance(reached, float)
    assert 0 < plain < reached < question.product_efficiency
    given = make_question({"gpus": 2, "linear_efficiency": 0.5})
    by = {each.name: each for each in assumptions_of(given, SIZES, advice.splits[0], SEQ_LEN)}
    assert (by["linear_efficiency"].value, by["linear_efficiency"].source) == (0.5, "given")
    assert all(each.meaning for each in advice.assumptions)


def test_wrong_assumptions_are_one_line() -> None:
    """Fails when an unknown name is ignored, or a value is taken that makes nonsense of the answer."""
    with pytest.raises(ConfigError, match="--assume speed: unknown; legal are peak_tflops,"):
        make_question({"gpus": 2, "speed": 3})
    with pytest.raises(ConfigError, match="--assume linear_efficiency=2: give at most 1"):
        make_question({"gpus": 2, "linear_efficiency": "2"})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_folder_gives_the_dimensions(tmp_path: Path, family: str) -> None:
    """Fails when a family's decoder is looked for in the wrong place, or its encoder is left out."""
    ids = {mark: number for number, mark in enumerate(tiny_model(family).marks)}
    for name, values in {"config.json": model_config(family, ids, 1000), **tiny_model(family).processors}.items():
        (tmp_path / name).write_text(json.dumps(values))
    found = folder_sizes(str(tmp_path))
    layers = 3 if family.startswith("gemma") else 2
    kv_heads, head_dim = {"glm_ocr": (2, 32), "kimi_k25": (4, 20)}.get(family, (2, 16))
    assert (found.hidden, found.layers, found.heads) == (64, layers, 4)
    assert (found.kv_heads, found.head_dim) == (kv_heads, head_dim)
    assert (found.vision_parameters > 0) == (family != "qwen3")


def test_the_configured_dimensions_have_the_size_of_their_model() -> None:
    """Fails when a matrix is left out: Qwen3-8B has 8.19 billion parameters (its model card), and SigLIP 0.4."""
    cost = CONFIG.cost
    found = configured_sizes(cost, CONFIG.vision, None, "cost")
    assert found.parameters - found.vision_parameters == pytest.approx(8.19e9, rel=0.001)
    assert found.vision_parameters == pytest.approx(0.46e9, rel=0.1)


def test_an_answer_takes_a_bounded_number_of_splits() -> None:
    """Fails when a hostile number of devices and heads makes hundreds of thousands of estimates."""
    config = PackConfig(seq_len=110_880 * 64, layouts=("contiguous",), ring_degrees=tuple(range(1, 13)), block_size=1)
    ones = np.ones(1, np.int64)
    packs = PackLoads(
        n_packs=10**6,
        spans=(range(1),),
        columns=dict.fromkeys(COLUMNS, ones),
        layouts={
            ("contiguous", degree): SlowestRank(
                gather_path=ones, ring_steps=np.ones((degree, 1), np.int64), most_keys=ones
            )
            for degree in range(1, 13)
        },
        images={},
    )
    sizes = configured_sizes(CONFIG.cost.model_copy(update={"num_attention_heads": 110_880}), CONFIG.vision, None, "")
    advisor = Advisor(config=config, sizes=sizes, question=asked(gpus=110_880, limit=500), loads=packs)
    assert len(advisor.estimates()) == MOST
    assert any("splits are possible" in note for note in advisor.advice().notes)


def test_a_dimension_beside_a_model_folder_is_refused(tmp_path: Path) -> None:
    """Fails when a given dimension is shown as an assumption that no figure follows."""
    manifest = SimpleNamespace(model=None)
    with pytest.raises(ConfigError, match="head_dim contradicts --model"):
        advised_model(manifest, CONFIG, asked(head_dim=32), str(tmp_path))  # type: ignore[arg-type]
