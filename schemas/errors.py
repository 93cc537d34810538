"""Every error that a user can meet, and one exception for each MUST of the format.

Each is a :class:`ValueError`: some value is wrong, and the message gives the value, what is legal and the remedy.
The format's rules are numbered in ``docs/format.md``; ``FORMAT_RULES`` maps a rule's code to its exception.
"""

from __future__ import annotations

import re
from typing import ClassVar

from preshard.schemas.files.printed import shown

_FROM_WORKER = re.compile(r"\ACaught [^\n]+\.\nOriginal Traceback .*\npreshard\.[\w.]+: (.*)\n\Z", re.DOTALL)
"""Text around an error's own, where torch raises again what a worker of a ``DataLoader`` raised."""


class PreshardError(ValueError):
    """Base class of every error that preshard raises for its users.

    Its message shows no secret of a URI, and nothing that a terminal obeys; a line of it has at most 1,000 characters.
    Raised in a worker of a torch ``DataLoader``, it has the same message where torch raises it again.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(shown(_FROM_WORKER.sub(r"\1", arg)) if isinstance(arg, str) else arg for arg in args))


class ConfigError(PreshardError):
    """A configuration key, command-line option or path that cannot be used. Exit status 2."""


class PlanError(PreshardError):
    """Lengths or sizes that no plan can satisfy: a document above a budget, a window that does not divide."""


class TooManyRejectsError(PreshardError):
    """A dataset is whole, but lacks more rows of its source than the command or program allows. Exit status 3."""


class LayoutError(PreshardError):
    """A layout that cannot exist was requested, or a layout breaks its own rules."""


class ReaderError(PreshardError):
    """A dataset does not hold what was requested: a rank out of range, a degree or scheme that was not planned."""


class DocumentError(PreshardError):
    """One source document cannot be packed. It becomes a row of ``rejects.parquet``, never a crash.

    Args:
        code: one of :data:`REJECT_CODES`.
        message: what is wrong, in words for a person.
    """

    def __init__(self, code: str, message: str) -> None:
        if code not in REJECT_CODES:
            raise AssertionError(f"unknown reject code {code!r}")
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type[DocumentError], tuple[str, str]]:
        """Keeps all arguments when pickled: by default an exception is pickled with a single one."""
        return type(self), (self.code, str(self))


REJECT_STAGES = ("read", "measure", "plan", "write")
"""Stages of the job at which a document can be rejected."""

DUPLICATES = ("duplicate_text", "near_duplicate", "duplicate_images")
"""Codes of documents that were left out because the configuration's ``duplicates`` says so."""

LOST_ROWS = "lost_rows"
"""Code of the part of a damaged file of which nobody can say how many rows it had."""

REJECT_CODES = (
    "bad_row",
    LOST_ROWS,
    "duplicate_row",
    *DUPLICATES,
    "empty",
    "missing_media",
    "unreachable_media",
    "bad_image",
    "bad_video",
    "too_long",
    "too_many_images",
    "too_many_patches",
    "decode_failed",
)


class FormatError(PreshardError):
    """Base class of the format's rules: one exception per MUST.

    Args:
        where: the file and, if there is one, the sample in it.
        detail: the value found and the value that the rule asks for. If it is left out, ``where`` is the whole message:
            torch raises an error of a data-loading worker again from its text alone.
    """

    rule: ClassVar[str] = ""

    def __init__(self, where: str, detail: str = "") -> None:
        super().__init__(f"{where}: {detail}" if detail else where)
        self.where = where if detail else str(self)
        self.detail = detail

    def __reduce__(self) -> tuple[type[FormatError], tuple[str, str]]:
        """Keeps all arguments when pickled: by default an exception is pickled with a single one."""
        return type(self), (self.where, self.detail)


FORMAT_RULES: dict[str, type[FormatError]] = {}
"""Every rule of the format, by the code under which ``verify`` and ``docs/format.md`` name it."""


def _rule(code: str, name: str, meaning: str) -> type[FormatError]:
    """Creates the exception of one rule and registers it in :data:`FORMAT_RULES`."""
    error = type(name, (FormatError,), {"rule": code, "__doc__": meaning, "__module__": __name__})
    FORMAT_RULES[code] = error
    return error


