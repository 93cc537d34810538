"""Resolution of a job, once, at its entrance: from here on each stage takes the part of it that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from preshard.packer_service.ingest.media.reach import AllowedMedia
from preshard.packer_service.ingest.model import PackedFor
from preshard.packer_service.ingest.packed.settings import dataset_notes, packed_target
from preshard.packer_service.ingest.source.file import DATASET, Fragment, SourceFile
from preshard.packer_service.ingest.source.files import list_fragments
from preshard.packer_service.ingest.source.listing import Sources
from preshard.packer_service.job.job_record import Record, job_record
from preshard.packer_service.job.planning.identify import check_duplicates
from preshard.packer_service.job.planning.where import check_where
from preshard.packer_service.job.sources import find_sources
from preshard.schemas.config import PackConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedJob:
    """A job whose sources are found and whose configuration holds for each of them.

    Attributes:
        config: the configuration.
        target: the tokenizer and the model that it packs for, read.
        sources: what was found; files have the types of the columns that ``where`` may name.
        fragments: the parts of the files that tasks measure.
        record: everything that must be the same for another run to be of the same job.
        media: what rows may reach besides the folders of the sources.
    """

    config: PackConfig
    target: PackedFor
    sources: Sources
    fragments: Sequence[Fragment]
    record: Record
    media: AllowedMedia

    @property
    def files(self) -> list[SourceFile]:
        """The files of which there is a part."""
        return list(dict.fromkeys(fragment.file for fragment in self.fragments))

    def notes(self) -> Iterator[str]:
        """Yields notes that a user should read before the work begins."""
        yield from self.sources.notes()
        if self.config.model is None and any(file.kind != DATASET for file in self.files):
            yield f"no --model: packing for a model of your own, with the tokenizer {self.config.tokenizer}"
        yield from dataset_notes(self.sources.files)


def resolve(sources: Sequence[str] | Sources, config: PackConfig, media: AllowedMedia | None = None) -> ResolvedJob:
    """Finds the sources, reads the tokenizer and the model, and checks the configuration against them.

    Args:
        sources: files and folders, paths or URIs; or what was found of them.
        config: the job's configuration.
        media: what rows may reach besides the folders of the sources.

    Raises:
        ConfigError: a source does not exist, a store does not answer, or the configuration does not hold for a file.
    """
    media = media or AllowedMedia()
    found = sources if isinstance(sources, Sources) else find_sources(sources, config, media)
    target = packed_target(config, found.files)
    check_duplicates(config.duplicates, found.files)
    fragments, files = list_fragments(found.files), check_where(config.where, found.files)
    typed = dict(zip(found.files, files, strict=True))
    fragments = [replace(each, file=typed[each.file]) for each in fragments]
    return ResolvedJob(
        config=config,
        target=target,
        sources=replace(found, files=files),
        fragments=fragments,
        record=job_record(config, target, fragments, media),
        media=media,
    )
