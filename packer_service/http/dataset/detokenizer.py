"""Tokens as text, decoded by the tokenizer that made them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from preshard.packer_service.http.dataset.folder import reason_of
from preshard.packer_service.http.dataset.reader import Dataset
from preshard.packer_service.http.problems import ProblemError, damaged
from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import LARGEST_CARRIED, MODEL, TOKENIZER

Decode = Callable[[Sequence[int]], str]

DECODER_BYTES = 64 << 20
"""Memory of a tokenizer that is kept, about."""


def find_decoder(dataset: Dataset) -> Decode:
    """The function that turns the dataset's tokens into text.

    The path in a dataset's configuration is never opened: it belongs to the machine that packed, and a manifest may
    name any file. Tekken is built in; any other tokenizer is the one that the dataset carries, or else one of the
    service's files by its hash.

    Raises:
        ProblemError: 409 the dataset's tokenizer is not one of these.
    """
    wanted = dataset.manifest.tokenizer
    # takes a second, which only questions about text should pay
    from preshard.packer_service.ingest.text.load import load_decoder, parse_decoder

    if wanted.name != "tekken":
        decode = dataset.kept(("decoder",), lambda: _carried(dataset, parse_decoder), lambda _: DECODER_BYTES)
        if decode is not None:
            return decode
    files = [name for name in dataset.tokenizers if _sha256(name) == wanted.sha256]
    names = ["tekken"] if wanted.name == "tekken" else files
    for name in names:
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
        f"{dataset.name}: tokens were made by {wanted.name!r:.80} (SHA-256 {wanted.sha256}), which neither the dataset "
        "nor the service has; start it with --tokenizer FILE",
    )


def _carried(dataset: Dataset, parse: Callable[[bytes], Decode]) -> Decode | None:
    """The decoder of the tokenizer that a dataset carries; None if it carries none, or another than it should."""
    if not any(entry.name == TOKENIZER for entry in dataset.manifest.carried):
        return None
    with dataset.reading():
        content = dataset.folder.read(f"{MODEL}/{TOKENIZER}", LARGEST_CARRIED)
    if hashlib.sha256(content).hexdigest() != dataset.manifest.tokenizer.sha256:
        raise damaged(dataset.name, f"{MODEL}/{TOKENIZER} is not the tokenizer that made the tokens")
    try:
        return parse(content)
    except ConfigError as error:
        raise damaged(dataset.name, reason_of(error)) from None


def _sha256(name: str) -> str:
    try:
        with Path(name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
