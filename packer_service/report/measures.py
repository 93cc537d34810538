"""Questions about ``measures.parquet``: each a query that reads the columns it names, a row group at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Int64

from preshard.packer_service.report.figures import COST, Figure, expression, figures_of
from preshard.packer_service.report.records import Balances, ImageBalance, LayoutBalance, RankLoads, Spread
from preshard.packer_service.tables.connect import connect
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.measures import MEASURES, MeasureGroup, MeasureOrder, measure_groups

RANK_MEAN_DIGITS = 3
"""Decimals of a rank's mean load: loads are whole numbers, of which thousandths are more than enough."""

NEAR = 4096
"""Packs that lie so near to each other are read together."""

EXACT = "DECIMAL(38, 12)"
"""What is summed up: sums of floating-point numbers differ from run to run."""

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
    file: pq.ParquetFile

    @property
    def n_packs(self) -> int:
        return self.order.n_packs

    def read(self, group: MeasureGroup, columns: Sequence[str], packs: range) -> Iterator[pa.Table]:
        """Columns of the rows of one group and consecutive packs, pack by pack, in parts."""
        for part in self.order.parts(group, packs):
            rows = self.file.read_row_group(part.row_group, columns=list(columns), use_threads=False)
            rows.validate(full=True)
            first, stop = max(packs.start, part.packs.start), min(packs.stop, part.packs.stop)
            yield rows.slice(first - part.packs.start, stop - first)


@dataclass(frozen=True, kw_only=True)
class SampledMeasures:
    """Those of some packs in memory.

    Attributes:
        config: the configuration that they were made with.
        rows: rows of ``measures.parquet``, pack by pack.
    """

    config: PackConfig
    rows: pa.Table

    @property
    def n_packs(self) -> int:
        return len(self.rows) // max(len(measure_groups(self.config)), 1)

    def read(self, group: MeasureGroup, columns: Sequence[str], packs: range) -> Iterator[pa.Table]:
        groups = measure_groups(self.config)
        own = np.arange(packs.start, packs.stop) * len(groups) + groups.index(group)
        yield self.rows.select(list(columns)).take(pa.array(own))


Measures = StoredMeasures | SampledMeasures
"""Rows of ``measures.parquet``, wherever they are."""


@dataclass(frozen=True, kw_only=True)
class GroupQuestion:
    """A query over the rows of one group.

    Attributes:
        measures: where the rows are.
        group: which.
        packs: of which packs.
    """

    measures: Measures
    group: MeasureGroup
    packs: range

    def value(self, figure: Figure) -> str:
        """The expression of a figure's value in one pack."""
        return f"({expression(figure.value, self.group, self.measures.config)})"

    def ask(self, sql: str, columns: Iterable[str]) -> list[tuple[Any, ...]]:
        """The rows of an answer.

        Args:
            sql: asks ``rows``, which have the columns, and ``pack_id``.
            columns: of ``measures.parquet``; fewer are read faster.
        """
        names = sorted({*columns} - {"pack_id"})
        return ask(sql, pa.schema([MEASURES.field(name) for name in names]), lambda: self._parts(names))

    def _parts(self, names: Sequence[str]) -> Iterator[pa.Table]:
        first = self.packs.start
        for part in self.measures.read(self.group, names, self.packs):
            yield part.append_column("pack_id", pa.array(np.arange(first, first + len(part))))
            first += len(part)


def ask(sql: str, schema: pa.Schema, parts: Callable[[], Iterator[pa.Table]]) -> list[tuple[Any, ...]]:
    """The answer to a query over ``rows``, which pass in parts and are not kept.

    Args:
        sql: the query.
        schema: the columns of the rows, but for ``pack_id``.
        parts: reads the rows. What it raises is raised here.
    """
    raised = list[Exception]()

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for part in parts():
                yield from part.to_batches()
        except Exception as error:
            raised.append(error)
            raise

    reader = pa.RecordBatchReader.from_batches(schema.append(pa.field("pack_id", pa.int64())), batches())
    try:
        with connect({"rows": reader}) as connection:
            found: list[tuple[Any, ...]] = connection.execute(sql).fetchall()
            return found
    except duckdb.OutOfMemoryException as error:
        raise MemoryError(str(error)) from None
    except duckdb.Error as error:
        raise (raised[0] if raised else pa.ArrowInvalid(str(error))) from None


def all_balances(measures: Measures) -> Balances:
    """The balance of everything that a configuration stores, over all packs."""
    groups = measure_groups(measures.config)
    layouts = [group for group in groups if group.scheme]
    degrees = sorted({group.degree for group in layouts})
    balance: dict[str, dict[int, LayoutBalance]] = {}
    for group in layouts:
        balance.setdefault(group.scheme or "", {})[group.degree] = layout_balance(measures, group)
    return Balances(
        balanced_packs=measures.n_packs,
        balance=balance,
        images={group.degree: image_balance(measures, group) for group in groups if group.scheme is None},
        preferred={degree: preferred(measures, list(balance), degree) for degree in degrees},
    )


