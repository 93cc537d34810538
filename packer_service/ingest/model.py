"""The model that a job packs for: the family of its model folder or squares, and the tokenizer that fits it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from preshard.packer_service.ingest.families.family import Family
from preshard.packer_service.ingest.families.folder import FolderFamily, SquareFamily, load_family
from preshard.packer_service.ingest.text.chat_template import ChatTemplate, ChatText, Conversation, spelled_by
from preshard.packer_service.ingest.text.chat_text import chat_texts
from preshard.packer_service.ingest.text.configured import configured_tokenizer
from preshard.packer_service.ingest.text.tokenizer import Tokenizer
from preshard.packer_service.plan.cost import CostModel
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import LayerMasks, ModelEntry, TokenizerEntry
from preshard.schemas.model.followed import check_positions, check_window, layer_masks
from preshard.schemas.worded import meant

WriteChats = Callable[[ChatTemplate, Sequence[Conversation]], list[ChatText]]
"""Renders conversations, as :func:`preshard.packer_service.ingest.text.chat_text.chat_texts` does in a process."""


@dataclass(frozen=True, kw_only=True)
class Renderer:
    """Renderer of documents: tokenizer, template and family.

    Attributes:
        tokenizer: encodes text, and has the marks and the chat template around it.
        family: what a model makes of images and videos.
        config: of the job; of it, ``bidirectional`` where the family leaves it open, ``annotation_weight``,
            ``ignore_fields`` and the columns of tokens.
        write_chats: renders conversations by the template.
    """

    tokenizer: Tokenizer
    family: Family
    config: PackConfig
    write_chats: WriteChats

    @property
    def is_generic(self) -> bool:
        """Whether images are squares with the tokenizer's own marks, for a model of one's own."""
        return self.family.model_type == "square"

    @cached_property
    def placeholders(self) -> tuple[str, ...]:
        """Placeholders that a chat template writes for an image or video; empty if it could write nothing."""
        if self.is_generic:
            names = {name for name, number in self.tokenizer.token_ids.items() if number == self.tokenizer.image.token}
        else:
            names = {self.family.placeholder("image"), self.family.placeholder("video")}
        return tuple(sorted(names - {""}))

    @cached_property
    def unspeakable(self) -> re.Pattern[str] | None:
        """Pattern of the text that nothing in a conversation may spell."""
        return spelled_by(
            [*{*self.tokenizer.specials}.difference(self.config.special_tokens.in_text), *self.placeholders]
        )


def configured_renderer(config: PackConfig) -> Renderer:
    """Writes the documents of a job.

    Raises:
        ConfigError: the model folder is of no family, or has settings that are not followed.
    """
    return _renderer(config, os.getcwd())  # noqa: PTH109 (a path takes longer, and this is asked for each document)


@lru_cache(maxsize=2)
def _renderer(config: PackConfig, working: str) -> Renderer:  # noqa: ARG001 (in which the model's path lies)
    tokenizer = configured_tokenizer(config)
    renderer = Renderer(tokenizer=tokenizer, family=_family(config, tokenizer), config=config, write_chats=chat_texts)
    for name in config.special_tokens.in_text:
        _check_may_be_spelled(name, renderer)
    return renderer


def _check_may_be_spelled(name: str, renderer: Renderer) -> None:
    """Raises ``ConfigError`` for what is no special token, or one with which a row would end its own turn."""
    tokenizer = renderer.tokenizer
    written = "" if tokenizer.template is None else tokenizer.template.source
    if name not in tokenizer.specials:
        reason = f"the tokenizer has no such special token{meant(name, sorted(tokenizer.specials))}"
    elif tokenizer.template is None:
        reason = "without a chat template no row spells a special token; give chat_template"
    elif name in written or name in renderer.placeholders or tokenizer.token_ids[name] == tokenizer.entry.eos_id:
        reason = "the chat template writes it, and a row must not; leave it out"
    else:
        return
    raise ConfigError(f"special_tokens.in_text: {name}: {reason}")


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedFor:
    """Entries of the manifest on the tokenizer and on the model, None without one."""

    tokenizer: TokenizerEntry
    model: ModelEntry | None

    @property
    def axes(self) -> int:
        """Axes of ``position_ids``."""
        return 1 if self.model is None else self.model.axes

    @property
    def layers(self) -> LayerMasks | None:
        """The model's layers, where some have a window that is shorter than packs."""
        return None if self.model is None else self.model.masks


def packed_for(config: PackConfig) -> PackedFor:
    """Finds the model and tokenizer of a job. Everything that its files say is checked here, before any row is read.

    Raises:
        ConfigError: a file of the tokenizer, the chat template or the model is missing, is not what it should be, or
            has a setting that is not followed; or the tokenizer lacks a token that the model needs.
    """
    if config.model is None:
        return PackedFor(tokenizer=configured_tokenizer(config).entry, model=None)
    # first: it says more than the tokenizer can of a folder that holds no model
    found = load_family(config.model, config.images.backend)
    check_window(found.hidden_window, config.seq_len, "model")
    check_positions(found.config, config.seq_len, "model")
    masks = layer_masks(found.config, config.seq_len, "model")
    tokenizer = configured_tokenizer(config)
    model, entry = _model_entry(found, tokenizer, masks), tokenizer.entry
    is_new = entry.image_id not in tokenizer.token_ids.values()  # an id after the vocabulary, which no model has
    fitting = {
        "image_id": model.row_ids[0] if model.row_ids else entry.pad_id,
        "vocab_size": entry.vocab_size - is_new,
    }
    return PackedFor(tokenizer=entry.model_copy(update=fitting), model=model)


def _model_entry(found: FolderFamily, tokenizer: Tokenizer, masks: LayerMasks | None) -> ModelEntry:
    family = found.family
    _check_tokens(found, tokenizer)
    return ModelEntry(
        model_type=family.model_type,
        files=found.sha256,
        axes=family.axes,
        merge=family.merge,
        row_ids=[tokenizer.token_id(token) for token in family.row_tokens],
        group_ids=[tokenizer.token_id(token) for token in family.group_tokens],
        settings=dict(family.settings),
        bidirectional=family.bidirectional or None,
        masks=masks,
    )


def _family(config: PackConfig, tokenizer: Tokenizer) -> Family:
    if config.model is not None:
        return load_family(config.model, config.images.backend).family
    return SquareFamily(config.vision, tokenizer.image, CostModel.of(config).vision_work_per_crop)


def _check_tokens(found: FolderFamily, tokenizer: Tokenizer) -> None:
    missing = [token for token in found.family.tokens if token not in tokenizer.token_ids]
    if missing:
        raise ConfigError(
            f"model: its tokenizer has no token {missing[0]!r}, which {found.family.model_type} writes around images; "
            "give the folder of one model, as it was published"
        )
