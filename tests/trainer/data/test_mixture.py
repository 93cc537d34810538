"""Mixtures: shares at any time, whole windows, epochs of each dataset, and positions that any job can resume from."""

from __future__ import annotations

import itertools
import json
import math
import random
import shutil
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_workers import SimulatedWorkers

from preshard.schemas.errors import ReaderError
from preshard.trainer.core.config import parse_weighted
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.data.loader import PackStream, make_loader
from preshard.trainer.data.order import EndlessEpochs, EpochOrder
from preshard.trainer.extra.mixture import FINEST, turns, whole_shares
from tests.support.hostile_datasets import read_manifest, seal

WEIGHTS = (0.5, 0.3, 0.2)


def _edited(folder: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    """Edits a manifest and seals it again."""
    manifest = read_manifest(folder)
    edit(manifest)
    seal(folder, manifest)
    return folder


@pytest.fixture(scope="session")
def three(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, float]]:
    """Three datasets of 10 packs, in windows of 4, that differ in nothing but their ids."""
    folder = tmp_path_factory.mktemp("three")
    names = ["a" * 64, "b" * 64, "c" * 64]
    copies = [Path(shutil.copytree(packed, folder / name[0])) for name in names]
    for copy, name in zip(copies, names, strict=True):
        _edited(copy, lambda manifest, name=name: manifest.update(dataset_id=name))
    return list(zip(copies, WEIGHTS, strict=True))


def test_shares_are_kept_to_within_one_turn_at_any_time() -> None:
    """Fails when a dataset runs ahead or falls behind by a whole turn, or a period gives another share than asked."""
    chosen = random.Random(0)
    for _ in range(60):
        k = chosen.randint(2, 8)
        shares = [chosen.randint(1, chosen.choice([3, 30, 200])) for _ in range(k)]
        period = turns(shares)
        given = np.cumsum(period[:, None] == np.arange(k), axis=0)
        asked = np.arange(1, len(period) + 1)[:, None] * np.array(shares) / sum(shares)
        assert np.abs(given - asked).max() <= 1 - 1 / (2 * k - 2) + 1e-9
        assert given[-1].tolist() == shares


@pytest.mark.parametrize(
    ("weights", "shares"),
    [((0.7, 0.3), [7, 3]), ((1, 2, 3.5), [2, 4, 7]), ((5,), [1]), ((1 / 3, 1 / 3), [1, 1]), ((0.1, 0.2), [1, 2])],
)
def test_weights_as_whole_shares(weights: tuple[float, ...], shares: list[int]) -> None:
    """Fails when a weight is taken as the binary fraction that it is not quite, so that periods get long."""
    assert whole_shares(weights) == shares


def test_shares_of_any_digits_are_near_and_few() -> None:
    """Fails when odd weights make a period without end, or are rounded by more than a part of FINEST."""
    weights = (math.pi, math.e, 1 / 7, 1e-3)
    shares = whole_shares(weights)
    assert sum(shares) <= FINEST
    for share, weight in zip(shares, weights, strict=True):
        assert abs(Fraction(share, sum(shares)) - Fraction(weight) / Fraction(sum(weights))) <= Fraction(1, FINEST)


@pytest.mark.parametrize(
    ("weights", "message"),
    [((1, 0), "weight is 0"), ((1, -1), "is -1"), ((1, math.nan), "nan"), ((1, math.inf), "inf"), ((1, 1e-7), "least")],
)
def test_weights_that_are_none(weights: tuple[float, ...], message: str) -> None:
    """Fails when a dataset that never has its turn, or always, is accepted."""
    with pytest.raises(ReaderError, match=message):
        whole_shares(weights)


@pytest.mark.parametrize(
    ("text", "path", "weight"),
    [
        ("s3://bucket/a:0.7", "s3://bucket/a", 0.7),
        ("s3://bucket/a", "s3://bucket/a", None),
        ("C:/data", "C:/data", None),
        ("C:/data:2", "C:/data", 2),
        ("a:.5", "a", 0.5),
        ("a:1e-2", "a", 0.01),
        ("a:b", "a:b", None),
        (":3", ":3", None),
    ],
)
def test_a_weight_follows_the_last_colon(text: str, path: str, weight: float | None) -> None:
    """Fails when a colon of a URI or a drive is taken for that of a weight."""
    assert parse_weighted(text) == (path, weight)


def test_an_epoch_that_begins_in_a_chunk_keeps_whole_windows() -> None:
    """Fails when a pack is lost, or one epoch that does not fill its last chunk moves all later groups."""
    for n_packs, window in itertools.product(range(25), (1, 2, 4, 6)):
        for chunk in (size for size in range(1, window + 1) if window % size == 0):
            for begun in range(chunk):
                order = EpochOrder(n_packs, window=window, seed=3, epoch=2, chunk=chunk, begun=begun)
                packs = order.packs_at(np.arange(n_packs)).tolist()
                assert sorted(packs) == list(range(n_packs))
                whole = n_packs // window * window
                for at in range((chunk - begun) % chunk, whole - begun - chunk + 1, chunk):
                    first = min(packs[at : at + chunk])
                    assert first % chunk == 0
                    assert sorted(packs[at : at + chunk]) == list(range(first, first + chunk))


