"""The file in which processes of one machine share where packs lie."""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from preshard.schemas.tables import PACKS
from preshard.trainer.data.pack_index import PackTable, SharedPlaces


def test_the_file_is_this_users_alone(tmp_path: Path) -> None:
    """Fails when another user of the machine can see which packs a job reads, or say where they lie."""
    sink = pa.BufferOutputStream()
    pq.write_table(PACKS.empty_table(), sink)
    umask = os.umask(0)
    try:
        SharedPlaces(PackTable(partial(pa.BufferReader, sink.getvalue())), "digest", tmp_path)
    finally:
        os.umask(umask)
    [file] = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
