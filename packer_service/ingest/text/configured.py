"""The tokenizer that a configuration names, with its chat template."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from preshard.packer_service.ingest.text.chat_template import ChatTemplate
from preshard.packer_service.ingest.text.chat_text import TOKENIZER_FILE, FolderTokenizer, check_in_process, load_folder
from preshard.packer_service.ingest.text.load import load_tokenizer, parse_tokenizer
from preshard.packer_service.ingest.text.tokenizer import TEKKEN, Tokenizer
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError
from preshard.schemas.sections import SpecialTokensConfig

MAX_TEMPLATE = 2**20
"""Most bytes of a template's file; those of real models take up to some 20,000."""


def configured_tokenizer(config: PackConfig) -> Tokenizer:
    """The tokenizer of a job, loaded once per process.

    Raises:
        ConfigError: a file is missing or is not what it should be, or the tokenizer cannot use a chat template.
    """
    return _load(config.model, config.tokenizer, config.chat_template, config.special_tokens)


@lru_cache(maxsize=2)
def _load(model: str | None, tokenizer: str, template: str | None, special: SpecialTokensConfig) -> Tokenizer:
    folder = tokenizer if model is None else model
    if folder != TEKKEN and Path(folder).is_dir():
        loaded = folder_tokenizer(folder, special, load_folder(folder))
    else:
        loaded = load_tokenizer(tokenizer, special)
    if template is not None:
        loaded = with_template(loaded, _read(Path(template)))
    for one in {loaded.template, loaded.tool_template} - {None}:
        assert one is not None
        check_in_process(one)
    entry = loaded.entry.model_copy(update={"chat_template_sha256": _templates_sha256(loaded)})
    return replace(loaded, entry=entry)


def _templates_sha256(tokenizer: Tokenizer) -> str | None:
    """Of the template's source; where there is one for conversations with tools, a zero byte and its source follow."""
    if tokenizer.template is None:
        return None
    tools = tokenizer.tool_template
    if tools is None:
        return tokenizer.template.sha256
    return hashlib.sha256(f"{tokenizer.template.source}\0{tools.source}".encode()).hexdigest()


def folder_tokenizer(folder: str, special: SpecialTokensConfig, given: FolderTokenizer) -> Tokenizer:
    """The tokenizer of a folder, from what was loaded of it.

    Raises:
        ConfigError: a special token is not in it.
    """
    content = (Path(folder) / TOKENIZER_FILE).read_bytes()
    tokenizer = parse_tokenizer(
        given.tokenizer,
        special,
        name=TOKENIZER_FILE,
        sha256=hashlib.sha256(content).hexdigest(),
        special_tokens=given.special_tokens,
    )
    templates = {name: _template(tokenizer, source) for name, source in given.templates}
    if "default" not in templates:
        return tokenizer
    return replace(tokenizer, template=templates["default"], tool_template=templates.get("tool_use"))


def with_template(tokenizer: Tokenizer, source: str) -> Tokenizer:
    """The tokenizer with another chat template than its own.

    Raises:
        ConfigError: it cannot use one.
    """
    if tokenizer.encode_marked is None:
        raise ConfigError(
            "chat_template: tekken writes Mistral's own form of a chat; set tokenizer to a Hugging Face folder or file"
        )
    return replace(tokenizer, template=_template(tokenizer, source), tool_template=None)


def _template(tokenizer: Tokenizer, source: str) -> ChatTemplate:
    tokens = tuple(sorted(tokenizer.token_ids))
    return ChatTemplate(source=source, special_tokens=tokenizer.special_tokens, tokens=tokens)


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_TEMPLATE:
            raise ConfigError(f"chat_template: {str(path)!r} has more than {MAX_TEMPLATE} bytes; give a Jinja file")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"chat_template: {str(path)!r} cannot be read ({error.strerror}); give a Jinja file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"chat_template: {str(path)!r} is not UTF-8 text; give a Jinja file") from None
