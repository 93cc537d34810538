import numpy as np
import pytest


def _plain_best_fit(tokens: list[int], images: list[int], seq_len: int, max_images: int) -> int:
    packs: list[list[int]] = []
    for t, i in sorted(zip(tokens, images, strict=True), reverse=True):
        room = [p for p in packs if p[0] >= t and p[1] >= i]
        if not room:
            packs.append([seq_len, max_images])
        chosen = min(room, key=lambda p: (p[0], -p[1])) if room else packs[-1]
        chosen[0] -= t
        chosen[1] -= i
    return len(packs)


def _optimum(tokens: list[int], images: list[int], seq_len: int, max_images: int) -> int:
    n = len(tokens)
    fits = [
        sum(t for d, t in enumerate(tokens) if s >> d & 1) <= seq_len
        and sum(i for d, i in enumerate(images) if s >> d & 1) <= max_images
        for s in range(1 << n)
    ]
    fewest = [0] + [n] * ((1 << n) - 1)
    for s in range(1, 1 << n):
        first = s & -s
        rest = part = s ^ first
        while True:
            if fits[part | first]:
                fewest[s] = min(fewest[s], 1 + fewest[rest ^ part])
            if not part:
                break
            part = (part - 1) & rest
    return fewest[-1]


@pytest.fixture(scope="session")
def plain_best_fit():
    """Packs of best-fit decreasing by a scan over all open packs; among the tightest, the one with most free images."""
    return _plain_best_fit


@pytest.fixture(scope="session")
def optimum():
    """Fewest packs that are possible, by trying every subset."""
    return _optimum


@pytest.fixture(scope="session")
def two_budget_mixture():
    """Text, questions on images, and videos of 8 to 255 frames."""
    rng = np.random.default_rng(0)
    n = 40_000
    kind = rng.choice(3, n, p=[0.35, 0.4, 0.25])
    images = np.where(kind == 0, 0, np.where(kind == 1, rng.integers(1, 10, n), rng.integers(8, 256, n)))
    text = np.maximum(16, np.exp(rng.normal(np.log(400), 0.9, n))).astype(np.int64)
    return text + images * np.where(kind == 1, 146, 87), images.astype(np.int64)
