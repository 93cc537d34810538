"""What a job takes from the configuration of the datasets among its sources, where nobody gave a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from preshard.packer_service.ingest.carried import carried_settings
from preshard.packer_service.ingest.packed.manifest import dataset_manifest
from preshard.packer_service.ingest.source.forms.custom import is_custom
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.changes import NEEDS_SOURCE, leaves
from preshard.schemas.errors import ConfigError

FILES = ("tokenizer", "model", "chat_template")
"""Keys that name files: what these hold must be the same, not where they lie."""


OF_THIS_COMMAND = ("where", "duplicates")
"""Keys that choose documents for one dataset: they are done with, and name columns of other tables."""


def with_settings_of_datasets(sources: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values that were given, over those that the datasets among the sources were packed with.

    A dataset may be somebody else's, so nothing is imported and no file is read because a manifest names it. Of the
    tokenizer and the model the files that it carries are read.

    Raises:
        ConfigError: a dataset has another version of the format, or is damaged; two datasets differ in a key that was
            not given; or the job would import or read what a manifest names and was not given.
        OSError: a dataset cannot be read.
    """
    manifests = [(source, found.head) for source in sources if (found := dataset_manifest(source)) is not None]
    if not manifests:
        return dict(given)
    first_source, first = manifests[0]
    for source, other in manifests[1:]:
        for section, whole in first.config.items():
            if section in given or section in FILES or section in OF_THIS_COMMAND:
                continue
            for key, value, others in leaves(section, whole, other.config.get(section)):
                if value != others:
                    differs = f"{key}: is {value!r} in {first_source} and {others!r} in {source}"
                    if section in NEEDS_SOURCE:
                        raise ConfigError(
                            f"{differs}: {NEEDS_SOURCE[section]}; pack one from its source like the other"
                        )
                    raise ConfigError(f"{differs}; say which with --set {key}=VALUE")
    if len(manifests) < len(sources):
        _refuse_custom_form(first_source, first.config, given)
    if len(manifests) < len(sources) or any(name in given and given[name] != first.config.get(name) for name in FILES):
        files = carried_settings(first_source, first)
        if not files:
            _refuse_files(first_source, first.config, given)
        return _merged({**first.config, **files}, given)
    return _merged(first.config, given)


def _refuse_custom_form(source: str, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """
    Raises:
        ConfigError: the rows of the job would be read by a function that only a manifest names.
    """
    form = str(stored.get("form"))  # whether it is legal is asked once all are together
    if "form" not in given and is_custom(form):
        raise ConfigError(
            f"form: {source} was packed with {form!r:.200}, code that would be imported because its manifest says so; "
            "add --form and that name if you trust it, or --form auto"
        )


def _refuse_files(source: str, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """
    Raises:
        ConfigError: the job would read a file that only a manifest names.
    """
    built_in = PackConfig()
    for name in FILES:
        path = stored.get(name, getattr(built_in, name))
        if name not in given and path != getattr(built_in, name):
            raise ConfigError(
                f"{name}: {source} was packed with {path!r:.200}, and files are not read because a manifest names "
                f"them; add --set {name}=... with that path if you trust it, or with your own"
            )


def _merged(stored: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Sections key by key; any other value, a mixture for one, as a whole."""
    merged = {key: value for key, value in stored.items() if key not in OF_THIS_COMMAND}
    for key, value in given.items():
        field = PackConfig.model_fields.get(key)
        is_section = field is not None and isinstance(field.default, BaseModel) and key in merged
        merged[key] = {**merged[key], **value} if is_section and isinstance(value, dict) else value
    return merged
