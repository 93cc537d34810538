import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.packer_service.plan import pack as packing
from preshard.packer_service.plan.best_fit import best_fit
from preshard.packer_service.plan.guided_fit import guided_fit
from preshard.packer_service.plan.kinds import kinds_of, lower_bound
from preshard.packer_service.plan.pack import pack_documents
from preshard.schemas.errors import PlanError

SEQ_LEN, MAX_IMAGES = 40, 9
DOCUMENTS = st.lists(st.tuples(st.integers(0, SEQ_LEN), st.integers(0, MAX_IMAGES)), max_size=80)


def packs_of(sizes: list[tuple[int, int]], max_images: int | None = MAX_IMAGES) -> np.ndarray:
    tokens, images = np.array(sizes, np.int64).reshape(-1, 2).T
    return pack_documents(tokens, images, seq_len=SEQ_LEN, max_images=max_images)


@settings(deadline=None, max_examples=120)
@given(sizes=DOCUMENTS, max_images=st.sampled_from([MAX_IMAGES, 100, None]))
def test_each_document_has_a_pack_and_no_budget_is_exceeded(
    sizes: list[tuple[int, int]], max_images: int | None
) -> None:
    """Fails when a document is lost, a pack number is skipped, or either budget is broken, for any lengths."""
    packs = packs_of(sizes, max_images)
    assert len(packs) == len(sizes)
    assert sorted(set(packs.tolist())) == list(range(int(packs.max(initial=-1)) + 1))
    tokens, images = np.array(sizes, np.int64).reshape(-1, 2).T
    assert np.bincount(packs, tokens, minlength=1).max() <= SEQ_LEN
    assert max_images is None or np.bincount(packs, images, minlength=1).max() <= max_images


@settings(deadline=None, max_examples=80)
@given(
    sizes=st.lists(st.tuples(st.integers(0, SEQ_LEN), st.integers(0, MAX_IMAGES), st.integers(0, 700)), max_size=60),
    max_images=st.sampled_from([MAX_IMAGES, 100, None]),
    max_patches=st.sampled_from([700, 701, 2**40]),
)
def test_patches_are_a_budget_beside_images(
    sizes: list[tuple[int, int, int]], max_images: int | None, max_patches: int
) -> None:
    """Fails when a pack holds more patches than it may, or the joint budget lets too many images through."""
    tokens, images, patches = np.array(sizes, np.int64).reshape(-1, 3).T
    packs = pack_documents(
        tokens, images, seq_len=SEQ_LEN, max_images=max_images, patches=patches, max_patches=max_patches
    )
    assert sorted(set(packs.tolist())) == list(range(int(packs.max(initial=-1)) + 1))
    for sizes_of, limit in ((tokens, SEQ_LEN), (images, max_images), (patches, max_patches)):
        assert limit is None or np.bincount(packs, sizes_of, minlength=1).max() <= limit


def test_patches_of_crops_of_one_size_pack_as_the_crops_do() -> None:
    """Fails when the joint budget is rounded, so that packs are left with room that a document would fit in."""
    rng = np.random.default_rng(0)
    tokens, images = rng.integers(1, 12, 500), rng.integers(0, MAX_IMAGES, 500)
    by_images = pack_documents(tokens, images, seq_len=SEQ_LEN, max_images=MAX_IMAGES)
    for max_images in (None, MAX_IMAGES):
        found = pack_documents(
            tokens, images, seq_len=SEQ_LEN, max_images=max_images, patches=images * 729, max_patches=MAX_IMAGES * 729
        )
        np.testing.assert_array_equal(found, by_images)
    with pytest.raises(PlanError, match="document 1 has 730 patches, a pack holds at most 729; raise max_patches"):
        pack_documents(
            np.ones(2), np.zeros(2), seq_len=9, max_images=None, patches=np.array([729, 730]), max_patches=729
        )


