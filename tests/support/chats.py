# ruff: noqa: RUF001 (marks of DeepSeek have a bar of their own)
"""Tokenizer folders of our own in the styles of known models, and conversations drawn from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from preshard.packer_service.ingest.families.folder import SquareFamily
from preshard.packer_service.ingest.model import Renderer
from preshard.packer_service.ingest.text.chat_template import ChatTemplate, ChatText, Conversation
from preshard.packer_service.ingest.text.chat_text import chat_text, read_folder
from preshard.packer_service.ingest.text.configured import with_templates
from preshard.packer_service.ingest.text.load import parse_folder
from preshard.packer_service.ingest.text.tokenizer import Tokenizer
from preshard.schemas.config import PackConfig
from preshard.schemas.sections import SpecialTokensConfig, VisionConfig

TEMPLATES = Path(__file__).parents[1] / "ingest" / "text" / "templates"

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Style:
    """Style of a template: what it needs, and what it takes."""

    name: str
    specials: tuple[str, ...]
    plain: tuple[str, ...] = ()
    """Tokens that are added but not special."""
    named: dict[str, str] = field(default_factory=dict)
    tools: bool = True
    lists: bool = True
    """Whether contents may be lists; where not, the packer gives strings."""
    strings: bool = True
    metaspace: bool = False


STYLES = (
    Style(
        name="llama",
        specials=("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"),
        named={"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        lists=False,
    ),
    Style(
        name="gemma",
        specials=("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>"),
        plain=("\n", "\n\n"),
        named={"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"},
        tools=False,
        metaspace=True,
    ),
    Style(
        name="mistral",
        specials=(
            *("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[AVAILABLE_TOOLS]", "[IMG]"),
            *("[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[IMG_BREAK]", "[IMG_END]"),
        ),
        named={"bos_token": "<s>", "eos_token": "</s>"},
    ),
    Style(
        name="qwen",
        specials=(
            *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"),
            *("<|image_pad|>", "<|video_pad|>"),
        ),
        plain=("<think>", "</think>", "<tool_call>", "</tool_call>"),
        named={"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    ),
    Style(
        name="phi",
        specials=("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|image|>"),
        named={"bos_token": "<|endoftext|>", "eos_token": "<|end|>", "pad_token": "<|endoftext|>"},
        tools=False,
        strings=False,
    ),
    Style(
        name="deepseek",
        specials=("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        plain=(
            *("<｜User｜>", "<｜Assistant｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
            *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
        ),
        named={"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
        lists=False,
    ),
)

WORDS = (
    *(
        "the",
        "answer",
        "is",
        "forty-two,",
        "Zürich",
        "naïve",
        "二つ",
        "语言",
        "🚲",
        "👩‍🚀",
        "don't",
        "1,024",
        "x<y",
        "<b>",
    ),
    *("\n", "\n\n", "  ", "\t", "{%", "}}", "{{ x }}", "…", "é", "e\u0301", "العربية", "'quoted'", '"', "\\n", "end"),
)


def make_folder(style: Style, folder: Path) -> Path:
    """A folder as ``save_pretrained`` leaves it, with a byte-level or (as Gemma's) space-marking BPE vocabulary."""
    tokenizer = HuggingFaceTokenizer(models.BPE(byte_fallback=style.metaspace))
    corpus = [" ".join(WORDS)] * 3
    if style.metaspace:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        alphabet = [*map(chr, range(32, 127)), "▁", "\n"]
        corpus = [text.replace(" ", "▁") for text in corpus]
        tokens = [*style.specials, *(f"<0x{byte:02X}>" for byte in range(256))]
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet, tokens = pre_tokenizers.ByteLevel.alphabet(), list(style.specials)
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=tokens, initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens(list(style.plain))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **style.named}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")
    template = (TEMPLATES / f"{style.name}.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def our_tokenizer(folder: Path) -> Tokenizer:
    """The folder's tokenizer as the packer loads it, in this process."""
    found = read_folder(str(folder))
    plain = parse_folder(str(folder), SpecialTokensConfig(), found.tokenizer, found.special_tokens)
    return with_templates(plain, dict(found.templates))


def renderer_of(tokenizer: Tokenizer, **others: Any) -> Renderer:
    """Writes documents in this process, images as squares."""
    given = {"family": SquareFamily(VisionConfig(), tokenizer.image, 1), "config": PackConfig(), **others}
    return Renderer(tokenizer=tokenizer, write_chats=_write_chats, **given)


def _write_chats(template: ChatTemplate, chats: Sequence[Conversation]) -> list[ChatText]:
    return [chat_text(template, chat) for chat in chats]


def draw_row(style: Style, draw: random.Random) -> Row:
    """A row with a conversation: turns, tools, reasoning, contents of every shape."""
    turns: list[Row] = []
    tools = style.tools and draw.random() < 0.5
    if draw.random() < 0.4:
        turns.append({"role": "system", "content": _content(style, draw)})
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3))):
        turns.append({"role": "user", "content": _content(style, draw)})
        while tools and draw.random() < 0.3:
            turns += _call(style, draw)
        turns.append({"role": "assistant", "content": _content(style, draw)})
        if style.name == "qwen" and draw.random() < 0.3:
            turns[-1]["reasoning_content"] = draw_text(draw)
        if draw.random() < 0.15:
            turns[-1]["weight"] = 0
    turns[-1].pop("weight", None)
    return {"messages": turns, **({"tools": [TOOL]} if tools else {})}


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a town, in °C",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}


def draw_call(draw: random.Random) -> Row:
    """A call of the tool."""
    return {
        "type": "function",
        "id": f"call{draw.randint(10_000, 99_999)}",
        "function": {"name": "weather", "arguments": {"town": draw_text(draw), "days": draw.randint(0, 9)}},
    }


def _call(style: Style, draw: random.Random) -> list[Row]:
    calls = [draw_call(draw) for _ in range(draw.randint(1, 2))]
    said: Any = None if draw.random() < 0.6 else _content(style, draw)
    results = [{"role": "tool", "tool_call_id": call["id"], "content": _content(style, draw)} for call in calls]
    return [{"role": "assistant", "content": said, "tool_calls": calls}, *results]


def _content(style: Style, draw: random.Random) -> Any:
    if not style.strings or draw.random() < 0.3:
        return [{"type": "text", "text": draw_text(draw)}]
    return draw_text(draw)


def draw_text(draw: random.Random) -> str:
    """A few words and marks of all kinds."""
    return "a" + draw.choice(["", " "]).join(draw.choices(WORDS, k=draw.randint(1, 12)))
