"""Hand-made documents with their arrays written out: labels, positions, branches and units."""

from __future__ import annotations

import numpy as np
import pytest
from chats import renderer_of

from preshard.packer_service.ingest.document import Document, Medium, Message
from preshard.packer_service.ingest.families.folder import SquareFamily
from preshard.packer_service.ingest.media.shape import ImageSize, PlacedMedium, VideoFrames, place
from preshard.packer_service.ingest.render import render
from preshard.packer_service.ingest.text.tokenizer import ChatFormat, ImageFormat, Tokenizer
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError
from preshard.schemas.manifest import TokenizerEntry
from preshard.schemas.sections import VisionConfig

BOS, EOS, PAD, IMG, BREAK, END, USER, SLASH = 1, 2, 0, 10, 12, 13, 3, 4
X = -100  # no label


def letters(text: str) -> list[int]:
    """One token for each letter: its code."""
    return [ord(letter) for letter in text]


class TwoRows(VisionConfig):
    """Two image tokens for each crop, and as many tiles as are as wide as one."""

    @property
    def pooled_per_crop(self) -> int:
        return 2


TOKENIZER = Tokenizer(
    entry=TokenizerEntry(
        name="letters",
        sha256="",
        vocab_size=128,
        bos_id=BOS,
        eos_id=EOS,
        pad_id=PAD,
        image_id=IMG,
        chat_template_sha256=None,
    ),
    chat=ChatFormat(
        before={"system": (), "user": (USER,), "assistant": ()},
        end={"system": (), "user": (SLASH,), "assistant": (EOS,)},
        after={"system": (), "user": (), "assistant": ()},
    ),
    image=ImageFormat(begin=(), token=IMG, separator=(BREAK,), end=(END,)),
    encode=lambda text: np.array(letters(text), np.int32),
    decode=lambda ids: "".join(map(chr, ids)),
)
A, B, C, D, Q, R = letters("abcdqr")
CALLS = (("tool_calls", "[]"),)
IMAGE = Medium(kind="image", uri="x")
VIDEO = Medium(kind="video", uri="v")


FAMILY = SquareFamily(TwoRows(image_size=14, max_crops=9), TOKENIZER.image, 1)


def crops(n: int) -> ImageSize:
    """A size that is cut into ``n`` crops, the thumbnail among them."""
    return ImageSize(14 * max(n - 1, 1), 14)


def frames(*timestamps: float) -> VideoFrames:
    return VideoFrames(pts=np.arange(len(timestamps)), timestamps=np.array(timestamps), width=8, height=8)


def turns(question: object, answer: str) -> tuple[Message, ...]:
    parts = question if isinstance(question, tuple) else (question,)
    return Message(role="user", parts=parts), Message(role="assistant", parts=(answer,))


def placed(*shapes: ImageSize | VideoFrames) -> list[PlacedMedium]:
    return [place(FAMILY, IMAGE if isinstance(shape, ImageSize) else VIDEO, shape) for shape in shapes]


def rendered(document: Document, *shapes: ImageSize | VideoFrames, weight: str = "none") -> RenderedDocument:
    return render(
        renderer_of(TOKENIZER, family=FAMILY, config=PackConfig(annotation_weight=weight)), document, placed(*shapes)
    )


TEXT = rendered(Document(text="ab"))
CHAT = rendered(
    Document(
        branches=((*turns((IMAGE, "q"), "ab"), *turns("r", "c")),),
    ),
    crops(1),
)
FRAMES = frames(0.0, 0.5)
TREE = rendered(
    Document(shared=(VIDEO,), branches=(turns("q", "ab"), turns("r", "c")), annotated=True),
    FRAMES,
    weight="sqrt",
)


def test_text_has_loss_on_every_token_but_none_on_its_last() -> None:
    """Fails when labels are not shifted, or the last token of a document predicts the next document."""
    np.testing.assert_array_equal(TEXT.tokens, [BOS, A, B, EOS])
    np.testing.assert_array_equal(TEXT.labels, [A, B, EOS, X])
    np.testing.assert_array_equal(TEXT.loss_weights, [1, 1, 1, 0])
    np.testing.assert_array_equal(TEXT.position_ids, [[0, 1, 2, 3]])
    np.testing.assert_array_equal(TEXT.branch_ids, [0, 0, 0, 0])


def test_a_conversation_has_loss_on_assistant_turns_only() -> None:
    """Fails when a user's token or an image token gets a label, or an assistant's end does not."""
    np.testing.assert_array_equal(CHAT.tokens, [BOS, USER, IMG, IMG, END, Q, SLASH, A, B, EOS, USER, R, SLASH, C, EOS])
    np.testing.assert_array_equal(CHAT.labels, [X, X, X, X, X, X, A, B, EOS, X, X, X, C, EOS, X])
    np.testing.assert_array_equal(CHAT.loss_weights > 0, CHAT.labels != X)
    np.testing.assert_array_equal(CHAT.position_ids, [np.arange(15)])
    np.testing.assert_array_equal(CHAT.unit_ids, [-1, -1, 0, 0, *[-1] * 11])