SIZES, WINDOWS = (2_503, 1_945, 834), (64, 128, 64)


@pytest.fixture(scope="module")
def long_stream() -> np.ndarray:
    """(dataset, pack) of the first packs of a large mixture."""
    mixture = EndlessEpochs(SIZES, windows=WINDOWS, shares=whole_shares(WEIGHTS), seed=5)
    return np.array([mixture.place(0, at) for at in range(9_984)])


def test_a_large_mixture_keeps_shares_and_epochs(long_stream: np.ndarray) -> None:
    """Fails when a share strays by a window of 64, or a pack comes again before its dataset is through."""
    datasets, packs = long_stream.T
    given = np.cumsum(datasets[:, None] == np.arange(3), axis=0)
    asked = np.arange(1, len(datasets) + 1)[:, None] * np.array(WEIGHTS)
    assert np.abs(given - asked).max() <= 64
    for number, size in enumerate(SIZES):
        mine = packs[datasets == number]
        assert len(mine) > size, "an epoch ends on the way"
        epochs = [mine[begin : begin + size] for begin in range(0, len(mine), size)]
        assert all(len(np.unique(epoch)) == len(epoch) for epoch in epochs)
        assert not np.array_equal(epochs[0][: len(epochs[-1])], epochs[-1])


@pytest.mark.parametrize("dp_size", [64, 32, 8])
def test_steps_of_a_mixture_have_no_straggler(long_stream: np.ndarray, dp_size: int) -> None:
    """Fails when steps mix windows: packs of a window cost the same here, those of others up to twice as much."""
    random_costs = np.random.default_rng(0)
    costs = [np.repeat(random_costs.uniform(1, 2, size // 64 + 1), 64)[:size] for size in SIZES]
    steps = np.array([costs[number][pack] for number, pack in long_stream]).reshape(-1, dp_size)
    assert steps.max(axis=1).sum() / steps.mean(axis=1).sum() <= 1.01


def test_elastic_jobs_take_every_pack_as_often_as_they_should(
    three: list[tuple[Path, float]], ids_only: Callable[[PackedDataset], PackedDataset]
) -> None:
    """Fails when a change of ranks skips or repeats a pack: 20 jobs that stop and go on with other ranks 6 times."""
    reference = EndlessEpochs([10, 10, 10], windows=[4, 4, 4], shares=whole_shares(WEIGHTS), seed=1)
    opened = {
        size: [ids_only(PackedDataset(three, dp_rank=rank, dp_size=size, seed=1)) for rank in range(size)]
        for size in (1, 2, 3, 4, 7)
    }
    crossed = 0
    for job in range(20):
        chosen = random.Random(job)
        state, seen = None, []
        for _ in range(6):
            ranks = opened[chosen.choice(list(opened))]
            for rank in ranks:
                rank.set_epoch(0) if state is None else rank.load_state_dict(json.loads(json.dumps(state)))
            streams = [PackStream(rank) for rank in ranks]
            for step in itertools.islice(zip(*streams, strict=True), chosen.randint(1, 20)):
                seen += [(batch.dataset, batch.pack_id) for batch in step]
                assert len({json.dumps(batch.state) for batch in step}) == 1
                state = step[0].state
        assert seen == [reference.place(0, at) for at in range(len(seen))]
        crossed += state["epoch"] > 0
        for number in range(3):
            times = Counter(pack for dataset, pack in seen if dataset == number)
            assert max(times.values()) - min(times[pack] for pack in range(10)) <= 1
    assert crossed > 10, "epochs of the mixture end on the way"


def test_passes_of_a_mixture_leave_nothing_out(
    three: list[tuple[Path, float]], ids_only: Callable[[PackedDataset], PackedDataset]
) -> None:
    """Fails when packs that fill no step are lost at the end of an epoch, or its length is wrong."""
    ranks = [ids_only(PackedDataset(three, dp_rank=rank, dp_size=4, seed=2)) for rank in range(4)]
    lengths, seen = [], []
    for _ in range(5):
        lengths.append(len(ranks[0]))
        steps = list(zip(*ranks, strict=True))
        assert len(steps) == lengths[-1]
        seen += [(batch.dataset, batch.pack_id) for step in steps for batch in step]
    assert lengths == [8, 7, 8, 7, 8], "30 packs an epoch"
    reference = EndlessEpochs([10, 10, 10], windows=[4, 4, 4], shares=whole_shares(WEIGHTS), seed=2)
    assert seen == [reference.place(0, at) for at in range(len(seen))]
    assert ranks[0].is_mixture
    assert ranks[0].n_packs == 30


@pytest.mark.parametrize("whole", [PackStream, lambda dataset: dataset])
def test_workers_of_a_mixture_resume_at_every_step(
    three: list[tuple[Path, float]], ids_only: Callable[[PackedDataset], PackedDataset], whole: Callable[..., Any]
) -> None:
    """Fails when a step that begins in one epoch and ends in the next is lost or doubled by workers that resume."""
    reference = EndlessEpochs([10, 10, 10], windows=[4, 4, 4], shares=whole_shares(WEIGHTS), seed=2)
    mixture = ids_only(PackedDataset(three, dp_rank=2, dp_size=4, seed=2))
    mixture.load_state_dict(next(iter(mixture)).state)
    count = 16 if whole is PackStream else len(mixture)
    for stop in range(count + 1):
        loader = SimulatedWorkers(whole(mixture), 3)
        seen = [loader.give() for _ in range(stop)]
        again = SimulatedWorkers(whole(mixture), 3, loader.states, given=stop)
        seen += [again.give() for _ in range(count - stop)]
        assert [(batch.dataset, batch.pack_id) for batch in seen] == [
            reference.place(0, 4 * step + 2) for step in range(1, count + 1)
        ]
        assert whole is PackStream or not any(again.give() for _ in range(3))


def test_batches_of_a_mixture_are_those_of_its_datasets(three: list[tuple[Path, float]]) -> None:
    """Fails when a pack is read from another dataset than the one it is of."""
    part = {"ulysses_degree": 8, "cp_rank": 7}
    alone = [{batch.pack_id: batch for batch in PackedDataset(path, **part)} for path, _ in three]
    mixture = PackedDataset(three, seed=1, **part)
    batches = list(itertools.islice(make_loader(mixture, workers=0, device="cpu"), 14))
    assert {batch.dataset for batch in batches} == {0, 1, 2}
    for batch in batches:
        assert batch.tokens.equal(alone[batch.dataset][batch.pack_id].tokens)
        assert batch.images.equal(alone[batch.dataset][batch.pack_id].images)
    one = PackedDataset([(three[0][0], 0.4)], seed=1, **part)
    assert one.state_dict() == PackedDataset(three[0][0], seed=1, **part).state_dict()
    assert not one.is_mixture


def test_a_state_of_another_mixture_is_refused(three: list[tuple[Path, float]]) -> None:
    """Fails when weights change between two runs without a word, and with them what every position means."""
    state = PackedDataset(three).state_dict()
    others = [three[:2], [(path, 1.0) for path, _ in three], three[0][0]]
    for other in others:
        with pytest.raises(ReaderError, match=r"state is of dataset_id '5 x aaa"):
            PackedDataset(other).load_state_dict(state)


DIFFERENCES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "length": (lambda m: m["config"].update(seq_len=4096), "seq_len is 4096, not 2048"),
    "tokenizer": (lambda m: m["tokenizer"].update(sha256="e" * 64), "the tokenizer's sha256 is eee"),
    "crops": (lambda m: m["config"]["vision"].update(pool_size=1), "vision is .*'pool_size': 1"),
    "layouts": (lambda m: m["config"].update(ring_degrees=[1]), "ring_degree is 8, and balanced_ring was packed for 1"),
    "id": (lambda m: m.update(dataset_id="a" * 64), "is the same dataset as .*/a; give it once"),
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_what_cannot_be_mixed_is_named(three: list[tuple[Path, float]], copied: Path, difference: str) -> None:
    """Fails when packs of another length, tokenizer or geometry reach a model, or the difference is not named."""
    edit, message = DIFFERENCES[difference]
    _edited(_edited(copied, lambda manifest: manifest.update(dataset_id="d" * 64)), edit)
    with pytest.raises(ReaderError, match=message) as refused:
        PackedDataset([three[0], (copied, 1)], ring_degree=8, layout="balanced_ring")
    assert "\n" not in str(refused.value)


def test_no_dataset_at_all() -> None:
    """Fails when an empty list ends in an IndexError."""
    with pytest.raises(ReaderError, match="no dataset given"):
        PackedDataset([])


def test_an_epoch_goes_on_where_the_one_before_it_ended() -> None:
    """Fails when each epoch of a mixture begins with the same packs, and some are never read."""
    mixture = EndlessEpochs([10, 7], windows=[4, 6], shares=[2, 1], seed=3)
    for epoch, position in ((1, 0), (1, 5), (2, 16), (7, 3)):
        assert mixture.place(epoch, position) == mixture.place(0, 17 * epoch + position)
    assert len({mixture.place(epoch, 0) for epoch in range(17)}) > 4


def test_shares_one_above_the_finest_are_rounded() -> None:
    """Fails when a period may be longer than FINEST: by less than twice, or where shares have a common divisor."""
    assert whole_shares([FINEST, 1]) == [FINEST - 1, 1]
    assert whole_shares([FINEST - 1, 1]) == [FINEST - 1, 1]
    assert sum(whole_shares([3 * FINEST, 3 * (FINEST - 1)])) <= FINEST
