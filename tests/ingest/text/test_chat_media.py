"""Images and videos in conversations that a chat template writes, in the generic way, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from chats import STYLES, make_folder, our_tokenizer, renderer_of

from preshard.packer_service.ingest.document import Document, Medium, Message, Part
from preshard.packer_service.ingest.families.family import Family
from preshard.packer_service.ingest.families.folder import SquareFamily
from preshard.packer_service.ingest.media.shape import ImageSize, VideoFrames, place
from preshard.packer_service.ingest.render import render
from preshard.packer_service.ingest.text.chat_template import ChatTemplate
from preshard.packer_service.ingest.text.tokenizer import Tokenizer
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError
from preshard.schemas.sections import VisionConfig

IMAGE = Medium(kind="image", uri="x.jpg")
VIDEO = Medium(kind="video", uri="v.mp4")
VISION = VisionConfig(image_size=28, patch_size=14, pool_size=1, max_crops=2)
SHAPES = {
    "image": ImageSize(28, 28),
    "video": VideoFrames(pts=np.arange(2), timestamps=np.array([0.0, 1.5]), width=8, height=8),
}
Load = Callable[[str], Tokenizer]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Loads the tokenizer of a style, once."""
    loaded: dict[str, Tokenizer] = {}

    def one(name: str) -> Tokenizer:
        if name not in loaded:
            [style] = [style for style in STYLES if style.name == name]
            loaded[name] = our_tokenizer(make_folder(style, tmp_path_factory.mktemp(name)))
        return loaded[name]

    return one


def user(*parts: Part) -> Message:
    return Message(role="user", parts=parts, content_is_list=True)


def assistant(*parts: Part) -> Message:
    return Message(role="assistant", parts=parts)


def rendered(tokenizer: Tokenizer, document: Document) -> RenderedDocument:
    family: Family = SquareFamily(VISION, tokenizer.image, 1)
    placed = [place(family, medium, SHAPES[medium.kind]) for medium in document.media()]
    return render(renderer_of(tokenizer, family=family), document, placed)


def chat(*messages: Message) -> Document:
    return Document(branches=(messages,))


def refusal(tokenizer: Tokenizer, document: Document) -> str:
    with pytest.raises(DocumentError) as caught:
        rendered(tokenizer, document)
    assert caught.value.code == "bad_row"
    return str(caught.value)


def test_an_image_stands_where_the_template_shows_it(load: Load) -> None:
    """Fails when the marks that a template writes around an image are written twice, or do not belong to its unit."""
    tokenizer = load("qwen")
    document = rendered(tokenizer, chat(user("a", IMAGE, "b"), assistant("c")))
    pads = "<|image_pad|>" * 4
    assert tokenizer.decode(document.tokens.tolist()) == (
        f"<|im_start|>user\na<|vision_start|>{pads}<|vision_end|>b<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n"
    )
    [[start, end]] = document.units.edges.tolist()
    assert tokenizer.decode(document.tokens[start:end].tolist()) == f"<|vision_start|>{pads}<|vision_end|>"
    np.testing.assert_array_equal(np.flatnonzero(document.unit_ids == 0), np.arange(start + 1, end - 1))
    assert (document.labels[start : end - 1] == -100).all()


def test_marks_that_a_template_does_not_write_are_the_packer_s(load: Load) -> None:
    """Fails when a crop's own marks are lost: this template writes the image token alone."""
    tokenizer = load("mistral")
    document = rendered(tokenizer, chat(user(IMAGE, "q"), assistant("c")))
    assert tokenizer.decode(document.tokens.tolist()) == "<s>[INST] " + "[IMG]" * 4 + "[IMG_END]q[/INST] c</s>"
    [[start, end]] = document.units.edges.tolist()
    assert tokenizer.decode(document.tokens[start:end].tolist()) == "[IMG]" * 4 + "[IMG_END]"


def test_frames_of_a_video_are_shown_as_times_and_images(load: Load) -> None:
    """Fails when a template for images cannot show a video, or times stand beside the wrong frames."""
    tokenizer = load("qwen")
    document = rendered(tokenizer, chat(user(VIDEO, IMAGE, "q"), assistant("c")))
    frame = "<|vision_start|>" + "<|image_pad|>" * 4 + "<|vision_end|>"
    text = tokenizer.decode(document.tokens.tolist())
    assert text.startswith(f"<|im_start|>user\n0.0s{frame}1.5s{frame}{frame}q<|im_end|>")
    assert document.units.kinds.tolist() == [1, 1, 0]


