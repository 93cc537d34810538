"""Questions about ``measures.parquet``: each a query that reads the columns it names, a row group at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float64, Int64

from preshard.packer_service.report.figures import COST, Figure, expression, figures_of
from preshard.packer_service.report.records import Balances, ImageBalance, LayoutBalance, RankLoads, Spread
from preshard.packer_service.tables.connect import connect
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.measures import MEASURES, MEASURES_FILE, MeasureGroup, MeasureOrder, measure_groups
from preshard.schemas.dataset.passing_rows import PassingRows
from preshard.schemas.dataset.table_file import TableFile
from preshard.schemas.errors import TableInvalid

T = TypeVar("T")

RANK_MEAN_DIGITS = 3
"""Decimals of a rank's mean load: loads are whole numbers, of which thousandths are more than enough."""

EXACT = "DECIMAL(38, 12)"
"""Type of the values that are summed up: sums of floating-point numbers differ from run to run."""

PLACES = (pa.field("degree", pa.int64()), pa.field("place", pa.int64()))
"""Columns that rows get besides their own."""

BATCH_ROWS = 1 << 16
"""Rows of an answer that are taken together."""

QUANTILE_VALUES = 1 << 23
"""Values, of 8 bytes, that quantiles of one query are taken of: all of them are in memory."""

P95 = "quantile_disc({0}, 0.95)"
"""The least value that 95% of the packs do not exceed."""


@dataclass(frozen=True, kw_only=True)
class StoredMeasures:
    """Rows of ``measures.parquet`` of a dataset.

    Attributes:
        config: the dataset's configuration.
        order: where rows lie.
        file: the open table, whose row groups are those of ``order``.
    """

    config: PackConfig
    order: MeasureOrder
    file: TableFile

    @property
    def n_packs(self) -> int:
        return self.order.n_packs

    @property
    def block_packs(self) -> int:
        """Packs that are read together."""
        return self.order.block_packs

    def read(self, group: MeasureGroup, columns: Sequence[str], packs: range) -> Iterator[pa.Table]:
        """Columns of the rows of one group and consecutive packs, pack by pack, in parts."""
        for part in self.order.parts(group, packs):
            rows = self.file.read([part.row_group], columns, known={"degree": group.degree})
            for name in sorted({*group.columns}.intersection(columns)):
                if rows[name].null_count:
                    raise TableInvalid(MEASURES_FILE, f"{name} has nulls in rows of {group.scheme or 'CP sizes'}")
            first, stop = max(packs.start, part.packs.start), min(packs.stop, part.packs.stop)
            yield rows.slice(first - part.packs.start, stop - first)


@dataclass(frozen=True, kw_only=True)
class SampledMeasures:
    """Measures of some packs in memory.

    Attributes:
        config: the configuration that they were made with.
        rows: rows of ``measures.parquet``, pack by pack.
    """

    config: PackConfig
    rows: pa.Table

    @property
    def n_packs(self) -> int:
        return len(self.rows) // max(len(measure_groups(self.config)), 1)

    @property
    def block_packs(self) -> int:
        return max(self.n_packs, 1)

    def read(self, group: MeasureGroup, columns: Sequence[str], packs: range) -> Iterator[pa.Table]:
        groups = measure_groups(self.config)
        own = np.arange(packs.start, packs.stop) * len(groups) + groups.index(group)
        yield self.rows.select(list(columns)).take(pa.array(own))


Measures = StoredMeasures | SampledMeasures
"""Rows of ``measures.parquet``, wherever they are."""


