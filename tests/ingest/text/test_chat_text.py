"""Faults of chat templates, and what is not left to them: places of loss, dropped turns, dates, time, memory."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from preshard.packer_service.ingest.text import chat_render
from preshard.packer_service.ingest.text.chat_render import check_template, render_turns
from preshard.packer_service.ingest.text.chat_template import ChatTemplate, ChatText, Conversation
from preshard.packer_service.ingest.text.chat_text import chat_text, chat_texts
from preshard.packer_service.runtime.workers import Isolated, Limits
from preshard.schemas.errors import ConfigError, DocumentError

LOOP = "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<assistant>{% endif %}"
QUESTION = {"role": "user", "content": "q"}
CALL = {"type": "function", "function": {"name": "f", "arguments": {}}}


def answer(content: Any = "a", **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def conversation(*turns: dict[str, Any], without_loss: tuple[int, ...] = (), **others: Any) -> Conversation:
    weights = tuple(float(turn["role"] == "assistant" and i not in without_loss) for i, turn in enumerate(turns))
    return Conversation(turns=turns, weights=weights, **others)


def written(source: str, *turns: dict[str, Any], **others: Any) -> ChatText:
    return chat_text(ChatTemplate(source=source), conversation(*turns, **others))


def losses(text: ChatText) -> list[str]:
    return [text.text[start:end] for start, end, _ in text.loss]


def refusal(source: str, *turns: dict[str, Any], **others: Any) -> str:
    with pytest.raises(DocumentError) as caught:
        written(source, *turns, **others)
    assert caught.value.code == "bad_row"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_answer_is_what_comes_after_its_prompt() -> None:
    """Fails when the beginning of an answer's turn carries loss, or its end does not."""
    text = written(LOOP + PROMPT, QUESTION, answer(), QUESTION, answer("b"))
    assert text.text == "<user>q;<assistant>a;<user>q;<assistant>b;"
    assert losses(text) == ["a;", "b;"]
    assert not text.marked


def test_a_turn_with_weight_0_carries_no_loss() -> None:
    """Fails when a row cannot keep an answer out of the loss, with or without marks in the template."""
    turns = (QUESTION, answer(), QUESTION, answer("b"))
    assert losses(written(LOOP + PROMPT, *turns, without_loss=(1,))) == ["b;"]
    marked = "{% for m in messages %}[{% generation %}{{ m.content }}{% endgeneration %}]{% endfor %}"
    assert losses(written(marked, *turns)) == ["q", "a", "q", "b"]
    assert losses(written(marked, *turns, without_loss=(1,))) == ["q", "q", "b"]


def test_marks_in_a_comment_mark_nothing() -> None:
    """Fails when a template that only mentions the marks has no loss anywhere."""
    assert losses(written("{# no {% generation %} here #}" + LOOP + PROMPT, QUESTION, answer())) == ["a;"]


