"""Guards against strangers, large bodies, slow requests and paths outside the root."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from preshard.packer_service.http.middleware import guards
from preshard.packer_service.http.middleware.compress import LEAST_BYTES, accepts_gzip

SECRET = "a secret that lies outside the root"
TOKEN = "correct horse battery staple"


def climbs() -> list[str]:
    """Ways to write a path that leaves a folder, as they stand in a request's target."""
    steps = ["../", "..\\", "%2e%2e/", "..%2f", "..%5c", "%2e%2e%2f", "%252e%252e%252f", "..%c0%af", "..%00/", "....//"]
    steps += ["..;/", "%2e%2e\\", "..%ef%bc%8f", ".%2e/", "%uff0e%uff0e/", "..%01/"]
    targets = ["secret.txt", "outside/manifest.json"]
    found = [step * 3 + target for step in steps for target in targets]
    found += [
        "/etc/passwd",
        "//etc/passwd",
        "%2fetc%2fpasswd",
        "file:///etc/passwd",
        "C:\\boot.ini",
        "%00",
        "~root/.ssh",
    ]
    return found


PLACES = (
    "/static/{}", "/v1/datasets/{}", "/v1/datasets/one/shards/{}/balance", "/v1/datasets/one/documents/{}",
    "/v1/datasets/one/packs/{}", "/v1/datasets/one/packs/0/images/{}", "/v1/datasets/one/packs?shard={}", "/{}",
)  # fmt: skip


def test_no_way_of_writing_a_path_reads_outside_of_the_root(
    root: Path, start: Callable[..., TestClient], tmp_path: Path
) -> None:
    """Fails when a part of a request becomes part of a path: over 300 variants, each of which must be refused."""
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "manifest.json").write_text(SECRET)
    client = start(root, rescan_seconds=60)
    client.get("/v1/datasets")
    tried = 0
    for climb in climbs():
        for place in PLACES:
            url = "http://testserver" + place.format(climb)
            answer = client.send(client.build_request("GET", url), follow_redirects=False)
            assert 400 <= answer.status_code < 500, url
            assert SECRET not in answer.text
            assert "root:" not in answer.text
            assert str(tmp_path) not in answer.text.replace(json.dumps(str(tmp_path)), "")
            tried += 1
    assert tried >= 200


def test_a_manifest_names_no_file_outside_of_its_dataset(
    root: Path, start: Callable[..., TestClient], tmp_path: Path
) -> None:
    """Fails when a hostile dataset, its hashes all in order, makes the service read another file."""
    from preshard.schemas.dataset.manifest_parts import seal_manifest
    from preshard.schemas.dataset.read_manifest import decode_manifest
    from preshard.schemas.encode import encode_json

    (tmp_path / "secret.tar").write_bytes(SECRET.encode() * 100)
    path = root / "one" / "manifest.json"
    manifest = decode_manifest(path.read_bytes(), "")
    shard = manifest.shards[0].model_copy(update={"name": "../../../secret.tar", "bytes": len(SECRET) * 100})
    path.write_bytes(encode_json(seal_manifest(manifest.model_copy(update={"shards": [shard, *manifest.shards[1:]]}))))
    client = start(root)
    assert client.get("/v1/datasets").json()["items"][0]["state"] == "damaged"
    assert client.get("/v1/datasets/one/packs/0").status_code == 409


@pytest.mark.parametrize("name", ["shards/preshard-000000.tar", "packs.parquet", "manifest.json", "shards"])
def test_a_link_out_of_the_root_is_not_followed(
    root: Path, start: Callable[..., TestClient], tmp_path: Path, name: str
) -> None:
    """Fails when a file of a dataset may be a link to any file of the machine."""
    outside = tmp_path / "moved"
    (root / "one" / name).rename(outside)
    (root / "one" / name).symlink_to(outside)
    client = start(root)
    states = {entry["name"]: entry["state"] for entry in client.get("/v1/datasets").json()["items"]}
    assert states["two"] == "whole"
    assert states.get("one") == "damaged"
    assert {client.get(f"/v1/datasets/one{part}").status_code for part in ("", "/packs/0", "/packs")} == {409}


