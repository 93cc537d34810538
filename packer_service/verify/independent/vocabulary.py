"""Special tokens, chat templates and the text of some tokens, as the JSON of a tokenizer's files says them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from preshard.schemas.config import PackConfig
from preshard.schemas.manifest import CARRIED_TEMPLATES, CHAT_TEMPLATE, TOKENIZER

TEKKEN = "tekken"
TEKKEN_SPECIAL, TEKKEN_SIZE = 1000, 131_072
"""Ids of special tokens come first, then the 256 bytes, then what merges make of them."""
TEKKEN_NAMED = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)

WELL_KNOWN = {
    "bos": ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[CLS]"),
    "eos": ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>", "[SEP]"),
    "pad": ("<pad>", "<|pad|>", "<|finetune_right_pad_id|>", "<|endoftext|>", "[PAD]"),
    "image": ("[IMG]", "<|image_pad|>", "<image>", "<|image|>", "<im_patch>", "<image_soft_token>"),
}
"""Special tokens where nothing names them, the first that a tokenizer has."""

WRITES_TIMES = frozenset("0123456789.:<>seconds \n")
"""Characters with which the times beside frames are written."""

SPACES = {"\u2581": " ", "\u0120": " ", "\u010a": "\n"}
"""Spellings of a space and a line break in vocabularies."""

TOKENIZER_CONFIG, SPECIAL_MAP = "tokenizer_config.json", "special_tokens_map.json"
PROCESSOR_TEMPLATE = "chat_template.json"


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """A tokenizer's tokens, as far as verifying needs them.

    Attributes:
        ids: of the tokens besides the vocabulary, by their spelling.
        largest: the largest id; None where `transformers` adds tokens of its own.
        pieces: the text of tokens with which times are written.
    """

    ids: Mapping[str, int]
    largest: int | None
    pieces: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Names:
    """A folder's names of special tokens: those that it says, null ones among them, and those it says in two ways."""

    said: Mapping[str, str | None]
    unclear: frozenset[str]


def read_json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """A file's object; empty where it is not carried, or is none."""
    found = json.loads(files[name]) if name in files else {}
    return found if isinstance(found, dict) else {}


def read_vocabulary(files: Mapping[str, bytes], config: PackConfig) -> Vocabulary | None:
    """The vocabulary of a dataset; None where no file of it is carried."""
    if TOKENIZER in files:
        return _of_files(files)
    if config.model is not None or config.tokenizer != TEKKEN:
        return None
    names = [*TEKKEN_NAMED, *(f"<SPECIAL_{number}>" for number in range(len(TEKKEN_NAMED), TEKKEN_SPECIAL))]
    pieces = {TEKKEN_SPECIAL + ord(character): character for character in WRITES_TIMES}
    return Vocabulary(ids={name: i for i, name in enumerate(names)}, largest=TEKKEN_SIZE - 1, pieces=pieces)


def _of_files(files: Mapping[str, bytes]) -> Vocabulary:
    content = read_json(files, TOKENIZER)
    configured = read_json(files, TOKENIZER_CONFIG)
    model = content["model"]
    vocab = model.get("vocab", {})
    listed = vocab if isinstance(vocab, dict) else {piece: number for number, (piece, *_) in enumerate(vocab)}
    ids = {token["content"]: int(token["id"]) for token in content.get("added_tokens") or ()}
    others = {str(token["content"]): int(i) for i, token in (configured.get("added_tokens_decoder") or {}).items()}
    ids |= {name: i for name, i in others.items() if name not in listed}
    named = {name for name in _named_tokens(configured) if name not in ids and name not in listed}
    pieces = {}
    if model.get("type", "BPE") in ("BPE", "Unigram"):
        spelled = WRITES_TIMES | SPACES.keys()
        for piece, number in listed.items():
            if piece and spelled.issuperset(piece):  # asked of all 150,000
                pieces[number] = "".join(SPACES.get(character, character) for character in piece)
    largest = max([*listed.values(), *ids.values()], default=-1)
    return Vocabulary(ids=ids, largest=None if named else largest, pieces=pieces)


def _named_tokens(configured: Mapping[str, Any]) -> set[str]:
    """Every special token that a tokenizer's settings name."""
    found = [value for key, value in configured.items() if key.endswith("_token")]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = configured.get(key) or ()
        found += more.values() if isinstance(more, dict) else more
    return {name for value in found if (name := spelling(value)) is not None}