LATEST_THINKS = (
    "{%- set n = namespace(asked=0) %}{% for m in messages if m.role == 'user' %}{% set n.asked = n.asked + 1 %}"
    "{% endfor %}{% set n.seen = 0 %}{% for m in messages %}<{{ m.role }}>{% if m.role == 'user' %}"
    "{% set n.seen = n.seen + 1 %}{% endif %}{% if m.role == 'assistant' and n.seen == n.asked %}"
    "<think>{{ (m.thinking or '') | trim }}</think>{% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"
    "<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""Writes the reasoning of the turns after the last question alone, and an empty one where they have none."""


def test_turns_that_change_once_others_follow_have_their_places() -> None:
    """Fails when a template that leaves out the reasoning of earlier turns cannot be packed, or the place is wrong."""
    turns = (QUESTION, answer(thinking="x" * 50), QUESTION, answer("b", thinking="hm"))
    text = written(LATEST_THINKS, *turns)
    assert text.text == "<user>q<end><assistant>a<end><user>q<end><assistant><think>hm</think>b<end>"
    assert losses(text) == ["a<end>", "<think>hm</think>b<end>"]
    assert losses(written(LATEST_THINKS, *turns, without_loss=(3,))) == ["a<end>"]
    last = "{% for m in messages %}<{{ m.role }}>{% if loop.last %}(hm){% endif %}{{ m.content }};{% endfor %}" + PROMPT
    assert losses(written(last, QUESTION, answer(), QUESTION, answer("b"))) == ["a;", "(hm)b;"]


def test_calls_without_content_have_their_places() -> None:
    """Fails when a turn is found by its content alone: a call has none, and its reasoning is left out of the text."""
    calls = {"role": "assistant", "thinking": "hm", "tool_calls": [CALL, CALL]}
    result = {"role": "tool", "content": "f says 7"}
    text = written(LATEST_THINKS, QUESTION, calls, result, answer("f!"), QUESTION, calls, result, answer("7"))
    both = "<call>f {}<call>f {}<end>"
    assert losses(text) == [both, "f!<end>", f"<think>hm</think>{both}", "<think></think>7<end>"]


def test_what_a_prompt_opens_and_a_turn_leaves_out_is_no_part_of_it() -> None:
    """Fails when a prompt that opens the reasoning hides earlier answers, which begin without it."""
    opens = LATEST_THINKS.replace("<assistant>{% endif %}", "<assistant><think>{% endif %}")
    turns = (QUESTION, answer("<thorn>", thinking="x"), QUESTION, answer("b", thinking="hm"))
    given = conversation(*turns)
    text = chat_text(ChatTemplate(source=opens, tokens=("<assistant>", "<end>", "<think>", "</think>")), given)
    assert losses(text) == ["<thorn><end>", "hm</think>b<end>"]
    # a turn that begins in another way than its prompt has no place that is known
    assert "turn 2: " in refusal(LOOP + "{% if add_generation_prompt %}<robot>{% endif %}", QUESTION, answer())


def test_a_turn_that_ends_in_another_way_at_the_end_has_its_place() -> None:
    """Fails when the token that ends the last turn alone is looked for behind each, or a token is cut."""
    returns = (
        "{% for m in messages %}<start>{{ m.role }}:{{ m.content }}"
        "{{ '<e-return>' if loop.last and m.role == 'assistant' and not add_generation_prompt else '<e-nd>' }}"
        "{% endfor %}{% if add_generation_prompt %}<start>assistant:{% endif %}"
    )
    tokens = ("<start>", "<e-return>", "<e-nd>")
    given = conversation(QUESTION, answer(), QUESTION, answer("b"))
    text = chat_text(ChatTemplate(source=returns, tokens=tokens), given)
    assert losses(text) == ["a<e-nd>", "b<e-return>"]
    closes = LOOP + "{{ '<|assistant|>' if add_generation_prompt else '<|endoftext|>' }}"
    closes = closes.replace("<{{ m.role }}>", "<|{{ m.role }}|>")
    given = conversation(QUESTION, answer(), QUESTION, answer("b"))
    tokens = ("<|assistant|>", "<|user|>", "<|endoftext|>")
    assert losses(chat_text(ChatTemplate(source=closes, tokens=tokens), given)) == ["a;", "b;<|endoftext|>"]


@pytest.mark.parametrize(
    "shown",
    [
        "m.content | trim",
        "m.content if m.content.endswith('q') else m.content | upper",
        "m.content.split('|')[-1]",
        "m.content[:9] ~ m.content[9:]",
        "m.content[0] ~ m.content[1:] | lower",
        "m.content | tojson",
    ],
)
def test_templates_that_look_at_contents_keep_their_text(shown: str) -> None:
    """Fails when a mark that shows where a field went changes the text, or an answer is not found for it."""
    source = LATEST_THINKS.replace("m.content or ''", shown)
    turns = (QUESTION, answer(" a|a "), {"role": "user", "content": "?|q"}, answer("b"))
    text = written(source, *turns)
    plain = render_turns(ChatTemplate(source=source), conversation(*turns), turns).text
    assert text.text == plain
    [first, second] = losses(text)
    assert first.endswith("<end>")
    assert "<" not in first.removesuffix("<end>")
    assert second.startswith("<think></think>")
    assert plain.endswith(f"<assistant>{second}")
    assert f"<assistant>{first}<user>" in plain


def test_a_place_that_marks_cannot_show_is_refused() -> None:
    """Fails when the place of an answer is guessed: this template writes how long the marked contents are."""
    counts = LATEST_THINKS.replace("m.content or ''", "m.content ~ (m.content | length)")
    reason = refusal(counts, QUESTION, answer(), QUESTION, answer("b"))
    assert "turn 2: the chat template writes it differently once later turns follow" in reason
    assert "{% generation %}" in reason


def test_an_answer_at_the_start_has_its_place_too() -> None:
    """Fails when a conversation that an assistant begins gets no loss, or more than its answer."""
    assert losses(written(LOOP + PROMPT, answer(), QUESTION, answer("b"))) == ["a;", "b;"]
    needs_a_turn = "{{ messages[0].role.upper() }}" + LOOP + PROMPT
    assert "cannot write it" in refusal(needs_a_turn, answer())


def test_a_template_that_refuses_says_why() -> None:
    """Fails when a template's own words do not reach the user, or end in a traceback."""
    source = LOOP + "{% if messages|length > 1 %}{{ raise_exception('roles\n must   alternate') }}{% endif %}"
    assert refusal(source, QUESTION, answer()) == "the chat template cannot write it: roles must alternate"
    assert "UndefinedError" in refusal("{{ nothing.at.all }}", QUESTION, answer())
    assert "recursion" in refusal("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", QUESTION, answer())


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['__builtins__']['open']('/etc/hostname').read() }}",
        "{{ namespace(_x=1) }}",
        "{% include '/etc/hostname' %}",
        "{% import 'os' as os %}",
    ],
)
def test_a_template_stays_in_its_sandbox(source: str) -> None:
    """Fails when a template can reach Python, or files."""
    assert "cannot write it" in refusal(source, QUESTION, answer())


