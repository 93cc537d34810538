"""A configuration for a source, from documents drawn of it: each choice is planned, solved and estimated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import yaml

from preshard.packer_service.ingest.families.folder import load_family
from preshard.packer_service.ingest.oversize import fit
from preshard.packer_service.layout.mask import full_and_window
from preshard.packer_service.packs.measures import MeasureRows, UnitTotals, pack_figures
from preshard.packer_service.packs.pack import build_pack
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.packer_service.plan.limits import NEARLY, Budgets, Sizes, least_values
from preshard.packer_service.plan.make import align_lengths
from preshard.packer_service.report.advice.answer import Advisor
from preshard.packer_service.report.advice.assumptions import PREMISES
from preshard.packer_service.report.advice.estimate.loads import COLUMNS, PackLoads, read_pack_loads
from preshard.packer_service.report.advice.figures import SplitAdvice
from preshard.packer_service.report.advice.question import AdviceQuestion
from preshard.packer_service.report.planned.what_if import sampled_measures
from preshard.schemas.config import PackConfig, parse_config
from preshard.schemas.encode import encode_layouts, encode_sequence
from preshard.schemas.errors import DocumentError
from preshard.schemas.manifest import ModelEntry
from preshard.schemas.model.dimensions import ModelDimensions
from preshard.schemas.model.followed import layer_masks

LOST = 0.01
"""Share of the tokens that a choice may cut off to be taken."""

LEAST_LENGTH, MOST_LENGTH = 2**11, 2**20
"""Lengths of packs between which powers of two are compared."""

SOLVED_PACKS = 4
"""Packs of each choice whose masks, layouts and image boundaries are solved: they stand for all."""

LEAST_PACKS = 32
"""Packs that are planned, of documents drawn again and again, so that the last one, not full, hardly counts."""

PLANNED = 50_000
"""Most documents that are planned."""

DEGREES = (1, 2, 4, 8)
"""Ring degrees and CP sizes that are compared; layouts are searched for, in a time that grows with them."""

CROP_BYTES = 1100
"""Bytes of a crop in a shard besides its content: a header, padding, and what the sample's head says of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """Documents drawn of a source.

    Attributes:
        documents: those that can be rendered, whole, by frames a second.
        rows: rows that were drawn.
        n_rows: rows of the source.
        counted: whether those were counted, or estimated.
        rejected: drawn rows without a document, by frames a second and code.
        has_video: whether any has a video.
        bytes_per_patch: of crops in a shard.
    """

    documents: Mapping[float, Sequence[RenderedDocument]]
    rows: int
    n_rows: int
    counted: bool
    rejected: Mapping[float, Mapping[str, int]]
    has_video: bool
    bytes_per_patch: float

    def of_source(self, drawn: int) -> int:
        """Number of documents of the source that so many drawn ones stand for."""
        return drawn if self.rows == self.n_rows else max(round(drawn * self.n_rows / max(self.rows, 1)), drawn)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One choice and what it gives.

    Attributes:
        config: the configuration.
        fill: of the planned packs.
        cut: share of the tokens that truncation loses.
        packs: of the whole source.
        disk_gb: of the shards, in 10^9 bytes.
        split: the fastest split that fits, or the one that needs least.
        hours: of an epoch, with steps as even as the order of packs makes them.
    """

    config: PackConfig
    fill: float
    cut: float
    packs: int
    disk_gb: float
    split: SplitAdvice
    hours: float


def suggestion(
    sampled: Sampled,
    config: PackConfig,
    question: AdviceQuestion,
    sizes: ModelDimensions,
    pad_id: int,
    model: ModelEntry | None,
    note: Callable[[str], None],
) -> str:
    """The configuration file.

    Args:
        sampled: what was drawn of the source.
        config: its keys that are set stay as they are.
        question: the devices that will train.
        sizes: the model that will train.
        pad_id: token of the padding.
        model: what it packs for.
        note: hears what is done.
    """
    choices = list[Choice]()
    for rate, documents in sampled.documents.items():
        lengths = np.array([len(document) for document in documents])
        for length in [config.seq_len] if "seq_len" in config.model_fields_set else compared_lengths(lengths):
            wanted = _configured(config, question, rate, length)
            choices.append(_choice(documents, wanted, sampled, question, sizes, pad_id, model))
            note(f"estimated seq_len={length}" + (f" at {rate:g} fps" if sampled.has_video else ""))
    taken = best(choices)
    return written(taken, choices, sampled, config, question, sizes)