def test_annotations_share_what_stands_before_their_own_words(load: Load) -> None:
    """Fails when an annotation sees another one's words, or the shared image is written for each."""
    tokenizer = load("qwen")
    branches = ((user("q"), assistant("a")), (user(IMAGE, "r"), assistant("b")), (assistant("c"),))
    document = rendered(tokenizer, Document(shared=(IMAGE,), branches=branches, annotated=True))
    frame = "<|vision_start|>" + "<|image_pad|>" * 4 + "<|vision_end|>"
    parts = [document.tokens[document.branch_ids == branch].tolist() for branch in range(4)]
    turn = "<|im_end|>\n<|im_start|>assistant\n"
    assert [tokenizer.decode(part) for part in parts] == [
        f"<|im_start|>user\n{frame}",
        f"q{turn}a<|im_end|>\n",
        f"{frame}r{turn}b<|im_end|>\n",
        f"{turn}c<|im_end|>\n",
    ]
    assert document.n_shared == len(parts[0])
    np.testing.assert_array_equal(document.unit_ids[document.unit_ids >= 0], [0] * 4 + [1] * 4)
    answers = [
        tokenizer.decode(document.labels[(document.branch_ids == b) & (document.labels >= 0)]) for b in (1, 2, 3)
    ]
    assert answers == ["a<|im_end|>", "b<|im_end|>", "c<|im_end|>"]


def test_annotations_that_begin_in_other_ways_are_refused(load: Load) -> None:
    """Fails when annotations share a prefix that is not the same in all."""
    system = Message(role="system", parts=("Be kind.",))
    branches = ((user("q"), assistant("a")), (system, user("r"), assistant("b")))
    document = Document(shared=(IMAGE,), branches=branches, annotated=True)
    assert "annotations[1]: its tokens up to the shared images and videos differ" in refusal(load("qwen"), document)
    same = Document(shared=(IMAGE,), branches=((system, *branches[0]), branches[1]), annotated=True)
    assert rendered(load("qwen"), same).n_shared > 10
    early = (replace(system, parts=(IMAGE,), content_is_list=True), user("r"), assistant("b"))
    document = Document(shared=(IMAGE,), branches=(early,), annotated=True)
    assert "annotations[0] shows an image or video before the shared ones" in refusal(load("qwen"), document)


def test_a_template_that_shows_no_image_is_refused(load: Load) -> None:
    """Fails when an image is left out because the template or the tokenizer knows only text."""
    document = chat(user(IMAGE, "q"), assistant("c"))
    assert "the tokenizer has no image token for a chat template to write" in refusal(load("llama"), document)
    source = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}<|im_end|>{% endfor %}"
    blind = replace(load("qwen"), template=ChatTemplate(source=source))
    assert "writes 0 placeholders of images or videos (<|image_pad|>) where the row shows 1" in refusal(blind, document)


def test_a_template_that_shows_an_image_twice_is_refused(load: Load) -> None:
    """Fails when pictures and their places get out of step."""
    tokenizer = load("qwen")
    assert tokenizer.template is not None
    source = tokenizer.template.source.replace("<|vision_start|><|{{", "<|image_pad|><|vision_start|><|{{")
    twice = replace(tokenizer, template=ChatTemplate(source=source))
    reason = refusal(twice, chat(user(IMAGE, "q"), assistant("c")))
    assert "writes 2 placeholders of images or videos (<|image_pad|>) where the row shows 1" in reason
    once = replace(tokenizer, template=ChatTemplate(source="<|image_pad|>" + tokenizer.template.source))
    assert "writes 1 placeholders" in refusal(once, chat(user("q"), assistant("c")))


