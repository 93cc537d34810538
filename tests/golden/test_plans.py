"""Plans and layouts of larger inputs, pinned: a change of what the searches find has to be meant, and versioned."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from preshard.packer_service.layout.blocks import WeighedMap, block_map, sum_loads
from preshard.packer_service.layout.deals import consecutive, longest_first, round_robin
from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.schemes.balanced_gather import gather_owners
from preshard.packer_service.layout.schemes.balanced_ring import ring_owners
from preshard.packer_service.layout.solve import solve_layouts
from preshard.packer_service.plan.blend import blend_order
from preshard.packer_service.plan.mixture import count_copies, take, take_mixture
from preshard.packer_service.plan.order import step_order
from preshard.packer_service.plan.pack import pack_documents
from preshard.schemas import VERSION
from preshard.schemas.boundaries import image_edges
from preshard.schemas.config import parse_config
from preshard.schemas.layout import SCHEMES
from preshard.schemas.sequence import MaskArrays

PINNED = json.loads((Path(__file__).parent / "plans.json").read_text(encoding="utf-8"))


def drawn(count: int, salt: int) -> np.ndarray:
    """Numbers below 2**32 from multiplication alone, the same under every version of NumPy."""
    numbers = (np.arange(1, count + 1, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(salt)) % np.uint64(2**32)
    return (numbers * numbers >> np.uint64(16)).astype(np.int64) % 2**32


def mixed(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Texts, images and videos of up to 384 frames, so that both budgets bind at 36,864 tokens and 384 images."""
    kind, size = drawn(count, 1) % 3, drawn(count, 2)
    images = np.where(kind == 0, 0, np.where(kind == 1, 1 + size % 9, 8 + size % 377))
    tokens = 88 * images + np.where(kind == 2, 30, 20 + drawn(count, 3) % 4000)
    return -(-tokens // 16) * 16, images


def plan(count: int, max_images: int | None) -> np.ndarray:
    tokens, images = mixed(count)
    return pack_documents(tokens, images, seq_len=36_864, max_images=max_images)


def rivals(count: int, salt: int) -> tuple[np.ndarray, np.ndarray]:
    """Texts of a third of a pack and videos of half of its 180 images: plain best fit needs 1.4 times as many packs."""
    is_video = drawn(count, salt) % 2 == 1
    images = np.where(is_video, 60 + drawn(count, salt + 7) % 40, 0)
    tokens = np.where(is_video, 80 + drawn(count, salt + 11) % 100, 300 + drawn(count, salt + 9) % 300)
    return tokens, images


def near_the_bound(full: int, count: int) -> np.ndarray:
    """Documents as long as a pack, and a few that two budgets bind: near the bound with either method."""
    tokens, images = rivals(count, 0)
    tokens, images = np.append(np.full(full, 1000), tokens), np.append(np.zeros(full, np.int64), images)
    return pack_documents(tokens, images, seq_len=1000, max_images=180)


def small_plans() -> np.ndarray:
    """Many plans of a few documents in small budgets, where single tokens and images decide."""
    found = []
    for salt in range(400):
        count, seq_len, max_images = 6 + salt % 30, 7 + salt % 11, 3 + salt % 7
        tokens, images = 1 + drawn(count, salt) % seq_len, drawn(count, salt + 500) % (max_images + 1)
        found.append(pack_documents(tokens, images, seq_len=seq_len, max_images=max_images))
    return np.concatenate(found)


def mask(seq_len: int, salt: int, kinds: int) -> tuple[MaskArrays, np.ndarray]:
    """Documents of 16 to 1,600 tokens: causal, annotated, or of image groups; then padding."""
    doc, branch, group = (np.full(seq_len, value, np.int32) for value in (-1, 0, -1))
    edges = [0]
    for number, size in enumerate(drawn(seq_len, salt).tolist()):
        length = 16 + size % 1584
        if edges[-1] + length > seq_len - 100:
            break
        here, within, end = slice(edges[-1], edges[-1] + length), np.arange(length), edges[-1] + -(-length // 16) * 16
        doc[here] = number
        if number % kinds == 1:
            branch[here] = np.maximum(0, within - length // 2) // 70
        if number % kinds == 2:
            group[here] = np.where(within % 200 < 9, -1, within // 200)
        edges.append(end)
    return MaskArrays(doc_ids=doc, branch_ids=branch, group_ids=group), np.unique([*edges, seq_len])


def layouts(seq_len: int, salt: int, block_size: int) -> np.ndarray:
    arrays, edges = mask(seq_len, salt, 3)
    solved = solve_layouts(
        arrays, segment_edges=edges, schemes=SCHEMES, ring_degrees=(1, 2, 4, 8), block_size=block_size
    )
    return np.concatenate([np.concatenate([x.runs.ravel(), x.needs.ravel().astype(np.int32)]) for x in solved])


def squares() -> np.ndarray:
    """Two images that fill a pack, where keys are worth more than tiles and no deal is within the limit."""
    doc = np.repeat(np.array([0, 1, -1], np.int32), [40 * 128, 13 * 128, 11 * 128])
    arrays = MaskArrays(
        doc_ids=doc, branch_ids=np.zeros_like(doc), group_ids=np.where(doc == 0, 0, -1).astype(np.int32)
    )
    blocks = [WeighedMap(block_map(MaskIndex.of(arrays), 128), 1)]
    rivals = [longest_first(sum_loads(blocks), 8), round_robin(64, 8)]
    owners = [gather_owners(blocks, 8, rivals=rivals), gather_owners(blocks, 4, at_most=1), gather_owners(blocks, 16)]
    owners += [ring_owners(blocks, 8, rivals=rivals, at_most=1), ring_owners(blocks, 16), ring_owners(blocks, 32)]
    return np.concatenate([*owners, ring_owners(blocks, 4, rivals=[consecutive(64, 4)], at_most=1)])


def blended(groups: int, window: int, salt: int) -> np.ndarray:
    """Groups that each hold mostly one of three sources, and a source that has a pack here and there."""
    packs = groups * window
    kind = np.repeat(drawn(groups, salt) % 3, window)
    tokens = np.zeros((packs, 4), np.int64)
    tokens[np.arange(packs), kind] = 20_000 + drawn(packs, salt + 1) % 16_000
    tokens[np.arange(packs), drawn(packs, salt + 2) % 3] += drawn(packs, salt + 3) % 4_000
    tokens[:: 5 + salt % 7, 3] = 900
    return blend_order(tokens.reshape(groups, window, 4))


def of_epochs(salt: int, window: int) -> np.ndarray:
    """The order of packs of three epochs, of which none is a multiple of the window, and of several sources."""
    costs, epochs = drawn(1_000, salt) / 7.0, np.repeat(np.arange(3), (330, 401, 269))
    tokens = np.stack([drawn(1_000, salt + 1) % 900, np.where(drawn(1_000, salt + 2) % 4 == 0, 5_000, 0)], axis=1)
    return step_order(costs, window=window, seed=salt, tokens=tokens, epochs=epochs)


def again(count: int, salt: int) -> np.ndarray:
    """The packs of a later pass, which have other neighbours."""
    tokens, images = mixed(count)
    return pack_documents(tokens, images, seq_len=36_864, max_images=384, salt=salt)


def taken() -> np.ndarray:
    """Documents that a mixture takes in each of three epochs, how often, and in which pass."""
    hashes = (drawn(400, 9) + drawn(400, 10) * 2**31).astype(np.uint64)
    copies = count_copies(hashes, np.resize([0.0, 0.3, 1.0, 2.5], 400), 7)
    found = take(hashes, copies, epochs=3, seed=2**63 + 11)
    return np.concatenate([copies, found.document, found.copy_number, found.epoch, found.pass_number])


def in_phases() -> np.ndarray:
    """Documents of two sources in the order of a curriculum of three phases."""
    columns = {
        "id_hash": (drawn(400, 12) + drawn(400, 13) * 2**31).astype(np.uint64),
        "source_number": np.arange(400) % 2,
        "piece": np.zeros(400, np.int64),
        "tokens": np.full(400, 100),
    }
    shares = [{"until": until, "weights": {"a": a, "b": 1 - a}} for until, a in ((0.25, 0.8), (0.75, 0.5), (1.0, 0.2))]
    return take_mixture(columns, parse_config({"curriculum": shares}), ["a", "b"])[0].document


CASES: dict[str, Callable[[], np.ndarray]] = {
    "plan of 200": lambda: plan(200, 384),
    "plan of 3,000": lambda: plan(3_000, 384),
    "plan of 3,000 by tokens": lambda: plan(3_000, None),
    "small plans": small_plans,
    "plan of rivals": lambda: pack_documents(*rivals(3_000, 0), seq_len=1000, max_images=180),
    "plan of many rivals": lambda: pack_documents(*rivals(30_000, 1), seq_len=1000, max_images=180),
    "plan of most rivals": lambda: pack_documents(*rivals(210_000, 2), seq_len=1000, max_images=180),
    "plan near the bound": lambda: near_the_bound(16_200, 40),
    "plan of most near the bound": lambda: near_the_bound(200_531, 100),
    "plan of 25,000": lambda: plan(25_000, 384),
    "plan of 201,000": lambda: plan(201_000, 384),
    "order": lambda: np.concatenate([step_order(drawn(1_000, s) / 7.0, window=64, seed=s) for s in (0, 5, 2**63 - 1)]),
    "order without a rest": lambda: step_order(drawn(640, 3) / 7.0, window=64, seed=1),
    "order of epochs": lambda: np.concatenate([of_epochs(5, 16), of_epochs(2**63 - 1, 64), of_epochs(0, 1)]),
    "blended orders": lambda: np.concatenate([blended(300, 64, 1), blended(90, 48, 2), blended(700, 8, 3)]),
    "mixtures": taken,
    "phases": in_phases,
    "other neighbours": lambda: np.concatenate([again(900, salt) for salt in (1, 2, 2**63 + 5)]),
    "layouts in blocks of 128": lambda: layouts(8_192, 1, 128),
    "layouts in blocks of 32": lambda: layouts(4_096, 2, 32),
    "layouts in blocks of 256": lambda: layouts(16_384, 3, 256),
    "layouts in blocks of 96": lambda: layouts(6_144, 4, 96),
    "squares": squares,
    "boundaries": lambda: np.concatenate([image_edges(1 + drawn(300, r) % 9, r) for r in (2, 3, 8, 64)]),
}


@pytest.mark.parametrize("case", CASES)
def test_searches_find_the_same_on_every_machine(case: str) -> None:
    """Fails when a plan or a layout changes without a new version, or differs between machines.

    When the change is meant: raise ``VERSION`` in ``schemas/__init__.py``, and write what this test prints to
    ``plans.json``.
    """
    found = np.ascontiguousarray(CASES[case](), np.int64)
    digest = hashlib.sha256(found.tobytes()).hexdigest()
    assert (VERSION, digest) == (PINNED["version"], PINNED["digests"].get(case)), f'"{case}": "{digest}"'
