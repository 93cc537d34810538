"""Columns joined to a dataset in an object store, by a table that lies there too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preshard.packer_service.publish.annotate import annotate
from preshard.schemas.errors import ConfigError
from preshard.schemas.files.filesystem import join


def test_a_bucket_gets_the_bytes_of_a_folder(store: Any, tiny_dataset: Path, tmp_path: Path) -> None:
    """Fails when the place of a dataset is seen in its annotations, or a refused table leaves an object."""
    ids = sorted(set(pq.read_table(tiny_dataset / "documents.parquet")["doc_id"].to_pylist()))
    tables = tmp_path / "tables"
    tables.mkdir()
    pq.write_table(pa.table({"doc_id": ids, "n": list(range(len(ids)))}), tables / "given.parquet")
    (tables / "other.csv").write_text("doc_id,n\nnowhere,1\n")
    here = Path(shutil.copytree(tiny_dataset, tmp_path / "here"))
    there, given = store.upload(here, "annotated"), store.upload(tables, "tables")
    with pytest.raises(ConfigError, match="its 1 id, such as"):
        annotate(there, join(given, "other.csv"), on="doc_id")
    assert "annotations.parquet" not in store.files("annotated")
    annotate(str(here), str(tables / "given.parquet"), on="doc_id")
    annotate(there, join(given, "given.parquet"), on="doc_id")
    assert store.files("annotated")["annotations.parquet"] == (here / "annotations.parquet").read_bytes()
