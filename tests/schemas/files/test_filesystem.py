"""Locations: one resolver for sources, media, datasets and what a rank reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow import fs

from preshard.schemas.errors import ConfigError
from preshard.schemas.files.filesystem import is_uri, join, locate, split_query


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/data/a b.jsonl", "/data/a b.jsonl"),
        ("/data/100%25.jsonl", "/data/100%25.jsonl"),
        ("/data/what?.jsonl", "/data/what?.jsonl"),
        ("file:///data/a%20b.jsonl", "/data/a b.jsonl"),
        ("file://localhost/data/x", "/data/x"),
        ("FILE:///data/x", "/data/x"),
    ],
)
def test_a_local_location_is_its_path(location: str, path: str) -> None:
    """Fails when a plain path is percent-decoded, or a URI is not."""
    filesystem, found = locate(location)
    assert isinstance(filesystem, fs.LocalFileSystem)
    assert found == path


def test_a_relative_path_is_taken_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a path is kept relative: a task in another process has another working directory."""
    monkeypatch.chdir(tmp_path)
    assert locate("rows.jsonl")[1] == str(tmp_path / "rows.jsonl")


def test_a_bucket_has_one_client_and_decoded_keys() -> None:
    """Fails when each object makes its own client, or a key with an escape, ``#`` or ``+`` names another object."""
    query = "?region=us-east-1&endpoint_override=localhost:1"
    first, key = locate(f"s3://bucket/a%20folder/x%23y+z#w.tar{query}")
    second, _ = locate(f"s3://bucket/other{query}")
    assert key == "bucket/a folder/x#y+z#w.tar"
    assert first is second
    assert locate(f"s3://bucket{query}")[1].rstrip("/") == "bucket"
    assert locate(f"s3://another/x{query}")[0] is not first


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("nope://bucket/x", "nope://bucket/x: Unrecognized filesystem"),
        ("file://host/x", "file://host/x: a file URI cannot name a host"),
    ],
)
def test_a_location_that_nothing_opens_is_told(location: str, said: str) -> None:
    """Fails when a misspelt scheme ends in pyarrow's exception, or a host is taken for a folder."""
    with pytest.raises(ConfigError, match=f"^{said}"):
        locate(location)


def test_names_joined_to_a_uri_are_found_again() -> None:
    """Fails when a file name with ``?``, ``%`` or ``#`` is read as an escape or cut off as a query."""
    query = "?region=us-east-1&endpoint_override=localhost:1"
    for name in ("plain.tar", "100%.tar", "what?.tar", "a#b.tar", "%41.tar", "a b.tar"):
        assert locate(join(f"s3://bucket/dataset{query}", "shards", name))[1] == f"bucket/dataset/shards/{name}"
        assert locate(join("/dataset", "shards", name))[1] == f"/dataset/shards/{name}"


def test_parts_of_a_location() -> None:
    """Fails when a query is lost on the way below a folder, or a path is taken for a URI."""
    assert join("s3://bucket/x/?a=b", "y") == "s3://bucket/x/y?a=b"
    assert join("/", "y") == "/y"
    assert split_query("s3://bucket/x?a=b?c") == ("s3://bucket/x", "?a=b?c")
    assert split_query("/x?y") == ("/x?y", "")
    assert is_uri("s3://x")
    assert not is_uri("C:/x")
    assert not is_uri("//x")
