"""``preshard suggest SOURCE``: a configuration for a source, from a sample of its rows.

The sample is drawn by a seed: the same source gives the same file on every machine.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from preshard.packer_service.ingest.crops import decode_crops
from preshard.packer_service.ingest.document import Document
from preshard.packer_service.ingest.media.reach import AllowedMedia, MediaReach
from preshard.packer_service.ingest.oversize import fit
from preshard.packer_service.ingest.packed.settings import packed_target
from preshard.packer_service.ingest.render import render_pieces
from preshard.packer_service.ingest.source.containers.registry import NUMBERED, TABLES
from preshard.packer_service.ingest.source.file import DATASET, Fragment
from preshard.packer_service.ingest.source.files import list_fragments, read_fragment
from preshard.packer_service.ingest.source.rows import parse_row
from preshard.packer_service.job.preview.choices import Sampled, suggestion
from preshard.packer_service.job.sources import find_sources
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.packer_service.report.advice.model import folder_sizes
from preshard.packer_service.report.advice.question import AdviceQuestion
from preshard.packer_service.runtime.progress import Progress
from preshard.schemas.config import PackConfig, parse_config
from preshard.schemas.dataset.step_order import mix64
from preshard.schemas.errors import ConfigError, DocumentError
from preshard.schemas.files.printed import several

SCANNED_FRAGMENTS = 8
"""Parts of a source that rows are drawn from, themselves drawn."""

SCANNED_ROWS = 20_000
"""Rows of each that may be drawn: those from its beginning."""

ENCODED_DOCUMENTS, ENCODED_CROPS = 24, 8
"""Documents, and crops of each, that are decoded and encoded to know how many bytes a crop takes."""

RATES = (2.0, 1.0, 0.5)
"""Frames a second that are compared where a source has videos and the user names no rate."""

WHOLE_LENGTH = 2**27
WHOLE = {"seq_len": WHOLE_LENGTH, "max_images": None, "cp_sizes": [1], "ring_degrees": [1], "layouts": ["contiguous"]}
"""Configuration under which no document is cut."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnRow:
    """A row of the sample: a document, or why there is none; and what its media may reach."""

    document: Document | DocumentError
    media: MediaReach

    @property
    def has_video(self) -> bool:
        if isinstance(self.document, DocumentError) or self.document.is_plain:
            return False
        return any(medium.kind == "video" for medium in self.document.media())


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """The sample: its rows in source order, the rows of the whole source, and whether those were counted."""

    rows: list[DrawnRow]
    n_rows: int
    counted: bool


def suggest(
    sources: Sequence[str],
    config: PackConfig,
    question: AdviceQuestion,
    progress: Progress,
    *,
    rows: int,
    media: AllowedMedia | None = None,
) -> str:
    """A configuration file for packing sources, with what each choice would give as comments.

    Args:
        sources: files and folders of rows: paths or URIs.
        config: has the ``model``. Its keys that are set stay as they are; ``order.seed`` draws the sample.
        question: the devices that will train.
        progress: hears what is done.
        rows: most rows of the sample.
        media: what rows may reach besides the folders of the sources.

    Raises:
        ConfigError: a source does not exist, is a packed dataset, or none of the drawn rows can be packed; or the model
            folder is none.
    """
    assert config.model is not None, "checked by the command"
    files = find_sources(sources, config, media or AllowedMedia()).files
    for file in files:
        if file.kind == DATASET:
            raise ConfigError(f"SOURCE {file.uri}: is a packed dataset; give the source that it was packed from")
    target, sizes = packed_target(config, files), folder_sizes(config.model)
    drawn = draw(list_fragments(files), rows, config)
    progress.note(f"drew {len(drawn.rows):,} of {'' if drawn.counted else 'about '}{drawn.n_rows:,} rows")
    with_video = any(row.has_video for row in drawn.rows)
    given = "fps" in config.video.model_fields_set or not with_video
    found, known = dict[float, list[RenderedDocument | DocumentError]](), None
    for rate in (config.video.fps,) if given else RATES:
        progress.doing("measuring the drawn rows")
        video = config.video.model_copy(update={"fps": rate})
        known = found[rate] = _rendered(drawn.rows, config.model_copy(update={"video": video}), known)
        progress.note(f"measured them at {rate:g} fps" if with_video else "measured them")
    progress.doing("comparing lengths, splits and rates")
    rejected = {rate: _rejected(of_rate) for rate, of_rate in found.items()}
    if any(sum(codes.values()) == len(drawn.rows) for codes in rejected.values()):
        raise ConfigError(_none_left(next(iter(found.values()))))
    sampled = Sampled(
        documents={
            rate: [each for each in of_rate if not isinstance(each, DocumentError)] for rate, of_rate in found.items()
        },
        rows=len(drawn.rows),
        n_rows=drawn.n_rows,
        counted=drawn.counted,
        rejected=rejected,
        has_video=with_video,
        bytes_per_patch=_bytes_per_patch(drawn.rows, next(iter(found.values())), config),
    )
    return suggestion(sampled, config, question, sizes, target.tokenizer.pad_id, target.model, progress.note)


