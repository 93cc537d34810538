"""Parts of datasets that a job takes over: files of tokenizer and model that they carry, and keys of configuration."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from preshard.packer_service.ingest.packed.manifest import dataset_manifest, manifest_of
from preshard.packer_service.ingest.source.file import DATASET, SourceFile
from preshard.packer_service.ingest.source.forms.custom import is_custom
from preshard.packer_service.ingest.text.load import load_decoder, parse_decoder
from preshard.packer_service.ingest.text.tokenizer import TEKKEN
from preshard.schemas.config import KEYS, PackConfig
from preshard.schemas.dataset.changes import NAMES_FILES, NEEDS_SOURCE, leaves
from preshard.schemas.dataset.manifest_parts import stored_config
from preshard.schemas.errors import ConfigError, FormatError
from preshard.schemas.files.filesystem import FileRefusedError, join, locate, open_regular
from preshard.schemas.manifest import (
    CARRIED_FILES,
    CARRIED_TEMPLATES,
    CHAT_TEMPLATE,
    LARGEST_CARRIED,
    MODEL,
    TOKENIZER,
    CarriedFile,
    ManifestHead,
)


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
    for source, manifest in manifests:
        try:
            stored_config(manifest)
        except FormatError as error:
            raise ConfigError(f"SOURCE {source}: {error}") from None
    first_source, first = manifests[0]
    for source, other in manifests[1:]:
        for section, whole in first.config.items():
            if section in given or section in NAMES_FILES or _is_for_once(section):
                continue
            for key, value, others in leaves(section, whole, other.config.get(section)):
                if value != others:
                    differs = f"{key}: is {value!r} in {first_source} and {others!r} in {source}"
                    if section in NEEDS_SOURCE:
                        raise ConfigError(
                            f"{differs}: {NEEDS_SOURCE[section]}; pack one from its source like the other"
                        )
                    raise ConfigError(f"{differs}; say which with --set {key}=VALUE")
    form = str(first.config.get("form"))  # whether it is legal is asked once all are together
    if len(manifests) < len(sources) and "form" not in given and is_custom(form):
        raise ConfigError(
            f"form: {first_source} was packed with {form!r:.200}, code that would be imported because its manifest "
            "says so; add --form and that name if you trust it, or --form auto"
        )
    if len(manifests) < len(sources) or any(
        name in given and given[name] != first.config.get(name) for name in NAMES_FILES
    ):
        files = carried_settings(first_source, first)
        if not files:
            _refuse_files(first_source, first.config, given)
        return _merged({**first.config, **files}, given)
    return _merged(first.config, given)


def _refuse_files(source: str, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """
    Raises:
        ConfigError: the job would read a file that only a manifest names.
    """
    built_in = PackConfig()
    for name in NAMES_FILES:
        path = stored.get(name, getattr(built_in, name))
        if name not in given and path != getattr(built_in, name):
            raise ConfigError(
                f"{name}: {source} was packed with {path!r:.200}, and files are not read because a manifest names "
                f"them; add --set {name}=... with that path if you trust it, or with your own"
            )


def _is_for_once(key: str) -> bool:
    return key in KEYS and KEYS[key].for_once


def _merged(stored: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Sections key by key; any other value, a mixture for one, as a whole."""
    merged = {key: value for key, value in stored.items() if not _is_for_once(key)}
    for key, value in given.items():
        field = PackConfig.model_fields.get(key)
        is_section = field is not None and isinstance(field.default, BaseModel) and key in merged
        merged[key] = {**merged[key], **value} if is_section and isinstance(value, dict) else value
    return merged


MOST_TEMPLATES = 16
"""Templates besides the usual one that are carried."""

OWN_TEMPLATES = ("chat_template.json", f"{CARRIED_TEMPLATES}/")
"""Names of a folder's own chat templates besides the usual one; none is used where the job names another."""

SECRET = re.compile(
    rb'"(?P<key>use_auth_token|auth_token|access_token|hf_token|token|api_key|password)"\s*:\s*"[^"]+"|'
    rb"(?P<value>hf_[A-Za-z0-9]{30,})"
)
"""Pattern of keys that libraries have written into configurations, and of tokens of the Hugging Face Hub."""


class Carried(NamedTuple):
    """The files' bytes by their names in the dataset's folder ``model``, and why there is none."""

    files: dict[str, bytes]
    note: str = ""


