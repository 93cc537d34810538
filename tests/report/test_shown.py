"""A document in runs of equal loss, and how it is printed."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from rich.console import Console

from preshard.packer_service.report.document import (
    ShownDocument,
    ShownMedium,
    ShownPiece,
    ShownUnit,
    document_spans,
    print_document,
    run_edges,
)
from preshard.schemas.files.printed import plain

TOKENS = ["<s>", "how", "<i>", ".", ".", "</i>", "so", "?", "yes", "!", "</s>"]


SIZES = [(28, 28)]


def spans(**changes: Any) -> list[Any]:
    size = len(TOKENS)
    labels = np.full(size, -100, np.int32)
    labels[7:10] = [8, 9, 10]
    given = {
        "tokens": np.arange(size, dtype=np.int32),
        "labels": labels,
        "loss_weights": np.where(labels >= 0, 0.5, 0).astype(np.float32),
        "branch_ids": np.zeros(size, np.int32),
        "position_ids": np.arange(size, dtype=np.int32)[None],
        "unit_edges": np.array([[2, 6]]),
        "decode": lambda ids: " ".join(TOKENS[i] for i in ids),
    }
    return document_spans(**{**given, **changes})


def test_runs_cover_every_token_once() -> None:
    """Fails when the loss is shown one token early, as the labels lie, or a unit's marks are shown as text."""
    found = spans()
    assert [(span.start, span.end, span.loss, span.unit, span.text) for span in found] == [
        (0, 2, False, None, "<s> how"),
        (2, 6, False, 0, None),
        (6, 8, False, None, "so ?"),
        (8, 11, True, None, "yes ! </s>"),
    ]
    assert [span.weight for span in found] == [0, 0, 0, 0.5]
    assert found[1].positions == [(2, 5)]


def test_axes_and_annotations_make_runs() -> None:
    """Fails when positions of one axis stand for all three, or two annotations are shown as one."""
    branches = np.array([0] * 6 + [1] * 3 + [2] * 2, np.int32)
    positions = np.stack([np.arange(11), np.arange(11)[::-1], np.zeros(11)]).astype(np.int32)
    found = spans(branch_ids=branches, position_ids=positions)
    assert [(span.start, span.branch) for span in found] == [(0, 0), (2, 0), (6, 1), (8, 1), (9, 2)]
    assert found[1].positions == [(2, 5), (5, 8), (0, 0)]
    assert run_edges(np.zeros(0)) == [0]
    nothing = np.zeros(0, np.int32)
    names = ("tokens", "labels", "branch_ids")
    assert spans(**dict.fromkeys(names, nothing), loss_weights=nothing, unit_edges=np.zeros((0, 2), int)) == []


def document() -> ShownDocument:
    unit = ShownUnit(
        number=0,
        medium=0,
        kind="frame",
        start=2,
        end=6,
        rows=2,
        patches=4,
        grid=(1, 2, 2),
        crops=[(28, 28)],
        timestamps=[1.5],
    )
    medium = ShownMedium(
        kind="video", name="a\x1b[2J.mp4", width=64, height=48, clip=(1, None), thinned_to=28.125, units=1, backend=None
    )
    still = ShownMedium(kind="image", name="b", width=9, height=8, clip=None, units=1, backend="torchvision")
    counts = {"tokens": 11, "loss_tokens": 3, "lost_tokens": 5, "images": 1, "patches": 4}
    piece = ShownPiece(**counts, shared_tokens=0, annotations=0, spans=spans(), units=[unit])
    return ShownDocument(
        doc_id="d", source="s", location="f:1", form="text", media=[medium, still], pieces=[piece, piece]
    )


def test_loss_is_marked_with_and_without_colours() -> None:
    """Fails when nothing but a colour shows the loss where there are no colours, or marks stand beside colours."""
    file = io.StringIO()
    print_document(document(), Console(file=file, force_terminal=False))
    said = file.getvalue()
    assert "so ?⟦yes ! </s>⟧" in said
    long = document().model_copy(update={"doc_id": "é" * 3000})
    print_document(long, Console(file=(cut := io.StringIO()), force_terminal=False))
    assert max(map(len, cut.getvalue().split("\n"))) < 1000, "ids are somebody's, too"
    assert "\n[video 1 at 1.50 s: 28 x 28, 2 x 2 patches, 2 rows, tokens 2 to 5]\n" in said
    assert "piece 2 of 2: 11 tokens, 3 under loss; 1 crop, 4 patches; positions 0 to 10; 5 tokens behind it" in said
    assert "video 1: a\\x1b[2J.mp4, 64 x 48 pixels, from 1 s, a frame in 28.1 s (max_frames; " in said
    assert "image 2: b, 9 x 8 pixels, scaled as by torchvision\n" in said
    assert "reads as text" in said
    file = io.StringIO()
    print_document(document(), Console(file=file, force_terminal=True, color_system="standard", no_color=False))
    assert "⟦" not in file.getvalue()
    assert "mso ?" in file.getvalue() or "so ?\x1b" in file.getvalue()


def test_text_of_a_source_cannot_command_a_terminal() -> None:
    """Fails when an escape sequence in a document reaches the terminal."""
    assert plain("a\x1b[31m\tb\n\x00\u202ec") == "a\\x1b[31m\tb\n\\x00\\u202ec"
