"""Files that are not what they were taken for: each message says what they are and what helps."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from PIL import Image

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media.image import probe_image
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.media.video import probe_video
from preshard.packer_service.ingest.source.files import list_fragments, read_fragment
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.schemas.errors import ConfigError, DocumentError

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 12345\n"
PAGE = b"<!DOCTYPE html>\n<html><title>403 Forbidden</title></html>"


def picture(kind: str) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (LFS, "it is a Git LFS pointer in place of the file; run git lfs pull in its repository"),
        (b"/annex/objects/SHA256E-s9--ab.jpg\n", "it is a git-annex pointer in place of the file; run git annex get"),
        (PAGE, "it is an HTML page, as servers send in place of a file; download it again"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "it is an XML document, as stores send"),
        (b"<?xml version='1.0'?>\n<svg xmlns='x'/>", "it is an SVG drawing; convert it to PNG"),
        (b"\0\0\0\x1cftypheic" + bytes(range(64)), "it is HEIC; convert it to JPEG"),
        (b"\xff\x0a" + bytes(range(64)), "it is JPEG XL; convert it to JPEG"),
        (bytes(900), "it is nothing but zeros; copy it again"),
        (b"\0\0\0\x20ftypisom" + bytes(64), "it is an MP4 or QuickTime video"),
        (b"PK\x03\x04" + bytes(range(64)), "it is a ZIP archive; unpack it"),
    ],
)
def test_an_unreadable_image_says_what_it_is(data: bytes, reason: str) -> None:
    """Fails when a pointer, a page of a server or a format of phones is only "not an image"."""
    with pytest.raises(DocumentError) as caught:
        probe_image(Medium(kind="image", data=data), MediaReach.of("/"))
    assert caught.value.code == "bad_image"
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("data", "reason"),
    [(LFS, "it is a Git LFS pointer"), (PAGE, "it is an HTML page"), (picture("WEBP"), "it is a WebP image")],
)
def test_an_unreadable_video_says_what_it_is(data: bytes, reason: str) -> None:
    """Fails when the list of legal containers is all that is said of a pointer or a picture."""
    with pytest.raises(DocumentError) as caught:
        probe_video(Medium(kind="video", data=data), MediaReach.of("/"), fps=1.0, max_frames=4)
    assert caught.value.code == "bad_video"
    assert reason in str(caught.value)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet", "a.csv", "a.tar", "a.jsonl.gz", "a.arrow"])
@pytest.mark.parametrize(("data", "reason"), [(LFS, "a Git LFS pointer"), (PAGE, "an HTML page")])
def test_a_source_of_another_kind_ends_the_command(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    """Fails when each line of a pointer is a reject, or it is skipped as JSON without rows."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=f"SOURCE {name}: holds no rows; it is {reason}"):
        list_sources([str(tmp_path / name)])


WIDE = {
    "utf-16": "UTF-16",
    "utf-16-le": "UTF-16LE",
    "utf-16-be": "UTF-16BE",
    "utf-32": "UTF-32",
}


@pytest.mark.parametrize("encoding", WIDE)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.jsonl.gz"])
def test_text_of_another_encoding_ends_the_command(tmp_path: Path, name: str, encoding: str) -> None:
    """Fails when some lines of UTF-16 are packed, which Python's JSON tells by their zeros, and the others rejected."""
    text = "id,text\na,one\n" if "csv" in name else '{"id": "a", "text": "one"}\n{"id": "b", "text": "two"}\n'
    data = text.encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    with pytest.raises(ConfigError, match=f"SOURCE {name}: is {WIDE[encoding]}, and only UTF-8 is read; "):
        list_sources([str(tmp_path / name)])


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_a_compressed_source_under_a_plain_name_says_so(tmp_path: Path, name: str) -> None:
    """Fails when its bytes become one row that is not UTF-8."""
    (tmp_path / name).write_bytes(gzip.compress(b'{"id": "a", "text": "one"}\n'))
    with pytest.raises(ConfigError, match=f"SOURCE {name}: holds no rows; it is compressed by gzip; unpack it"):
        list_sources([str(tmp_path / name)])


class _Keys(pe.KmsClient):  # type: ignore[misc]
    """Wraps keys in nothing: enough to write a file that asks for them."""

    def wrap_key(self, key_bytes: bytes, _: str) -> str:
        return key_bytes.hex()

    def unwrap_key(self, wrapped_key: str, _: str) -> bytes:
        return bytes.fromhex(wrapped_key)


@pytest.mark.parametrize("plaintext_footer", [True, False])
def test_encrypted_parquet_says_so(tmp_path: Path, plaintext_footer: bool) -> None:
    """Fails when an encrypted column is called damaged, so that its owner writes the file again with the same key."""
    table = pa.table({"id": ["a", "b"], "text": ["one", "two"]})
    setting = pe.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["text"]}, plaintext_footer=plaintext_footer
    )
    factory = pe.CryptoFactory(lambda _: _Keys())
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), setting)
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, encryption_properties=properties)
    if not plaintext_footer:
        with pytest.raises(ConfigError, match="is encrypted; write the file without encryption"):
            list_sources([str(path)])
        return
    [fragment] = list_fragments(list_sources([str(path)]).files)
    rows = [row for _, _, row in read_fragment(fragment).rows]
    assert len(rows) == 2
    for row in rows:
        assert "row group 0 is encrypted in a column that is read: none of its 2 rows can be read" in str(row)
