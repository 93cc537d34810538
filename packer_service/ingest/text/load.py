"""Loads tokenizers: Tekken, or those of the ``tokenizers`` library, from a file or from the JSON text of one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int32

from preshard.packer_service.ingest.text.encoded import encode_with_specials
from preshard.packer_service.ingest.text.marks import MARKS, chat_format, find_special_ids, image_format
from preshard.packer_service.ingest.text.tokenizer import TEKKEN, Tokenizer
from preshard.schemas.config import SpecialTokensConfig
from preshard.schemas.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HuggingFaceTokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenDecoder:
    """What turns ids into text, special tokens spelled out, and the SHA-256 of its file."""

    decode: Callable[[Sequence[int]], str]
    sha256: str


@lru_cache(maxsize=2)
def load_tokenizer(name: str, special: SpecialTokensConfig) -> Tokenizer:
    """Loads ``tekken`` or the ``tokenizer.json`` at a path, each once per process.

    Raises:
        ConfigError: the file is missing or is not a tokenizer, or a special token is not in it.
    """
    if name == TEKKEN:
        from preshard.packer_service.ingest.text.tekken import load_tekken

        return load_tekken(special)
    return load_file(Path(name), special)


@lru_cache(maxsize=2)
def load_decoder(name: str) -> TokenDecoder:
    """Loads what ``tekken`` or the ``tokenizer.json`` at a path needs to decode, each once per process.

    Raises:
        ConfigError: the file is missing or is not a tokenizer.
    """
    if name == TEKKEN:
        tekken = load_tokenizer(name, SpecialTokensConfig())
        return TokenDecoder(decode=tekken.decode, sha256=tekken.entry.sha256)
    content = read_tokenizer(Path(name)).encode()
    return TokenDecoder(decode=parse_decoder(content), sha256=hashlib.sha256(content).hexdigest())


def parse_decoder(content: bytes) -> Callable[[Sequence[int]], str]:
    """What turns ids into text, from the bytes of a ``tokenizer.json``.

    Raises:
        ConfigError: it is not a tokenizer.
    """
    loaded = parse_library(content.decode(errors="replace"), "tokenizer.json")
    return lambda tokens: loaded.decode(list(tokens), skip_special_tokens=False)


def load_file(path: Path, special: SpecialTokensConfig) -> Tokenizer:
    """The tokenizer in a ``tokenizer.json``.

    Raises:
        ConfigError: the file is missing or is not a tokenizer, or a special token is not in it.
    """
    content = read_tokenizer(path)
    return parse_tokenizer(content, special, name=path.name, sha256=hashlib.sha256(content.encode()).hexdigest())


def parse_tokenizer(
    content: str, special: SpecialTokensConfig, *, name: str, sha256: str, special_tokens: str | None = None
) -> Tokenizer:
    """A tokenizer from the JSON text of the library.

    Args:
        content: the text.
        special: special tokens that the configuration names.
        name: of the tokenizer, for the manifest.
        sha256: of the file that it is known by.
        special_tokens: special tokens by the names that ``transformers`` gives them (``bos_token`` ...), as JSON text;
            None if no folder says, and they are looked up.

    Raises:
        ConfigError: it is not a tokenizer, or a special token is not in it.
    """
    plain = parse_library(content, name)
    plain.encode_special_tokens = True
    marked = cache(lambda: parse_library(content, name))  # only chat templates need it
    added = plain.get_added_tokens_decoder()
    ids = {token.content: i for i, token in added.items()}
    # A file may list its marks as plain added tokens, and text that spells one would then be encoded as one. Tokens
    # that are not marks of ours, such as those of tool calls, stay what the file says.
    marks = ids.keys() & {*MARKS, special.bos, special.eos, special.image}
    plain.add_special_tokens(sorted(marks))
    vocab_size = max(plain.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    found = find_special_ids(ids, special, vocab_size=vocab_size, special_tokens=special_tokens)
    uncut = re.compile("|".join(map(re.escape, sorted(ids, key=len, reverse=True)))) if ids else None

    def encode(text: str) -> Int32[np.ndarray, "tokens"]:
        [encoding] = plain.encode_batch_fast([text], add_special_tokens=False)  # "fast" leaves out where tokens stand
        return np.array(encoding.ids, np.int32)

    return Tokenizer(
        entry=found.entry(name, sha256),
        chat=chat_format(encode, ids, found.eos),
        image=image_format(ids, found.image),
        encode=encode,
        decode=lambda tokens: plain.decode(list(tokens), skip_special_tokens=False),
        encode_marked=lambda text: encode_with_specials(marked(), text, uncut),
        token_ids=ids,
        specials={token.content for token in added.values() if token.special} | marks,
        special_tokens=special_tokens or found.by_role(ids),
    )


def read_tokenizer(path: Path) -> str:
    """The text of a ``tokenizer.json``.

    Raises:
        ConfigError: it is missing or not text.
    """
    if not path.is_file():
        raise ConfigError(
            f"tokenizer: {str(path)!r} is not a file; give `tekken`, the path of a tokenizer.json, or a folder with one"
        )
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"tokenizer: {str(path)!r} is not a Hugging Face tokenizer.json") from None


def parse_library(content: str, name: str) -> HuggingFaceTokenizer:
    """The library's tokenizer, which neither cuts nor pads.

    Raises:
        ConfigError: the text is not a tokenizer.
    """
    from tokenizers import Tokenizer as HuggingFaceTokenizer

    try:
        loaded = HuggingFaceTokenizer.from_str(content)
    except Exception as error:  # the library raises bare Exception for every fault in the text
        raise ConfigError(f"tokenizer: {name!r} is not a Hugging Face tokenizer.json ({error})") from None
    loaded.no_truncation()
    loaded.no_padding()
    return loaded