# The folder
ManifestMissing = _rule("D1", "ManifestMissing", "manifest.json MUST exist; without it the folder is no dataset.")
ManifestInvalid = _rule("D2", "ManifestInvalid", "manifest.json MUST hold the fields of its format version.")
ManifestContradiction = _rule(
    "D3", "ManifestContradiction", "Counts, shards and dataset_id MUST follow from the tables."
)
TableMissing = _rule("D4", "TableMissing", "Every table that the manifest lists MUST exist.")
TableChanged = _rule("D5", "TableChanged", "A table MUST have the size, SHA-256 and rows that the manifest gives.")
TableInvalid = _rule("D6", "TableInvalid", "A table MUST be Parquet with the columns and legal values of its kind.")
FileUnknown = _rule("D7", "FileUnknown", "The folder MUST hold no file that the format does not name.")
DocumentTwice = _rule("D8", "DocumentTwice", "A document MUST be packed once, or rejected once, and never both.")
DocumentLost = _rule("D9", "DocumentLost", "Every source document MUST be packed or rejected.")
DocumentRowInvalid = _rule("D10", "DocumentRowInvalid", "documents.parquet MUST list the spans of every KEY.json.")
CarriedFileChanged = _rule(
    "D11", "CarriedFileChanged", "A file below model MUST have the size and SHA-256 that the manifest gives."
)
AnnotationsInvalid = _rule(
    "D12", "AnnotationsInvalid", "annotations.parquet MUST be of this dataset, with the rows of documents.parquet."
)
FiguresInvalid = _rule(
    "D13", "FiguresInvalid", "figures.json MUST be what the manifest says, and hold what follows from the tables."
)
CarriedContradicted = _rule(
    "D14", "CarriedContradicted", "tokenizer and model of the manifest MUST be what the carried files say."
)

# The shards
ShardMissing = _rule("S1", "ShardMissing", "Every shard that the manifest lists MUST exist, with its index.")
ShardChanged = _rule("S2", "ShardChanged", "A shard MUST have the size and SHA-256 that the manifest gives.")
ShardInvalid = _rule("S3", "ShardInvalid", "A shard MUST be a plain USTAR file that ends with two zero blocks.")
IndexInvalid = _rule("S4", "IndexInvalid", "A shard's index MUST hold each sample's first header, then the tar's end.")
MembersInvalid = _rule(
    "S5", "MembersInvalid", "A shard MUST hold its packs' samples, and a sample its members, in order."
)
PackRowInvalid = _rule("S6", "PackRowInvalid", "A row of packs.parquet MUST agree with the sample that it names.")

MemberChanged = _rule("S7", "MemberChanged", "A member MUST have the CRC-32C that KEY.json or packs.parquet gives.")

# The sample
SampleHeadInvalid = _rule("P1", "SampleHeadInvalid", "KEY.json MUST hold the fields of the format, and its pack's id.")
SequenceInvalid = _rule("P2", "SequenceInvalid", "KEY.sequence.npz MUST hold the eight arrays of length seq_len.")
SpansInvalid = _rule("P3", "SpansInvalid", "doc_ids MUST follow the documents' spans, which MUST not overlap.")
PaddingInvalid = _rule("P4", "PaddingInvalid", "A padding token MUST be inert in every array.")
BranchesInvalid = _rule("P5", "BranchesInvalid", "branch_ids MUST be the shared prefix, then the annotations in order.")
PositionsInvalid = _rule(
    "P6", "PositionsInvalid", "position_ids MUST be those of each document alone, each annotation after the prefix."
)
LabelsInvalid = _rule("P7", "LabelsInvalid", "A label MUST be the next token of its own document and annotation.")
WeightsInvalid = _rule("P8", "WeightsInvalid", "loss_weights MUST be positive exactly where there is a label.")
PoolingInvalid = _rule("P9", "PoolingInvalid", "pool_ids MUST name every pooled row once, unit by unit.")
GroupsInvalid = _rule("P10", "GroupsInvalid", "group_ids MUST follow the model's rule, or the configured one.")
LayoutsInvalid = _rule("P11", "LayoutsInvalid", "KEY.layouts.npz MUST hold every configured layout, and no other.")
LayoutNotPartition = _rule("P12", "LayoutNotPartition", "A layout MUST give every token to one rank, in equal slices.")
LayoutNeedsInvalid = _rule("P13", "LayoutNeedsInvalid", "needs MUST mark the key blocks that a rank's queries see.")
BoundariesInvalid = _rule("P14", "BoundariesInvalid", "Image boundaries MUST cover every part once, in rank order.")
BoundariesNotOptimal = _rule("P15", "BoundariesNotOptimal", "Image boundaries MUST minimise the largest rank's load.")
ImagesInvalid = _rule("P16", "ImagesInvalid", "Every listed crop MUST lie where it is said to, and decode to its size.")
MeasuresInvalid = _rule("P17", "MeasuresInvalid", "measures.parquet MUST hold the measures that the bytes give.")
UnitsInvalid = _rule("P19", "UnitsInvalid", "units MUST say of each unit what its tokens, crops and the model give.")
ColumnsInvalid = _rule(
    "P20", "ColumnsInvalid", "Columns of tokens MUST be those of the configuration, finite and 0 in padding."
)
PreferencesInvalid = _rule(
    "P21", "PreferencesInvalid", "A preference MUST be two branches with labels, and media in the prefix alone."
)
MarksInvalid = _rule("P22", "MarksInvalid", "A unit MUST be its rows and the marks that its model writes around them.")
TimesInvalid = _rule("P23", "TimesInvalid", "A frame MUST be written beside the time at which it is shown.")
LayoutSchemeInvalid = _rule("P18", "LayoutSchemeInvalid", "A layout MUST be what its scheme is defined to be.")
