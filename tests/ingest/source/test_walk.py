"""Files of a folder, whatever its links and names are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyarrow import fs

from preshard.packer_service.ingest.source.listing import list_sources
from preshard.packer_service.ingest.source.walk import files_below
from preshard.schemas.errors import ConfigError


def test_links_that_lead_back_add_no_files(tmp_path: Path) -> None:
    """Fails when a file is packed again for each round in a loop of links, or a link to other files is not followed."""
    for name in ("source/a", "source/b", "others"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "t.jsonl").write_text('{"text": "x"}\n', encoding="utf-8")
    for link, target in {"a/self": ".", "a/b": "../b", "b/a": "../a", "linked": "../others"}.items():
        (tmp_path / "source" / link).symlink_to(target)
    folder = str(tmp_path / "source")
    # as find -L lists them
    found = [info.path[len(folder) + 1 :] for info in files_below(fs.LocalFileSystem(), folder)]
    assert found == ["a/b/t.jsonl", "a/t.jsonl", "b/a/t.jsonl", "b/t.jsonl", "linked/t.jsonl"]


def test_a_name_that_is_no_text_is_named(tmp_path: Path) -> None:
    """Fails when a file's name in another encoding ends the command in a traceback."""
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jsonl")).write_text('{"text": "x"}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"caf\\xe9\.jsonl', which is not UTF-8; rename it$"):
        list_sources([str(tmp_path)])
