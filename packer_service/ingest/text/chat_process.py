"""Tokenizer folders and chat templates in a process of their own.

A template is a program that somebody else wrote: one that never ends, or that eats memory, is only a rejected document.
And what it needs of ``transformers`` is loaded there, not beside the packs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from preshard.packer_service.ingest.text.chat_render import check_template
from preshard.packer_service.ingest.text.chat_template import ChatTemplate, ChatText, Conversation
from preshard.packer_service.ingest.text.chat_text import chat_text
from preshard.packer_service.ingest.text.model_tokenizer import FolderTokenizer, read_folder
from preshard.packer_service.runtime.workers import CallFailedError, Isolated, Limits
from preshard.schemas.errors import ConfigError, DocumentError

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
    """What :func:`preshard.packer_service.ingest.text.model_tokenizer.read_folder` takes from a folder.

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
