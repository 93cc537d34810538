"""Text to tokens: Tekken as mistral-common ships it, or any Hugging Face ``tokenizer.json``."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from packer_service.ingest.text.chat_template import ChatTemplate
from packer_service.ingest.text.encoded import EncodedText, encode_with_specials
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
    """A tokenizer with the ids that the packer writes around text.

    Attributes:
        entry: what the manifest says of it.
        chat: how turns are written without a chat template; None if the tokenizer has no tokens of a form we know.
        image: the marks of the generic way around an image.
        encode: text to ids; never yields a special token, even where the text spells one.
        decode: ids to text, special tokens spelled out.
        encode_marked: text to tokens as a rendered conversation is encoded, so that what spells a special token becomes
            it; None if the tokenizer cannot.
        token_ids: ids of the tokens besides the vocabulary, by how they are spelled.
        specials: those of them that no text in a conversation may spell.
        special_tokens: them by their names in templates (``bos_token`` ...), as JSON text.
        template: the chat template that writes conversations, if there is one.
        tool_template: the one for conversations with tools, where it is another one.
    """

    entry: TokenizerEntry
    chat: ChatFormat | None
    image: ImageFormat
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    encode_marked: Callable[[str], EncodedText] | None = None
    token_ids: Mapping[str, int] = field(default_factory=dict)
    specials: Collection[str] = ()
    special_tokens: str = "{}"
    template: ChatTemplate | None = None
    tool_template: ChatTemplate | None = None

    def template_for(self, has_tools: bool) -> ChatTemplate | None:
        """The template of a conversation."""
        return self.tool_template if has_tools and self.tool_template is not None else self.template

    @property
    def bos(self) -> tuple[int, ...]:
        return () if self.entry.bos_id is None else (self.entry.bos_id,)

    def token_id(self, token: str | int) -> int:
        """A special token's id, given as it is spelled or as its id.

        Raises:
            ConfigError: the tokenizer has no such token.
        """
        if isinstance(token, int):
            return token
        if token not in self.token_ids:
            raise ConfigError(f"tokenizer: it has no token {token!r}, which the model's images need")
        return self.token_ids[token]

    def spelled(self, token: str | int) -> str:
        """A special token as a text spells it.

        Raises:
            ConfigError: the tokenizer has no such token.
        """
        if isinstance(token, str):
            self.token_id(token)
            return token
        names = [name for name, number in self.token_ids.items() if number == token]
        if not names:
            raise ConfigError(f"tokenizer: token {token} has no spelling that a chat template could write")
        return names[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """What turns ids into text, special tokens spelled out, and the SHA-256 of its file."""

    decode: Callable[[Sequence[int]], str]
    sha256: str


@lru_cache(maxsize=2)
def load_decoder(name: str) -> Decoder:
    """Loads what ``tekken`` or the ``tokenizer.json`` at a path needs to decode, each once per process.

    Raises:
        ConfigError: the file is missing or is not a tokenizer.
    """
    if name == "tekken":
        tekken = load_tokenizer(name, SpecialTokensConfig())
        return Decoder(decode=tekken.decode, sha256=tekken.entry.sha256)
    path = _existing(Path(name))
    loaded = _parsed(_text_of(path), path.name)
    return Decoder(
        decode=lambda tokens: loaded.decode(list(tokens), skip_special_tokens=False), sha256=_sha256(path)
    )


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
    content = _text_of(_existing(path))
    return hugging_face(content, special, name=path.name, sha256=_sha256(path))


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ConfigError(
            f"tokenizer: {str(path)!r} is not a file; give `tekken`, the path of a tokenizer.json, or a folder with one"
        )
    return path


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"tokenizer: {str(path)!r} is not a Hugging Face tokenizer.json") from None


def hugging_face(
    content: str, special: SpecialTokensConfig, *, name: str, sha256: str, special_tokens: str | None = None
) -> Tokenizer:
    """A tokenizer from the JSON text of the ``tokenizers`` library.

    Args:
        content: the text.
        special: special tokens that the configuration names.
        name: of the tokenizer, for the manifest.
        sha256: of the file that it is known by.
        special_tokens: special tokens by the names that ``transformers`` gives them (``bos_token`` ...), as JSON text;
            None if nobody says, and they are looked up.

    Raises:
        ConfigError: it is not a tokenizer, or a special token is not in it.
    """
    plain = _parsed(content, name)
    plain.encode_special_tokens = True
    marked = cache(lambda: _parsed(content, name))  # only chat templates need it
    added = plain.get_added_tokens_decoder()
    ids = {token.content: i for i, token in added.items()}
    # A file may list its marks as plain added tokens, and text that spells one would then be encoded as one. Tokens
    # that are not marks of ours, such as those of tool calls, stay what the file says.
    marks = ids.keys() & {*MARKS, special.bos, special.eos, special.image}
    plain.add_special_tokens(sorted(marks))
    specials = {token.content for token in added.values() if token.special} | marks
    uncut = re.compile("|".join(map(re.escape, sorted(ids, key=len, reverse=True)))) if ids else None
    return _with_specials(
        encode=lambda text: plain.encode(text, add_special_tokens=False).ids,
        decode=lambda tokens: plain.decode(list(tokens), skip_special_tokens=False),
        encode_marked=lambda text: encode_with_specials(marked(), text, uncut),
        ids=ids,
        specials=specials,
        special=special,
        special_tokens=special_tokens,
        name=name,
        sha256=sha256,
        vocab_size=max(plain.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
    )


def _parsed(content: str, name: str) -> Any:
    from tokenizers import Tokenizer as HuggingFaceTokenizer

    try:
        loaded = HuggingFaceTokenizer.from_str(content)
    except Exception as error:  # the library raises bare Exception for every fault in the text
        raise ConfigError(f"tokenizer: {name!r} is not a Hugging Face tokenizer.json ({error})") from None
    loaded.no_truncation()
    loaded.no_padding()
    return loaded


def _with_specials(
    *,
    encode: Callable[[str], list[int]],
    decode: Callable[[Sequence[int]], str],
    ids: dict[str, int],
    special: SpecialTokensConfig,
    name: str,
    sha256: str,
    vocab_size: int,
    encode_marked: Callable[[str], EncodedText] | None = None,
    specials: Collection[str] = (),
    special_tokens: str | None = None,
) -> Tokenizer:
    # what a folder says of its own tokens goes before the names by which we know tokens of others
    own = json.loads(special_tokens or "{}")
    bos = _find(ids, special.bos or own.get("bos_token"), BOS_NAMES if special_tokens is None else (), "bos")
    eos = _find(ids, special.eos or own.get("eos_token"), EOS_NAMES, "eos")
    if eos is None:
        raise ConfigError(
            f"special_tokens.eos: the tokenizer has none of {', '.join(EOS_NAMES)}; name one of its special tokens: "
            f"{', '.join(list(ids)[:20]) or 'it has none'}"
        )
    pad = _find(ids, own.get("pad_token"), PAD_NAMES, "pad")
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
        chat_template_sha256=None,
    )
    return Tokenizer(
        entry=entry,
        chat=chat_format(encode, ids, eos),
        image=image_format(ids, image),
        encode=encode,
        decode=decode,
        encode_marked=encode_marked,
        token_ids=ids,
        specials=specials,
        special_tokens=special_tokens or json.dumps(_by_role(ids, bos, eos, pad)),
    )


def _by_role(ids: Mapping[str, int], bos: int | None, eos: int | None, pad: int | None) -> dict[str, str]:
    """What a chat template finds under ``bos_token`` and the like, where no folder says it."""
    names = {number: name for name, number in ids.items()}
    roles = {"bos_token": bos, "eos_token": eos, "pad_token": pad}
    return {role: names[number] for role, number in roles.items() if number in names}


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
