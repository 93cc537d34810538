"""The card of a dataset for the Hugging Face Hub, and its description in Croissant, which mlcroissant reads."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from huggingface_hub import DatasetCard

from preshard.packer_service.cli.run import cli
from preshard.packer_service.publish.card import croissant_of
from preshard.packer_service.report.dataset import open_dataset, report_dataset
from preshard.packer_service.verify import verify_dataset

pytestmark = pytest.mark.process  # the dataset is made by a job


@pytest.fixture
def carded(tiny_dataset: Path, tmp_path: Path) -> Path:
    """A copy of a dataset, with its card."""
    folder = Path(shutil.copytree(tiny_dataset, tmp_path / "dataset"))
    done = CliRunner().invoke(cli, ["card", str(folder), "--name", "Some packs", "--license", "apache-2.0"])
    assert (done.exit_code, done.output) == (0, f"{folder}: wrote README.md, croissant.json\n")
    return folder


def test_the_card_has_the_figures_of_the_report(carded: Path, progress: Any) -> None:
    """Fails when the Hub cannot read the header, a figure is another than the report's, or `verify` minds the files."""
    card, report = DatasetCard.load(carded / "README.md"), report_dataset(str(carded))
    assert card.data.license == "apache-2.0"
    assert card.data.configs == [{"config_name": "default", "data_files": "shards/*.tar"}]
    assert report.rejected > 0
    for line in (
        f"| tokens | {report.tokens:,} |",
        f"| fill | {report.fill:.2%} |",
        f"| rejected documents | {report.rejected:,} of {report.source_documents:,} |",
        f"| dataset id | {report.dataset_id} |",
    ):
        assert line in card.content.splitlines()
    assert all(f"| {layout} | 2 |" in card.content for layout in report.balance)
    assert not verify_dataset(str(carded), processes=1, progress=progress).broken


def test_the_description_names_files_by_their_hashes(carded: Path) -> None:
    """Fails when a hash or name of a table is wrong, a column is missing, or a second call gives other bytes."""
    described = json.loads((carded / "croissant.json").read_text(encoding="utf-8"))
    tables = [each for each in described["distribution"] if each["@type"] == "cr:FileObject"]
    assert len(tables) == 4
    for table in tables:
        assert hashlib.sha256((carded / table["contentUrl"]).read_bytes()).hexdigest() == table["sha256"]
    [documents] = described["recordSet"]
    columns = [each["source"]["extract"]["column"] for each in documents["field"]]
    assert columns == pq.read_schema(carded / "documents.parquet").names
    before = (carded / "croissant.json").read_bytes()
    assert (
        CliRunner().invoke(cli, ["card", str(carded), "--name", "Some packs", "--license", "apache-2.0"]).exit_code == 0
    )
    assert (carded / "croissant.json").read_bytes() == before


def test_kept_columns_are_described_by_their_types(tiny_dataset: Path) -> None:
    """Fails when a column kept of the source is left out of the description, or takes another type there."""
    _, manifest = open_dataset(str(tiny_dataset))
    columns = pa.schema(
        [("length", pa.int64()), ("quality", pa.float64()), ("checked", pa.bool_()), ("url", pa.string())]
    )
    report = report_dataset(str(tiny_dataset))
    described = croissant_of(manifest, report, columns, name="packs", license_name=None)
    types = {field["name"]: field["dataType"] for field in described["recordSet"][0]["field"]}
    assert types == {"length": "sc:Integer", "quality": "sc:Float", "checked": "sc:Boolean", "url": "sc:Text"}


def test_mlcroissant_reads_every_document(carded: Path) -> None:
    """Fails when the reference software finds an error in the description, or other records than the table has."""
    mlcroissant = pytest.importorskip("mlcroissant", reason="brings pandas, SciPy and rdflib, so the matrix has it")
    dataset = mlcroissant.Dataset(jsonld=str(carded / "croissant.json"))
    assert not dataset.metadata.ctx.issues.errors
    given = [record["documents/length"] for record in dataset.records("documents")]
    assert given == pq.read_table(carded / "documents.parquet")["length"].to_pylist()
