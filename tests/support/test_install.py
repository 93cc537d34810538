"""Translation for uv of what pip is told about packages' places."""

from __future__ import annotations

from install import translated


def test_every_place_that_pip_knows_is_given_to_uv() -> None:
    """Fails when `make` behind a mirror, or beside a folder of wheels, asks elsewhere: uv reads no file of pip's."""
    lines = [
        ":env:.find-links='/other/wheels'",
        ":env:.default-timeout='180'",
        "global.find-links='/wheels'",
        "global.index-url='https://mirror/simple'",
        "install.extra-index-url='\\nfile:///a/simple\\nfile:///b/simple'",
        "not a setting",
    ]
    assert translated(lines) == {
        "UV_DEFAULT_INDEX": "https://mirror/simple",
        "UV_INDEX": "file:///a/simple file:///b/simple",
        "UV_FIND_LINKS": "/other/wheels",
    }
    assert translated(["global.find-links='/a /b'"]) == {"UV_FIND_LINKS": "/a,/b"}
