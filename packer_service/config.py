"""The configuration of a packing job, from a YAML file and the settings of a command line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from preshard.packer_service.ingest.carried import with_settings_of_datasets
from preshard.packer_service.report.advice.model import folder_cost
from preshard.schemas.config import PackConfig, parse_config
from preshard.schemas.errors import ConfigError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def load_config(
    file: Path | None = None,
    settings: Sequence[str] = (),
    sources: Sequence[str] = (),
    over: Mapping[str, Any] | None = None,
) -> PackConfig:
    """Reads a YAML file and overrides it with ``key=value`` settings (dotted keys, YAML values).

    Args:
        file: the file, if there is one.
        settings: the settings.
        over: values that override the file's, too; sections are mappings.
        sources: of the job; keys that neither gives are those of the packed datasets among them.

    Returns:
        The configuration. Dimensions in ``cost`` that nothing gives are those of the model folder, if there is one.

    Raises:
        ConfigError: the file cannot be read, or a key or value is not legal; one line that names it. Also where a
            dataset among the sources cannot be packed again.
    """
    values = _read_yaml(file) if file is not None else {}
    for setting in settings:
        _apply_setting(values, setting)
    for key, value in (over or {}).items():
        both = isinstance(value, Mapping) and isinstance(values.get(key), dict)
        values[key] = {**values[key], **value} if both else value
    if isinstance(values.get("model"), str):
        values["model"] = model_folder(values["model"])
    return _with_cost_of_model(parse_config(with_settings_of_datasets(sources, values)))


def _with_cost_of_model(config: PackConfig) -> PackConfig:
    if config.model is None:
        return config
    try:
        found = folder_cost(config.model, config.images.backend)
    except ConfigError:
        # A folder that cannot be packed for is refused where the job opens it. One whose dimensions have other names is
        # packed for, and reports warn of a cost that does not fit.
        return config
    cost = {**found, **config.cost.model_dump(include=config.cost.model_fields_set)}
    return config.model_copy(update={"cost": parse_config({"cost": cost}).cost})


def model_folder(given: str) -> str:
    """A model folder as it is; of a model's name on the Hub its folder in the local cache.

    Raises:
        ConfigError: it is such a name, and the model is not in the cache.
    """
    given = os.path.expanduser(given)  # noqa: PTH111, a URI stays as it is
    if not _HUB_NAME.fullmatch(given) or Path(given).exists():
        return given
    with suppress(ModuleNotFoundError):  # without the Hub's package there is no cache of it
        from preshard.schemas.files.hub import cached_folder

        if (found := cached_folder(given)) is not None:
            return found
    get = f"hf download {given} --local-dir {given.rpartition('/')[2]}"
    raise ConfigError(f"model {given}: no such folder, and not in the local cache of the Hub; get it with: {get}")


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {file}: {error.strerror}; give the path of a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {file}: not YAML ({' '.join(str(error).split())})") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"--config {file}: contains a {type(values).__name__}, not a mapping of keys to values")
    return values


def _apply_setting(values: dict[str, Any], setting: str) -> None:
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {setting!r}: write key=value, such as --set video.fps=1")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"--set {key}: {text!r} is not a YAML value") from None
    *sections, last = key.split(".")
    at = values
    for section in sections:
        at = at.setdefault(section, {})
        if not isinstance(at, dict):
            raise ConfigError(f"--set {key}: {section} holds a value, not a section")
    at[last] = value
