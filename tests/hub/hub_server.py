"""A server on this machine that speaks the Hugging Face Hub's protocol for one repository of a dataset, in memory.

All files come inside of commits, as small ones do on the real Hub, and large ones do not.
"""

from __future__ import annotations

import base64
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_of_the_test"
OID = "0" * 40


class Hub(ThreadingHTTPServer):
    """One repository: its ``files``, and the ``requests`` that were answered (``commit``, ``read PATH`` ...)."""

    def __init__(self, repository: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repository = repository
        self.files: dict[str, bytes] = {".gitattributes": b"*.tar filter=lfs diff=lfs merge=lfs -text\n"}
        self.requests: list[str] = []
        self.sent = 0
        """Bytes of files that were asked for."""
        self.lock = Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        at = urlsplit(self.path)
        with self.server.lock:
            self._get(unquote(at.path), parse_qs(at.query))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.server.lock:
            self._post(unquote(urlsplit(self.path).path), body)

    def _get(self, path: str, query: dict[str, list[str]]) -> None:
        name, files = re.escape(self.server.repository), self.server.files
        if not self._may():
            return
        if re.fullmatch(rf"/api/datasets/{name}(/revision/main)?", path):
            self.server.requests.append("info")
            self._json({"id": self.server.repository, "sha": OID, "private": False, "siblings": []})
        elif found := re.fullmatch(rf"/api/datasets/{name}/tree/main/?(.*)", path):
            self.server.requests.append("tree")
            entries = self._below(found[1], recursive=query.get("recursive", ["false"])[0].lower() == "true")
            if entries or not found[1]:
                self._json(entries)
            else:
                self._fail(404, "EntryNotFound")
        elif found := re.fullmatch(rf"/datasets/{name}/resolve/main/(.+)", path):
            if found[1] not in files:
                self._fail(404, "EntryNotFound")
                return
            self.server.requests.append(f"read {found[1]}")
            self._content(files[found[1]])
        else:
            self._fail(404, "RepoNotFound")

    def _post(self, path: str, body: bytes) -> None:
        name, files = re.escape(self.server.repository), self.server.files
        if not self._may():
            return
        if re.fullmatch(rf"/api/datasets/{name}/paths-info/main", path):
            asked = parse_qs(body.decode()).get("paths") or json.loads(body)["paths"]
            self._json([entry for one in asked for entry in self._entry(one)])
        elif re.fullmatch(rf"/api/datasets/{name}/preupload/main", path):
            paths = [file["path"] for file in json.loads(body)["files"]]
            self._json({"files": [{"path": one, "uploadMode": "regular", "shouldIgnore": False} for one in paths]})
        elif re.fullmatch(rf"/api/datasets/{name}/commit/main", path):
            self.server.requests.append("commit")
            for line in map(json.loads, body.decode().splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "deletedFile":
                    del files[value["path"]]
            self._json(
                {
                    "commitUrl": f"{self.server.endpoint}/datasets/{self.server.repository}/commit/{OID}",
                    "commitOid": OID,
                    "success": True,
                }
            )
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        else:
            self._fail(404, "RepoNotFound")

    def _may(self) -> bool:
        if self.headers.get("Authorization") == f"Bearer {TOKEN}":
            return True
        self._fail(401, "GatedRepo")
        return False

    def _entry(self, path: str) -> list[dict[str, Any]]:
        if path in self.server.files:
            return [{"type": "file", "path": path, "size": len(self.server.files[path]), "oid": OID}]
        is_folder = any(name.startswith(f"{path}/") for name in self.server.files)
        return [{"type": "directory", "path": path, "size": 0, "oid": OID}] if is_folder else []

    def _below(self, folder: str, *, recursive: bool) -> list[dict[str, Any]]:
        start = f"{folder}/" if folder else ""
        parts = [name[len(start) :].split("/") for name in self.server.files if name.startswith(start)]
        depth = max(map(len, parts), default=0) if recursive else 1
        names = {start + "/".join(one[:n]) for one in parts for n in range(1, min(len(one), depth) + 1)}
        return [entry for name in sorted(names) for entry in self._entry(name)]

    def _content(self, data: bytes) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        part = data[int(asked[1]) : int(asked[2]) + 1] if asked else data
        self.server.sent += len(part)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {asked[1]}-{asked[2]}/{len(data)}")
        self._end(part, "application/octet-stream")

    def _json(self, value: Any) -> None:
        self.send_response(200)
        self._end(json.dumps(value).encode(), "application/json")

    def _fail(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self._end(b"{}", "application/json")

    def _end(self, body: bytes, kind: str) -> None:
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
