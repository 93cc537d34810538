"""A document to the rendered pieces that are packed. Measuring and writing both call it, so lengths are exact."""

from __future__ import annotations

from preshard.packer_service.ingest.document import Document
from preshard.packer_service.ingest.media.isolated import probe
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.media.shape import place
from preshard.packer_service.ingest.model import configured_renderer
from preshard.packer_service.ingest.oversize import fit_pack
from preshard.packer_service.ingest.render import render
from preshard.packer_service.ingest.text.tokenizer import Tokenizer
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.schemas.config import PackConfig


def render_pieces(
    document: Document, folder: MediaReach, config: PackConfig, tokenizer: Tokenizer
) -> list[tuple[RenderedDocument, int]]:
    """A document's pieces, each with the number of tokens lost after it; no pixel is decoded.

    The same document and files always give the same pieces.

    Args:
        document: the document.
        folder: what its media are relative to, and what they may reach.
        config: the job's configuration.
        tokenizer: its tokenizer.

    Raises:
        DocumentError: an image or video is missing or broken, or the document does not fit.
        OSError: the file system failed; no document is at fault.
    """
    renderer = configured_renderer(config, tokenizer)
    document = document.with_turns(config.turns)
    probed = [] if document.is_plain else [probe(medium, folder, config) for medium in document.media()]
    document = document.with_pages([len(shapes) for shapes in probed])
    media = () if document.is_plain else document.media()
    shapes = (shape for shapes in probed for shape in shapes)
    placed = [place(renderer.family, medium, shape) for medium, shape in zip(media, shapes, strict=True)]
    return fit_pack(render(renderer, document, placed), config)
