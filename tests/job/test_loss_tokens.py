"""Tokens under loss of packs and of ranks, against what the reader gives each rank."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from preshard.data import PackedDataset
from preshard.packer_service.cli.run import cli
from preshard.packer_service.job.preview.loss_tokens import SAMPLED, count_loss_tokens, sampled_packs
from preshard.packer_service.plan.order import window_sizes


def test_ranks_have_the_tokens_that_the_reader_gives_them(tiny_dataset: Path) -> None:
    """Fails when tokens of another rank count, or a layout is counted as another."""
    found, whole = count_loss_tokens(str(tiny_dataset)), PackedDataset(tiny_dataset)
    counts = np.array([len(whole[pack].loss_tokens) for pack in range(whole.n_packs)])
    assert (found.packs, found.mean) == (whole.n_packs, counts.mean())
    steps = counts[: len(counts) // 4 * 4].reshape(-1, 4)
    assert found.straggler[4] == pytest.approx((steps.max(axis=1) / steps.mean(axis=1)).mean())
    assert found.ranks.keys() == {"contiguous", "zigzag", "balanced_ring", "balanced_gather"}
    for layout, degree in (("zigzag", 4), ("balanced_ring", 8)):
        by_pack = defaultdict[int, list[int]](list)
        for rank in range(degree):
            dataset = PackedDataset(tiny_dataset, layout=layout, ring_degree=degree, cp_rank=rank)
            for pack in range(dataset.n_packs):
                by_pack[pack].append(len(dataset[pack].loss_tokens))
        ratios = [max(own) / np.mean(own) for own in by_pack.values()]
        assert found.ranks[layout][degree] == pytest.approx(np.mean(ratios))
        assert found.ranks[layout][degree] > 1


@pytest.mark.parametrize(("n_packs", "window"), [(7, 4), (512, 64), (100_000, 64), (2_000, 1_024), (1_999, 96)])
def test_whole_steps_are_read_from_all_of_a_dataset(n_packs: int, window: int) -> None:
    """Fails when packs of a step are missing beside others, or only the beginning is looked at."""
    packs = sampled_packs(n_packs, window)
    assert len(set(packs)) == len(packs) <= SAMPLED
    assert packs == sorted(packs)
    assert 0 <= packs[0] <= packs[-1] < n_packs
    if n_packs <= SAMPLED:
        assert packs == list(range(n_packs))
        return
    width = max(size for size in window_sizes(window) if size <= SAMPLED)
    assert len(packs) > SAMPLED - width
    groups = np.array(packs).reshape(-1, width)
    assert (groups[:, 0] % width == 0).all()
    assert (np.diff(groups) == 1).all()
    assert len(groups) == 1 or groups[-1, -1] >= n_packs * (1 - 2 / len(groups))


def test_the_report_says_so_if_it_is_asked(tiny_dataset: Path) -> None:
    """Fails when samples are read unasked, or what was counted is not shown."""
    shown = [CliRunner().invoke(cli, ["report", str(tiny_dataset), *words]).output for words in ([], ["--loss"])]
    mean = count_loss_tokens(str(tiny_dataset)).mean
    assert ["tokens under loss" in output for output in shown] == [False, True]
    assert f"tokens under loss: {mean:,.0f} a pack, of " in shown[1]
    refused = CliRunner().invoke(cli, ["report", str(tiny_dataset), "--loss", "--against", str(tiny_dataset)])
    assert refused.exit_code != 0
