"""Loads tokenizers: Tekken, or those of the ``tokenizers`` library, from a file or from the JSON text of one.

Tekken is Mistral's, from the vocabulary that the mistral-common package carries. That package's own tokenizer spells
every token of the vocabulary when it is made, and with it come the models of its requests: two seconds for each
process. ``tiktoken``, which finds its tokens, needs none of that.
"""

from __future__ import annotations

import hashlib
import json
import re
from binascii import a2b_base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int32

from preshard.packer_service.ingest.text.chat_template import spelled_by
from preshard.packer_service.ingest.text.encoded import encode_with_specials
from preshard.packer_service.ingest.text.tokenizer import (
    BOS_NAMES,
    EOS_NAMES,
    IMAGE_NAMES,
    MARKS,
    PAD_NAMES,
    TEKKEN,
    TOKENIZER_FILE,
    Tokenizer,
    chat_format,
    image_format,
)
from preshard.schemas.errors import ConfigError, ReaderError
from preshard.schemas.manifest import TokenizerEntry
from preshard.schemas.sections import SpecialTokensConfig

if TYPE_CHECKING:
    from tiktoken import Encoding
    from tokenizers import Tokenizer as HuggingFaceTokenizer


TEKKEN_FILE = "tekken_240911.json"
"""The newest Tekken vocabulary in the mistral-common package; it has image and system-prompt tokens."""

NAMED = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
"""Its first special tokens in the order of their ids. The file only says how many there are."""

CONFIG = re.compile(r'"config":\s*(?={)')
"""Pattern of the place with the vocabulary's size. Inside its strings, quotation marks have a backslash before them."""


def load_tekken(special: SpecialTokensConfig) -> Tokenizer:
    """The tokenizer, with special tokens that the configuration names.

    Its vocabulary is read when the first text is encoded or decoded: a process that only writes or plans never does.

    Raises:
        ConfigError: one of them is not in it.
    """
    content = _content()
    config = _sizes(content.decode())
    ids = _special_ids(config["default_num_special_tokens"])
    found = find_special_ids(ids, special, vocab_size=config["default_vocab_size"])
    return Tokenizer(
        entry=found.entry(TEKKEN, hashlib.sha256(content).hexdigest()),
        chat=chat_format(_encode, ids, found.eos),
        image=image_format(ids, found.image),
        encode=_encode,
        decode=_decode,
        token_ids=ids,
    )


def _encode(text: str) -> Int32[np.ndarray, "tokens"]:
    """The tokens of a text, none of them special."""
    return np.array(_encoding().encode_ordinary(text), np.int32)


def _decode(tokens: Sequence[int]) -> str:
    with _of_ids(tokens, f"{TEKKEN}.json"):
        return _encoding().decode(tokens)


@contextmanager
def _of_ids(tokens: Sequence[int], name: str) -> Iterator[None]:
    """Says which id is none, where the library has an error of its own.

    Raises:
        ReaderError: a token's id is negative or too large.
    """
    try:
        yield
    except (OverflowError, KeyError):
        wrong = min(tokens) if min(tokens) < 0 else max(tokens)
        raise ReaderError(f"{name}: no token has the id {wrong}; preshard verify says where") from None


def _decode_by(library: HuggingFaceTokenizer, tokens: Sequence[int]) -> str:
    with _of_ids(tokens, TOKENIZER_FILE):
        return library.decode(list(tokens), skip_special_tokens=False)


@cache
def _encoding() -> Encoding:
    """The whole tokenizer. Ids of the vocabulary count on from those of special tokens; their order ranks merges."""
    from tiktoken import Encoding

    content = json.loads(_content())
    config = content["config"]
    ids = _special_ids(config["default_num_special_tokens"])
    vocabulary = content["vocab"][: config["default_vocab_size"] - len(ids)]  # the file holds more than models have
    ranks = {a2b_base64(token["token_bytes"]): len(ids) + token["rank"] for token in vocabulary}
    return Encoding(
        TEKKEN,
        pat_str=config["pattern"],
        mergeable_ranks=ranks,
        special_tokens=ids,
        explicit_n_vocab=config["default_vocab_size"],
    )


def _content() -> bytes:
    return Path(str(files("mistral_common") / "data" / TEKKEN_FILE)).read_bytes()


def _sizes(text: str) -> dict[str, Any]:
    """The file's settings, without parsing its vocabulary."""
    place = CONFIG.search(text)
    assert place is not None, f"{TEKKEN_FILE} of mistral-common has no settings"
    settings: dict[str, Any] = json.JSONDecoder().raw_decode(text, place.end())[0]
    return settings


def _special_ids(number: int) -> dict[str, int]:
    """Ids of the special tokens by how they are spelled: those that have a name, and fillers up to ``number``."""
    return {name: i for i, name in enumerate([*NAMED, *(f"<SPECIAL_{i}>" for i in range(len(NAMED), number))])}


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenDecoder:
    """Decoder of ids into text, special tokens spelled out, and the SHA-256 of its file."""

    decode: Callable[[Sequence[int]], str]
    sha256: str