def compared_lengths(lengths: np.ndarray) -> list[int]:
    """Powers of two around the least one that cuts off no more than :data:`LOST`: half of it, it, and twice and four
    times as much.
    """
    length = LEAST_LENGTH
    while length < MOST_LENGTH and np.maximum(lengths - length, 0).sum() > LOST * lengths.sum():
        length *= 2
    around = (length // 2, length, 2 * length, 4 * length)
    return [each for each in around if LEAST_LENGTH <= each <= MOST_LENGTH]


def best(choices: Sequence[Choice]) -> Choice:
    """The one that is taken: that loses little and fits, at the highest rate of frames, in the least time.

    If none does, the one that loses least of those that fit, or of all.
    """
    fitting = [each for each in choices if each.split.fits] or list(choices)
    good = [each for each in fitting if each.cut <= LOST]
    if not good:
        return min(fitting, key=lambda each: (each.cut, each.hours))
    return min(good, key=lambda each: (-each.config.video.fps, each.hours, each.config.seq_len))


def _configured(config: PackConfig, question: AdviceQuestion, rate: float, seq_len: int) -> PackConfig:
    degrees, values = _degrees(question), config.model_dump(mode="json")
    values["video"]["fps"], values["seq_len"] = rate, seq_len
    fixed = config.model_fields_set
    values |= {name: degrees for name in ("cp_sizes", "ring_degrees") if name not in fixed}
    values |= {name: value for name, value in {"max_images": None, "oversize": "truncate"}.items() if name not in fixed}
    return parse_config(values)


def _choice(
    documents: Sequence[RenderedDocument],
    config: PackConfig,
    sampled: Sampled,
    question: AdviceQuestion,
    sizes: ModelDimensions,
    pad_id: int,
    model: ModelEntry | None,
) -> Choice:
    kept, whole = _cut(documents, config), sum(map(len, documents))
    n_documents = sampled.of_source(len(kept))
    planned = _again(kept, n_documents, config)
    budgets = Budgets(config.seq_len, config.max_images, config.max_patches, config.alignment)
    if config.max_images is None and planned.images.any():
        least = int(max(planned.images.max(), -(-planned.images.sum() * config.seq_len // planned.tokens.sum())))
        at_least, wanted = budgets._replace(max_images=least), NEARLY * planned.fill(budgets)
        if planned.fill(at_least) < wanted:
            least = least_values(planned, at_least, ("max_images",), wanted)["max_images"]
        budgets = budgets._replace(max_images=-(-least // 8) * 8)
        config = parse_config({**config.model_dump(mode="json"), "max_images": budgets.max_images})
    places = planned.packs(budgets)
    n_packs = int(places.max()) + 1
    packs = max(round(n_packs * n_documents / len(planned.tokens)), 1)
    loads, header_bytes = _solved(
        [kept[i % len(kept)] for i in range(len(places))], places, config, question, pad_id, model
    )
    loads = replace(loads, n_packs=max(packs, question.gpus))
    advisor = Advisor(config=config, sizes=sizes, question=question, loads=loads)
    split, step = min(((each, _step(each)) for each in advisor.estimates()), key=_slowness)
    scale = n_documents / len(kept)
    crops = sampled.bytes_per_patch * sum(int(each.units.patches.sum()) for each in kept)
    crops += CROP_BYTES * sum(each.n_images for each in kept)
    return Choice(
        config=config,
        fill=float(planned.tokens.sum()) / (n_packs * config.seq_len),
        cut=1 - sum(map(len, kept)) / whole,
        packs=packs,
        disk_gb=(packs * header_bytes + scale * crops) / 1e9,
        split=split,
        hours=packs / split.dp_size * step / 3600,
    )


def _step(split: SplitAdvice) -> float:
    """Seconds of a step without its straggler: the packs of a step are neighbours in cost, the solved ones are not."""
    return split.seconds.total - split.seconds.straggler


def _slowness(each: tuple[SplitAdvice, float]) -> tuple[bool, float]:
    """Whether it does not fit, and then its time for a pack, or else its memory."""
    split, step = each
    return not split.fits, step / split.dp_size if split.fits else split.memory.total


def _cut(documents: Sequence[RenderedDocument], config: PackConfig) -> list[RenderedDocument]:
    """The pieces that are packed."""
    found = list[RenderedDocument]()
    for document in documents:
        try:
            limits = {name: getattr(config, name) for name in ("seq_len", "max_images", "max_patches", "oversize")}
            found += fit(document, **limits)
        except DocumentError:
            continue
    return found


def _again(kept: Sequence[RenderedDocument], n_documents: int, config: PackConfig) -> Sizes:
    """Sizes of as many documents as the source has, or enough for :data:`LEAST_PACKS`: those drawn, again and again."""
    totals = [UnitTotals.of(each.units) for each in kept]
    tokens = np.array([len(each) for each in kept], np.int64)
    wanted = -(-LEAST_PACKS * config.seq_len * len(kept) // max(int(tokens.sum()), 1))
    times = -(-min(max(wanted, len(kept)), n_documents, max(PLANNED, len(kept))) // max(len(kept), 1))
    return Sizes(
        tokens=np.tile(tokens, times),
        images=np.tile(np.array([each.n_images for each in totals], np.int64), times),
        patches=np.tile(np.array([each.n_patches for each in totals], np.int64), times),
        passes=np.zeros(times * len(kept), np.int64),
        of=n_documents,
    )


def _solved(
    documents: Sequence[RenderedDocument],
    places: np.ndarray,
    config: PackConfig,
    question: AdviceQuestion,
    pad_id: int,
    model: ModelEntry | None,
) -> tuple[PackLoads, float]:
    """The loads of some packs, and the mean bytes of their arrays in a shard."""
    if model is not None and config.model is not None:
        found = load_family(config.model, config.images.backend)
        model = model.model_copy(update={"masks": layer_masks(found.config, config.seq_len, "model")})
    layers = None if model is None else model.masks
    n_packs = int(places.max()) + 1
    chosen = np.unique((2 * np.arange(SOLVED_PACKS) + 1) * n_packs // (2 * SOLVED_PACKS)).tolist()
    figures, tables, size = [], [], 0
    for number, pack_id in enumerate(chosen):
        own = [documents[i] for i in np.flatnonzero(places == pack_id)]
        lengths = np.array([len(each) for each in own], np.int64)
        aligned = align_lengths(lengths, config.alignment)
        starts = (np.cumsum(aligned) - aligned).tolist()
        pack = build_pack(
            own,
            starts,
            aligned.tolist(),
            config=config,
            pad_id=pad_id,
            model=model,
        )
        full, _ = full_and_window(pack.index, pack.layers)
        figures.append(
            pack_figures(number, pack.sequence, full, lengths, UnitTotals.of(pack.units), config, pack.layers)
        )
        rows = MeasureRows()
        rows.add_pack(
            number, pack.index, pack.layouts, pack.boundaries, pack.parts.crops, pack.parts.loads, pack.layers
        )
        tables.append(rows.table())
        size += len(encode_sequence(pack.sequence)) + len(encode_layouts(pack.layouts))
    columns = {name: np.array([row[name] for row in figures], np.int64) for name in COLUMNS}
    loads = read_pack_loads(
        sampled_measures(tables, config), lambda name: columns[name], gpus=question.gpus, layers=layers
    )
    return loads, size / len(chosen)


def written(
    taken: Choice, choices: Sequence[Choice], sampled: Sampled, given: PackConfig, question: AdviceQuestion,
    sizes: ModelDimensions,
) -> str:  # fmt: skip
    """The file: what it rests on and what each choice gives as comments, and the keys of the one that is taken."""
    config, split, device = taken.config, taken.split, question.device
    cp_size = split.ulysses_degree * split.ring_degree
    values: dict[str, Any] = {"model": config.model, "seq_len": config.seq_len}
    values |= {"max_images": config.max_images} if config.max_images is not None else {}
    values["oversize"] = config.oversize
    values |= {"video": config.video.model_dump(mode="json")} if sampled.has_video else {}
    values = {**values, **given.model_dump(mode="json", exclude_unset=True), **values}
    fixed = given.model_fields_set
    values |= {
        name: [size for size in _degrees(question) if size <= cp_size]
        for name in ("cp_sizes", "ring_degrees")
        if name not in fixed
    }
    values.pop("cost", None)  # comes last, as it is longest
    values["cost"] = given.cost.model_dump(mode="json", exclude_unset=True)
    if cp_size not in values["cp_sizes"] and "cp_sizes" not in fixed and config.seq_len % (2 * cp_size) == 0:
        values["cp_sizes"].append(cp_size)
    about = "about 1 pack" if taken.packs == 1 else f"about {taken.packs:,} packs"
    comments = {
        "seq_len": f"fill {taken.fill:.1%}; {taken.cut:.2%} of the tokens are cut off; {about}",
        "oversize": "split cuts nothing off, reject leaves out whole documents",
        "cost": "of the model folder",
        "cp_sizes": f"train with {split.options}" if split.options else "train with a whole pack on each device",
        "ring_degrees": f"{split.memory.total:.1f} GB a rank"
        + ("" if split.fits else ": more than there is, the least"),
    }
    if "max_images" not in fixed:
        comments["max_images"] = f"the least with which packs are {NEARLY:.0%} as full as without a limit"
    if sampled.has_video:
        comments["video"] = "fewer frames a second make videos shorter: see above"
    rejected = ", ".join(f"{number} {code}" for code, number in sampled.rejected[config.video.fps].items()) or "none"
    head = [
        "Suggested by preshard suggest. Edit it, and pack with --config.",
        "",
        f"Sample: {sampled.rows:,} of {'' if sampled.counted else 'about '}{sampled.n_rows:,} rows, drawn by "
        f"order.seed {given.order.seed}; rejected: {rejected}",
        f"Model: {sizes.parameters / 1e9:.3g} billion parameters ({sizes.source})",
        f"Devices: {question.gpus:,} x {question.gpu}, {device.peak_tflops:g} TFLOP/s and {device.memory_gb:g} GB each "
        f"({device.source})",
        *(f"Assumed: {premise}" for premise in PREMISES),
        "",
        *_table(choices, taken, sampled),
        "",
        "fill: real tokens of all positions; cut: tokens that truncation loses; disk: of all shards;",
        f"hours: of an epoch; GB: memory of a rank, of which {device.memory_gb * question.memory_share:g} may be used",
        f"* is taken: of those that fit and cut off at most {LOST:.0%}, with most frames a second, the fastest",
    ]
    lines = [f"# {line}".rstrip() for line in head]
    for name, value in values.items():
        first, *others = yaml.safe_dump(
            {name: value}, default_flow_style=None if isinstance(value, list) else False, **_STYLE
        ).splitlines()
        lines += [f"{first}  # {comments[name]}" if name in comments else first, *others]
    return "\n".join(lines) + "\n"


_STYLE: dict[str, Any] = {"sort_keys": False, "width": 2**20}
"""Style of YAML: mappings on lines of their own, lists on one."""


def _small(value: float) -> str:
    return f"{value:,.3g}" if value >= 0.001 else "<0.001"


def _table(choices: Sequence[Choice], taken: Choice, sampled: Sampled) -> list[str]:
    rows = [["", "fps", "rejected", "seq_len", "max_images", "fill", "cut", "disk GB", "hours", "GB", "trained with"]]
    for each in choices:
        split, config = each.split, each.config
        rows.append(
            [
                "*" if each is taken else "",
                f"{config.video.fps:g}",
                f"{sum(sampled.rejected[config.video.fps].values()) / sampled.rows:.1%}",
                str(config.seq_len),
                "none" if config.max_images is None else str(config.max_images),
                f"{each.fill:.1%}",
                f"{each.cut:.2%}",
                _small(each.disk_gb),
                _small(each.hours),
                f"{split.memory.total:.1f}" + ("" if split.fits else "!"),
                split.options or "a whole pack on each device",
            ]
        )
    if not sampled.has_video:
        rows = [[*row[:1], *row[3:]] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)) + f"  {row[-1]}"
        for row in rows
    ]


def _degrees(question: AdviceQuestion) -> list[int]:
    return [size for size in DEGREES if question.gpus % size == 0]
