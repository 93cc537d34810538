"""``preshard show``: the document that is printed is the one that would be packed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from preshard.packer_service.cli import main
from preshard.packer_service.config import load_config
from preshard.packer_service.job.preview.show import RejectedError, show_document
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError


def test_a_conversation_is_shown_as_it_is_packed(tiny_source: Path, tiny_config: PackConfig) -> None:
    """Fails when the shown tokens, loss or units are not those of the pack."""
    shown = show_document([str(tiny_source)], tiny_config, doc_id="question-4")
    [piece] = shown.pieces
    assert [span.start for span in piece.spans] == [0, *(span.end for span in piece.spans[:-1])]
    assert piece.spans[-1].end == piece.tokens
    assert sum(span.end - span.start for span in piece.spans if span.loss) == piece.loss_tokens
    assert [span.text for span in piece.spans if span.loss] == ["4</s>"]
    assert [span.unit for span in piece.spans if span.unit is not None] == [0, 1, 2, 3, 4]
    assert [(medium.name, medium.width, medium.height) for medium in shown.media][:2] == [
        ("0.png", 90, 40),
        ("1.png", 90, 70),
    ]
    assert [unit.medium for unit in piece.units] == [0, 1, 2, 3, 4]
    assert {unit.rows for unit in piece.units} == {tiny_config.vision.pooled_per_crop}


def test_rows_are_found_by_number_place_and_id(tiny_source: Path, tiny_config: PackConfig, tmp_path: Path) -> None:
    """Fails when --row counts from 0 or through one file alone, or a row without an id cannot be found."""
    (tmp_path / "more.jsonl").write_text('\n{"text": "one more"}\n')
    sources = [str(tiny_source), str(tmp_path / "more.jsonl")]
    assert show_document(sources, tiny_config).doc_id == "text-0"
    assert show_document(sources, tiny_config, row="2").doc_id == "text-1"
    assert show_document(sources, tiny_config, row="tiny/rows.jsonl:3").doc_id == "text-2"
    last = show_document(sources, tiny_config, row="39")
    assert (last.doc_id, last.location) == ("more.jsonl:2", "more.jsonl:2")
    assert show_document(sources, tiny_config, doc_id="more.jsonl:2") == last
    with pytest.raises(ConfigError, match="--row 38: there is no such row; the source holds 39 rows, from 1"):
        show_document(sources, tiny_config, row="38")
    with pytest.raises(ConfigError, match="--id nobody: no row has this id; the source holds 39 rows"):
        show_document(sources, tiny_config, doc_id="nobody")
    with pytest.raises(RejectedError, match=r"rows.jsonl:33: would be rejected: bad_image: zero.png"):
        show_document(sources, tiny_config, doc_id="bad-image")


def test_annotations_and_pieces_are_shown(tiny_source: Path, tiny_settings: list[str]) -> None:
    """Fails when what follows from a document's length, such as its pieces, is not shown."""
    config = load_config(None, [*tiny_settings, "oversize=split", "max_images=2"])
    [piece] = show_document([str(tiny_source)], config, doc_id="annotated-3").pieces
    assert (piece.annotations, piece.images) == (4, 2)
    assert [span.branch for span in piece.spans if span.loss] == [1, 2, 3, 4]
    first = [span.positions[0][0] for span in piece.spans if span.branch and not span.loss]
    assert set(first) == {piece.shared_tokens}
    pieces = show_document([str(tiny_source)], config, doc_id="bad-long").pieces
    assert [piece.tokens > 900 for piece in pieces] == [True, True]
    assert pieces[0].tokens == config.seq_len
    [piece] = show_document([str(tiny_source)], config, doc_id="question-4").pieces
    assert (piece.images, piece.lost_tokens > 0) == (1, True)  # what came before carries no loss


def test_the_command_prints_text_and_json(
    capsys: pytest.CaptureFixture[str], tiny_source: Path, tiny_settings: list[str]
) -> None:
    """Fails when the command takes other options than `pack` does, or its JSON is not the figures."""
    words = ["show", str(tiny_source), "--id", "question-1", *(w for s in tiny_settings for w in ("--set", s))]
    for extra in ([], ["--json"]):
        with pytest.raises(SystemExit) as stopped:
            main([*words, *extra])
        assert not stopped.value.code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tiny/rows.jsonl:14  question-1  (source images), reads as messages, text or annotations"
    assert "⟦1</s>⟧" in "\n".join(lines)
    figures = json.loads(lines[-1])
    assert figures["pieces"][0]["units"][0]["kind"] == "image"
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--row", "1"])
    assert stopped.value.code == 2
    assert "give either --row N or --id X" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main([*words[:2], "--row", "33"])
    assert stopped.value.code == 1
