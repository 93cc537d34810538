"""The tokenizer that a configuration names, with its chat template."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from preshard.packer_service.ingest.text.chat_template import ChatTemplate
from preshard.packer_service.ingest.text.chat_text import check_in_process, load_folder
from preshard.packer_service.ingest.text.load import load_tokenizer, parse_folder
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
    return _load(config.model, config.tokenizer, config.chat_template, config.special_tokens, Path.cwd())


@lru_cache(maxsize=2)
def _load(
    model: str | None,
    tokenizer: str,
    template: str | None,
    special: SpecialTokensConfig,
    working: Path,  # noqa: ARG001 (in which relative paths lie)
) -> Tokenizer:
    folder = tokenizer if model is None else model
    own = dict[str, str]()
    if folder != TEKKEN and Path(folder).is_dir():
        given = load_folder(folder)
        loaded, own = parse_folder(folder, special, given.tokenizer, given.special_tokens), dict(given.templates)
    else:
        loaded = load_tokenizer(tokenizer, special)
    found = with_templates(loaded, own) if template is None else with_template(loaded, _read(Path(template)))
    for one in {found.template, found.tool_template} - {None}:
        assert one is not None
        check_in_process(one)
    return found


def with_templates(tokenizer: Tokenizer, sources: Mapping[str, str]) -> Tokenizer:
    """The tokenizer with the chat templates of its folder, by name.

    Its entry has the hash of the template's source; where there is one for conversations with tools, a zero byte and
    its source follow.
    """
    if "default" not in sources:
        return tokenizer
    templates = {name: _template(tokenizer, source) for name, source in sources.items()}
    template, tools = templates["default"], templates.get("tool_use")
    sha256 = template.sha256
    if tools is not None:
        sha256 = hashlib.sha256(f"{template.source}\0{tools.source}".encode()).hexdigest()
    entry = tokenizer.entry.model_copy(update={"chat_template_sha256": sha256})
    return replace(tokenizer, template=template, tool_template=tools, entry=entry)


def with_template(tokenizer: Tokenizer, source: str) -> Tokenizer:
    """The tokenizer with another chat template than its own.

    Raises:
        ConfigError: it cannot use one.
    """
    if tokenizer.encode_marked is None:
        raise ConfigError(
            "chat_template: tekken writes Mistral's own form of a chat; set tokenizer to a Hugging Face folder or file"
        )
    return with_templates(tokenizer, {"default": source})


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