def layout_balance(measures: Measures, group: MeasureGroup, packs: range | None = None) -> LayoutBalance:
    """One layout at one ring degree, over all packs or some."""
    found = _balance(measures, group, packs)
    return LayoutBalance(layout=group.scheme, ring_degree=group.degree, **found)


def image_balance(measures: Measures, group: MeasureGroup, packs: range | None = None) -> ImageBalance:
    """The image boundaries of one CP size, over all packs or some."""
    return ImageBalance(cp_size=group.degree, **_balance(measures, group, packs))


def _balance(measures: Measures, group: MeasureGroup, packs: range | None) -> dict[str, Any]:
    """Every figure of a group, by one query."""
    question = GroupQuestion(measures=measures, group=group, packs=range(measures.n_packs) if packs is None else packs)
    figures, asked = figures_of(group), ["count(*)"]
    for figure in figures:
        asked += _aggregates(question, figure)
    columns = {column for figure in figures for column in (*figure.columns(), figure.ranks)} - {"degree", ""}
    [answer] = question.ask(f"SELECT {', '.join(asked)} FROM {_with_degree(group)}", columns)
    count, *values = answer
    found, before = {"packs": count}, 0
    for figure in figures:
        n = len(_aggregates(question, figure))
        found[figure.key] = _said(figure, values[before : before + n], count)
        before += n
    return found


def _with_degree(group: MeasureGroup) -> str:
    """The rows with the degree, which is the same for all and need not be read."""
    return f"(SELECT *, {group.degree}::BIGINT AS degree FROM rows)"


def _aggregates(question: GroupQuestion, figure: Figure) -> list[str]:
    """What is asked for one figure."""
    value = question.value(figure)
    of_ranks = [f"sum({figure.ranks}[{rank}])" for rank in range(1, question.group.degree + 1)] if figure.ranks else []
    if figure.kind == "mean":
        return [f"sum({value}::{EXACT})"]
    if figure.kind == "ratio":
        return [f"sum({value}::{EXACT})", f"sum(({figure.over})::{EXACT})"]
    return [*(_spread_of(value) if figure.has_spread else []), *of_ranks]


def _spread_of(value: str) -> list[str]:
    return [f"count({value})", f"sum({value}::{EXACT})", P95.format(value), f"max({value})"]


def _said(figure: Figure, values: Sequence[Any], packs: int) -> Any:
    """What a record says of a figure."""
    if figure.kind == "mean":
        return float(values[0] / packs) if packs else 0.0
    if figure.kind == "ratio":
        return float(values[0] / values[1]) if values[1] else None
    spread, ranks = (values[:4], values[4:]) if figure.has_spread else ([], values)
    means = [round((load or 0) / max(packs, 1), RANK_MEAN_DIGITS) for load in ranks]
    if figure.kind == "ranks":
        return means
    return RankLoads(rank_mean=means, imbalance=_spread(*spread)) if figure.kind == "loads" else _spread(*spread)


def _spread(packs: int, total: Any, p95: float | None, most: float | None) -> Spread:
    return Spread(packs=packs, mean=float(total / packs) if packs else None, p95=p95, max=most)


def preferred(measures: Measures, schemes: Sequence[str], degree: int, packs: range | None = None) -> dict[str, int]:
    """How many packs the cost model prefers each of some layouts for, the most frequent first.

    Of equal costs the layout that is stored first counts.
    """
    own = range(measures.n_packs) if packs is None else packs
    groups = [group for group in measure_groups(measures.config) if group.scheme in schemes and group.degree == degree]
    columns = sorted(COST.columns())

    def parts() -> Iterator[pa.Table]:
        first = own.start
        for of_groups in zip(*(measures.read(group, columns, own) for group in groups), strict=True):
            joined = {
                f"{name}_{number}": part[name] for number, part in enumerate(of_groups) for name in part.column_names
            }
            yield pa.table(joined | {"pack_id": np.arange(first, first + len(of_groups[0]))})
            first += len(of_groups[0])

    costs = []
    for number, group in enumerate(groups):
        cost = expression(COST.value, group, measures.config)
        for name in columns:
            cost = cost.replace(name, f"{name}_{number}")
        costs.append(cost)
    schema = pa.schema([(f"{name}_{number}", pa.int64()) for number in range(len(groups)) for name in columns])
    best = f"list_position([{', '.join(costs)}], least({', '.join(costs)}))"
    found = ask(f"SELECT {best} - 1 AS best, count(*) FROM rows GROUP BY best ORDER BY 2 DESC, 1", schema, parts)
    return {groups[number].scheme or "": count for number, count in found}


