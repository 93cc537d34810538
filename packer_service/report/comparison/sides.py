"""The two sides of a comparison as the command names them: a dataset's folder, or the JSON of a plan or a report."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from preshard.packer_service.report.comparison.compare import ComparedSide, Comparison, compare, compared_side
from preshard.packer_service.report.dataset import dataset_lengths, open_dataset, report_dataset
from preshard.packer_service.report.document_sums import LengthCounts
from preshard.packer_service.report.records import PlanReport
from preshard.schemas.errors import ConfigError
from preshard.schemas.files.secrets import without_secrets
from preshard.schemas.files.validation import first_violation


def compare_locations(first: str, second: str) -> Comparison:
    """Two datasets or plans side by side.

    Args:
        first, second: a dataset's folder, or a file with the answer of ``preshard plan --json`` or ``report --json``.

    Raises:
        ConfigError: there is no such folder or file, or it is neither.
        FormatError: a dataset is broken.
    """
    return compare(_side(first), _side(second))


def _side(location: str) -> ComparedSide:
    if location.endswith(".json") and Path(location).is_file():
        return _of_report(location, _read_report(Path(location)))
    _, manifest = open_dataset(location)
    return _of_report(location, report_dataset(location), dataset_lengths(location), manifest.config)


def _of_report(
    name: str, report: PlanReport, lengths: LengthCounts | None = None, configuration: dict[str, object] | None = None
) -> ComparedSide:
    return compared_side(
        without_secrets(name),
        source_documents=report.source_documents,
        documents=report.documents,
        fill=report,
        losses=report,
        shares=report.shares,
        balances=report,
        lengths=lengths,
        configuration=configuration,
    )


def _read_report(file: Path) -> PlanReport:
    """
    Raises:
        ConfigError: the file holds no figures of ours.
    """
    try:
        return PlanReport.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise ConfigError(
            f"{file}: is no answer of `preshard plan --json` or `preshard report --json` ({first_violation(error)})"
        ) from None
