"""Remains of locations in anything that is printed or stored."""

from __future__ import annotations

import pickle

import pytest

from preshard.schemas.errors import ConfigError, DocumentError
from preshard.schemas.files.printed import without_secrets

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"s3://KEY:{SECRET}@bucket/x@y", "s3://bucket/x@y"),
        (f"s3://KEY:{SECRET}/with/slashes@bucket/x", "s3://bucket/x"),
        (f"s3://KEY:{SECRET}?x#y@bucket/x", "s3://bucket/x"),
        (f"S3://a@{SECRET}@bucket", "S3://bucket"),
        (f"https:///me:{SECRET}@host/x", "https://host/x"),
        (f"https://host/x?X-Amz-Signature={SECRET}&region=r", "https://host/x?X-Amz-Signature=…&region=r"),
        (f"s3://b/x?region=r&secret_key={SECRET}", "s3://b/x?region=r&secret_key=…"),
        (f"s3://b/x?{SECRET}", "s3://b/x?…"),
        (f"s3://b?endpoint_override=http://me:{SECRET}@host", "s3://b?endpoint_override=http://host"),
        (f"x.jpg?sig={SECRET}", "x.jpg?sig=…"),
        (f"abfs://account:{SECRET}@host/x", "abfs://account@host/x"),
        (f"SOURCE s3://K:{SECRET}@b/x: none, try 'gs://K:{SECRET}@c'", "SOURCE s3://b/x: none, try 'gs://c'"),
    ],
)
def test_a_secret_is_left_out(text: str, left: str) -> None:
    """Fails when user info or an option's value is shown, however the URI is spelled, or hiding twice differs."""
    assert SECRET in text
    assert without_secrets(text) == left
    assert without_secrets(left) == left


@pytest.mark.parametrize(
    "text",
    [
        "/a:b@c/x?y",
        "file:///a@b/x",
        "hdfs://namenode:8020/users/x@y",
        "abfs://container@account.dfs.core.windows.net/x",
        "s3://bucket: no such folder for me@here",
        "s3://b/x?endpoint_override=127.0.0.1:9000&scheme=http&region=us-east-1",
        "what is s3://b/x?",
        "--set video.fps=1",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """Fails when a place that a user needs to find a fault is left out of its message."""
    assert without_secrets(text) == text


@pytest.mark.parametrize("error", [ConfigError(f"s3://K:{SECRET}@b"), DocumentError("bad_row", f"s3://K:{SECRET}@b")])
def test_no_error_of_ours_shows_a_secret(error: Exception) -> None:
    """Fails when a message is kept as it was given, or comes back so from another process."""
    assert str(error) == str(pickle.loads(pickle.dumps(error))) == "s3://b"
    assert SECRET not in repr(error)
