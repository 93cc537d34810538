"""A pack whose documents stay as they were is not made anew, and has the bytes that it would have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from preshard.packer_service.ingest.packed.dataset import PackedDatasetSource, open_dataset
from preshard.packer_service.ingest.packed.manifest import dataset_file, dataset_manifest
from preshard.packer_service.ingest.packed.pack import StoredPack, find_known_pack
from preshard.packer_service.packs.pack import BuiltPack, KnownPack, build_pack
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.schemas.config import PackConfig
from preshard.schemas.encode import encode_layouts, encode_sequence
from preshard.schemas.errors import DocumentError, SampleHeadInvalid
from preshard.schemas.header import SampleHead
from preshard.schemas.members import LAYOUTS, SEQUENCE


@pytest.fixture
def source(tiny_dataset: Path) -> PackedDatasetSource:
    found = dataset_manifest(str(tiny_dataset))
    assert found is not None
    return open_dataset(dataset_file("tiny", str(tiny_dataset), found))


def documents(stored: StoredPack) -> list[RenderedDocument]:
    return [stored.document(number) for number in range(len(stored.head.documents))]


def built(stored: StoredPack, known: KnownPack | None, config: PackConfig) -> BuiltPack:
    """The pack of a stored pack's documents, at their places."""
    spans = stored.head.documents

    return build_pack(
        documents(stored),
        [span.start for span in spans],
        [span.aligned_length for span in spans],
        config=config,
        pad_id=stored.manifest.tokenizer.pad_id,
        model=stored.manifest.model,
        known=known,
    )


def made_again(stored: StoredPack, head: SampleHead) -> StoredPack:
    """The pack with another head."""
    names = ("encoded_sequence", "behind", "shard", "crops_at", "manifest", "config")
    return StoredPack.of(head, stored.sequence, "pack 0", **{name: getattr(stored, name) for name in names})


def members(pack: BuiltPack) -> tuple[bytes, bytes]:
    return (
        pack.encoded.get(SEQUENCE) or encode_sequence(pack.sequence),
        pack.encoded.get(LAYOUTS) or encode_layouts(pack.layouts),
    )


def test_a_pack_that_stays_has_the_bytes_that_it_would_have(source: PackedDatasetSource) -> None:
    """Fails when what was written of a pack differs from what its documents give, or is not taken as it is."""
    config = source.config
    other = config.model_copy(update={"ring_degrees": config.ring_degrees[:1], "cp_sizes": (1, 3)})
    for pack_id in range(source.n_packs):
        stored = source.pack(pack_id)
        known = find_known_pack(documents(stored))
        again = built(stored, known, config)
        assert again.encoded.keys() == {SEQUENCE, LAYOUTS}
        assert members(again) == members(built(stored, None, config))
        fewer = built(stored, known, other)
        assert fewer.encoded.keys() == {SEQUENCE}, "other layouts are asked for"
        assert members(fewer) == members(built(stored, None, other))


