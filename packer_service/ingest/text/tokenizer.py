"""Text to tokens: Tekken as mistral-common ships it, or any Hugging Face ``tokenizer.json``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from packer_service.ingest.text.marks import (
    BOS_NAMES,
    EOS_NAMES,
    IMAGE_NAMES,
    MARKS,
    PAD_NAMES,
    ChatFormat,
    ImageFormat,
    chat_format,
    image_format,
)
from schemas.config import SpecialTokensConfig
from schemas.errors import ConfigError
from schemas.manifest import TokenizerEntry

TEKKEN_FILE = "tekken_240911.json"
"""The newest Tekken vocabulary in the mistral-common package; it has image and system-prompt tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenizer:
    """A tokenizer with the ids that the packer writes around text."""

    entry: TokenizerEntry
    chat: ChatFormat
    image: ImageFormat
    encode: Callable[[str], list[int]]
    """Text to ids. Never yields a special token, even where the text spells one."""
    decode: Callable[[Sequence[int]], str]
    """Ids to text, special tokens spelled out."""

    @property
    def bos(self) -> tuple[int, ...]:
        return () if self.entry.bos_id is None else (self.entry.bos_id,)


@lru_cache(maxsize=2)
def load_tokenizer(name: str, special: SpecialTokensConfig) -> Tokenizer:
    """Loads ``tekken`` or the ``tokenizer.json`` at a path, each once per process.

    Raises:
        ConfigError: the file is missing or is not a tokenizer, or a special token is not in it.
    """
    return _load_tekken(special) if name == "tekken" else _load_hugging_face(Path(name), special)


def _load_tekken(special: SpecialTokensConfig) -> Tokenizer:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    path = Path(str(files("mistral_common") / "data" / TEKKEN_FILE))
    tekken = Tekkenizer.from_file(path)
    ids = {tekken.id_to_piece(i): i for i in range(tekken.num_special_tokens)}
    return _with_specials(
        encode=lambda text: tekken.encode(text, bos=False, eos=False),
        decode=lambda tokens: _decode_tekken(tekken, tokens),
        ids=ids,
        special=special,
        name="tekken",
        sha256=_sha256(path),
        vocab_size=tekken.n_words,
    )


def _decode_tekken(tekken: object, tokens: Sequence[int]) -> str:
    from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

    return tekken.decode(list(tokens), special_token_policy=SpecialTokenPolicy.KEEP)  # type: ignore[attr-defined]


def _load_hugging_face(path: Path, special: SpecialTokensConfig) -> Tokenizer:
    from tokenizers import Tokenizer as HuggingFaceTokenizer

    if not path.is_file():
        raise ConfigError(f"tokenizer: {str(path)!r} is not a file; give `tekken` or the path of a tokenizer.json")
    try:
        loaded = HuggingFaceTokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every fault in the file
        raise ConfigError(f"tokenizer: {str(path)!r} is not a Hugging Face tokenizer.json ({error})") from None
    loaded.no_truncation()
    loaded.no_padding()
    loaded.encode_special_tokens = True
    ids = {token.content: i for i, token in loaded.get_added_tokens_decoder().items()}
    # A file may list its marks as plain added tokens, and text that spells one would then be encoded as one. Tokens
    # that are not marks of ours, such as those of tool calls, stay what the file says.
    marks = {*MARKS, special.bos, special.eos, special.image} & ids.keys()
    loaded.add_special_tokens(sorted(marks))
    return _with_specials(
        encode=lambda text: loaded.encode(text, add_special_tokens=False).ids,
        decode=lambda tokens: loaded.decode(list(tokens), skip_special_tokens=False),
        ids=ids,
        special=special,
        name=path.name,
        sha256=_sha256(path),
        vocab_size=max(loaded.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
    )


def _with_specials(
    *,
    encode: Callable[[str], list[int]],
    decode: Callable[[Sequence[int]], str],
    ids: dict[str, int],
    special: SpecialTokensConfig,
    name: str,
    sha256: str,
    vocab_size: int,
) -> Tokenizer:
    bos = _find(ids, special.bos, BOS_NAMES, "bos")
    eos = _find(ids, special.eos, EOS_NAMES, "eos")
    if eos is None:
        raise ConfigError(
            f"special_tokens.eos: the tokenizer has none of {', '.join(EOS_NAMES)}; name one of its special tokens: "
            f"{', '.join(list(ids)[:20]) or 'it has none'}"
        )
    pad = _find(ids, None, PAD_NAMES, "pad")
    image = _find(ids, special.image, IMAGE_NAMES, "image")
    if image is None:
        image, vocab_size = vocab_size, vocab_size + 1
    entry = TokenizerEntry(
        name=name,
        sha256=sha256,
        vocab_size=vocab_size,
        bos_id=bos,
        eos_id=eos,
        pad_id=eos if pad is None else pad,
        image_id=image,
    )
    return Tokenizer(
        entry=entry,
        chat=chat_format(encode, ids, eos),
        image=image_format(ids, image),
        encode=encode,
        decode=decode,
    )


def _find(ids: dict[str, int], given: str | None, names: Sequence[str], what: str) -> int | None:
    if given is not None:
        if given not in ids:
            raise ConfigError(
                f"special_tokens.{what}: {given!r} is not a special token of the tokenizer; it has: "
                f"{', '.join(list(ids)[:20]) or 'none'}"
            )
        return ids[given]
    return next((ids[name] for name in names if name in ids), None)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
