"""A part of the order of many values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from preshard.packer_service.tables.connect import connect


def ranked(values: np.ndarray, wanted: slice, *, descending: bool) -> Int64[np.ndarray, "some"]:
    """Places of the values from ``wanted.start`` to ``wanted.stop`` of their order; equal ones by place, nan last."""
    start, stop, _ = wanted.indices(len(values))
    rows = pa.table({"value": pa.array(values, from_pandas=True), "place": np.arange(len(values))})
    asked = (
        f"SELECT place FROM rows ORDER BY value {'DESC' if descending else 'ASC'} NULLS LAST, place "
        f"LIMIT {max(stop - start, 0)} OFFSET {start}"
    )
    with connect({"rows": rows}) as connection:
        return np.array([place for (place,) in connection.execute(asked).fetchall()], np.int64)
