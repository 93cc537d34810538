"""Mistral's Tekken, from the vocabulary that the mistral-common package carries.

Mistral-common's own tokenizer spells every token of the vocabulary when it is made, and with it come the models of its
requests: two seconds for each process. ``tiktoken``, which finds its tokens, needs none of that.
"""

from __future__ import annotations

import hashlib
import json
import re
from binascii import a2b_base64
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int32

from preshard.packer_service.ingest.text.marks import chat_format, find_special_ids, image_format
from preshard.packer_service.ingest.text.tokenizer import TEKKEN, Tokenizer
from preshard.schemas.config import SpecialTokensConfig

if TYPE_CHECKING:
    from tiktoken import Encoding

TEKKEN_FILE = "tekken_240911.json"
"""The newest Tekken vocabulary in the mistral-common package; it has image and system-prompt tokens."""

NAMED = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
"""Its first special tokens in the order of their ids. The file only says how many there are."""

CONFIG = re.compile(r'"config":\s*(?={)')
"""Where the file says how large its vocabulary is. Inside its strings, quotation marks have a backslash before them."""


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
    return _encoding().decode(tokens)


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