def load_tokenizer(name: str, special: SpecialTokensConfig) -> Tokenizer:
    """Loads ``tekken`` or the ``tokenizer.json`` at a path, each once per process.

    Raises:
        ConfigError: the file is missing or is not a tokenizer, or a special token is not in it.
    """
    return _load_tokenizer(name, special, Path.cwd())


@lru_cache(maxsize=2)
def _load_tokenizer(name: str, special: SpecialTokensConfig, working: Path) -> Tokenizer:  # noqa: ARG001 (a path's)
    if name == TEKKEN:
        return load_tekken(special)
    path = Path(name)
    content = read_tokenizer(path)
    return parse_tokenizer(content, special, name=path.name, sha256=hashlib.sha256(content.encode()).hexdigest())


def load_decoder(name: str) -> TokenDecoder:
    """Loads what ``tekken`` or the ``tokenizer.json`` at a path needs to decode, each once per process.

    Raises:
        ConfigError: the file is missing or is not a tokenizer.
    """
    return _load_decoder(name, Path.cwd())


@lru_cache(maxsize=2)
def _load_decoder(name: str, working: Path) -> TokenDecoder:  # noqa: ARG001 (in which a path lies)
    if name == TEKKEN:
        tekken = load_tokenizer(name, SpecialTokensConfig())
        return TokenDecoder(decode=tekken.decode, sha256=tekken.entry.sha256)
    content = read_tokenizer(Path(name)).encode()
    return TokenDecoder(decode=parse_decoder(content), sha256=hashlib.sha256(content).hexdigest())


def parse_decoder(content: bytes) -> Callable[[Sequence[int]], str]:
    """Returns a function that turns ids into text, from the bytes of a ``tokenizer.json``.

    Raises:
        ConfigError: it is not a tokenizer.
    """
    loaded = parse_library(content.decode(errors="replace"), "tokenizer.json")
    return partial(_decode_by, loaded)


def parse_folder(folder: str, special: SpecialTokensConfig, content: str, special_tokens: str) -> Tokenizer:
    """The tokenizer of a folder, from what ``transformers`` made of it; the arguments are those of the next function.

    Raises:
        ConfigError: a special token is not in it.
    """
    sha256 = hashlib.sha256((Path(folder) / TOKENIZER_FILE).read_bytes()).hexdigest()
    return parse_tokenizer(content, special, name=TOKENIZER_FILE, sha256=sha256, special_tokens=special_tokens)


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
    uncut = spelled_by(ids)

    def encode(text: str) -> Int32[np.ndarray, "tokens"]:
        [encoding] = plain.encode_batch_fast([text], add_special_tokens=False)  # "fast" leaves out where tokens stand
        return np.array(encoding.ids, np.int32)

    return Tokenizer(
        entry=found.entry(name, sha256),
        chat=chat_format(encode, ids, found.eos),
        image=image_format(ids, found.image),
        encode=encode,
        decode=partial(_decode_by, plain),
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


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecialIds:
    """Their ids. ``vocab_size`` covers that of images, which may be a new one after the vocabulary."""

    bos: int | None
    eos: int
    pad: int
    image: int
    vocab_size: int

    def entry(self, name: str, sha256: str) -> TokenizerEntry:
        """The manifest's entry of a tokenizer, so far without a chat template."""
        return TokenizerEntry(
            name=name,
            sha256=sha256,
            vocab_size=self.vocab_size,
            bos_id=self.bos,
            eos_id=self.eos,
            pad_id=self.pad,
            image_id=self.image,
            chat_template_sha256=None,
        )

    def by_role(self, ids: Mapping[str, int]) -> str:
        """Tokens that chat templates find as ``bos_token`` and the like where no folder names them, as JSON text."""
        names = {number: name for name, number in ids.items()}
        roles = {"bos_token": self.bos, "eos_token": self.eos, "pad_token": self.pad}
        return json.dumps({role: names[number] for role, number in roles.items() if number in names})


def find_special_ids(
    ids: Mapping[str, int], special: SpecialTokensConfig, *, vocab_size: int, special_tokens: str | None = None
) -> SpecialIds:
    """The ids that the configuration names, else those that the tokenizer's folder names, else by well-known names.

    Args:
        ids: the tokens besides the vocabulary, by how they are spelled.
        special: special tokens that the configuration names.
        vocab_size: of the tokenizer.
        special_tokens: special tokens by the names that ``transformers`` gives them (``bos_token`` ...), as JSON text;
            None if no folder says.

    Raises:
        ConfigError: one that is named is not there, or none ends a document.
    """
    own = json.loads(special_tokens or "{}")
    # a folder that names no token for the beginning means that there is none
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
    return SpecialIds(bos=bos, eos=eos, pad=eos if pad is None else pad, image=image, vocab_size=vocab_size)


def _find(ids: Mapping[str, int], given: str | None, names: Sequence[str], what: str) -> int | None:
    if given is not None:
        if given not in ids:
            raise ConfigError(
                f"special_tokens.{what}: {given!r} is not a special token of the tokenizer; it has: "
                f"{', '.join(list(ids)[:20]) or 'none'}"
            )
        return ids[given]
    return next((ids[name] for name in names if name in ids), None)
