"""Tokens as text, by the tokenizer that made them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from packer_service.http.dataset.dataset import Dataset
from packer_service.http.problems import ProblemError
from schemas.errors import ConfigError

Spell = Callable[[Sequence[int]], str]


def speller(dataset: Dataset, files: Sequence[str]) -> Spell:
    """What turns the dataset's tokens into text.

    The path in a dataset's configuration is never opened: it is a path of the machine that packed, and a manifest may
    name any. Tekken is known; other tokenizers are found among ``files`` by their hash.

    Raises:
        ProblemError: 409 the dataset's tokenizer is none of these.
    """
    wanted = dataset.manifest.tokenizer
    names = ["tekken"] if wanted.name == "tekken" else [name for name in files if _sha256(name) == wanted.sha256]
    for name in names:
        from packer_service.ingest.text.tokenizer import load_tokenizer  # a second of work, for those who ask for text

        try:
            tokenizer = load_tokenizer(name, dataset.config.special_tokens)
        except ConfigError:
            continue
        if tokenizer.entry == wanted:
            return tokenizer.decode
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
