"""Keys of a dataset's configuration that may change when its documents are packed, or only planned, again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from preshard.schemas.config import KEYS, PackConfig
from preshard.schemas.errors import ConfigError

NEEDS_SOURCE = {name: fact.source for name, fact in KEYS.items() if fact.source and not fact.names_file}
"""Keys (or sections) whose change would ask for the source again, and why."""

NAMES_FILES = {name: fact.source for name, fact in KEYS.items() if fact.source and fact.names_file}
"""The same for keys that name files: what these hold must be the same. Where it cannot be compared, the names must."""

REMEDY = "leave the key out, or pack the source itself"


def refuse_changes(config: PackConfig, label: str, stored: PackConfig, *, names: bool = False) -> None:
    """Refuses a configuration that a dataset's documents cannot have.

    Args:
        config: what is asked for.
        label: names the dataset.
        stored: what it was packed with.
        names: whether the names of files must be the same, too.

    Raises:
        ConfigError: a key would ask for the source of the dataset again; says which, and why.
    """
    now, before = config.model_dump(mode="json"), stored.model_dump(mode="json")
    for section, reason in (NEEDS_SOURCE | (NAMES_FILES if names else {})).items():
        for key, value, old in leaves(section, now[section], before[section]):
            if value != old:
                raise ConfigError(
                    f"{key}: {value!r} is not possible for {label}, which was packed with {old!r}: {reason}; {REMEDY}"
                )


def leaves(path: str, now: Any, before: Any) -> list[tuple[str, Any, Any]]:
    """Keys with dots, each with its value now and before."""
    if not isinstance(now, Mapping) or not isinstance(before, Mapping) or now.keys() != before.keys():
        return [(path, now, before)]
    return [leaf for key in now for leaf in leaves(f"{path}.{key}", now[key], before[key])]