@settings(deadline=None)
@given(sizes=DOCUMENTS, data=st.data())
def test_the_order_of_the_table_only_renames_documents(sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    """Fails when the packs depend on the order of the table: equal documents go by their index."""
    shuffled = data.draw(st.permutations(sizes))
    ours, theirs = packs_of(sizes), packs_of(shuffled)
    for size in set(sizes):
        mine = [pack for pack, given in zip(ours, sizes, strict=True) if given == size]
        assert mine == [pack for pack, given in zip(theirs, shuffled, strict=True) if given == size]


@settings(deadline=None, max_examples=120)
@given(sizes=DOCUMENTS)
def test_never_more_packs_than_plain_best_fit_decreasing(sizes: list[tuple[int, int]], plain_best_fit) -> None:
    """Fails when guided fit replaces a better plain packing."""
    tokens, images = [t for t, _ in sizes], [i for _, i in sizes]
    assert packs_of(sizes).max(initial=-1) + 1 <= plain_best_fit(tokens, images, SEQ_LEN, MAX_IMAGES)


@settings(deadline=None, max_examples=60)
@given(sizes=st.lists(st.tuples(st.integers(1, SEQ_LEN), st.integers(0, MAX_IMAGES)), min_size=1, max_size=8))
def test_at_most_one_pack_above_the_optimum_of_small_cases(sizes: list[tuple[int, int]], optimum) -> None:
    """Fails when a recipe leaves packs half empty that others' documents would fill."""
    best = optimum([t for t, _ in sizes], [i for _, i in sizes], SEQ_LEN, MAX_IMAGES)
    assert best <= packs_of(sizes).max() + 1 <= best + 1


@pytest.mark.parametrize("images_share", [0.99, 1.0, 1.05])
@pytest.mark.parametrize("alignment", [1, 16])
def test_both_budgets_run_out_together(two_budget_mixture, images_share: float, alignment: int) -> None:
    """Fails when one budget is filled at the expense of the other, as plain best fit does here."""
    tokens, images = two_budget_mixture
    tokens = -(-tokens // alignment) * alignment
    max_images = int(images.sum() / (tokens.sum() / 36_864) / images_share)
    kinds = kinds_of(tokens, images, seq_len=36_864, max_images=max_images)
    needed = lower_bound(kinds)
    plain = best_fit(kinds.tokens, kinds.images, kinds.count, kinds.max_tokens, kinds.max_images)
    assert plain.max() + 1 > 1.005 * needed
    packs = pack_documents(tokens, images, seq_len=36_864, max_images=max_images)
    assert packs.max() + 1 <= 1.002 * needed


def test_the_lower_bound_takes_the_budget_that_needs_more() -> None:
    """Fails when the bound divides by the wrong budget, or forgets that sizes were divided by their common divisor."""

    def bound(tokens: list[int], images: list[int], seq_len: int, max_images: int | None) -> int:
        return lower_bound(kinds_of(np.array(tokens), np.array(images), seq_len=seq_len, max_images=max_images))

    assert bound([16, 16, 16], [0, 0, 0], 40, 9) == 2  # two of 16 fit into 40, and not two and a half
    assert bound([1, 1, 1], [4, 4, 4], 40, 9) == 2
    assert bound([1, 1, 1], [4, 4, 4], 40, None) == 1
    assert bound([0], [0], 40, 0) == 1


def test_kinds_group_equal_documents_and_divide_by_the_alignment() -> None:
    """Fails when a budget is rounded up, so that a pack would be one unit too long, or when documents are mixed up."""
    kinds = kinds_of(np.array([16, 48, 16, 16]), np.array([2, 0, 2, 4]), seq_len=63, max_images=5)
    assert kinds.tokens.tolist() == [3, 1, 1]
    assert kinds.images.tolist() == [0, 2, 1]
    assert kinds.count.tolist() == [1, 1, 2]
    assert kinds.documents.tolist() == [1, 3, 0, 2]
    assert (kinds.max_tokens, kinds.max_images) == (3, 2)


@pytest.mark.parametrize(
    ("tokens", "images", "seq_len", "max_images", "message"),
    [
        ([1, 41], [0, 0], 40, 9, "document 1 has 41 tokens, a pack holds at most 40; raise seq_len, or leave"),
        ([1, 4], [0, 10], 40, 9, "document 1 has 10 images, a pack holds at most 9; raise max_images, or leave"),
        ([1, -4], [0, 0], 40, 9, "document 1 has -4 tokens; a count cannot be negative"),
        ([1, 4], [-1, 0], 40, None, "document 0 has -1 images; a count cannot be negative"),
        ([1], [0], 0, 9, "seq_len is 0; a pack needs room for at least 1 token"),
        ([1], [0], 40, -1, "max_images is -1; give 0 or more"),
        ([1, 2], [0], 40, 9, "2 documents have tokens but 1 have images"),
    ],
)
def test_impossible_input_names_the_document_and_what_would_do(tokens, images, seq_len, max_images, message) -> None:
    """Fails when an impossible document is packed anyway, or ends in an endless search or a traceback."""
    with pytest.raises(PlanError, match=message):
        pack_documents(np.array(tokens), np.array(images), seq_len=seq_len, max_images=max_images)


def test_a_budget_far_above_the_documents_costs_nothing() -> None:
    """Fails when an index is as long as seq_len even where all documents together are shorter: 100 GB here."""
    packs = pack_documents(np.array([3, 5, 4]), np.array([1, 0, 2]), seq_len=2**32, max_images=2)
    assert packs.max() + 1 == 2


def test_room_is_made_for_as_many_documents_as_a_pack_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a compiled search is given room for fewer: it would write past it. 1 + 1 + 4 + 4 tokens are four."""
    asked: list[int] = []
    monkeypatch.setattr(packing, "guided_fit", lambda *given: asked.append(given[-1]) or guided_fit(*given))
    sizes = [(9, 2), (1, 3), (9, 0), (6, 0), (6, 0), (7, 0), (4, 0), (11, 0), (1, 5), (4, 0)]
    tokens, images = np.array(sizes, np.int64).T
    pack_documents(tokens, images, seq_len=12, max_images=6)
    assert set(asked) == {4}


@pytest.mark.parametrize("images_share", [0.5, 1.0])
def test_a_salt_chooses_who_shares_a_pack(two_budget_mixture, images_share: float) -> None:
    """Fails when the salt changes nothing, or pays with packs: where tokens alone bind, and where both budgets do, so
    that only documents of like size may change places. There the ones that share a pack may be no more alike, either.
    """
    tokens, images = two_budget_mixture
    max_images = int(images.sum() / (tokens.sum() / 36_864) / images_share)
    found = [pack_documents(tokens, images, seq_len=36_864, max_images=max_images, salt=salt) for salt in (0, 0, 1)]
    np.testing.assert_array_equal(found[0], found[1])
    by_size = packing.fewest_packs(kinds_of(tokens, images, seq_len=36_864, max_images=max_images))
    for packs in found:
        assert packs.max() <= by_size.max()
        assert np.bincount(packs, tokens).max() <= 36_864
        assert np.bincount(packs, images).max() <= max_images
    order = np.argsort(found[0], kind="stable")
    one, other = order[:-1], order[1:]
    shared = found[0][one] == found[0][other]
    assert (found[2][one] == found[2][other])[shared].mean() < (0.02 if images_share < 1 else 0.5)


def test_packs_of_one_length_are_mixed() -> None:
    """Fails when short documents and long ones stand in packs of their own, as best-fit decreasing puts them."""
    tokens = np.random.default_rng(0).lognormal(6, 1, 20_000).astype(np.int64).clip(1, 20_000)
    by_size = kinds_of(tokens, tokens * 0, seq_len=36_864, max_images=None)
    sorted_packs = np.empty(20_000, np.int64)
    sorted_packs[by_size.documents] = packing.fewest_packs(by_size)
    mixed = pack_documents(tokens, tokens * 0, seq_len=36_864, max_images=None)
    assert mixed.max() == sorted_packs.max()

    def spread(packs: np.ndarray) -> float:
        each = np.bincount(packs)
        return float((np.bincount(packs, np.log(tokens)) / each).std())

    assert spread(mixed) < 0.5 * spread(sorted_packs)
