"""Every list of keys by what they need follows from the keys' own annotations, the page's too."""

from __future__ import annotations

import re
from pathlib import Path

from preshard.schemas.config import KEYS
from preshard.schemas.dataset.changes import NAMES_FILES, NEEDS_SOURCE

PAGE = Path(__file__).parents[2] / "docs" / "packing.md"


def test_the_page_lists_the_keys_that_need_the_source() -> None:
    """Fails when a key begins or ceases to need the source, and the page of repacking does not say so."""
    [row] = re.findall(r"^\| (.*) \| needs the source; refused unless equal \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == {*NEEDS_SOURCE, *NAMES_FILES}


def test_keys_of_sections_are_found() -> None:
    """Fails when what a key inside a section says of itself is lost."""
    assert KEYS["vision.max_crops"].plan
    assert KEYS["cost.vision_num_layers"].stored
