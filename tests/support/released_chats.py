"""Chat templates of released models, as the package ``trl`` carries them, and conversations to compare them with.

``trl`` has for many templates a second one for training, with ``{% generation %}`` around what an assistant writes. It
is the judge of what carries loss. Four differences are meant and are counted apart:

* its marks may begin with something that the generation prompt writes, which a model is never asked for;
* it may write the reasoning of earlier turns, which the template of the model leaves out;
* it may end a turn of GLM with the header of the next one, which the template of the model does not write at the end;
* it leaves out a space that LLaVA-NeXT's writes behind each answer.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from chats import TOOL, Row, Style, draw_call, draw_text, make_folder, our_tokenizer, renderer_of

from preshard.packer_service.ingest.render import render
from preshard.packer_service.ingest.source.rows import parse_row
from preshard.packer_service.ingest.text.configured import with_template
from preshard.packer_service.ingest.text.tokenizer import Tokenizer
from preshard.schemas.errors import DocumentError
from preshard.schemas.sequence import IGNORE_INDEX

LISTS = ("idefics3", "llava_next", "smolvlm")
"""Templates that take contents as lists alone."""
WITHOUT_TOOLS = ("deepseekv3",)
"""Templates that write calls, with arguments that are JSON text, and no tools."""
LEFT_OUT = {
    # after a tool's result its prompt for an answer has no header, and its text has one
    "diffusion_gemma": ("tools", "parallel", "thinking_tools"),
}
BY_HAND = {
    "trl/chat_templates/llama3_1": "<|eot_id|>",
    "trl/chat_templates/llama3_2": "<|eot_id|>",
    "trl/chat_templates/gemma4_v5": "<turn|>\n",
    "axolotl/utils/chat_templates/templates/llama4": "<|eot|>",
    "axolotl/utils/chat_templates/templates/mistral_v3_tekken": "</s>",
    "axolotl/utils/chat_templates/templates/mistral_v7_tekken": "</s>",
}
"""Templates that ``trl`` has none for training of, with what ends an answer: it and the content carry loss."""
KINDS = ("plain", "turns", "system", "tools", "parallel", "thinking", "thinking_tools")
TOKEN = re.compile(  # what templates spell as tokens
    r"<\|[\w:/]+\|?>|<[\w:/]+\|>|<｜[^｜]+｜>|\[/?[A-Z_]+\]|<(?:start|end)_of_\w+>|</?(?:think|tool_call)>|</s>"  # noqa: RUF001
)
PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>")
REASONING = re.compile(r"\s*<think>.*?</think>\s*|<\|channel>thought\n.*?<channel\|>", re.DOTALL)
OPENED = re.compile(r"(?:<think>\n)?")
NEXT_HEADER = re.compile(r"<\|(?:user|observation)\|>\Z")


def in_package(path: str) -> Path | None:
    """A file or folder of an installed package, which is not imported; None if it is not installed."""
    package, _, inside = path.partition("/")
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / inside


def pairs() -> dict[str, tuple[str, str]]:
    """Templates by name, each with the one for training."""
    folder = in_package("trl/chat_templates")
    assert folder is not None
    found = {}
    for path in sorted(folder.glob("*_training.jinja")):
        name = path.stem.removesuffix("_training")
        found[name] = (_dated(folder / f"{name}.jinja"), _dated(path))
    return found


def by_hand() -> dict[str, tuple[str, str]]:
    """Templates by name, each with what ends an answer; those of packages that are installed."""
    files = {Path(name).name: (in_package(f"{name}.jinja"), end) for name, end in BY_HAND.items()}
    return {name: (_dated(path), end) for name, (path, end) in files.items() if path is not None}


def _dated(path: Path) -> str:
    """A template with a date of its own, as its users have to give it one."""
    return re.sub(r"strftime_now\([^)]*\)", "'2026-01-01'", path.read_text(encoding="utf-8"))


def tokenizer_folder(sources: Sequence[str], folder: Path) -> Path:
    """A folder whose tokenizer has every token that any of the templates spells."""
    spelled = {token for source in sources for token in TOKEN.findall(source)}
    specials = ("<s>", *sorted(spelled - {*PLAIN}))
    style = Style(name="qwen", specials=specials, plain=PLAIN, named={"bos_token": "<s>", "eos_token": "</s>"})
    return make_folder(style, folder)


def draw(kind: str, number: int, name: str) -> Row:
    """A row of a kind; ``name`` is that of the template, since gpt-oss calls reasoning otherwise."""
    chance = random.Random(f"{kind} {number}")
    field = "thinking" if name == "gptoss" else "reasoning_content"

    def answer(**others: Any) -> Row:
        thinks = {field: draw_text(chance)} if kind.startswith("thinking") else {}
        return {"role": "assistant", "content": draw_text(chance), **thinks, **others}

    turns: list[Row] = [{"role": "system", "content": draw_text(chance)}] if kind == "system" else []
    calls_tools = kind in ("tools", "parallel", "thinking_tools")
    for _ in range(1 if kind == "plain" else chance.randint(1, 3) if calls_tools else chance.randint(2, 4)):
        turns.append({"role": "user", "content": draw_text(chance)})
        if calls_tools:
            for _ in range(chance.randint(1, 2)):
                calls = [draw_call(chance) for _ in range(2 if kind == "parallel" else 1)]
                turns.append(answer(tool_calls=calls, content=""))
                turns += [{"role": "tool", "tool_call_id": c["id"], "content": draw_text(chance)} for c in calls]
        turns.append(answer())
    if name in LISTS:
        turns = [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in turns]
    return {"messages": turns, **({"tools": [TOOL]} if calls_tools and name not in WITHOUT_TOOLS else {})}


def _with_arguments_as_text(row: Row) -> Row:
    """A row as ``transformers`` has to be given it for a template that joins arguments to text."""
    turns = copy.deepcopy(row["messages"])
    for call in (call for turn in turns for call in turn.get("tool_calls", ())):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return {**row, "messages": turns}


class Judge:
    """Compares conversations with ``transformers`` and ``trl``."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        self.pairs, self.by_hand = pairs(), by_hand()
        tokenizer_folder([source for source, _ in (*self.pairs.values(), *self.by_hand.values())], folder)
        self.oracle: Any = AutoTokenizer.from_pretrained(folder)
        self.tokenizer: Tokenizer = replace(our_tokenizer(folder), template=None)

    def compare(self, name: str, n: int) -> Counter[str]:
        """Counts the results of ``n`` conversations of each kind, by name and kind.

        Raises:
            AssertionError: a text differs from ``apply_chat_template``, or what carries loss from what ``trl`` marks.
        """
        found: Counter[str] = Counter()
        for kind in KINDS:
            for number in range(0 if kind in LEFT_OUT.get(name, ()) else n):
                found.update(self._one(name, kind, draw(kind, number, name)))
        return found

    def count_by_hand(self, name: str, n: int) -> Counter[str]:
        """The same of a template without one for training: its answers and what ends them carry loss.

        Raises:
            AssertionError: as in :meth:`compare`.
        """
        source, end = self.by_hand[name]
        renderer = renderer_of(with_template(self.tokenizer, source))
        found: Counter[str] = Counter()
        asked = [(kind, draw(kind, number, name)) for kind in ("plain", "turns", "system") for number in range(n)]
        for kind, row in asked:
            try:
                rendered = render(renderer, parse_row(row), [])
            except DocumentError as error:
                if kind != "system" or "leaves out the system's turn" not in str(error):
                    raise
                found.update([f"refused {kind}"])
                continue
            assert rendered.tokens.tolist() == self._applied(source, row), f"{name}: other tokens"
            own = [text.strip(" ") for text in self._answers(rendered)]
            contents = [turn["content"] for turn in row["messages"] if turn["role"] == "assistant"]
            assert own in ([text + end for text in contents], [text.strip() + end for text in contents]), name
            found.update(["compared", *["equal"] * len(own)])
        return found

    def _one(self, name: str, kind: str, row: Row) -> Iterator[str]:
        source, training = self.pairs[name]
        renderer = renderer_of(with_template(self.tokenizer, source))
        try:
            rendered = render(renderer, parse_row(row), [])
        except DocumentError as error:
            # DeepSeek's begins later calls without the header of an answer
            broken = name in WITHOUT_TOOLS and "not as it asks for an answer" in str(error)
            if not ("cannot write it" in str(error) or "leaves out" in str(error) or broken):
                raise
            yield f"refused {kind}"
            return
        mine, theirs = self._answers(rendered), self._marked(training, row)
        if name in WITHOUT_TOOLS:
            row = _with_arguments_as_text(row)
        ids = self._applied(source, row)
        assert rendered.tokens.tolist() == ids, f"{name}, {kind}: other tokens"
        yield "compared"
        assert len(mine) == len(theirs) == sum(turn["role"] == "assistant" for turn in row["messages"])
        prompts = [
            self._applied(source, {**row, "messages": row["messages"][:i]}, prompt=True, tokenize=False)
            for i, turn in enumerate(row["messages"])
            if turn["role"] == "assistant"
        ]
        whole = self._applied(source, row, tokenize=False)
        for own, marked, prompt in zip(mine, theirs, prompts, strict=True):
            yield _relation(own, marked, prompt, whole, f"{name}, {kind}")

    def _applied(self, source: str, row: Row, *, prompt: bool = False, tokenize: bool = True) -> Any:
        return self.oracle.apply_chat_template(
            row["messages"],
            tools=row.get("tools"),
            chat_template=source,
            add_generation_prompt=prompt,
            tokenize=tokenize,
            return_dict=False,
        )

    def _answers(self, rendered: Any) -> list[str]:
        """The texts that carry loss, one for each run of labels."""
        has = np.concatenate([[False], rendered.labels != IGNORE_INDEX])
        edges = np.flatnonzero(np.diff(has.astype(int)))
        return [
            self.tokenizer.decode(rendered.labels[start:end].tolist())
            for start, end in zip(edges[::2], edges[1::2], strict=True)
        ]

    def _marked(self, training: str, row: Row) -> list[str]:
        """The texts that the template for training marks."""
        from transformers.utils.chat_template_utils import render_jinja_template

        [text], [spans] = render_jinja_template(
            conversations=[row["messages"]],
            tools=row.get("tools"),
            chat_template=training,
            return_assistant_tokens_mask=True,
            **self.oracle.special_tokens_map,
        )
        joined: list[list[int]] = []
        for start, end in spans:
            if joined and joined[-1][1] == start:
                joined[-1][1] = end
            elif start < end:
                joined.append([start, end])
        return [text[start:end] for start, end in joined]


def _relation(own: str, marked: str, prompt: str, whole: str, where: str) -> str:
    """Relation of what carries loss in a turn to what ``trl`` marks of it."""
    if own == marked:
        return "equal"
    if own == NEXT_HEADER.sub("", marked):
        return "without the next header"
    if own == marked + " ":
        return "with the space behind"
    assert marked.endswith(own), f"{where}: {own!r} carries loss, marked is {marked!r}"
    before = marked.removesuffix(own)
    if marked in whole:
        opened = prompt.rpartition(before)[2]  # what a prompt opens and the turn does not have
        assert OPENED.fullmatch(opened), f"{where}: {before!r} carries no loss, but the prompt is {prompt[-50:]!r}"
        return "without the prompt"
    assert REASONING.fullmatch(before), f"{where}: {before!r} carries no loss"
    return "without reasoning"