def files_to_carry(config: PackConfig, sources: Sequence[SourceFile]) -> Carried:
    """Files of the tokenizer and the processors that a new dataset carries, never weights and never code.

    Where the job reads no file because all of its sources are datasets, those that the first of these carries.

    Raises:
        ConfigError: a file cannot be read.
    """
    if sources and all(source.kind == DATASET for source in sources):
        try:
            return Carried(read_carried(sources[0].uri, manifest_of(sources[0])))
        except ConfigError as error:
            return Carried({}, f"the new dataset carries no tokenizer: {error}")
    files = _of_configuration(config)
    for name, content in files.items():
        if len(content) > LARGEST_CARRIED:
            why = f"{name} has {len(content):,} bytes, more than {LARGEST_CARRIED:,}"
            return Carried({}, f"the dataset carries no tokenizer: {why}; readers need the model folder")
        found = SECRET.search(content) if name != TOKENIZER else None
        if found is not None:
            what = repr(found["key"].decode()) if found["key"] else "a token of the Hugging Face Hub"
            return Carried({}, f"the dataset carries no tokenizer: {name} holds {what}; remove it to carry one")
    return Carried(files)


def _of_configuration(config: PackConfig) -> dict[str, bytes]:
    named = config.tokenizer if config.model is None else config.model
    if named == TEKKEN:
        return {}
    path = Path(named)
    try:
        if path.is_dir():
            templates = sorted(path.glob(f"{CARRIED_TEMPLATES}/*.jinja"))[:MOST_TEMPLATES]
            listed = [path / name for name in CARRIED_FILES if (path / name).is_file()]
            files = {file.relative_to(path).as_posix(): file.read_bytes() for file in [*listed, *templates]}
        else:
            files = {TOKENIZER: path.read_bytes()}
        if config.chat_template is not None:
            own = {name for name in files if name.startswith(OWN_TEMPLATES)}
            files = {name: content for name, content in files.items() if name not in own}
            files[CHAT_TEMPLATE] = Path(config.chat_template).read_bytes()
    except OSError as error:
        raise ConfigError(f"model: {error.filename} cannot be read ({error.strerror})") from None
    return dict(sorted(files.items()))


def read_carried(dataset: str, manifest: ManifestHead) -> dict[str, bytes]:
    """The files that a dataset carries.

    Raises:
        ConfigError: one is missing, or is not what the manifest says.
    """
    return {entry.name: _read(dataset, entry) for entry in manifest.carried}


def _read(dataset: str, entry: CarriedFile) -> bytes:
    name = f"{MODEL}/{entry.name}"
    filesystem, path = locate(join(dataset, MODEL, entry.name))
    try:
        with open_regular(filesystem, path, name, LARGEST_CARRIED) as file:
            content: bytes = file.read(entry.bytes + 1)
    except FileRefusedError as error:
        raise ConfigError(f"SOURCE {dataset}: {error}") from None
    except OSError as error:
        raise ConfigError(
            f"SOURCE {dataset}: {name} cannot be read ({error.strerror or type(error).__name__})"
        ) from None
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise ConfigError(
            f"SOURCE {dataset}: {name} is not the file that the manifest lists; preshard verify says more"
        )
    return content


def carried_decoder(dataset: str, manifest: ManifestHead) -> Callable[[Sequence[int]], str]:
    """A function that turns a dataset's tokens into text.

    Raises:
        ConfigError: it carries no tokenizer, or not the one that its manifest says.
    """
    if manifest.tokenizer.name == TEKKEN:
        return load_decoder(TEKKEN).decode
    entries = [entry for entry in manifest.carried if entry.name == TOKENIZER]
    if not entries or entries[0].sha256 != manifest.tokenizer.sha256:
        raise ConfigError(
            f"{dataset}: carries no tokenizer; give its tokenizer.json to preshard serve (--tokenizer) or preshard.open"
        )
    return parse_decoder(_read(dataset, entries[0]))


def carried_settings(dataset: str, manifest: ManifestHead) -> dict[str, str | None]:
    """The keys of a configuration that name files, as the files that a dataset carries; empty if it carries none.

    A tokenizer is loaded from a folder of this machine, so a dataset in an object store gives none.

    Raises:
        ConfigError: a file of the folder is not what the manifest says, or is not listed there.
    """
    filesystem, path = locate(join(dataset, MODEL))
    if not manifest.carried or filesystem.type_name != "local":
        return {}
    folder, listed = Path(path), read_carried(dataset, manifest)
    others = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()} - listed.keys()
    if others:  # transformers would read them
        raise ConfigError(f"SOURCE {dataset}: {MODEL}/{min(others)} is not listed in the manifest; remove it")
    stored = manifest.config
    of_file = str(stored["tokenizer"]).endswith(".json")
    return {
        "model": None if stored["model"] is None else str(folder),
        "tokenizer": TEKKEN if stored["model"] is not None else str(folder / TOKENIZER if of_file else folder),
        "chat_template": None if stored["chat_template"] is None else str(folder / CHAT_TEMPLATE),
    }
