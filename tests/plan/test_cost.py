from typing import Any

import numpy as np
import pytest

from preshard.packer_service.plan.cost import CostModel, causal_area, document_tiles, pack_cost, window_tiles
from preshard.schemas.config import PackConfig
from preshard.schemas.layout import TILE
from preshard.schemas.manifest import LayerMasks
from preshard.schemas.mask import dense_mask
from preshard.schemas.sections import CostConfig, VisionConfig
from preshard.schemas.sequence import MaskArrays


def model_with(**dimensions: int) -> CostModel:
    return CostModel(model=CostConfig(**dimensions), vision=VisionConfig())


LENGTHS = np.array([1, 2, 3, 100, 127, 128, 129, 130, 255, 256, 257, 1000, 5000])


def test_linear_work_is_six_operations_a_parameter_of_qwen3_8b() -> None:
    """Fails when a projection is left out or counted twice. Qwen3-8B's card: 6.95 billion without embeddings."""
    model = CostModel.of(PackConfig())
    without_head = model.linear_flops_per_token // 6 - model.model.hidden_size * model.model.vocab_size
    assert round(without_head / 1e9, 2) == 6.95


def test_every_term_written_out() -> None:
    """Fails when a term is left out, or a dimension stands in for another. All dimensions are different primes."""
    model = CostModel(
        model=CostConfig(
            hidden_size=101, num_layers=3, num_attention_heads=7, num_key_value_heads=5, head_dim=11,
            intermediate_size=211, vocab_size=307, vision_hidden_size=53, vision_num_layers=13,
            vision_intermediate_size=401, attention_tflops=17, link_gb_per_s=19,
        ),
        vision=VisionConfig(image_size=68, patch_size=17, pool_size=3),
    )  # fmt: skip
    patches, pooled = 16, 4
    layer = 101 * 7 * 11 * 2 + 101 * 5 * 11 * 2 + 3 * 101 * 211
    assert model.linear_flops_per_token == 6 * (3 * layer + 101 * 307)
    assert model.attention_flops_per_tile == 6 * (2 * 128 * 128 * 7 * 11) * 3
    encoder = patches * (4 * 53 * 53 + 2 * 53 * 401) + 2 * patches * patches * 53
    pooling = pooled * 2 * 53 * 53 + 2 * patches * 2 * 53 * 53 + pooled * 53 * 53 + 2 * patches * 53
    connector = pooled * 211 * (2 * 53 + 101)
    assert model.vision_work_per_crop == (3 * patches * 17 * 17 * 53 + 13 * encoder + pooling + connector)
    there_and_back = 2 * 2 / 19e9  # seconds
    assert model.vision_work_per_sent_number == pytest.approx(there_and_back * 17e12 / 6)


def test_attention_is_twelve_operations_a_pair_layer_and_channel() -> None:
    """Fails when key and value heads are counted for query heads. PaLM's appendix B: 12 L H Q T for each token."""
    model = model_with(num_key_value_heads=1)
    assert model.attention_flops_per_tile == 12 * 36 * 32 * 128 * TILE**2


def test_vision_work_is_that_of_siglip_so400m() -> None:
    """Fails when the encoder counts once per crop and not once per patch. Its 27 layers have 411 million weights."""
    layers = (
        model_with(vision_num_layers=27),
        model_with(vision_num_layers=26),
    )
    one_layer = 6 * (layers[0].vision_work_per_crop - layers[1].vision_work_per_crop)
    scores = 6 * 2 * 729 * 729 * 1152
    assert round(27 * (one_layer - scores) / (6 * 729) / 1e6) == 411


def test_tiles_are_the_mean_over_all_positions_in_a_tile() -> None:
    """Fails when the closed form is off by one at a tile's edge. The mean is taken here position by position."""
    for length, tiles in zip(LENGTHS, document_tiles(LENGTHS, causal_area(LENGTHS)), strict=True):
        first = np.arange(TILE)
        rows = (first + length - 1) // TILE + 1
        assert tiles == (rows * (rows - 1) / 2).mean() + length / TILE


