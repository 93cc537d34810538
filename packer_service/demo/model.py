"""Writes a model folder: a tiny model of a real kind, with a real vocabulary, and nothing that has to be downloaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from preshard.packer_service.demo.model_configs import FAMILIES, MARKS, TOKENIZER_NAMES, model_config, processor_files
from preshard.packer_service.demo.vocabulary import qwen_tokenizer
from preshard.schemas.errors import ConfigError

__all__ = ["FAMILIES", "chat_template", "write_model_folder"]

_PLACEHOLDERS = {
    "qwen3_vl": ("<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>"),
    "qwen2_5_vl": ("<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>"),
    "internvl": ("<IMG_CONTEXT>\n", "<video>\n"),
    "molmo2": ("<|image|>", "<|video|>"),
}
"""What a chat template writes for an image and a video."""

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
        family: one of :data:`FAMILIES`.
        vocabulary: tokens besides the special ones, at least 256; all of Qwen's by default.
        files: settings that replace those of a file, or are added inside them, by the file's name and the setting's.

    Raises:
        PreshardError: qwen-tokenizer is not installed.
        ConfigError: the folder cannot be written.
    """
    marks = MARKS[family]
    tokenizer = qwen_tokenizer(marks, vocabulary)
    ids = {mark: tokenizer.token_to_id(mark) for mark in marks}
    contents = {
        "config.json": model_config(family, ids, tokenizer.get_vocab_size()),
        "tokenizer_config.json": _tokenizer_config(family),
        **processor_files(family),
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
    image, video = (json.dumps(text) for text in _PLACEHOLDERS.get(family, ("", "")))
    return _TEMPLATE.replace("IMAGE", image).replace("VIDEO", video)


def _tokenizer_config(family: str) -> dict[str, Any]:
    names = TOKENIZER_NAMES.get(family)
    return {
        **{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": "<|im_end|>"},
        **{"pad_token": "<|endoftext|>", "clean_up_tokenization_spaces": False, "model_max_length": 131072},
        **({"extra_special_tokens": names} if names else {}),
    }
