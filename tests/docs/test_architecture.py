"""docs/architecture.md and the tree are the same list."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
HALVES = ("preshard", "schemas", "packer_service", "trainer")
PARTS_OF_ONE_ROOM = ("packer_service/http/static/",)
"""Folders below these are named in the row of the room itself."""


def rooms_of_the_tree() -> set[str]:
    """Folders that hold code, from the repository's root."""
    files = (file for half in HALVES for suffix in ("py", "js") for file in (ROOT / half).rglob(f"*.{suffix}"))
    folders = {file.parent.relative_to(ROOT).as_posix() for file in files}
    return {folder for folder in folders if not folder.startswith(PARTS_OF_ONE_ROOM)}


def rows_of_the_page() -> dict[str, tuple[str, str]]:
    """Rows of the page: what each room knows, and what it must not know."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## The rooms")[2]
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert len({room for room, _, _ in rows}) == len(rows), "a room has two rows"
    return {room: (knows, must_not) for room, knows, must_not in rows}


def test_the_page_and_the_tree_list_the_same_rooms() -> None:
    """Fails when a folder is added, renamed or removed and the page is not changed, or the other way round."""
    tree, page = rooms_of_the_tree(), rows_of_the_page().keys()
    assert len(tree) > len(HALVES)
    assert sorted(tree - page) == [], "folders that the page does not name"
    assert sorted(page - tree) == [], "rooms of the page that are not in the tree"


def test_every_room_says_what_it_knows_and_must_not_know() -> None:
    """Fails when a row is only a name."""
    assert [room for room, cells in rows_of_the_page().items() if min(map(len, cells)) < 5] == []


def test_the_picture_is_the_one_that_its_script_draws() -> None:
    """Fails when docs/flow.py is changed and not run."""
    namespace: dict[str, object] = {"__file__": str(ROOT / "docs" / "flow.py"), "__name__": "flow"}
    exec((ROOT / "docs" / "flow.py").read_text(encoding="utf-8"), namespace)
    picture = namespace["picture"]
    assert callable(picture)
    assert picture() == (ROOT / "docs" / "flow.svg").read_text(encoding="utf-8")
