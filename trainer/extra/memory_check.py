"""Estimate of whether a run fits into the memory of its GPUs, before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from preshard.schemas.dataset.manifest_parts import stored_config
from preshard.schemas.dataset.measures import MEASURE_COLUMNS, MEASURES_FILE, MeasureGroup, MeasureOrder
from preshard.schemas.dataset.table_file import TableFile
from preshard.schemas.errors import ConfigError
from preshard.schemas.files.printed import several
from preshard.schemas.layout import BLOCK_SCHEMES, table_bytes
from preshard.schemas.model.dimensions import ModelDimensions, model_dimensions
from preshard.schemas.model.encoders import ENCODERS
from preshard.schemas.model.memory import STATE_NUMBERS, USABLE, MemoryParts, RankShare, TrainingMemory, Trains
from preshard.schemas.model.savings import (
    RECOMPUTE,
    TILED_LOGITS_MIB,
    TILES,
    Offload,
    Saving,
    halved,
    list_savings,
    state_on_host,
)
from preshard.trainer.attention.pieces import repeated_kv_heads
from preshard.trainer.core.config import DTYPES, TrainConfig, option
from preshard.trainer.core.mesh import SHARDING_AXES
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.data.pack_index import PackTable
from preshard.trainer.extra.saving import inputs_wait

GIB = 2**30
COLUMNS = ("n_units", "n_patches", "n_pooled_tokens")
MOST_ROWS = "most_pooled_tokens"
MORE_PROCESSES = 64
"""The most times as many processes that are named as a remedy."""


def device_memory() -> int:
    """Bytes of this process's GPU."""
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)


