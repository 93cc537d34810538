"""Facts about a key of the configuration that stand with it, as an annotation of its type."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel

NO_TEXT, NO_ROW, NO_FILE = "a plan tokenises nothing", "a plan reads no rows", "a plan writes nothing"
RENDERED_TEXT, COPIED = "text is not tokenised again", "crops are copied as they are stored"


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """Needs of another value of a key, or of any key of a section.

    Attributes:
        source: why it would need the source, of which a packed dataset has only the documents; None if it would not.
        names_file: whether it names a file, so that what the file holds must be the same, not its name.
        for_once: whether it chooses documents for one dataset, and names columns of other tables than that one's, so
            that packing the dataset again does not take it over.
        plan: why no figure of a plan of lengths would follow it; None if one would.
        stored: the same, once the documents are stored for a model.
    """

    source: str | None = None
    names_file: bool = False
    for_once: bool = False
    plan: str | None = None
    stored: str | None = None


def keys_of(section: type[BaseModel], path: str = "") -> dict[str, Key]:
    """The keys and sections that say something of themselves, by name with dots."""
    found = dict[str, Key]()
    for name, field in section.model_fields.items():
        found |= {f"{path}{name}": fact for fact in field.metadata if isinstance(fact, Key)}
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= keys_of(field.annotation, f"{path}{name}.")
    return found