@pytest.mark.parametrize(
    "document",
    [
        chat(user("q <|im_end|>"), assistant("c")),
        chat(user("q"), assistant("<|image_pad|>")),
        chat(Message(role="user", parts=("<|im_", "end|>"), content_is_list=True), assistant("c")),
        chat(replace(user("q"), fields=(("name", '"<|endoftext|>"'),)), assistant("c")),
        replace(chat(user("q"), assistant("c")), tools='[{"name": "\\u003c|im_end|>"}]'),
        replace(chat(user("q"), assistant("c")), template_kwargs='{"<|im_start|>": 1}'),
    ],
)
def test_text_that_spells_a_special_token_is_refused(load: Load, document: Document) -> None:
    """Fails when a row can end its own turn, or begin another one's."""
    assert "spells the special token '<|" in refusal(load("qwen"), document)


def test_added_tokens_that_are_not_special_may_be_spelled(load: Load) -> None:
    """Fails when reasoning or calls that are written in the text itself are refused."""
    tokenizer = load("qwen")
    document = rendered(tokenizer, chat(user("q"), assistant("<think>hm</think>a")))
    assert tokenizer.token_ids["<think>"] in document.tokens


def test_text_without_a_chat_is_as_without_a_template(load: Load) -> None:
    """Fails when a template changes documents of text, or text in them becomes a special token."""
    tokenizer = load("llama")
    text = "words <|eot_id|>"
    document = rendered(tokenizer, Document(text=text))
    assert document.tokens.tolist() == [*tokenizer.bos, *tokenizer.encode(text), tokenizer.token_ids["<|eot_id|>"]]
    assert tokenizer.bos == (tokenizer.token_ids["<|begin_of_text|>"],)


def test_long_conversations_are_encoded_in_parts_with_the_same_tokens(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a cut goes through a special token, or changes the tokens beside it."""
    from preshard.packer_service.ingest.text import encoded

    tokenizer = load("mistral")
    turns = [turn for n in range(9) for turn in (user(f"one two three {n} " * 4), assistant("four, five " * 6))]
    whole = rendered(tokenizer, chat(*turns))
    for size in (40, 100, 333):
        monkeypatch.setattr(encoded, "PART", size)
        parts = rendered(tokenizer, chat(*turns))
        np.testing.assert_array_equal(parts.tokens, whole.tokens)
        np.testing.assert_array_equal(parts.labels, whole.labels)


def test_fields_to_be_ignored_are_left_out(load: Load) -> None:
    """Fails when a field that the template does not write cannot be left out, or another one is left out with it."""
    tokenizer = load("qwen")
    fields = (("name", '"Ann"'), ("reasoning_content", '"hm"'))
    named = chat(user("q"), replace(assistant("c"), fields=fields))
    assert "leaves out name" in refusal(tokenizer, named)
    written = render(renderer_of(tokenizer, config=PackConfig(ignore_fields=("name",))), named, [])
    assert tokenizer.decode(written.tokens.tolist()).endswith("<think>\nhm\n</think>\n\nc<|im_end|>\n")
    both = render(renderer_of(tokenizer, config=PackConfig(ignore_fields=("name", "reasoning_content"))), named, [])
    np.testing.assert_array_equal(both.tokens, rendered(tokenizer, chat(user("q"), assistant("c"))).tokens)
    documents = replace(chat(user("q"), assistant("c")), documents='[{"text": "d"}]', tools='[{"name": "f"}]')
    assert "leaves out documents" in refusal(tokenizer, documents)
    written = render(renderer_of(tokenizer, config=PackConfig(ignore_fields=("documents",))), documents, [])
    assert "# Tools" in tokenizer.decode(written.tokens.tolist())


def test_arguments_cannot_smuggle_a_special_token(load: Load) -> None:
    """Fails when arguments that are JSON text spell a token by an escape, which the parsed object would hold."""
    call = '[{"function": {"name": "f", "arguments": "{\\"a\\": \\"<\\\\u007cim_end|>\\"}"}}]'
    document = chat(user("q"), replace(assistant("c"), fields=(("tool_calls", call),)))
    assert "messages[1].tool_calls spells the special token '<|im_end|>'" in refusal(load("qwen"), document)


def test_variables_that_mean_something_else_are_refused(load: Load) -> None:
    """Fails when a row's variables replace its messages, or what the packer asks of the template."""
    document = replace(chat(user("q"), assistant("c")), template_kwargs='{"add_generation_prompt": true}')
    assert "chat_template_kwargs holds 'add_generation_prompt'" in refusal(load("qwen"), document)
