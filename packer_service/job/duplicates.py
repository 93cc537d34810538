"""Which of many ids came before: exact, in some 25 bytes per id, where a set of all strings takes over a hundred."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Int64, UInt64


def repeated(ids: pa.ChunkedArray, hashes: UInt64[np.ndarray, "rows"]) -> Bool[np.ndarray, "rows"]:
    """Whether an earlier row has the same id.

    Only ids whose hash occurs twice, few if any, are themselves compared.

    Args:
        ids: strings without nulls.
        hashes: of each id, from :func:`preshard.schemas.document_ids.hash_ids`.
    """
    again = np.zeros(len(ids), bool)
    seen: set[str] = set()
    rows = shared_hashes(hashes)
    for row, value in zip(rows.tolist(), ids.take(pa.array(rows)).to_pylist(), strict=True):
        again[row] = value in seen
        seen.add(value)
    return again


def shared_hashes(hashes: UInt64[np.ndarray, "rows"]) -> Int64[np.ndarray, "some"]:
    """The rows whose hash another row has as well."""
    ordered = np.sort(hashes)
    several = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    return np.flatnonzero(np.isin(hashes, several)) if len(several) else np.zeros(0, np.int64)
