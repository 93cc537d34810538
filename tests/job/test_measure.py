"""Figures that measuring gives for a document, against the mask that is written for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from preshard.packer_service.config import load_config
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.render import render_pieces
from preshard.packer_service.ingest.source.files import list_fragments
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.packer_service.ingest.source.rows import parse_row
from preshard.packer_service.job.planning.measure import measure_fragment
from preshard.schemas.mask import dense_mask
from preshard.schemas.sequence import MaskArrays

QUESTION = {"role": "user", "content": [{"type": "image", "image": "0.png"}, {"type": "text", "text": "What is it?"}]}
ANSWER = {"role": "assistant", "content": "An olive."}
ROWS: dict[str, dict[str, Any]] = {
    "text": {"text": "Some words, and no more."},
    "letter": {"text": "a"},
    "chat": {"messages": [{"role": "user", "content": "Why?"}, ANSWER]},
    "image": {"messages": [QUESTION, ANSWER]},
    "annotations": {"annotations": [[{"role": "user", "content": "Why?"}, ANSWER], [ANSWER]]},
    "annotated image": {"media": QUESTION["content"][:1], "annotations": [[ANSWER], [ANSWER]]},
}


@pytest.mark.parametrize("bidirectional", ["within_image", "image_tokens", "none"])
def test_the_area_is_that_of_the_mask(tmp_path: Path, bidirectional: str) -> None:
    """Fails when a document whose mask is not plainly causal is measured in the short way for plain text."""
    Image.new("RGB", (40, 30), "olive").save(tmp_path / "0.png")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS.values())), encoding="utf-8")
    settings = [f"bidirectional={bidirectional}", "seq_len=2048", "vision.image_size=28", "vision.pool_size=1"]
    config = load_config(None, settings)
    [fragment] = list_fragments(list_sources([str(tmp_path)]).files)
    areas = measure_fragment(fragment, config)[0]["area"].to_pylist()
    expected = []
    for row in ROWS.values():
        [piece] = render_pieces(parse_row(row), MediaReach.of(str(tmp_path)), config)
        mask = MaskArrays(doc_ids=piece.tokens * 0, branch_ids=piece.branch_ids, group_ids=piece.group_ids)
        expected.append(int(dense_mask(mask).sum()))
    assert areas == expected