def test_a_tokenizer_is_opened_only_where_the_service_was_told(
    root: Path, start: Callable[..., TestClient], tmp_path: Path
) -> None:
    """Fails when the path in a dataset's configuration, which any manifest can set, is opened."""
    from preshard.schemas.dataset.manifest_parts import seal_manifest
    from preshard.schemas.dataset.read_manifest import decode_manifest
    from preshard.schemas.encode import encode_json

    path = root / "one" / "manifest.json"
    manifest = decode_manifest(path.read_bytes(), "")
    other = manifest.tokenizer.model_copy(update={"name": "other.json"})
    config = {**manifest.config, "tokenizer": "/etc/passwd"}
    path.write_bytes(encode_json(seal_manifest(manifest.model_copy(update={"tokenizer": other, "config": config}))))
    answer = start(root).get("/v1/datasets/one/packs/0/text")
    assert (answer.status_code, answer.json()["title"]) == (409, "Tokenizer not available")
    assert "--tokenizer" in answer.json()["detail"]
    assert "passwd" not in answer.text


def test_text_is_read_with_the_tokenizer_that_the_dataset_carries(root: Path, start: Callable[..., TestClient]) -> None:
    """Fails when text needs the model folder, or a tokenizer is believed that is not the one of the tokens."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    import preshard
    from preshard.schemas.dataset.manifest_parts import seal_manifest
    from preshard.schemas.dataset.read_manifest import decode_manifest
    from preshard.schemas.encode import encode_json
    from preshard.schemas.manifest import CarriedFile

    client = start(root)
    [first, *_] = client.get("/v1/datasets/one/packs/0/text").json()["tokens"]
    content = Tokenizer(WordLevel({"first": first, "?": first + 1}, unk_token="?")).to_str().encode()
    digest = hashlib.sha256(content).hexdigest()
    folder, path = root / "one" / "model", root / "one" / "manifest.json"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(content)
    manifest = decode_manifest(path.read_bytes(), "")
    tokenizer = manifest.tokenizer.model_copy(update={"name": "tokenizer.json", "sha256": digest})
    carried = [CarriedFile(name="tokenizer.json", bytes=len(content), sha256=digest)]
    changed = manifest.model_copy(update={"tokenizer": tokenizer, "carried": carried})
    path.write_bytes(encode_json(seal_manifest(changed)))
    answer = client.get("/v1/datasets/one/packs/0/text?end=1")
    assert (answer.status_code, answer.json()["spans"][0]["text"]) == (200, "first")
    assert preshard.open(root / "one").decode([first]) == "first"
    (folder / "tokenizer.json").write_bytes(content.replace(b"first", b"other"))
    answer = start(root).get("/v1/datasets/one/packs/0/text?end=1")
    assert (answer.status_code, "is not the tokenizer" in answer.json()["detail"]) == (409, True)


OPEN = ("/", "/healthz", "/docs", "/openapi.json", "/static/app.js")
CLOSED = ("/v1/datasets", "/v1/datasets/one", "/v1/datasets/one/packs/0/images/0", "/metrics", "/v1/plan", "/nowhere")


def test_data_needs_the_token_and_the_page_does_not(root: Path, start: Callable[..., TestClient]) -> None:
    """Fails when a path is left open, a wrong token is let in, or a browser cannot load the page that asks for one."""
    client = start(root, token=TOKEN)
    assert {path: client.get(path).status_code for path in OPEN} == dict.fromkeys(OPEN, 200)
    wrong: list[dict[str, str]] = [{}, {"Authorization": "Bearer"}, {"Authorization": f"Basic {TOKEN}"}]
    wrong += [{"Authorization": f"Bearer {TOKEN[:-1]}"}, {"Authorization": f"Bearer {TOKEN}x"}]
    for headers in wrong:
        for path in CLOSED:
            answer = client.get(path, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert TOKEN not in answer.text
    right = {"Authorization": f"bearer {TOKEN}"}
    assert client.get("/v1/datasets", headers=right).status_code == 200
    assert client.get("/metrics", headers=right).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("LOCALHOST:8000", 200), ("127.0.0.1:8000", 200), ("[::1]:8000", 200), ("evil.example", 421),
     ("evil.example:8000", 421), ("127.0.0.1.evil.example", 421), ("[::1].evil", 421)],
)  # fmt: skip
def test_without_a_token_only_this_machines_names_are_answered(
    root: Path, start: Callable[..., TestClient], host: str, status: int
) -> None:
    """Fails when a web page whose host name leads to this machine can read datasets through the user's browser."""
    from preshard.packer_service.http.serve import settings_for

    hosts = settings_for(str(root), "127.0.0.1", None).hosts
    assert start(root, hosts=hosts).get("/v1/datasets", headers={"Host": host}).status_code == status


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "datasets.example"])
def test_other_machines_are_not_let_in_without_a_token(served_root: Path, host: str) -> None:
    """Fails when a service that anyone can reach starts open."""
    from preshard.packer_service.http.serve import settings_for
    from preshard.schemas.errors import ConfigError

    with pytest.raises(ConfigError, match="PRESHARD_TOKEN"):
        settings_for(str(served_root), host, None)
    assert settings_for(str(served_root), host, TOKEN).hosts == ()


