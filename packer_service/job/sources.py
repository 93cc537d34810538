"""Sources of a job as a command names them: asked whether they answer, then listed. Imports no stage of a job."""

from __future__ import annotations

from collections.abc import Sequence

from preshard.packer_service.ingest.media.reach import AllowedMedia
from preshard.packer_service.ingest.source.listing import Sources, list_sources
from preshard.packer_service.shards.store import require_answer
from preshard.schemas.config import PackConfig


def find_sources(sources: Sequence[str], config: PackConfig, media: AllowedMedia) -> Sources:
    """The sources of a job, once their stores answer.

    Raises:
        ConfigError: a source does not exist, or a store does not answer.
    """
    for what, location in [*(("SOURCE", source) for source in sources), *media.named()]:
        require_answer(what, location)
    return list_sources(sources, config, media)