def test_turns_that_a_template_drops_are_refused() -> None:
    """Fails when a system's words, a tool's result or a call vanish from training without a word."""
    only_chat = "{% for m in messages if m.role in ('user', 'assistant') %}<{{ m.role }}>{{ m.content }};{% endfor %}"
    system = {"role": "system", "content": "Be kind."}
    assert "turn 1: the chat template leaves out the system's turn" in refusal(
        only_chat + PROMPT, system, QUESTION, answer()
    )
    called = (QUESTION, answer("", tool_calls=[CALL]), {"role": "tool", "content": "42"}, answer())
    assert "turn 2: the chat template leaves out tool_calls" in refusal(LOOP + PROMPT, *called)
    assert "turn 3: the chat template leaves out the tool's turn" in refusal(
        only_chat.replace("{{ m.content }}", "{{ m.content }}{{ m.tool_calls }}") + PROMPT, *called
    )


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking", "name"])
def test_fields_that_a_template_does_not_know_are_refused(field: str) -> None:
    """Fails when a field of a message vanishes from training without a word, even where its text stands elsewhere."""
    turns = (QUESTION, answer("hm"), QUESTION, answer("b", **{field: "hm"}), QUESTION, answer())
    reason = refusal(LOOP + PROMPT, *turns)
    assert f"turn 4: the chat template leaves out {field}; " in reason
    assert f"or say that it is meant by ignore_fields=[{field}]" in reason
    read = "name" if field == "name" else "reasoning_content"  # transformers gives all reasoning this name, too
    shown = LOOP.replace("{{ m.content }}", f"{{{{ m.{read} or '' }}}}{{{{ m.content }}}}") + PROMPT
    assert losses(written(shown, *turns)) == ["hm;", "hmb;", "a;"]


