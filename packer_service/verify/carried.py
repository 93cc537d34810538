"""The carried files: that they are those of the manifest, and that the manifest says what they say."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from preshard.packer_service.verify.independent.marks import Marks, derive_marks
from preshard.packer_service.verify.independent.model import CONFIG, derive_model, files_that_decide
from preshard.packer_service.verify.independent.vocabulary import Vocabulary, derive_tokenizer, read_vocabulary
from preshard.packer_service.verify.verdict import Finding
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import CarriedContradicted, CarriedFileChanged
from preshard.schemas.manifest import MANIFEST, MODEL, TOKENIZER, Manifest

Read = Callable[[str], bytes | None]
"""Gives the bytes of a file by its path in the dataset; None if it is not there."""


class CarriedCheck:
    """The rules of the carried files.

    Attributes:
        marks: of the dataset's units; None where no file says them, or the files are not sound.
    """

    def __init__(self, manifest: Manifest, config: PackConfig, read: Read) -> None:
        self._manifest, self._config, self._read = manifest, config, read
        self.marks: Marks | None = None
        self._marks: Marks | None = None

    def run(self) -> Iterator[tuple[str, Finding]]:
        """Yields the file with what is wrong. What the files say is compared if all are as the manifest lists them."""
        files: dict[str, bytes] = {}
        changed = list(self._check_bytes(files))
        yield from changed
        if changed:
            return
        try:
            found = list(self._compare(files))
        except Exception as error:  # of files that hold anything
            found = [(CarriedContradicted, f"the carried files cannot be followed ({type(error).__name__}: {error})")]
        self.marks = None if found else self._marks
        yield from ((MANIFEST, finding) for finding in found)

    def _check_bytes(self, files: dict[str, bytes]) -> Iterator[tuple[str, Finding]]:
        """Files of the tokenizer and the model are those that the manifest lists, and that made the tokens."""
        manifest = self._manifest
        made = {} if manifest.model is None else dict(manifest.model.files)
        made[TOKENIZER] = manifest.tokenizer.sha256
        for entry in manifest.carried:
            name = f"{MODEL}/{entry.name}"
            if made.get(entry.name, entry.sha256) != entry.sha256:
                yield (
                    name,
                    (CarriedFileChanged, "is listed with a SHA-256 that differs from the file used for packing"),
                )
            content = self._read(name)
            if content is None:
                yield name, (CarriedFileChanged, "is not there")
                continue
            files[entry.name] = content
            if len(content) != entry.bytes or (digest := hashlib.sha256(content).hexdigest()) != entry.sha256:
                found = f"{len(content)} bytes" if len(content) != entry.bytes else f"the SHA-256 {digest}"
                listed = f"the manifest gives {entry.bytes} bytes and {entry.sha256}"
                yield name, (CarriedFileChanged, f"has {found}; {listed}")

    def _compare(self, files: Mapping[str, bytes]) -> Iterator[Finding]:
        manifest, config = self._manifest, self._config
        vocabulary = read_vocabulary(files, config)
        if vocabulary is None:
            if files:
                yield CarriedContradicted, f"carried has no {TOKENIZER}, and other files"
            return
        row_ids: list[int] | None = None if config.model is None else []
        if config.model is not None and files:
            if (manifest.model is None) or CONFIG not in files:
                lacking = "model is null" if manifest.model is None else f"carried has no {CONFIG}"
                yield CarriedContradicted, f"{lacking}, and the configuration names a model"
                return
            row_ids = yield from self._compare_model(files, vocabulary)
        derived = derive_tokenizer(files, config, vocabulary, row_ids)
        yield from _differences("tokenizer", manifest.tokenizer.model_dump(), derived)
        if (manifest.model is None) == (config.model is None):
            self._marks = derive_marks(files, manifest.model, vocabulary)

    def _compare_model(self, files: Mapping[str, bytes], vocabulary: Vocabulary) -> Generator[Finding, None, list[int]]:
        """Yields what is wrong. Returns the tokens that rows fill."""
        model = self._manifest.model
        assert model is not None
        derived = derive_model(files, self._config, vocabulary.ids)
        deciding = files_that_decide(files, derived["model_type"])
        derived["files"] = {name: hashlib.sha256(files[name]).hexdigest() for name in deciding}
        found = dict(dict.fromkeys(("masks", "bidirectional")), **model.model_dump())
        yield from _differences("model", found, derived)
        row_ids: list[int] = derived["row_ids"]
        return row_ids


def _differences(path: str, found: Any, asked: Any) -> Iterator[Finding]:
    """Every leaf of what is asked for that is found otherwise, and every key of an object that is not asked for."""
    if isinstance(found, dict) and isinstance(asked, dict):
        unasked = found.keys() - asked.keys() if path.startswith("model") else set()
        for key in sorted(unasked):
            yield CarriedContradicted, f"{path}.{key} is {found[key]!r:.80}; nothing in the carried files says it"
        for key, value in asked.items():
            yield from _differences(f"{path}.{key}", found.get(key), value)
    elif found != asked:
        yield CarriedContradicted, f"{path} is {found!r:.80}; the carried files say {asked!r:.80}"
