"""Tokens as text, decoded by the tokenizer that made them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from preshard.packer_service.http.dataset.reader import Dataset
from preshard.packer_service.http.problems import ProblemError
from preshard.schemas.errors import ConfigError

Decode = Callable[[Sequence[int]], str]


def find_decoder(dataset: Dataset, files: Sequence[str]) -> Decode:
    """The function that turns the dataset's tokens into text.

    The path in a dataset's configuration is never opened: it belongs to the machine that packed, and a manifest may
    name any file. Tekken is built in; other tokenizers are found among ``files`` by their hash.

    Raises:
        ProblemError: 409 the dataset's tokenizer is not one of these.
    """
    wanted = dataset.manifest.tokenizer
    names = ["tekken"] if wanted.name == "tekken" else [name for name in files if _sha256(name) == wanted.sha256]
    for name in names:
        from preshard.packer_service.ingest.text.tokenizer import (
            load_decoder,  # takes a second, which only questions about text should pay
        )

        try:
            decoder = load_decoder(name)
        except ConfigError:
            continue
        if decoder.sha256 == wanted.sha256:
            return decoder.decode
    raise ProblemError(
        409,
        "tokenizer-unavailable",
        "Tokenizer not available",
        f"{dataset.name}: tokens were made by {wanted.name!r:.80} (SHA-256 {wanted.sha256}), which the service does "
        "not have; start it with --tokenizer FILE",
    )


def _sha256(name: str) -> str:
    try:
        with Path(name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