def _none_left(rendered: Sequence[RenderedDocument | DocumentError]) -> str:
    """The line for a sample without a document."""
    reasons = [f"{each.code}: {each}" for each in rendered if isinstance(each, DocumentError)]
    if not reasons:
        return "suggest: SOURCE holds no row"
    [(reason, number), *_] = Counter(reasons).most_common(1)
    of_all = "each" if number == len(reasons) else f"{number:,}"
    return (
        f"suggest: all of {several(len(reasons), 'drawn row')} would be rejected, {of_all} for this: {reason}; "
        "preshard show SOURCE --row N says more of one"
    )


def _rejected(rendered: Sequence[RenderedDocument | DocumentError]) -> dict[str, int]:
    """Drawn rows without a document, by code."""
    return dict(sorted(Counter(each.code for each in rendered if isinstance(each, DocumentError)).items()))


def draw(fragments: Sequence[Fragment], rows: int, config: PackConfig) -> Drawn:
    """Rows of some parts of a source, each as likely as any other, always the same ones.

    Args:
        fragments: all parts.
        rows: most rows that are drawn.
        config: says how rows are parsed; its ``order.seed`` draws them.
    """
    seed = np.uint64(config.order.seed)
    hashes = mix64(mix64(np.arange(len(fragments), dtype=np.uint64)) ^ seed)
    scanned = np.sort(np.argsort(hashes, kind="stable")[:SCANNED_FRAGMENTS]).tolist()
    kept, seen, counted = list[tuple[int, int, int, DrawnRow]](), 0.0, len(scanned) == len(fragments)
    for part in scanned:
        fragment, keys = fragments[part], mix64(np.arange(SCANNED_ROWS, dtype=np.uint64) ^ hashes[part]).tolist()
        number, share = 0, 1.0
        for number, (_, place, row) in enumerate(read_fragment(fragment).rows, start=1):
            key = -keys[number - 1]
            if len(kept) < rows or key > kept[0][0]:
                push = heapq.heappush if len(kept) < rows else heapq.heappushpop
                push(kept, (key, part, number, _parsed(row, fragment, config)))
            if number == SCANNED_ROWS:
                counted = False
                if fragment.file.kind in NUMBERED:
                    share = number / (fragment.end - fragment.start)
                elif fragment.file.kind not in TABLES and fragment.file.compression is None:
                    end = min(fragment.end, fragment.file.size)
                    share = (place.offset + place.size - fragment.start) / max(end - fragment.start, 1)
                break
        seen += number / max(share, 1e-9)
    n_rows = round(seen * len(fragments) / max(len(scanned), 1))
    in_order = sorted(kept, key=lambda each: each[1:3])
    return Drawn(rows=[row for *_, row in in_order], n_rows=max(n_rows, len(kept)), counted=counted)


def _parsed(row: object, fragment: Fragment, config: PackConfig) -> DrawnRow:
    document: Document | DocumentError
    try:
        if isinstance(row, DocumentError):
            raise row
        document = parse_row(row, fragment.file.form, config, fragment.file.unread)
    except DocumentError as error:
        document = error
    return DrawnRow(document=document, media=fragment.file.media)


def _rendered(
    rows: Sequence[DrawnRow], config: PackConfig, known: list[RenderedDocument | DocumentError] | None
) -> list[RenderedDocument | DocumentError]:
    """Every document whole; those without a video are taken from a rendering at another rate."""
    whole = parse_config({**config.model_dump(mode="json"), **WHOLE})
    found = list[RenderedDocument | DocumentError]()
    for number, row in enumerate(rows):
        if known is not None and not row.has_video:
            found.append(known[number])
            continue
        try:
            if isinstance(row.document, DocumentError):
                raise row.document
            found.append(render_pieces(row.document, row.media, whole)[0])
        except DocumentError as error:
            found.append(error)
    return found


def _bytes_per_patch(
    rows: Sequence[DrawnRow], documents: Sequence[RenderedDocument | DocumentError], config: PackConfig
) -> float:
    """Bytes per patch that crops take in a shard, by encoding some of some documents."""
    shown = [number for number, each in enumerate(documents) if not isinstance(each, DocumentError) and each.n_images]
    size = patches = 0.0
    for number in shown[:: -(-len(shown) // ENCODED_DOCUMENTS) or 1]:
        document = documents[number]
        assert not isinstance(document, DocumentError), "asked before"
        most = max(ENCODED_CROPS, int(document.units.crops.max()))
        try:
            [piece] = fit(document, seq_len=WHOLE_LENGTH, max_images=most, oversize="truncate")
            crops = list(decode_crops(piece, rows[number].media, config, doc_id=""))
        except DocumentError:
            continue
        of_all = int(document.units.patches.sum())  # a long video counts as such
        size += sum(len(crop.data) for crop in crops) / int(piece.units.patches.sum()) * of_all
        patches += of_all
    return size / max(patches, 1)