def test_reasoning_that_a_template_drops_of_earlier_turns_is_not_left_out() -> None:
    """Fails when a template that writes reasoning in the last turn alone is taken for one that knows none."""
    turns = (QUESTION, answer(thinking="one"), QUESTION, answer("b"))
    assert losses(written(LATEST_THINKS, *turns)) == ["a<end>", "<think></think>b<end>"]
    turns = (QUESTION, answer(thinking="one", reasoning="two"), QUESTION, answer("b"))
    assert "turn 2: the chat template leaves out reasoning" in refusal(LATEST_THINKS, *turns)


@pytest.mark.parametrize("name", ["tools", "documents"])
def test_tools_and_documents_that_a_template_does_not_know_are_refused(name: str) -> None:
    """Fails when a row's tools or documents vanish from training without a word."""
    given = {name: '[{"name": "f", "title": "f", "text": "f"}]'}
    reason = refusal(LOOP + PROMPT, QUESTION, answer(), **given)
    assert f"the chat template leaves out {name}; " in reason
    assert f"ignore_fields=[{name}]" in reason
    assert losses(written(f"{{{{ {name} | tojson }}}}" + LOOP + PROMPT, QUESTION, answer(), **given)) == ["a;"]


CALLS = "{% for c in m.tool_calls or [] %}[{{ ARGUMENTS }}]{% endfor %};"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("c.function.arguments | tojson", '{"town": "Zürich"}'),
        ("c.function.arguments.items() | list | length", "1"),
        ("c.function.arguments", '{"town": "Zürich"}'),
        ("'' + c.function.arguments", '{"town": "Zürich"}'),
        ("c.function.arguments if c.function.arguments is string else 'object'", '{"town": "Zürich"}'),
    ],
)
def test_arguments_have_the_shape_that_the_template_takes(shown: str, expected: str) -> None:
    """Fails when arguments that are JSON text are escaped once more, or an object is printed as Python does."""
    source = LOOP.replace(";", CALLS.replace("ARGUMENTS", shown)) + PROMPT
    for arguments in ({"town": "Zürich"}, '{"town": "Zürich"}'):
        calls = [{"type": "function", "function": {"name": "f", "arguments": arguments}}]
        if "is string" in shown and isinstance(arguments, dict):
            continue  # such a template takes both as they are
        [text] = losses(written(source, QUESTION, answer("", tool_calls=calls)))
        assert text == f"[{expected}];"


def test_arguments_that_are_no_object_are_refused() -> None:
    """Fails when text that is not the JSON of an object reaches a template as one more string."""
    source = LOOP.replace(";", CALLS.replace("ARGUMENTS", "c.function.arguments | tojson")) + PROMPT
    for text in ("town=Bern", "[1]", "{"):
        calls = [{"function": {"name": "f", "arguments": text}}]
        reason = refusal(source, QUESTION, answer("", tool_calls=calls))
        assert f"turn 2: arguments of tool_calls are {text!r}, and the chat template takes an object" in reason
    calls = [{"function": {"name": "f", "arguments": ""}}]
    assert losses(written(source, QUESTION, answer("", tool_calls=calls))) == ["[{}];"]


def test_stripped_words_are_not_dropped_ones() -> None:
    """Fails when a template that trims contents is refused."""
    assert losses(written(LOOP.replace("m.content", "m.content | trim") + PROMPT, QUESTION, answer("  a\n"))) == ["a;"]


