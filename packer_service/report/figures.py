"""The figures of ``report`` and ``plan``: fill, loss and balance, from a dataset's tables or from a plan's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float64, Int64

from packer_service.layout.cost import gather_cost, ring_cost
from packer_service.plan.plan import Plan
from packer_service.plan.summary import summarise
from schemas.config import PackConfig
from schemas.layout import SCHEMES

Figures = dict[str, Any]


@dataclass(kw_only=True)
class BalanceFigures:
    """Means over packs of what each layout costs, from rows of ``balance.parquet`` a batch of packs at a time.

    Args:
        seq_len: tokens of a pack.
        tiles: attention tiles of every pack in natural order, by pack id: the floor of the critical paths.
        key_weight: tiles that a moved key counts as, see :mod:`packer_service.layout.cost`.
    """

    seq_len: int
    tiles: dict[int, int]
    key_weight: float
    sums: dict[tuple[str, int], _Sums] = field(default_factory=dict)
    preferred: dict[int, Counter[str]] = field(default_factory=dict)

    def add(self, rows: pa.Table) -> None:
        """Adds the rows of whole packs."""
        loads_of: dict[tuple[str, int], dict[str, Int64[np.ndarray, "packs ranks"]]] = {}
        for (kind, scheme, degree), packs, loads in _groups(rows):
            sums = self.sums.setdefault((scheme or "images", degree), _Sums(degree=degree))
            floors = np.array([self.tiles[pack] / degree for pack in packs])
            sums.add(kind, loads, floors, self.seq_len)
            loads_of.setdefault((scheme or "images", degree), {})[kind] = loads
        self._prefer({key: loads for key, loads in loads_of.items() if key[0] != "images"})

    def _prefer(self, loads_of: dict[tuple[str, int], dict[str, Int64[np.ndarray, "packs ranks"]]]) -> None:
        """Counts for each degree the packs for which the cost model prefers each scheme."""
        for degree in {degree for _, degree in loads_of}:
            schemes = [scheme for scheme in SCHEMES if (scheme, degree) in loads_of]
            costs = np.stack([self._costs(loads_of[scheme, degree], degree) for scheme in schemes])
            for scheme, cost in zip(schemes, costs, strict=True):
                self.sums[scheme, degree].mean_of("cost", cost)
            chosen = Counter(schemes[best] for best in costs.argmin(axis=0))
            self.preferred[degree] = self.preferred.get(degree, Counter()) + chosen

    def _costs(self, loads: dict[str, Int64[np.ndarray, "packs ranks"]], degree: int) -> Float64[np.ndarray, "packs"]:
        ring = ring_cost(loads["ring_step"].sum(axis=1), self.seq_len // degree, degree, self.key_weight)
        gather = gather_cost(loads["tiles"].max(axis=1), loads["keys_fetched"].max(axis=1), self.key_weight)
        cheaper: Float64[np.ndarray, "packs"] = np.minimum(ring, gather)
        return cheaper

    def as_json(self) -> Figures:
        """Means by layout and ring degree, and by CP size, with each rank's loads; packs that prefer each layout."""
        balance: Figures = {}
        for (scheme, degree), sums in self.sums.items():
            if scheme != "images":
                balance.setdefault(scheme, {})[str(degree)] = sums.layout()
        images = {str(degree): sums.images() for (scheme, degree), sums in self.sums.items() if scheme == "images"}
        preferred = {str(degree): dict(counts.most_common()) for degree, counts in sorted(self.preferred.items())}
        return {"balance": balance, "images": images, "preferred": preferred}


