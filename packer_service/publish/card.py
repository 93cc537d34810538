"""A dataset's card for the Hugging Face Hub, and its description in Croissant 1.0 (https://mlcommons.org/croissant)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from huggingface_hub import DatasetCardData

from preshard.packer_service.report.dataset import open_dataset, report_dataset
from preshard.packer_service.report.records import DatasetReport
from preshard.packer_service.report.tables import open_table
from preshard.schemas.files.printed import several, without_secrets
from preshard.schemas.manifest import SHARDS, ManifestHead

CARD, CROISSANT, DOCUMENTS = "README.md", "croissant.json", "documents.parquet"
SIZES = {10**3: "n<1K", 10**4: "1K<n<10K", 10**5: "10K<n<100K", 10**6: "100K<n<1M", 10**7: "1M<n<10M"}
"""The Hub's words for fewer samples than a number."""
TYPES = (
    (pa.types.is_integer, "sc:Integer"),
    (pa.types.is_floating, "sc:Float"),
    (pa.types.is_boolean, "sc:Boolean"),
)
"""Croissant's names of types other than text."""
_TERMS = (
    *("citeAs", "column", "equivalentProperty", "extract", "field", "fileObject", "fileProperty", "fileSet", "format"),
    *("includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex"),
    *("repeated", "replace", "samplingRate", "separator", "source", "subField", "transform"),
)
CONTEXT: dict[str, Any] = {
    **{"@language": "en", "@vocab": "https://schema.org/", "sc": "https://schema.org/"},
    **{"cr": "http://mlcommons.org/croissant/", "rai": "http://mlcommons.org/croissant/RAI/"},
    **{"dct": "http://purl.org/dc/terms/", "conformsTo": "dct:conformsTo"},
    **{term: f"cr:{term}" for term in _TERMS},
    **{term: {"@id": f"cr:{term}", "@type": "@json"} for term in ("data", "examples")},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
}
"""Beginning of every description in Croissant 1.0."""


def write_card(location: str, *, name: str, license_name: str | None = None) -> list[str]:
    """Writes ``README.md`` and ``croissant.json`` into a dataset's folder; gives the names of the files.

    Both follow from the dataset alone, and replace those of an earlier call.

    Args:
        location: the dataset's folder.
        name: what the dataset is called.
        license_name: its licence, as the Hub names it (``apache-2.0``).

    Raises:
        ConfigError: there is no such folder, or it is not a dataset.
        FormatError: the dataset is broken.
    """
    folder, manifest = open_dataset(location)
    report = report_dataset(location)
    with open_table(folder, DOCUMENTS, manifest.counts.pieces) as table:
        columns = table.schema
    files = {
        CARD: card_of(manifest, report, name=name, license_name=license_name),
        CROISSANT: json.dumps(croissant_of(manifest, report, columns, name=name, license_name=license_name), indent=2)
        + "\n",
    }
    for file, text in files.items():
        folder.write(file, text.encode())
    return list(files)


def card_of(manifest: ManifestHead, report: DatasetReport, *, name: str, license_name: str | None) -> str:
    """The card: a header for the Hub, how to read the dataset, and the figures of the report."""
    header = DatasetCardData(
        license=license_name,
        pretty_name=name,
        size_categories=next((words for limit, words in SIZES.items() if report.packs < limit), "10M<n<100M"),
        tags=["preshard", "webdataset", "packed"],
        configs=[{"config_name": "default", "data_files": f"{SHARDS}/*.tar"}],
    )
    return f"---\n{header.to_yaml()}\n---\n\n# {name}\n\n" + "\n".join(
        [
            _sentence(manifest, report),
            "",
            "```python",
            "from preshard.data import PackedDataset",
            "",
            'for batch in PackedDataset("hf://datasets/NAMESPACE/NAME"):',
            "    batch.tokens, batch.labels, batch.loss_weights, batch.position_ids",
            "```",
            "",
            *_table(("", ""), _totals(manifest, report)),
            "",
            *_table(("source", "documents", "tokens", "share"), _sources(report)),
            "",
            *_table(("layout", "ring degree", "gather path", "ring path", "KV traffic"), _layouts(report)),
            "",
            "Paths are tiles of the slowest rank over an even share of the tiles, means over packs.",
            "",
        ]
    )


def _sentence(manifest: ManifestHead, report: DatasetReport) -> str:
    model = f" for models of the kind {manifest.model.model_type}" if manifest.model is not None else ""
    whole = f"{several(report.documents, 'document')} in {several(report.packs, 'pack')}"
    return (
        f"{whole} of {report.seq_len:,} tokens{model}, as WebDataset shards from which a context-parallel rank reads "
        f"only its own part (preshard {manifest.preshard_version}, format version {manifest.format_version})."
    )


def _totals(manifest: ManifestHead, report: DatasetReport) -> Iterable[tuple[str, str]]:
    yield "tokens", f"{report.tokens:,}"
    yield "padding tokens", f"{report.padding_tokens:,}"
    yield "fill", f"{report.fill:.2%}"
    yield "crops", f"{report.n_images:,}"
    yield "shards", f"{report.shards:,}"
    yield "rejected documents", f"{report.rejected:,} of {report.source_documents:,}"
    yield from ((f"rejected as {code}", f"{count:,}") for code, count in report.rejects.items())
    yield "tokenizer", f"{manifest.tokenizer.name}, SHA-256 {manifest.tokenizer.sha256}"
    yield "dataset id", manifest.dataset_id


def _sources(report: DatasetReport) -> Iterable[tuple[str, ...]]:
    for source, share in report.shares.items():
        yield without_secrets(source), f"{share.documents:,}", f"{share.tokens:,}", f"{share.share:.2%}"


def _layouts(report: DatasetReport) -> Iterable[tuple[str, ...]]:
    for layout, degrees in report.balance.items():
        for degree, balance in degrees.items():
            means = (balance.gather_path.mean, balance.ring_path.mean, balance.traffic.mean)
            yield layout, str(degree), *("" if mean is None else f"{mean:.3f}" for mean in means)


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [heads, ("---",) * len(heads), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def croissant_of(
    manifest: ManifestHead, report: DatasetReport, columns: pa.Schema, *, name: str, license_name: str | None
) -> dict[str, Any]:
    """The description: the tables with their hashes, the shards as one set, and the documents as records.

    ``columns`` are those of ``documents.parquet``, with those kept of the source.
    """
    tables = [
        {
            "@type": "cr:FileObject",
            "@id": table.name,
            "name": table.name,
            "contentUrl": table.name,
            "contentSize": f"{table.bytes} B",
            "encodingFormat": "application/x-parquet",
            "sha256": table.sha256,
        }
        for table in manifest.tables
    ]
    shards = {"@type": "cr:FileSet", "@id": SHARDS, "name": SHARDS, "includes": f"{SHARDS}/*.tar"}
    described = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": name,
        "description": _sentence(manifest, report),
        "version": "1.0.0",
        "identifier": manifest.dataset_id,
        "distribution": [*tables, {**shards, "encodingFormat": "application/x-tar"}],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "documents",
                "name": "documents",
                "description": "Where each document lies: its pack, its first token there, and its length.",
                "field": [_field(field) for field in columns],
            }
        ],
    }
    return {**described, **({"license": license_name} if license_name else {})}


def _field(field: pa.Field) -> dict[str, Any]:
    return {
        "@type": "cr:Field",
        "@id": f"documents/{field.name}",
        "name": field.name,
        "dataType": next((name for is_of, name in TYPES if is_of(field.type)), "sc:Text"),
        "source": {"fileObject": {"@id": DOCUMENTS}, "extract": {"column": field.name}},
    }