@dataclass(frozen=True, kw_only=True)
class Packs:
    """Demands of packs on ranks, as far as memory depends on them.

    Attributes:
        seq_len: tokens of a pack.
        images: :data:`COLUMNS` of the packs that were looked at.
        rings: ring degrees of the packed layouts.
        busiest: rows of features that the rank with most of them makes of each, by the ranks of a pack.
    """

    seq_len: int
    images: Int64[np.ndarray, "columns packs"]
    rings: frozenset[int]
    busiest: Mapping[int, Int64[np.ndarray, "packs"]] = field(default_factory=dict)

    @classmethod
    def of(cls, datasets: Sequence[PackedDataset]) -> Packs:
        """Packs of the first row group of each dataset's ``packs.parquet``, 65,536 at most."""
        readers = [reader for dataset in datasets for reader in dataset.readers]
        sizes = set.intersection(*(set(dataset.config.cp_sizes) for dataset in datasets))
        parts = [np.zeros((len(COLUMNS), 1), np.int64)]
        busiest = {size: [np.zeros(1, np.int64)] for size in sizes}
        for reader in readers:
            table = PackTable(reader.files.open_packs, len(reader.packs))
            if len(table):
                parts.append(table.columns(0, COLUMNS))
                for size, rows in _busiest(reader, table.edges[1], sizes).items():
                    busiest[size].append(rows)
            table.close()
        return cls(
            seq_len=max(dataset.files.config.seq_len for dataset in datasets),
            images=np.concatenate(parts, axis=1),
            rings=frozenset(datasets[0].config.ring_degrees),
            busiest={size: np.concatenate(rows) for size, rows in busiest.items()},
        )

    def share(self, config: TrainConfig, kv_heads: int) -> RankShare:
        """The largest share of a rank, as if all keys of a pack were needed. For a number of ranks that was not packed
        for, the images of a pack are as if of equal size.
        """
        units, patches, rows = self.images
        busiest = -(-units // config.cp_size) / np.maximum(units, 1)
        if config.cp_size in self.busiest:
            busiest = self.busiest[config.cp_size] / np.maximum(rows, 1)
        ulysses = config.cp_size if config.attention == "ulysses" else config.ulysses
        own = self.seq_len * ulysses / config.cp_size
        in_parts = config.attention in ("ring", "hybrid") and ulysses < config.cp_size
        parts = config.cp_size // ulysses if in_parts else 1
        travelling = 2 * own if in_parts else self.seq_len
        sent = repeated_kv_heads(kv_heads, ulysses)
        at_once = config.head_stride * (1 + config.overlap) or kv_heads  # two turns, where they overlap
        return RankShare(
            tokens=self.seq_len / config.cp_size,
            patches=float((patches * busiest).max()),
            rows=float((rows * busiest).max()),
            keys=0.0 if ulysses == config.cp_size else travelling,
            key_heads=min(sent / ulysses, at_once),
            tables=parts * table_bytes(own, self.seq_len / parts),
            in_parts=in_parts,
            copied_heads=sent - kv_heads,
        )


def _busiest(reader: Any, n_packs: int, sizes: Iterable[int]) -> dict[int, Int64[np.ndarray, "packs"]]:
    """Rows of features that the rank with most of them makes of each of a dataset's first packs, by ranks of a pack."""
    order = MeasureOrder.of(stored_config(reader.files.manifest), len(reader.packs))
    found: dict[int, Int64[np.ndarray, "packs"]] = {}
    opened = reader.files.open_table(MEASURES_FILE)
    with closing(
        TableFile(opened, MEASURES_FILE, MEASURE_COLUMNS, rows=order.n_rows, dense=False, sparing=True)
    ) as table:
        for size in sizes:
            groups = order.parts(MeasureGroup(scheme=None, degree=size), range(n_packs))
            rows = table.read([part.row_group for part in groups], [MOST_ROWS])[MOST_ROWS]
            found[size] = np.array(rows.to_pylist(), np.int64)[:n_packs]
    return found


@dataclass(frozen=True, kw_only=True)
class FitEstimate:
    """Estimate of the bytes that a rank holds, of the memory of its device."""

    parts: MemoryParts
    device: int

    @property
    def fits(self) -> bool:
        return self.parts.total <= USABLE * self.device

    def in_short(self) -> str:
        return f"estimated {self.parts.total / GIB:.1f} of {self.device / GIB:.1f} GiB a rank"


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """Estimates for one model on some packs."""

    sizes: ModelDimensions
    packs: Packs
    device: int
    trains: Trains | None = None

    def estimate(self, config: TrainConfig) -> FitEstimate:
        """Estimates the memory for settings without ``auto``."""
        dtype = DTYPES[config.dtype]
        sums = max(dtype.itemsize, 4)
        degrees = {"dp_shard": config.dp_shard, "ring": config.ring, "ulysses": config.ulysses}
        memory = TrainingMemory(
            sizes=self.sizes,
            shards=int(np.prod([degrees[axis] for axis in SHARDING_AXES[config.cp_fsdp]])),
            compute_bytes=dtype.itemsize,
            sum_bytes=sums,
            state_bytes=STATE_NUMBERS * sums,
            logits_bytes=config.logits_mib * 2**20,
            recompute=config.recompute,
            offload=inputs_wait(config.offload) != "none",
            on_host=state_on_host(config.offload),
            mlp_tiles=config.mlp_tiles,
            compiled=bool(config.compile),
            trains=self.trains,
        )
        return FitEstimate(parts=memory.of_rank(self.packs.share(config, self.sizes.kv_heads)), device=self.device)

    def least_recompute(self, config: TrainConfig) -> tuple[TrainConfig, FitEstimate]:
        """Chooses what is computed again: as little as fits, or all blocks where nothing does."""
        ways = [way for way in RECOMPUTE if config.recompute in ("auto", way)]
        if config.recompute == "auto" and inputs_wait(config.offload) != "none":
            ways.remove("none")  # there would be nothing to offload
        for way in ways:
            taken = config.model_copy(update={"recompute": way})
            found = self.estimate(taken)
            if found.fits:
                break
        return taken, found

    def remedy(self, config: TrainConfig, world_size: int) -> str:
        """The first of some changes with which it fits, as options."""
        for changes, processes in self._remedies(config, world_size):
            changed = config.model_copy(update=changes)
            if self.estimate(changed).fits:
                options = [
                    f"{option(name)} {value}" for name, value in changes.items() if value != getattr(config, name)
                ]
                started = f"start {several(processes, 'process')} with " if processes != world_size else "take "
                return started + " ".join(options)
        return "use a smaller model or shorter packs"

    def _remedies(self, config: TrainConfig, world_size: int) -> Iterator[tuple[dict[str, Any], int]]:
        """Changes and processes, the cheapest first: shards instead of replicas, saving, then more ranks for a pack."""
        full: dict[str, Any] = {"recompute": "full"}
        if config.dtype != "bfloat16":
            full = {"dtype": "bfloat16", **full}
        sharded = {**full, "cp_fsdp": "all", "dp_shard": config.dp_shard * config.dp_replicate(world_size)}
        for changes in ({"recompute": "selective"}, full, sharded):
            yield changes, world_size
        least: Offload = "host" if config.offload == "none" else "all" if config.offload == "state" else config.offload
        ladder = list(list_savings("full", self._strides(config), (least, "all")))
        at_home = [_changes(config, saving) for saving in ladder if saving.offload == "none"]
        away = [_changes(config, saving) for saving in ladder if saving.offload != "none"]
        for saving in at_home:
            yield {**sharded, **saving}, world_size
        rings = [(times, *divmod(sharded["dp_shard"], times)) for times in self._more_ranks(config)]
        for times, at_a_time, rest in rings:
            if not rest:
                yield {**sharded, "ring": config.ring * times, "dp_shard": at_a_time}, world_size
        for saving in away:
            yield {**sharded, **saving}, world_size
        for times, at_a_time, rest in rings:
            more = {**sharded, "ring": config.ring * times, "dp_shard": sharded["dp_shard"] if rest else at_a_time}
            for saving in (at_home[0], *away):
                yield {**more, **saving}, world_size * times if rest else world_size

    def _strides(self, config: TrainConfig) -> list[int]:
        """Fewer key heads at a time than now, the most first, where a rank gathers several."""
        if config.attention != "gather" or config.ring == 1:
            return []
        return halved(int(self.packs.share(config, self.sizes.kv_heads).key_heads))

    def _more_ranks(self, config: TrainConfig) -> list[int]:
        """Factors by which more ranks can share a pack."""
        found = []
        for times in (2**power for power in range(1, MORE_PROCESSES.bit_length())):
            ranks, ring = config.cp_size * times, config.ring * times
            dealt = config.attention != "ulysses" or self.sizes.heads % ranks == 0
            known = config.layout not in BLOCK_SCHEMES or ring in self.packs.rings
            if dealt and known and self.packs.seq_len % ranks == 0:
                found.append(times)
        return found


def _changes(config: TrainConfig, saving: Saving) -> dict[str, Any]:
    """Settings that a saving changes, beside what is computed again."""
    tiled = {"mlp_tiles": max(config.mlp_tiles, TILES), "logits_mib": min(config.logits_mib, TILED_LOGITS_MIB)}
    strided = {"head_stride": saving.head_stride} if saving.head_stride else {}
    away = {"offload": saving.offload} if saving.offload != "none" else {}
    return {**tiled, **strided, **away}


def check_memory(
    config: TrainConfig,
    model: Any,
    datasets: Sequence[PackedDataset],
    *,
    world_size: int,
    trains: Trains | None = None,
) -> tuple[TrainConfig, FitEstimate | None]:
    """The settings with what ``--recompute auto`` stands for, and the estimate of a rank on this process's GPU.

    A model without the usual dimensions has none: nothing is checked there.

    Args:
        config: the settings, without other ``auto``.
        model: configuration of the model, as ``transformers`` reads it.
        datasets: that it will see.
        world_size: processes of the job.
        trains: what of the model trains, where not all of it does.

    Raises:
        ConfigError: the estimate does not fit into the device's memory; says what would.
    """
    device, settings = device_memory(), model.to_dict()
    encoder = ENCODERS.get(model.model_type)
    try:
        sizes = model_dimensions(settings, encoder(settings) if encoder else None, str(config.model))
    except ConfigError:
        return config.model_copy(update={"recompute": "full"}) if config.recompute == "auto" else config, None
    fitting = Fitting(sizes=sizes, packs=Packs.of(datasets), device=device, trains=trains)
    taken, found = fitting.least_recompute(config)
    if not found.fits and config.memory_check == "on":
        parts = ", ".join(f"{name} {value / GIB:.1f}" for name, value in found.parts.on_device.items())
        raise ConfigError(
            f"a rank would need {found.parts.total / GIB:.1f} GiB (estimated) with --recompute {taken.recompute} "
            f"({parts}); of its device's {device / GIB:.1f} GiB, {USABLE * device / GIB:.1f} can be used: "
            f"{fitting.remedy(taken, world_size)}, or --memory-check off if the estimate is wrong"
        )
    return taken, found