def test_a_pack_that_changes_is_made_anew(source: PackedDatasetSource) -> None:
    """Fails when arrays or layouts are kept of a pack whose documents lie elsewhere, or of other blocks."""
    config, stored = source.config, source.pack(0)
    known = find_known_pack(documents(stored))
    assert known is not None
    smaller = config.model_copy(update={"block_size": config.block_size // 2})
    assert built(stored, known, smaller).encoded.keys() == {SEQUENCE}
    assert members(built(stored, known, smaller)) == members(built(stored, None, smaller))
    parted = replace(known, segment_edges=known.segment_edges[1:])
    assert built(stored, parted, config).encoded.keys() == {SEQUENCE}
    changed = replace(known, sequence=source.pack(1).sequence)
    assert not built(stored, changed, config).encoded


def test_only_all_documents_of_one_pack_make_it_known(source: PackedDatasetSource) -> None:
    """Fails when a pack that lost a document, or got one of another pack, is taken for what it was."""
    first, second = (documents(source.pack(pack_id)) for pack_id in (0, 1))
    assert find_known_pack([]) is None
    assert find_known_pack([*first, *second]) is None
    assert find_known_pack(first[:-1]) is None or len(first) == 1
    assert find_known_pack([*first[:-1], second[0]]) is None
    assert find_known_pack([replace(document, origin=None) for document in first]) is None


def test_damaged_layouts_are_searched_for_again(source: PackedDatasetSource) -> None:
    """Fails when a damaged member of layouts is copied, or stops the job."""
    stored = source.pack(0)
    damaged = replace(stored, behind=stored.behind[:600] + b"\0\1\2" + stored.behind[603:])
    pack = built(damaged, find_known_pack(documents(damaged)), source.config)
    assert pack.encoded.keys() == {SEQUENCE}
    assert members(pack) == members(built(stored, None, source.config))


def test_documents_count_their_own_units(source: PackedDatasetSource) -> None:
    """Fails when a document that is cut takes the units of the documents before it in its pack."""
    taken = [document for stored in map(source.pack, range(source.n_packs)) for document in documents(stored)]
    assert sum(len(document.units) > 1 for document in taken) > 1
    for document in taken:
        own = document.unit_ids[document.unit_ids >= 0]
        assert own.tolist() == np.repeat(np.arange(len(document.units)), document.units.rows).tolist()


def test_a_document_that_its_pack_does_not_have_is_rejected(source: PackedDatasetSource) -> None:
    """Fails when a forged table of documents ends in an error of Python's list."""
    has = len(source.pack(0).head.documents)
    with pytest.raises(DocumentError, match=rf"preshard-000000.tar/.* has {has} documents?, and no document {has}"):
        source.pack(0).document(has)
    with pytest.raises(DocumentError, match=r"packs.parquet: has no row of pack -1"):
        source.pack(-1)


def test_packs_that_are_loaded_together_are_those_that_are_read_alone(source: PackedDatasetSource) -> None:
    """Fails when a pack is given the bytes of another, or when nothing is read before it is asked for."""
    alone = open_dataset.__wrapped__(source.file)
    source.recent.clear()
    source.load([*range(source.n_packs), 0])
    assert sorted(source.recent) == list(range(source.n_packs)) != []
    for pack_id, stored in sorted(source.recent.items()):
        assert stored.head == alone.pack(pack_id).head
        assert stored.encoded_sequence == alone.pack(pack_id).encoded_sequence
        assert (stored.shard, stored.crops_at) == (alone.pack(pack_id).shard, alone.pack(pack_id).crops_at)


def test_units_out_of_the_order_of_their_documents_are_refused(source: PackedDatasetSource) -> None:
    """Fails when documents of a damaged head are given the units of others."""
    stored = next(each for each in map(source.pack, range(source.n_packs)) if each.head.units)
    head = stored.head
    other = head.units[0].model_copy(update={"document": head.units[-1].document + 1})
    with pytest.raises(SampleHeadInvalid, match="not in the order of the documents"):
        made_again(stored, head.model_copy(update={"units": [other, *head.units[1:]]}))


def test_documents_out_of_the_order_of_their_places_are_refused(source: PackedDatasetSource) -> None:
    """Fails when documents of a damaged head are given the groups and annotations of others."""
    stored = next(each for each in map(source.pack, range(source.n_packs)) if len(each.head.documents) > 1)
    turned = stored.head.model_copy(update={"documents": stored.head.documents[::-1]})
    with pytest.raises(SampleHeadInvalid, match="do not lie one after the other"):
        made_again(stored, turned)


def test_units_of_other_rows_than_the_arrays_have_are_refused(source: PackedDatasetSource) -> None:
    """Fails when tokens of a damaged head are given to units that they do not belong to."""
    stored = next(each for each in map(source.pack, range(source.n_packs)) if each.head.units)
    longer = [unit.model_copy(update={"rows": unit.rows + 1}) for unit in stored.head.units]
    with pytest.raises(SampleHeadInvalid, match=r"units have \d+ pooled rows, and the pack \d+"):
        made_again(stored, stored.head.model_copy(update={"units": longer}))
