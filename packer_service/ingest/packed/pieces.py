"""A document of a packed dataset to the pieces that are packed anew: nothing is tokenised, probed or decoded."""

from __future__ import annotations

from collections.abc import Sequence

from preshard.packer_service.ingest.oversize import fit_pack
from preshard.packer_service.ingest.packed.dataset import PackedDatasetSource, StoredPieces, open_dataset
from preshard.packer_service.ingest.packed.join import joined
from preshard.packer_service.ingest.packed.take import taken_document, weighed
from preshard.packer_service.ingest.source.file import RowReference, SourceFile
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError

LIMITS = ("seq_len", "max_images", "max_patches", "oversize")
"""Keys that decide how a document is split."""


def stored_pieces(
    file: SourceFile, place: RowReference, doc_id: str, config: PackConfig
) -> list[tuple[RenderedDocument, int]]:
    """The pieces of a stored document, as :func:`~preshard.packer_service.ingest.pieces.render_pieces` gives a row's.

    A document that was split is joined first. What a document lost before it was packed is not counted here.

    Args:
        file: the dataset.
        place: where the document lies, or its first piece.
        doc_id: its id.
        config: of the new dataset.

    Raises:
        DocumentError: its pack is damaged, not all of its pieces are there, or it does not fit.
        OSError: the file system failed; no document is at fault.
    """
    source = open_dataset(file)
    several = source.repeated.get(doc_id)
    if several is None:
        return fit_pack(_taken(source, place, doc_id, config), config)
    _require_whole(several, source.config, config)
    parts = [_taken(source, piece.place, doc_id, config) for piece in several.pieces]
    if _same_limits(source.config, config):
        return [(part, piece.truncated) for part, piece in zip(parts, several.pieces, strict=True)]
    lost = sum(piece.truncated for piece in several.pieces)
    *others, (last, own) = fit_pack(joined(parts, bidirectional=_bidirectional(config)), config)
    return [*others, (last, own + lost)]


def _require_whole(several: StoredPieces, before: PackConfig, now: PackConfig) -> None:
    """
    Raises:
        DocumentError: the document was split, and its pieces do not make the whole.
    """
    lost = sum(piece.truncated for piece in several.pieces)
    if several.missing:
        raise DocumentError("bad_row", "it was split, and not all of its pieces were written; pack its source")
    if lost and before.oversize == "split" and not _same_limits(before, now):
        what = f"{lost} of its tokens are in no piece"
        raise DocumentError("bad_row", f"it was split, and {what}, so it cannot be joined; pack its source")


def _bidirectional(config: PackConfig) -> str | None:
    return config.bidirectional if config.model is None else None


def _same_limits(before: PackConfig, now: PackConfig) -> bool:
    return all(getattr(before, name) == getattr(now, name) for name in LIMITS)


def _taken(source: PackedDatasetSource, place: RowReference, doc_id: str, config: PackConfig) -> RenderedDocument:
    pack, model = source.pack(place.offset), source.manifest.model
    spans: Sequence[object] = pack.head.documents
    if place.size >= len(spans) or pack.head.documents[place.size].doc_id != doc_id:
        raise DocumentError("bad_row", f"pack {place.offset} does not hold it where documents.parquet says")
    return weighed(taken_document(pack, place.size, merge=1 if model is None else model.merge), config)