def test_every_answer_has_the_headers_that_make_browsers_careful(client: TestClient) -> None:
    """Fails when a kind of answer lacks the headers: a success, a kept one, a problem, a file, a 304."""
    first = client.get("/v1/datasets/tiny/packs")
    answers = [client.get(path) for path in ("/", "/static/app.js", "/nowhere", "/v1/datasets/tiny/packs", "/docs")]
    answers.append(client.get("/v1/datasets/tiny/packs", headers={"If-None-Match": first.headers["etag"]}))
    assert answers[-1].status_code == 304
    for answer in [first, *answers]:
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert len(answer.headers.get_list("x-content-type-options")) == 1
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert len(answer.headers["x-request-id"]) == 32


def test_bodies_are_bounded_whether_they_say_their_size_or_not(
    root: Path, start: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a body without a length, or with a false one, is read to its end."""
    monkeypatch.setattr(guards, "MAX_BODY_BYTES", 1000)
    client = start(root)
    sent = 0

    def pieces() -> Any:
        nonlocal sent
        for _ in range(10_000):
            sent += 500
            yield b" " * 500

    headers = {"Content-Type": "application/json"}
    for body in (b" " * 1001, pieces()):
        answer = client.post("/v1/plan", content=body, headers=headers)
        assert (answer.status_code, answer.json()["title"]) == (413, "Request too large")
    assert client.post("/v1/plan", content=b" " * 999, headers=headers).status_code == 422


def add_route(client: TestClient, path: str, endpoint: Callable[[], None]) -> None:
    """Gives the application a path that does what no answer of its own should do."""
    app: Any = client.app
    app.add_api_route(path, endpoint)


def test_a_request_that_takes_too_long_is_ended(root: Path, start: Callable[..., TestClient]) -> None:
    """Fails when a slow disk keeps a client waiting for ever."""
    client = start(root, request_seconds=1.0)
    assert client.get("/healthz").status_code == 200

    over, ended = threading.Event(), threading.Event()

    def slow() -> None:
        over.wait(60)
        ended.set()

    add_route(client, "/slow", slow)
    answer = client.get("/slow")
    assert (answer.status_code, answer.json()["title"]) == (504, "Request took too long")
    assert not ended.is_set(), "the answer waited for the disk"
    over.set()


def test_what_fails_inside_stays_inside(
    root: Path, start: Callable[..., TestClient], caplog: pytest.LogCaptureFixture
) -> None:
    """Fails when a client sees a stack trace, or the log does not."""
    client = start(root)

    def broken() -> None:
        raise RuntimeError("an inner secret")

    add_route(client, "/broken", broken)
    answer = client.get("/broken")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    logged = json.loads(next(record.message for record in caplog.records if record.name == "preshard.errors"))
    assert logged["request_id"] == answer.json()["request_id"] == answer.headers["x-request-id"]
    assert "an inner secret" in logged["error"]


def test_each_request_leaves_one_line_of_json(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    """Fails when the access log cannot be read by a program, or holds the token."""
    with caplog.at_level(logging.INFO, "preshard.access"):
        answer = client.get("/v1/datasets/tiny/packs?limit=1", headers={"Authorization": "Bearer hidden"})
        client.get("/line%0abreak")
    lines = [record.message for record in caplog.records if record.name == "preshard.access"]
    assert all("\n" not in line and "hidden" not in line for line in lines)
    line = json.loads(lines[0])
    assert (line["method"], line["path"], line["query"]) == ("GET", "/v1/datasets/tiny/packs", "limit=1")
    assert (line["status"], line["bytes"]) == (200, len(answer.content))
    assert line["request_id"] == answer.headers["x-request-id"]
    assert line["ms"] > 0


@pytest.mark.parametrize(
    "where",
    ["/packs?limit=0", "/packs?limit=1001", "/packs?limit=99999999999999999999", "/packs?offset=-1", "/packs?offset=x",
     "/packs?offset=99999999999999999999", "/packs?sort=;drop", "/packs?sort=--cost", "/packs?layout=no",
     "/packs?ring=3",
     "/packs?ring=0", "/packs?cp=5", "/packs?shard=preshard-999999.tar", "/packs/-1", "/packs/4", "/packs/1e3",
     "/packs/99999999999999999999", "/packs/0/images/-1", "/packs/0/images/99999", "/packs/0/mask?size=0",
     "/packs/0/mask?size=100000", "/packs/0/text?start=9&end=3", "/packs/0/text?end=99999", "/packs/0/text?start=-1",
     "/packs/0/layout?ulysses=0", "/packs/0/layout?ulysses=3", "/packs/0/layout?ring=16", "/shards?sort=name",
     "/shards?limit=5000", "/shards/x/balance", "/shards/preshard-000000.tar/balance?measure=beauty",
     "/balance?layout=x",
     "/balance?ring=-8", "/documents/nobody", "/documents?limit=1.5", "/rejects?limit=-3", "/nothing"],
)  # fmt: skip
def test_what_means_nothing_is_a_problem_that_says_so(client: TestClient, where: str) -> None:
    """Fails when a malformed id, a huge limit or an unknown name is guessed at, or ends in a 5xx."""
    answer = client.get(f"/v1/datasets/tiny{where}")
    assert answer.status_code in (404, 422)
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["status"], problem["instance"]) == (
        answer.status_code,
        f"/v1/datasets/tiny{where.partition('?')[0]}",
    )
    assert problem["title"]
    assert problem["detail"]
    assert problem["type"].startswith("urn:preshard:problem:")


def test_an_answer_that_a_client_has_is_not_sent_again(root: Path, start: Callable[..., TestClient]) -> None:
    """Fails when a tag stays after a change, differs without one, or is given to an answer that is an error."""
    client = start(root)
    first = client.get("/v1/datasets/one/balance")
    tag = first.headers["etag"]
    for known in (tag, tag.removeprefix("W/"), f'"x", {tag}', "*"):
        answer = client.get("/v1/datasets/one/balance", headers={"If-None-Match": known})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    assert client.get("/v1/datasets/one/balance", headers={"If-None-Match": '"other"'}).content == first.content
    assert client.get("/v1/datasets/one/packs/99", headers={"If-None-Match": tag}).status_code == 404
    assert client.get("/v1/datasets/two/balance").headers["etag"] != tag
    run = root / "one" / "run.json"
    run.write_text(run.read_text().replace('"plan_seconds": ', '"plan_seconds": 1'))
    assert client.get("/v1/datasets/one/balance", headers={"If-None-Match": tag}).status_code == 200


def test_head_is_get_without_its_body(client: TestClient) -> None:
    """Fails when HEAD is refused, or answered with a body."""
    answer = client.head("/v1/datasets/tiny/packs")
    assert (answer.status_code, answer.content) == (200, b"")
    for coding in ("gzip", "identity"):
        whole = client.get("/v1/datasets/tiny/packs", headers={"Accept-Encoding": coding})
        head = client.head("/v1/datasets/tiny/packs", headers={"Accept-Encoding": coding})
        assert (head.content, head.headers["content-length"]) == (b"", whole.headers["content-length"])
    assert client.put("/v1/datasets/tiny/packs").status_code == 405


def test_metrics_count_requests_cache_and_datasets(root: Path, start: Callable[..., TestClient]) -> None:
    """Fails when a counter stands still, or paths of requests become labels without end."""
    client = start(root)
    client.get("/v1/datasets/one/packs/0")
    client.get("/v1/datasets/one/packs/1")
    client.get("/v1/datasets/one/packs/99")
    (root / "two" / "packs.parquet").unlink()
    client.get("/v1/datasets")
    lines = client.get("/metrics").text.splitlines()
    route = 'method="GET",route="/v1/datasets/{name}/packs/{pack_id}"'
    assert f'preshard_http_requests_total{{{route},status="200"}} 2.0' in lines
    assert f'preshard_http_requests_total{{{route},status="404"}} 1.0' in lines
    assert 'preshard_datasets{state="whole"} 1.0' in lines
    assert 'preshard_datasets{state="damaged"} 1.0' in lines
    cache = next(line for line in lines if line.startswith("preshard_cache_bytes "))
    assert float(cache.split()[1]) > 1000
    assert not any("packs/0" in line for line in lines)


def test_ids_are_looked_up_as_they_are(client: TestClient) -> None:
    """Fails when an id with a slash or other marks cannot be asked for."""
    odd = "tiny/rows.jsonl:37"
    for written in (odd, quote(odd, safe="")):
        answer = client.get(f"/v1/datasets/tiny/documents/{written}")
        assert (answer.status_code, answer.json()["doc_id"]) == (200, odd)


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