def spelling(value: Any) -> str | None:
    """A token as it is spelled, given so or as an object."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def is_folder(files: Mapping[str, bytes], config: PackConfig) -> bool | None:
    """Whether the tokenizer is that of a folder, not a single file; None where both may be."""
    if config.model is not None or len(files.keys() - {TOKENIZER, CHAT_TEMPLATE}) > 0:
        return True
    return False if config.tokenizer == TEKKEN or config.tokenizer.endswith(".json") else None


def _names(files: Mapping[str, bytes]) -> Names:
    configured, older = read_json(files, TOKENIZER_CONFIG), read_json(files, SPECIAL_MAP)
    keys = [f"{role}_token" for role in ("bos", "eos", "pad")]
    both = {key: (spelling(configured.get(key)), spelling(older.get(key))) for key in keys}
    unclear = frozenset(key for key, (new, old) in both.items() if key in configured and key in older and new != old)
    said = {key: new or old for key, (new, old) in both.items() if key in configured or key in older}
    return Names(said=said, unclear=unclear)


def derive_tokenizer(
    files: Mapping[str, bytes], config: PackConfig, vocabulary: Vocabulary, row_ids: Sequence[int] | None
) -> dict[str, object]:
    """The fields of a manifest's tokenizer that follow from its files and the configuration.

    Args:
        files: those that are carried, by name.
        config: the dataset's.
        vocabulary: of these files.
        row_ids: of the model; None without one.
    """
    folder, given, ids = is_folder(files, config), config.special_tokens, vocabulary.ids
    derived: dict[str, object] = {}
    if folder is not None:
        derived["name"] = TOKENIZER if folder else PurePosixPath(config.tokenizer).name
    for role in ("bos", "eos", "pad"):
        known, number = _role(role, getattr(given, role, None), ids, _names(files) if folder else None)
        if known and folder is not None:
            derived[f"{role}_id"] = number if number is not None or role != "pad" else derived.get("eos_id")
    if vocabulary.largest is not None:
        derived["vocab_size"] = vocabulary.largest + 1
    if row_ids is not None:
        derived["image_id"] = row_ids[0] if row_ids else derived.get("pad_id")
    else:
        image = ids.get(given.image, -1) if given.image else _first("image", ids)
        if image is not None:
            derived["image_id"] = image
        elif vocabulary.largest is not None:
            derived |= {"image_id": vocabulary.largest + 1, "vocab_size": vocabulary.largest + 2}
    if folder is not None:
        derived["chat_template_sha256"] = _template_hash(files, config, folder)
    return {name: value for name, value in derived.items() if value is not None or name in NULLABLE}


NULLABLE = ("bos_id", "chat_template_sha256")


def _role(role: str, given: str | None, ids: Mapping[str, int], names: Names | None) -> tuple[bool, int | None]:
    """Whether the token of a role follows from what is said, and its id, None without one."""
    key = f"{role}_token"
    if given is not None:
        return True, ids.get(given)
    if names is None:
        return True, _first(role, ids)
    if key in names.unclear or key not in names.said:
        return False, None
    if (spelled := names.said[key]) is not None:
        return spelled in ids, ids.get(spelled)
    return True, None if role == "bos" else _first(role, ids)


def _first(role: str, ids: Mapping[str, int]) -> int | None:
    return next((ids[name] for name in WELL_KNOWN[role] if name in ids), None)


def _template_hash(files: Mapping[str, bytes], config: PackConfig, folder: bool) -> str | None:
    """Hash of the template, or of both where conversations with tools have their own."""
    templates: dict[str, str] = {}
    if config.chat_template is not None:
        templates = {"default": _text(files.get(CHAT_TEMPLATE, b""))}
    elif folder:
        templates = _templates(files)
    if "default" not in templates:
        return None
    parts = [templates["default"], *([templates["tool_use"]] if "tool_use" in templates else [])]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _templates(files: Mapping[str, bytes]) -> dict[str, str]:
    """A folder's templates by name, as ``transformers`` reads them: files go before the tokenizer's settings."""
    own = read_json(files, TOKENIZER_CONFIG).get("chat_template") or []
    listed = [{"name": "default", "template": own}] if isinstance(own, str) else own
    in_files = {"default": _text(files[CHAT_TEMPLATE])} if CHAT_TEMPLATE in files else {}
    for name in files:
        if name.startswith(f"{CARRIED_TEMPLATES}/"):
            in_files[PurePosixPath(name).stem] = _text(files[name])
    templates = in_files or {each["name"]: each["template"] for each in listed}
    if PROCESSOR_TEMPLATE in files and CHAT_TEMPLATE not in files:
        templates["default"] = read_json(files, PROCESSOR_TEMPLATE)["chat_template"]
    return templates


def _text(content: bytes) -> str:
    """Decodes as text files are read: a line ends with a line feed."""
    return content.decode().replace("\r\n", "\n").replace("\r", "\n")