def ask(
    sql: str,
    schema: pa.Schema,
    parts: Callable[[], Iterator[pa.Table]],
    take: Callable[[duckdb.DuckDBPyRelation], Any] = duckdb.DuckDBPyRelation.fetchall,
) -> Any:
    """The answer to a query over ``rows``, which pass in parts and are not kept.

    Args:
        sql: the query.
        schema: the columns of the rows.
        parts: reads the rows. What it raises is raised here.
        take: takes the answer; by default as a list of rows.
    """
    rows = PassingRows(schema, (batch for part in parts() for batch in part.to_batches()))
    try:
        with connect({"rows": rows}) as connection:
            return take(connection.sql(sql))
    except duckdb.OutOfMemoryException as error:
        raise MemoryError(str(error)) from None
    except duckdb.Error as error:
        reason = " ".join(str(error).split())[:200]
        raise TableInvalid(MEASURES_FILE, f"has values that give no figures ({reason})") from None


def all_balances(measures: Measures) -> Balances:
    """The balance of everything that a configuration stores, over all packs."""
    groups = measure_groups(measures.config)
    layouts = [group for group in groups if group.scheme]
    images = [group for group in groups if group.scheme is None]
    balance: dict[str, dict[int, LayoutBalance]] = {}
    for group, figures in _balances(measures, layouts, None).items():
        balance.setdefault(group.scheme or "", {})[group.degree] = _layout_balance(group, figures)
    return Balances(
        balanced_packs=measures.n_packs,
        balance=balance,
        images={
            group.degree: _image_balance(group, figures) for group, figures in _balances(measures, images, None).items()
        },
        preferred=preferred(measures, list(balance), sorted({group.degree for group in layouts})),
    )


def layout_balance(measures: Measures, group: MeasureGroup, packs: range | None = None) -> LayoutBalance:
    """One layout at one ring degree, over all packs or some."""
    return _layout_balance(group, _balances(measures, [group], packs)[group])


def image_balance(measures: Measures, group: MeasureGroup, packs: range | None = None) -> ImageBalance:
    """The image boundaries of one CP size, over all packs or some."""
    return _image_balance(group, _balances(measures, [group], packs)[group])


def _layout_balance(group: MeasureGroup, figures: dict[str, Any]) -> LayoutBalance:
    return LayoutBalance(layout=group.scheme, ring_degree=group.degree, **figures)


def _image_balance(group: MeasureGroup, figures: dict[str, Any]) -> ImageBalance:
    return ImageBalance(cp_size=group.degree, **figures)