def ranked_packs(question: GroupQuestion, figure: Figure, wanted: slice, *, descending: bool) -> list[int]:
    """A part of the packs in the order of a figure's values; equal ones by number, those without a value last."""
    start, stop, _ = wanted.indices(len(question.packs))
    order = "DESC" if descending else "ASC"
    found = question.ask(
        f"SELECT pack_id FROM {_with_degree(question.group)} ORDER BY {question.value(figure)} {order} NULLS LAST, "
        f"pack_id LIMIT {max(stop - start, 0)} OFFSET {start}",
        figure.columns() - {"degree"},
    )
    return [pack for (pack,) in found]


def pack_values(
    measures: Measures, group: MeasureGroup, figures: Sequence[Figure], packs: Sequence[int]
) -> dict[int, tuple[float | None, ...]]:
    """The value of each figure in each of some packs, by the pack's number."""
    names = sorted({column for figure in figures for column in figure.columns()} - {"degree"})
    question = GroupQuestion(measures=measures, group=group, packs=range(0))

    def parts() -> Iterator[pa.Table]:
        for near in _neighbours(sorted(packs)):
            [*rows] = measures.read(group, names, range(near[0], near[-1] + 1))
            places = pa.array([pack - near[0] for pack in near])
            yield pa.concat_tables(rows).take(places).append_column("pack_id", pa.array(near))

    asked = ", ".join(map(question.value, figures))
    schema = pa.schema([MEASURES.field(name) for name in names])
    found = ask(f"SELECT pack_id, {asked} FROM {_with_degree(group)}", schema, parts)
    return {pack: tuple(values) for pack, *values in found}


def _neighbours(packs: Sequence[int]) -> Iterator[list[int]]:
    """Ascending packs in groups, each of which lies in few row groups."""
    for _, group in groupby(packs, lambda pack: pack // NEAR):
        yield list(group)


def shard_means(question: GroupQuestion, figure: Figure, packs_per_shard: int) -> dict[int, float]:
    """The mean over the packs of each shard that have a value, by the shard's number; only shards that have one."""
    value = question.value(figure)
    found = question.ask(
        f"SELECT pack_id // {packs_per_shard} AS shard, sum({value}::{EXACT})::DOUBLE / count({value}) "
        f"FROM {_with_degree(question.group)} GROUP BY shard HAVING count({value}) > 0",
        figure.columns() - {"degree"},
    )
    return dict(found)


def shard_spreads(
    question: GroupQuestion, figures: Sequence[Figure], packs_per_shard: int, shards: Sequence[int]
) -> dict[int, tuple[Spread, ...]]:
    """The spread of each figure over the packs of each of some shards, by the shard's number."""
    asked = [each for figure in figures for each in _spread_of(question.value(figure))]
    columns = {column for figure in figures for column in figure.columns()} - {"degree"}
    found = question.ask(
        f"SELECT pack_id // {packs_per_shard} AS shard, {', '.join(asked)} FROM {_with_degree(question.group)} "
        f"WHERE pack_id // {packs_per_shard} IN ({', '.join(map(str, [*shards, -1]))}) GROUP BY shard",
        columns,
    )
    return {shard: tuple(_spread(*values[at : at + 4]) for at in range(0, len(values), 4)) for shard, *values in found}


def worst_of_shards(
    question: GroupQuestion, figure: Figure, packs_per_shard: int, shards: Sequence[int]
) -> dict[int, tuple[int, float]]:
    """The pack of each of some shards that has the largest value, and that value; of equal ones the first.

    By the shard's number; only shards in which a pack has a value.
    """
    found = question.ask(
        f"SELECT shard, first(pack_id ORDER BY value DESC, pack_id), max(value) FROM "
        f"(SELECT pack_id, pack_id // {packs_per_shard} AS shard, {question.value(figure)} AS value "
        f"FROM {_with_degree(question.group)}) "
        f"WHERE shard IN ({', '.join(map(str, [*shards, -1]))}) AND value IS NOT NULL GROUP BY shard",
        figure.columns() - {"degree"},
    )
    return {shard: (pack, value) for shard, pack, value in found}


def read_numbers(measures: Measures, group: MeasureGroup, column: str, packs: range) -> Int64[np.ndarray, "..."]:
    """A column: a number for each pack, or a row of as many as there are ranks."""
    found: list[np.ndarray] = [np.zeros(0, np.int64)]
    for part in measures.read(group, [column], packs):
        values = part[column].combine_chunks()
        found.append(np.asarray(np.from_dlpack(pc.list_flatten(values) if pa.types.is_list(values.type) else values)))
    joined = np.concatenate(found)
    return joined.reshape(-1, group.degree) if pa.types.is_list(MEASURES.field(column).type) else joined