def test_annotations_share_the_prefix_and_continue_its_positions() -> None:
    """Fails when an annotation sees another's positions, or a label crosses from one annotation into the next."""
    zero, half = letters("0.0s"), letters("0.5s")
    prefix = [BOS, *zero, IMG, IMG, END, *half, IMG, IMG, END]
    np.testing.assert_array_equal(TREE.tokens, [*prefix, USER, Q, SLASH, A, B, EOS, USER, R, SLASH, C, EOS])
    np.testing.assert_array_equal(TREE.labels, [*[X] * 15, X, X, A, B, EOS, X, X, X, C, EOS, X])
    np.testing.assert_array_equal(TREE.position_ids, [[*range(15), *range(15, 21), *range(15, 20)]])
    np.testing.assert_array_equal(TREE.branch_ids, [*[0] * 15, *[1] * 6, *[2] * 5])
    np.testing.assert_array_equal(TREE.unit_ids[:15], [-1] * 5 + [0, 0] + [-1] * 5 + [1, 1] + [-1])
    np.testing.assert_allclose(TREE.loss_weights[TREE.labels != X], 1 / np.sqrt(2), rtol=1e-7)
    assert TREE.n_shared == 15
    assert [(medium, given.shape) for medium, given in TREE.media] == [(VIDEO, FRAMES)]


def test_an_annotation_that_begins_with_an_answer_is_not_predicted_from_what_is_before_it() -> None:
    """Fails when the last token of the prefix, or of an annotation, has the first word of the next as its label."""
    answers = (Message(role="assistant", parts=("ab",)),), (Message(role="assistant", parts=("c",)),)
    document = rendered(Document(shared=(IMAGE,), branches=answers, annotated=True), crops(1))
    np.testing.assert_array_equal(document.tokens, [BOS, IMG, IMG, END, A, B, EOS, C, EOS])
    np.testing.assert_array_equal(document.branch_ids, [0, 0, 0, 0, 1, 1, 1, 2, 2])
    np.testing.assert_array_equal(document.labels, [X, X, X, X, B, EOS, X, EOS, X])
    np.testing.assert_array_equal(document.loss_weights, [0, 0, 0, 0, 1, 1, 0, 1, 0])


def test_the_crops_of_an_image_are_one_unit() -> None:
    """Fails when the tiles of one photograph can be split between ranks, or their separator is pooled."""
    document = rendered(Document(branches=(turns((IMAGE, "q"), "a"),)), crops(3))
    np.testing.assert_array_equal(document.tokens[2:11], [IMG, IMG, BREAK, IMG, IMG, BREAK, IMG, IMG, END])
    np.testing.assert_array_equal(document.unit_ids[2:11], [0, 0, -1, 0, 0, -1, 0, 0, -1])
    assert document.units.crops.tolist() == [3]
    assert document.n_images == 3


def test_interleaved_text_has_loss_and_its_prompt_has_none() -> None:
    """Fails when the text around media of a pre-training document is not learnt, or the prompt before it is."""
    document = rendered(Document(prompt=("q",), interleaved=("ab", IMAGE, "c")), crops(1))
    np.testing.assert_array_equal(document.tokens, [BOS, Q, A, B, IMG, IMG, END, C, EOS])
    np.testing.assert_array_equal(document.labels, [X, A, B, X, X, X, C, EOS, X])
    assert document.media == ((IMAGE, *placed(crops(1))),)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (Document(branches=(turns("q", "a"),), tools="[]"), "tools cannot be written without a chat template"),
        (Document(branches=((Message(role="tool", parts=("q",)),),)), r"messages\[0\].role tool cannot be written"),
        (
            Document(branches=((Message(role="assistant", parts=(), fields=CALLS),),), annotated=True),
            r"annotations\[0\]\[0\].tool_calls cannot be written",
        ),
    ],
)
def test_what_only_a_chat_template_can_write_is_refused(document: Document, message: str) -> None:
    """Fails when tools, tool calls or their results are left out of a document in silence."""
    with pytest.raises(DocumentError, match=message):
        rendered(document)


def test_an_answer_without_loss_is_not_learnt() -> None:
    """Fails when a turn that the row says is not to be trained on has labels."""
    silent = Message(role="assistant", parts=("ab",), weight=0.0)
    document = rendered(Document(branches=((silent, *turns("q", "c")),)))
    np.testing.assert_array_equal(document.labels, [X, X, X, X, X, X, C, EOS, X])