def _balances(
    measures: Measures,
    groups: Sequence[MeasureGroup],
    packs: range | None,
) -> dict[MeasureGroup, dict[str, Any]]:
    """Every figure of groups of one kind, by as few queries as memory allows."""
    own = range(measures.n_packs) if packs is None else packs
    found: dict[MeasureGroup, dict[str, Any]] = {group: {"packs": len(own)} for group in groups}
    if not groups:
        return found
    figures, most = figures_of(groups[0]), QUANTILE_VALUES // max(len(own), 1)
    for some in _slices(groups, most // len(figures)):
        for asked in _slices(figures, most):
            for group, values in zip(some, _aggregate(measures, some, asked, own), strict=True):
                found[group] |= values
    return found


def _slices(values: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Values, so many at a time, and at least one."""
    each = max(most, 1)
    return (values[at : at + each] for at in range(0, len(values), each))


def _aggregate(
    measures: Measures,
    groups: Sequence[MeasureGroup],
    figures: Sequence[Figure],
    packs: range,
) -> list[dict[str, Any]]:
    """Some figures of each group, by one query."""
    ranks = max(group.degree for group in groups)
    asked = [_aggregates(figure, measures.config, ranks) for figure in figures]
    columns = {column for figure in figures for column in (*figure.columns(), figure.ranks)} - {"degree", ""}
    names = sorted(columns)

    def parts() -> Iterator[pa.Table]:
        for number, group in enumerate(groups):
            for part in measures.read(group, names, packs):
                degree, place = (np.full(len(part), value) for value in (group.degree, number))
                yield part.append_column("degree", pa.array(degree)).append_column("place", pa.array(place))

    schema = pa.schema([*(MEASURES.field(name) for name in names), *PLACES])
    answer = ask(f"SELECT place, {', '.join(chain(*asked))} FROM rows GROUP BY place", schema, parts)
    by_place = {place: values for place, *values in answer}
    found = []
    for number, group in enumerate(groups):
        values = iter(by_place.get(number, [None] * sum(map(len, asked))))
        own = [list(islice(values, len(each))) for each in asked]
        found.append(
            {
                figure.key: _said(figure, values, len(packs), group.degree)
                for figure, values in zip(figures, own, strict=True)
            }
        )
    return found


def _aggregates(figure: Figure, config: PackConfig, ranks: int) -> list[str]:
    """Aggregates in SQL for one figure of groups of at most so many ranks."""
    value = f"({expression(figure.value, config)})"
    of_ranks = [f"sum({figure.ranks}[{rank}])" for rank in range(1, ranks + 1)] if figure.ranks else []
    if figure.kind == "mean":
        return [f"sum({value}::{EXACT})"]
    if figure.kind == "ratio":
        return [f"sum({value}::{EXACT})", f"sum(({figure.over})::{EXACT})"]
    return [*(_spread_of(value) if figure.has_spread else []), *of_ranks]


def _spread_of(value: str) -> list[str]:
    return [f"count({value})", f"sum({value}::{EXACT})", P95.format(value), f"max({value})"]


def _said(figure: Figure, values: Sequence[Any], packs: int, degree: int) -> Any:
    """Value in a record for a figure of so many ranks."""
    if figure.kind == "mean":
        return float(values[0] / packs) if packs else 0.0
    if figure.kind == "ratio":
        return float(values[0] / values[1]) if values[1] else None
    spread, ranks = (values[:4], values[4:]) if figure.has_spread else ([], values)
    means = [round((load or 0) / max(packs, 1), RANK_MEAN_DIGITS) for load in ranks[:degree]]
    if figure.kind == "ranks":
        return means
    return RankLoads(rank_mean=means, imbalance=_spread(*spread)) if figure.kind == "loads" else _spread(*spread)


def _spread(packs: int | None, total: Any, p95: float | None, most: float | None) -> Spread:
    return Spread(packs=packs or 0, mean=float(total / packs) if packs else None, p95=p95, max=most)


def preferred(
    measures: Measures,
    schemes: Sequence[str],
    degrees: Sequence[int],
    packs: range | None = None,
) -> dict[int, dict[str, int]]:
    """Number of packs for which the cost model prefers each of some layouts, the most frequent first, by ring degree.

    Of equal costs the layout that is stored first counts.
    """
    own = range(measures.n_packs) if packs is None else packs
    stored = [group for group in measure_groups(measures.config) if group.scheme in schemes]
    names = list(dict.fromkeys(group.scheme or "" for group in stored))
    columns = sorted(COST.columns() - {"degree"})

    def parts() -> Iterator[pa.Table]:
        for degree in degrees:
            groups = [group for group in stored if group.degree == degree]
            for of_groups in zip(*(measures.read(group, columns, own) for group in groups), strict=True):
                rows = {f"{name}_{n}": part[name] for n, part in enumerate(of_groups) for name in columns}
                yield pa.table({"degree": pa.array(np.full(len(of_groups[0]), degree)), **rows})

    costs = []
    for number in range(len(names)):
        cost = expression(COST.value, measures.config)
        for name in columns:
            cost = cost.replace(name, f"{name}_{number}")
        costs.append(cost)
    of_layouts = [(f"{name}_{number}", pa.int64()) for number in range(len(names)) for name in columns]
    best = f"list_position([{', '.join(costs)}], least({', '.join(costs)})) - 1"
    asked = f"SELECT degree, {best} AS best, count(*) FROM rows GROUP BY degree, best ORDER BY 1, 3 DESC, 2"
    found: dict[int, dict[str, int]] = {degree: {} for degree in degrees}
    for degree, number, count in ask(asked, pa.schema([("degree", pa.int64()), *of_layouts]), parts):
        found[degree][names[number]] = count
    return found


def figure_values(
    measures: Measures, group: MeasureGroup, figures: Sequence[Figure], packs: Sequence[int]
) -> dict[str, Float64[np.ndarray, "packs"]]:
    """The value of each figure, by its key, in each of some ascending packs; nan where it has no meaning."""
    asked = ", ".join(f'({expression(figure.value, measures.config)})::DOUBLE AS "{figure.key}"' for figure in figures)
    found = {figure.key: np.full(len(packs), np.nan) for figure in figures}

    def take(answer: duckdb.DuckDBPyRelation) -> None:
        for batch in answer.to_arrow_reader(BATCH_ROWS):  # in any order, and never all of them in memory
            places = np.from_dlpack(batch["place"])
            for key, values in found.items():
                values[places] = np.from_dlpack(pc.fill_null(batch[key], np.nan))

    _ask_packs(f"SELECT place, {asked} FROM rows", measures, group, figures, packs, take)
    return found


def shard_spreads(
    measures: Measures, group: MeasureGroup, figures: Sequence[Figure], packs: Sequence[int], packs_per_shard: int
) -> dict[int, tuple[Spread, ...]]:
    """The spread of each figure over those of some ascending packs that are in one shard, by the shard's number."""
    asked = [each for figure in figures for each in _spread_of(f"({expression(figure.value, measures.config)})")]
    sql = f"SELECT pack_id // {packs_per_shard} AS shard, {', '.join(asked)} FROM rows GROUP BY shard"
    found = _ask_packs(sql, measures, group, figures, packs, duckdb.DuckDBPyRelation.fetchall)
    return {shard: tuple(_spread(*values[at : at + 4]) for at in range(0, len(values), 4)) for shard, *values in found}


def _ask_packs(
    sql: str,
    measures: Measures,
    group: MeasureGroup,
    figures: Sequence[Figure],
    packs: Sequence[int],
    take: Callable[[duckdb.DuckDBPyRelation], Any],
) -> Any:
    """The answer to a query over the rows of some packs, with the columns of figures, ``degree`` and ``place``."""
    names = sorted({"pack_id"}.union(*(figure.columns() for figure in figures)) - {"degree"})

    def parts() -> Iterator[pa.Table]:
        first = 0
        for near in _neighbours(packs, measures.block_packs):
            wanted = range(near[0], near[-1] + 1) if len(near) else range(0)
            rows = pa.concat_tables(measures.read(group, names, wanted))
            if len(near) < len(wanted):
                rows = rows.take(pa.array(np.asarray(near) - near[0]))
            degree, place = np.full(len(near), group.degree), np.arange(first, first + len(near))
            yield rows.append_column("degree", pa.array(degree)).append_column("place", pa.array(place))
            first += len(near)

    schema = pa.schema([*(MEASURES.field(name) for name in names), *PLACES])
    return ask(sql, schema, parts, take=take)


def _neighbours(packs: Sequence[int], each: int) -> Iterator[Sequence[int]]:
    """Ascending packs in groups, each of which lies in one block of so many."""
    # NumPy takes numbers out of a range one by one
    numbers = np.arange(packs.start, packs.stop) if isinstance(packs, range) else np.asarray(packs, np.int64)
    edges = np.searchsorted(numbers, np.arange(each, numbers.max(initial=0) + 1, each))
    return (near for near in np.split(numbers, edges) if len(near))


def read_numbers(measures: Measures, group: MeasureGroup, column: str, packs: range) -> Int64[np.ndarray, "..."]:
    """A column: a number for each pack, or a row of as many as there are ranks."""
    found: list[np.ndarray] = [np.zeros(0, np.int64)]
    for part in measures.read(group, [column], packs):
        values = part[column].combine_chunks()
        found.append(np.asarray(np.from_dlpack(pc.list_flatten(values) if pa.types.is_list(values.type) else values)))
    joined = np.concatenate(found)
    return joined.reshape(-1, group.degree) if pa.types.is_list(MEASURES.field(column).type) else joined
