"""Text that leaves the service compressed."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from preshard.packer_service.http.middleware.compress import LEAST_BYTES, accepts_gzip


def test_text_is_compressed_for_who_reads_it_and_pictures_are_not(client: TestClient) -> None:
    """Fails when Plotly travels as it is, a body differs once it is unpacked, or a crop is packed again."""
    for path in ("/static/plotly.min.js", "/static/page.css", "/v1/datasets/tiny/packs", "/docs", "/openapi.json"):
        packed, plain = (client.get(path, headers={"Accept-Encoding": coding}) for coding in ("gzip", "identity"))
        assert packed.headers["content-encoding"] == "gzip", path
        assert int(packed.headers["content-length"]) < len(plain.content) / 2
        assert packed.content == plain.content
        assert "content-encoding" not in plain.headers
        assert {answer.headers["vary"] for answer in (packed, plain)} == {"Accept-Encoding"}
    crop = next(
        image["url"] for pack in range(9) for image in client.get(f"/v1/datasets/tiny/packs/{pack}").json()["images"]
    )
    assert "content-encoding" not in client.get(crop).headers
    short = client.get("/healthz")
    assert len(short.content) < LEAST_BYTES
    assert "content-encoding" not in short.headers


@pytest.mark.parametrize(
    ("accepted", "is_read"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("*", True), ("", False), ("gzip;q=0", False), ("identity", False),
     ("deflate, br", False), ("GZIP ; q=0.0", False)],
)  # fmt: skip
def test_gzip_is_used_where_it_is_named(accepted: str, is_read: bool) -> None:
    """Fails when a client gets what it refuses."""
    assert accepts_gzip({"headers": [(b"accept-encoding", accepted.encode())]}) is is_read
