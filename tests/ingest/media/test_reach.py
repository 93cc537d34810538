"""Reach of a row's reference: nothing that the command has not named, however it is spelled."""

from __future__ import annotations

from pathlib import Path

import pytest
from listener import listening

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media.reach import MediaReach, open_media
from preshard.packer_service.ingest.media.stores import _content
from preshard.schemas.errors import DocumentError
from preshard.schemas.files.filesystem import locate

SECRET = "hunter2"
QUERY = "?endpoint_override={listener}&scheme=http&region=us-east-1"
LOCAL = (
    *("/etc/passwd", "//etc/passwd", "file:///etc/passwd", "FILE:///etc/passwd", "file://localhost/etc/passwd"),
    *("file://LocalHost//etc/passwd", "file:////etc/passwd", "file://{listener}/etc/passwd", "file:/etc/passwd"),
    *("../secret", "a/../../secret", "./../secret", "..", ".", "/", "{root}/../secret", "{root}/a/.././../secret"),
    *("file://{root}/../secret", "file://{root}/%2e%2e/secret", "file://{root}%2F%2E%2E%2fsecret"),
    *(
        "{root}2/secret",
        "../root2/secret",
        "file://{root}2/secret",
        "file://{root}%32/secret",
        "{root}/link/../../secret",
    ),
    *("..\\secret", "..%2fsecret", "%2e%2e/secret", "file://{root}/%252e%252e/secret", "~/secret"),
    *("../secret\0.png", "file:///etc/passwd%00.png", "file://{root}/a%00/../../secret"),
)
REMOTE = (
    *("s3://b/x" + QUERY, "s3://b" + QUERY, "S3://b/x" + QUERY, "s3://b/x?" + QUERY, "s3://b/x#" + QUERY),
    *(
        "s3://KEY:hunter2@b/x" + QUERY,
        "s3://KEY:hunter2@{listener}/x",
        "s3://{listener}/x",
        "s3://allowed@{listener}/x",
    ),
    *("s3://allowed\\@{listener}/x", "s3://allowed%40{listener}/x", "s3://allowed%3F{listener}/x", "s3:///x"),
    *("gs://b/x" + QUERY, "gcs://anonymous@b/x" + QUERY, "hdfs://{listener}/x", "viewfs://{listener}/x"),
    *("abfs://c@{listener}/x", "abfs://c:hunter2@{listener}/x", "abfss://{listener}/c/x", "hf://datasets/b/x"),
    *("http://{listener}/x.png", "https://me:hunter2@{listener}/x.png?X-Amz-Signature=hunter2", "ftp://{listener}/x"),
    *("//{listener}/x.png", "\\\\{listener}\\x.png", "s3:/b/x" + QUERY, " s3://b/x" + QUERY),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder beside what must not be read, with a file of its own and a link out of it."""
    for name in ("secret", "root2/secret", "root/a/x.png", "elsewhere/deep/y.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(SECRET if "secret" in name else name)
    (tmp_path / "root/link").symlink_to(tmp_path / "elsewhere/deep")
    return tmp_path / "root"


def content(uri: str, reach: MediaReach) -> bytes:
    with open_media(Medium(kind="image", uri=uri), reach) as file:
        return file.read()


@pytest.mark.parametrize("uri", LOCAL + REMOTE)
def test_a_row_reaches_nothing_that_the_command_did_not_name(
    uri: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a spelling leads out of the root, when a row's URI makes a connection, or a secret is shown."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    reach = MediaReach(folder=str(root), roots=(str(root), "s3://allowed/imgs?region=us-east-1"))
    with listening() as listener:
        given = uri.format(root=root, listener=listener.address)
        assert _content(reach, given) is None
        with pytest.raises(DocumentError) as caught:
            content(given, reach)
        assert not listener.heard
    assert caught.value.code == "missing_media"
    assert SECRET not in str(caught.value)


def test_the_same_uri_of_the_command_does_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when the listener of the test above could not have heard anything."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY-OF-THE-SESSION")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with listening() as listener:
        filesystem, path = locate("s3://b/x" + QUERY.format(listener=listener.address))
        with pytest.raises(OSError, match=r"ACCESS_DENIED|denied|403"):
            filesystem.open_input_file(path)
        assert b"KEY-OF-THE-SESSION" in listener.heard[0]


@pytest.mark.parametrize(
    ("uri", "key"),
    [
        ("a.png", "imgs/rows/a.png"),
        ("../a.png", "imgs/a.png"),
        ("x?endpoint_override=evil#y%2e", "imgs/rows/x%3Fendpoint_override=evil%23y%252e"),
        ("s3://allowed/imgs/a%20b.png", "imgs/a b.png"),
        ("S3://ALLOWED/imgs/./c/../a.png", "imgs/a.png"),
        ("s3://allowed/imgs/a%3Fb%2523.png", "imgs/a%3Fb%2523.png"),
    ],
)
def test_a_rows_uri_has_the_options_and_credentials_of_its_root(uri: str, key: str) -> None:
    """Fails when a reference into a root is opened by another client than the command's own, or at another key."""
    options = "?endpoint_override=127.0.0.1:1&scheme=http"
    reach = MediaReach(
        folder=f"s3://K:S@allowed/imgs/rows{options}",
        roots=("/", "s3://allowed/imgs2", f"s3://K:S@allowed/imgs{options}", "s3://allowed?region=far"),
    )
    assert reach.location(uri) == f"s3://K:S@allowed/{key}{options}"


@pytest.mark.parametrize(
    ("uri", "allow"),
    [
        ("s3://allowed/other/x.png", "'s3://allowed/other'"),
        ("s3://allowed/imgs/../other/x.png", "'s3://allowed/other'"),
        ("s3://allowed/imgs/%2e%2e/other/x.png", "'s3://allowed/other'"),
        ("s3://allowed/imgs2/x.png", "'s3://allowed/imgs2'"),
        ("s3://allowed:80/imgs/x.png", "'s3://allowed:80/imgs'"),
        ("GS://allowed/imgs/x.png", "'gs://allowed/imgs'"),
        ("/data/a b/x.png", "'/data/a b'"),
        ("file:///x.png", "'/x.png'"),
        ("../../other/x.png", "FOLDER, which is '../../other' seen from the row's file"),
    ],
)
def test_what_lies_outside_says_which_option_allows_it(uri: str, allow: str) -> None:
    """Fails when the remedy of a reject is not the option that lets the row through, or a neighbour is taken for part
    of a root."""
    reach = MediaReach.of("s3://allowed/imgs")
    with pytest.raises(DocumentError, match="lies outside") as caught:
        reach.location(uri)
    assert str(caught.value).endswith(f"; add --allow-media {allow}")
    if not uri.startswith(".."):
        assert MediaReach(folder="/nowhere", roots=(allow.strip("'"),)).location(uri)


def test_a_file_uri_and_a_path_are_the_same_place(root: Path) -> None:
    """Fails when a root given as a path refuses a row's file URI into it, or the other way round."""
    (root / "a b").mkdir()
    (root / "a b/x.png").write_bytes(b"x")
    for given, uri in (
        (f"FILE://localhost{root}/a%20b", f"{root}/a b/x.png"),
        (f"{root}/a b/", f"file://{root}/c/../a%20b//x.png"),
        ("/", f"{root}/a b/x.png"),
    ):
        assert content(uri, MediaReach(folder="/nowhere", roots=(given,))) == b"x"


def test_links_are_followed_and_dots_are_not_resolved_behind_them(root: Path) -> None:
    """Fails when a folder that links to its images on another disk is refused, or ``link/..`` is what lies above the
    link's target."""
    reach = MediaReach.of(str(root))
    assert content("link/y.png", reach) == b"elsewhere/deep/y.png"
    assert (root / "link/../../secret").read_text() == SECRET, "the system would have found it"
    with pytest.raises(DocumentError, match="lies outside"):
        content("link/../../secret", reach)
    assert content("link/../a/x.png", reach) == b"root/a/x.png"
