"""The tokenizer of a folder as ``transformers`` loads it, which reads more than ``tokenizer.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from preshard.schemas.errors import ConfigError

TOKENIZER_FILE = "tokenizer.json"
PROCESSOR_TEMPLATE = "chat_template.json"
"""Where processors kept their template before ``chat_template.jinja``; it goes before the tokenizer's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderTokenizer:
    """What is taken from a folder.

    Attributes:
        tokenizer: the tokenizer that ``transformers`` uses, as the JSON text of the ``tokenizers`` library.
        special_tokens: names in templates (``bos_token``, ``eos_token`` ...) to special tokens, as JSON text.
        templates: the chat templates by name, of which ``default`` is the only one that all folders with any have.
    """

    tokenizer: str
    special_tokens: str
    templates: tuple[tuple[str, str], ...]


def read_folder(path: str) -> FolderTokenizer:
    """Loads the tokenizer of a folder.

    Raises:
        ConfigError: it has none, or none that the ``tokenizers`` library runs.
    """
    from transformers import AutoTokenizer

    folder = Path(path)
    if not (folder / TOKENIZER_FILE).is_file():
        raise ConfigError(f"tokenizer: {path!r} has no {TOKENIZER_FILE}; save it with AutoTokenizer.save_pretrained")
    try:
        loaded = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        tokenizer = loaded.backend_tokenizer.to_str()
    except Exception as error:  # whatever a wrong file makes of the library
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"tokenizer: transformers cannot load {path!r} ({type(error).__name__}: {reason})") from None
    given = loaded.chat_template or {}
    templates = dict(given) if isinstance(given, dict) else {"default": given}
    if (folder / PROCESSOR_TEMPLATE).is_file() and not (folder / "chat_template.jinja").is_file():
        templates["default"] = _processor_template(folder / PROCESSOR_TEMPLATE)
    return FolderTokenizer(
        tokenizer=tokenizer,
        special_tokens=json.dumps(loaded.special_tokens_map, default=str),
        templates=tuple(sorted(templates.items())),
    )


def _processor_template(path: Path) -> str:
    try:
        template = json.loads(path.read_text(encoding="utf-8"))["chat_template"]
    except (ValueError, KeyError, TypeError):
        template = None
    if not isinstance(template, str):
        raise ConfigError(f"tokenizer: {str(path)!r} holds no chat_template")
    return template
