"""Plans of a few documents, pinned: a search that takes another way shows at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest

from preshard.packer_service.plan.pack import pack_documents


def drawn(count: int, salt: int) -> np.ndarray:
    """Numbers from multiplication alone, the same under every version of NumPy."""
    return ((np.arange(1, count + 1) + 97 * salt) * 2654435761 + salt) % 2**32 >> 9


def packed() -> np.ndarray:
    """Documents in small budgets, where single tokens and images decide; both bind."""
    found = []
    for salt in range(40):
        count, seq_len, max_images = 6 + salt, 20 + salt % 31, 5 + salt % 17
        tokens, images = 1 + drawn(count, salt) % (seq_len // 2), drawn(count, salt + 500) % (1 + max_images // 2)
        found.append(pack_documents(tokens, images, seq_len=seq_len, max_images=max_images))
    return np.concatenate(found)


def neighbours() -> np.ndarray:
    """Other packs for as many, by tokens alone."""
    found = []
    for salt in range(1, 10):
        tokens = 1 + drawn(60, salt) % (1000 // salt)
        found.append(pack_documents(tokens, np.zeros_like(tokens), seq_len=1024, max_images=None, salt=salt))
    return np.concatenate(found)


PINNED: dict[str, tuple[Callable[[], np.ndarray], str]] = {
    "packed": (packed, "4f25e44cec182394"),
    "neighbours": (neighbours, "5410302bf20eaaad"),
}


@pytest.mark.parametrize("kind", PINNED)
def test_a_plan_is_found_by_the_same_way(kind: str) -> None:
    """Fails when documents are compared by another figure. When that is meant, raise the version as for
    ``tests/golden``, and write down what this test prints.
    """
    found, pinned = PINNED[kind]
    digest = hashlib.sha256(found().astype(np.int64).tobytes()).hexdigest()[:16]
    assert digest == pinned, digest
