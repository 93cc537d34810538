"""Tokenizer folders and chat templates in a process of their own.

A template is a program that somebody else wrote: one that never ends, or that eats memory, is only a rejected document.
And what it needs of ``transformers`` is loaded there, not beside the packs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preshard.packer_service.ingest.text.chat_render import check_template
from preshard.packer_service.ingest.text.chat_template import ChatTemplate, ChatText, Conversation
from preshard.packer_service.ingest.text.chat_text import chat_text
from preshard.packer_service.runtime.workers import CallFailedError, Isolated, Limits
from preshard.schemas.errors import ConfigError, DocumentError

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


CPU_SECONDS = 20
"""Processor time of one document's template. A conversation of a thousand turns takes one to two seconds."""

TEMPLATES = Isolated(Limits(cpu_seconds=CPU_SECONDS, tries=1))
"""The packing process's only one; the first template or folder starts its process."""


def chat_texts(template: ChatTemplate, chats: Sequence[Conversation], process: Isolated = TEMPLATES) -> list[ChatText]:
    """Conversations as a template writes them, with what carries loss.

    Raises:
        DocumentError: as in :func:`preshard.packer_service.ingest.text.chat_text.chat_text`; also ``bad_row`` when the
            template used up its time or memory.
        OSError: the process was ended from outside; no document is at fault.
    """
    try:
        return process.call(_chat_texts, template, tuple(chats))
    except CallFailedError as error:
        raise DocumentError("bad_row", f"the chat template {error}") from None


def load_folder(path: str) -> FolderTokenizer:
    """What :func:`preshard.packer_service.ingest.text.chat_process.read_folder` takes from a folder.

    Raises:
        ConfigError: as there.
    """
    return _once(f"tokenizer: loading {path!r}", _read_folder, path)


def check_in_process(template: ChatTemplate) -> None:
    """Raises if the text is not a chat template.

    Raises:
        ConfigError: as in :func:`preshard.packer_service.ingest.text.chat_template.check_template`.
    """
    _once("chat_template: compiling it", _check, template)


def _once(what: str, function: Callable[..., Any], given: Any) -> Any:
    try:
        [result] = TEMPLATES.call(function, given)
    except CallFailedError as error:
        raise ConfigError(f"{what} {error}") from None
    return result


def _chat_texts(template: ChatTemplate, chats: Sequence[Conversation]) -> Iterator[ChatText]:
    _leave_torch_out()
    yield from (chat_text(template, chat) for chat in chats)


def _read_folder(path: str) -> FolderTokenizer:
    _leave_torch_out()
    return read_folder(path)


def _check(template: ChatTemplate) -> None:
    _leave_torch_out()
    check_template(template)


def _leave_torch_out() -> None:
    """Keeps ``transformers`` in the helper from loading torch, some 200 MB and three seconds: it needs no tensor."""
    if "transformers" not in sys.modules:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ["HF_HUB_OFFLINE"] = "1"  # a folder is whole, or refused
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