@pytest.mark.parametrize("window", [1, 2, 128, 129, 130, 300, 9000])
def test_tiles_within_a_window_are_the_mean_over_all_positions(window: int) -> None:
    """Fails when a band of tiles is too narrow or too wide by one, or starts before its document."""
    found = window_tiles(LENGTHS, window)
    for length, tiles in zip(LENGTHS.tolist(), found, strict=True):
        total = 0
        for first in range(TILE):
            for row in range((first + length - 1) // TILE + 1):
                query = max(row * TILE, first)
                total += row - max(query - window + 1, first) // TILE
        assert tiles == total / TILE + length / TILE
    if window > LENGTHS.max():
        np.testing.assert_array_equal(found, document_tiles(LENGTHS, causal_area(LENGTHS)))


@pytest.mark.parametrize("groups", ["all", "window"])
def test_two_masks_are_weighed_by_their_layers(groups: Any) -> None:
    """Fails when layers with a window pay for the whole document, or the cost is not that of all layers together."""
    layers = LayerMasks(full_layers=1, window_layers=5, window=200, groups=groups)
    model, areas = CostModel.of(PackConfig(), layers), causal_area(LENGTHS)
    images = areas + (LENGTHS > 200) * 10_000
    whole, within = document_tiles(LENGTHS, images if groups == "all" else areas), window_tiles(LENGTHS, 200)
    found = model.attended_tiles(LENGTHS, images)
    np.testing.assert_array_equal(found, whole + 5 * within)
    one = pack_cost(CostModel.of(PackConfig()), seq_len=256, tiles=np.array([1.0]), loads=np.array([0]))
    both = pack_cost(model, seq_len=256, tiles=np.array([6.0]), loads=np.array([0]))
    np.testing.assert_array_equal(both, one)


def test_tiles_are_never_fewer_than_the_area_fills() -> None:
    """Fails when the boundary term is negative for some length."""
    lengths = np.arange(1, 5 * TILE)
    assert (document_tiles(lengths, causal_area(lengths)) * TILE**2 >= causal_area(lengths)).all()


@pytest.mark.parametrize(("image_tokens", "error"), [(0, 0.02), (81, 0.15)])
def test_the_estimate_is_close_to_the_tiles_of_real_packs(image_tokens: int, error: float) -> None:
    """Fails when short documents count as if each had its own tiles on the diagonal: the estimate would double.

    An image across a tile's edge takes a whole tile for little area, so packs full of images are under-estimated.
    """
    rng = np.random.default_rng(0)
    seq_len, estimated, counted = 4096, 0.0, 0
    for _ in range(10):
        lengths = rng.integers(20, 900, 40)
        lengths[0] = rng.integers(1, 2 * TILE)  # else every pack would begin with a document at a tile's edge
        lengths = lengths[np.cumsum(lengths) <= seq_len]
        doc_ids = np.full(seq_len, -1, np.int32)
        doc_ids[: lengths.sum()] = np.repeat(np.arange(len(lengths)), lengths)
        group_ids = (np.arange(seq_len) // image_tokens if image_tokens else np.full(seq_len, -1)).astype(np.int32)
        mask = dense_mask(MaskArrays(doc_ids=doc_ids, branch_ids=np.zeros(seq_len, np.int32), group_ids=group_ids))
        areas = np.array([mask[doc_ids == document].sum() for document in range(len(lengths))])
        estimated += document_tiles(lengths, areas).sum()
        counted += mask.reshape(seq_len // TILE, TILE, -1, TILE).any(axis=(1, 3)).sum()
    assert estimated == pytest.approx(counted, rel=error)


def test_a_pack_pays_for_its_padding_its_tiles_and_its_crops() -> None:
    """Fails when linear work is counted for real tokens alone, or a term is scaled differently from the others."""
    model = CostModel.of(PackConfig())
    costs = pack_cost(
        model, seq_len=256, tiles=np.array([0.0, 3.0]), loads=np.array([0, 2 * model.vision_work_per_crop])
    )
    empty = 256 * model.linear_flops_per_token
    full = empty + 3 * model.attention_flops_per_tile + 12 * model.vision_work_per_crop
    assert costs.tolist() == [empty / 1e9, full / 1e9]
