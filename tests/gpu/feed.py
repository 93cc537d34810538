"""Packs a second that the loader's workers bring to the device, beside what a step takes of them."""

from __future__ import annotations

import time
from typing import Any

import common
from common import Given, Table
from step import RankStep, case_in_small, config_of, one_rank

PACKS = 24
NAMES = ()


def run(given: Given) -> int:
    """Red rows: none but those that failed."""
    columns = ["workers", "packs a second", "ms a pack", "step ms", "waited ms", "s", "verdict"]
    with one_rank(given) as (folder, device, rank, world):
        table = Table(given.out / "feed.json", columns, common.machine(given.device))
        many = folder if given.small else given.data / "many" / "qwen3_vl"
        for workers in (0, 1) if given.small else (0, 1, 2, 4):
            if given.over:
                break
            with table.row(workers=workers) as row:
                case: dict[str, Any] = {"recompute": "none"}
                wanted = (case_in_small(case) if given.small else case) or {}
                config = config_of(many, wanted, device=given.device, ring=world, workers=workers)
                step = RankStep(config, rank, world, device)
                batches = iter(step.batches())
                step.run(batches)
                count = 2 if given.small else PACKS
                began = time.perf_counter()
                for _ in range(count):
                    next(batches)
                    common.wait_for(given.device)
                seconds = (time.perf_counter() - began) / count
                began, waited = time.perf_counter(), 0.0
                for _ in range(count):
                    waited += step.run(batches).data_time
                row |= {"packs a second": 1 / seconds, "ms a pack": 1000 * seconds}
                row |= {"step ms": 1000 * (time.perf_counter() - began) / count, "waited ms": 1000 * waited / count}
                row["verdict"] = "ok"
    return table.red