@dataclass(kw_only=True)
class _Sums:
    """Sums over packs for one scheme and degree."""

    degree: int
    n: dict[str, int] = field(default_factory=dict)
    total: dict[str, float] = field(default_factory=dict)
    loads: dict[str, Float64[np.ndarray, "ranks"]] = field(default_factory=dict)

    def add(self, kind: str, loads: Int64[np.ndarray, "packs ranks"], floors: np.ndarray, seq_len: int) -> None:
        self.loads[kind] = self.loads.get(kind, np.zeros(self.degree)) + loads.sum(axis=0)
        self.n[kind] = self.n.get(kind, 0) + len(loads)
        real = floors > 0
        if kind == "tiles":
            self.mean_of("gather", (loads.max(axis=1)[real] / floors[real]))
        elif kind == "ring_step":
            self.mean_of("ring", (loads.sum(axis=1)[real] / floors[real]))
        elif kind == "keys_fetched":
            self.mean_of("traffic", loads.sum(axis=1) / (seq_len * max(self.degree - 1, 1)))
        else:
            self.mean_of(f"{kind}_imbalance", _imbalances(loads))

    def mean_of(self, name: str, values: Float64[np.ndarray, "packs"]) -> None:
        self.n[name] = self.n.get(name, 0) + len(values)
        self.total[name] = self.total.get(name, 0.0) + float(values.sum())

    def mean(self, name: str, empty: float) -> float:
        return self.total[name] / self.n[name] if self.n.get(name) else empty

    def rank_loads(self, kind: str) -> list[float]:
        return [round(load / self.n[kind], 1) for load in self.loads[kind]]

    def layout(self) -> Figures:
        return {
            "gather": self.mean("gather", 1.0),
            "ring": self.mean("ring", 1.0),
            "traffic": self.mean("traffic", 0.0),
            "imbalance": self.mean("attention_imbalance", 1.0),
            "cost": self.mean("cost", 0.0),
            "rank_attention": self.rank_loads("attention"),
            "rank_tiles": self.rank_loads("tiles"),
        }

    def images(self) -> Figures:
        return {
            "imbalance": self.mean("images_imbalance", 1.0),
            "pooled_imbalance": self.mean("pooled_tokens_imbalance", 1.0),
            "rank_images": self.rank_loads("images"),
            "rank_pooled_tokens": self.rank_loads("pooled_tokens"),
        }


def _imbalances(loads: Int64[np.ndarray, "packs ranks"]) -> Float64[np.ndarray, "packs"]:
    """Largest load over mean load of each pack; packs without any load are left out, as nothing is to be shared."""
    loaded = loads[loads.sum(axis=1) > 0]
    values: Float64[np.ndarray, "packs"] = loaded.max(axis=1, initial=0) / loaded.mean(axis=1)
    return values


def _groups(
    rows: pa.Table,
) -> Iterator[tuple[tuple[str, str | None, int], list[int], Int64[np.ndarray, "packs ranks"]]]:
    """Rows by kind, scheme and degree, each with its packs and their loads as a matrix."""
    keys = rows.group_by(["kind", "scheme", "degree"], use_threads=False).aggregate([]).to_pylist()
    for key in keys:
        same_scheme = pc.is_null(rows["scheme"]) if key["scheme"] is None else pc.equal(rows["scheme"], key["scheme"])
        same = pc.and_(pc.equal(rows["kind"], key["kind"]), pc.equal(rows["degree"], key["degree"]))
        group = rows.filter(pc.and_(same, pc.fill_null(same_scheme, False)))
        loads = group["load"].to_numpy().reshape(-1, key["degree"])
        packs = group["pack_id"].to_numpy()[:: key["degree"]].tolist()
        yield (key["kind"], key["scheme"], key["degree"]), packs, loads


def plan_figures(
    plan: Plan, images: Int64[np.ndarray, "measured"], config: PackConfig, dp_sizes: Sequence[int]
) -> Figures:
    """How full a plan's packs are, what the rest is lost to, and how even its steps are."""
    window = config.order.window
    summary = asdict(summarise(plan, images=images, max_images=config.max_images, window=window, dp_sizes=dp_sizes))
    for name in ("straggler_ratio", "cost_percentiles"):
        summary[name] = {str(key): value for key, value in summary[name].items()}
    return {"seq_len": config.seq_len, **summary}


def count_by(table: pa.Table, *columns: str) -> Iterable[tuple[Any, ...]]:
    """Rows of a table by the values of columns: the values and how many, sorted."""
    counted = table.group_by(list(columns), use_threads=False).aggregate([([], "count_all")]).to_pylist()
    return sorted(tuple(row.values()) for row in counted)


def loss_figures(rejects: pa.Table, truncated: Sequence[tuple[str, int]]) -> Figures:
    """What was lost: rejects by code, by source and code, and truncated tokens by source."""
    by_source: Figures = {}
    for source, code, number in count_by(rejects, "source", "code"):
        by_source.setdefault(source, {})[code] = number
    return {
        "rejects": dict(count_by(rejects, "code")),
        "rejects_by_source": by_source,
        "truncated_tokens": dict(truncated),
    }


def truncated_by_source(documents: pa.Table, column: str) -> list[tuple[str, int]]:
    """Truncated tokens of each source that lost any."""
    summed = documents.group_by("source", use_threads=False).aggregate([(column, "sum")]).to_pylist()
    return sorted((row["source"], row[f"{column}_sum"]) for row in summed if row[f"{column}_sum"])