def test_contents_have_the_shape_that_the_template_takes() -> None:
    """Fails when a list is written as Python prints it, or a string letter by letter."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    lists = (
        "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}|{% endfor %};{% endfor %}" + PROMPT
    )
    assert losses(written(LOOP + PROMPT, QUESTION, answer(parts))) == ["ab;"]
    assert losses(written(lists, QUESTION, answer("ab"))) == ["ab|;"]
    assert losses(written(lists, QUESTION, answer(parts))) == ["a|b|;"]


def test_null_content_is_no_content() -> None:
    """Fails when a template writes "None" beside tool calls."""
    source = (
        LOOP.replace("{{ m.content }}", "{{ m.content or '' }}{{ m.tool_calls | tojson if m.tool_calls }}") + PROMPT
    )
    text = written(source, QUESTION, {"role": "assistant", "tool_calls": [CALL]})
    assert losses(text) == ['[{"type": "function", "function": {"name": "f", "arguments": {}}}];']


def test_tools_documents_and_variables_reach_the_template() -> None:
    """Fails when a row's tools, documents or own variables are not given through."""
    source = "{{ tools[0].name }} {{ documents[0].title }} {{ mood }} {{ bos_token }}\n" + LOOP + PROMPT
    template = ChatTemplate(source=source, special_tokens='{"bos_token": "<s>"}')
    given = conversation(
        QUESTION,
        answer(),
        tools='[{"name": "f"}]',
        documents='[{"title": "t", "text": "x"}]',
        variables='{"mood": "glad"}',
    )
    assert chat_text(template, given).text.startswith("f t glad <s>\n<user>")


def test_the_date_of_the_day_is_not_written() -> None:
    """Fails when the same job gives other tokens tomorrow."""
    source = (
        "\n{% if not date is defined %}{% set date = strftime_now('%d %b %Y') %}{% endif %}{{ date }}" + LOOP + PROMPT
    )
    assert "give the date in chat_template_kwargs" in refusal(source, QUESTION, answer())
    text = written(source, QUESTION, answer(), variables='{"date": "01 Jan 2026"}')
    assert text.text == "\n01 Jan 2026<user>q;<assistant>a;"


def test_a_huge_text_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a template's output is encoded whatever its length."""
    monkeypatch.setattr(chat_render, "MAX_CHARACTERS", 1000)
    with pytest.raises(DocumentError, match="writes 1001 characters, more than the limit of 1000") as caught:
        written("{{ 'a' * 1001 }}", QUESTION, answer())
    assert caught.value.code == "too_long"


def test_a_file_that_is_no_template_is_named_at_once() -> None:
    """Fails when a mistake in a template is found by the first row, or its line is wrong."""
    with pytest.raises(ConfigError, match=r"chat_template: line 2: Expected an expression"):
        check_template(ChatTemplate(source="fine\n{% for %}"))
    with pytest.raises(ConfigError, match="chat_template: line 3"):
        check_template(ChatTemplate(source="{{ strftime_now('%d') }}\nfine\n{% for %}"))
    check_template(ChatTemplate(source="{{ raise_exception('only when it runs') }}"))


@pytest.mark.process
def test_a_template_that_never_ends_is_a_rejected_document() -> None:
    """Fails when a template can stop a job, or the next document finds no process."""
    process = Isolated(Limits(cpu_seconds=1, tries=1))
    endless = ChatTemplate(source="{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
    try:
        with pytest.raises(DocumentError, match=r"the chat template hung \(no result in 1 s") as caught:
            chat_texts(endless, [conversation(QUESTION, answer())], process)
        assert caught.value.code == "bad_row"
        hungry = ChatTemplate(source="{{ ('a' * 2 ** 30) | length }}")
        with (
            closing(Isolated(Limits(tries=1))) as once,
            pytest.raises(DocumentError, match="the chat template needs more than its 512 MiB of memory"),
        ):
            chat_texts(hungry, [conversation(QUESTION, answer())], once)
        [text] = chat_texts(ChatTemplate(source=LOOP + PROMPT), [conversation(QUESTION, answer())], process)
        assert losses(text) == ["a;"]
    finally:
        process.close()
