"""A real S3 server on this machine for the session, and the tiny source in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyarrow import fs

# At import, since a process for decoders or a Ray that an earlier test started has the environment of its start.
os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")

SERVER = """
import sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
BUCKET = "preshard"


@dataclass(frozen=True, kw_only=True)
class Store:
    """A bucket of the server."""

    filesystem: fs.S3FileSystem
    query: str

    def uri(self, path: str) -> str:
        return f"s3://{BUCKET}/{path}?{self.query}"

    def upload(self, folder: Path, path: str) -> str:
        """Copies a local folder into the bucket; its URI there."""
        fs.copy_files(str(folder), f"{BUCKET}/{path}", fs.LocalFileSystem(), self.filesystem)
        return self.uri(path)

    def names(self, path: str) -> list[str]:
        selector = fs.FileSelector(f"{BUCKET}/{path}", recursive=True, allow_not_found=True)
        infos = self.filesystem.get_file_info(selector)
        return sorted(info.path.removeprefix(f"{BUCKET}/{path}/") for info in infos if info.is_file)

    def files(self, path: str) -> dict[str, bytes]:
        """Every object below a path but run.json, which holds what is not deterministic."""
        return {
            name: self.filesystem.open_input_file(f"{BUCKET}/{path}/{name}").read()
            for name in self.names(path)
            if name != "run.json"
        }


@pytest.fixture(scope="session")
def store() -> Iterator[Store]:
    """A bucket on a server of its own: a process, since Ray's workers and loaders must reach it too."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert server.stdout is not None
    endpoint = f"127.0.0.1:{int(server.stdout.readline())}"
    filesystem = fs.S3FileSystem(
        endpoint_override=endpoint, scheme="http", region="us-east-1", allow_bucket_creation=True
    )
    filesystem.create_dir(BUCKET)
    yield Store(filesystem=filesystem, query=f"endpoint_override={endpoint}&scheme=http&region=us-east-1")
    server.kill()
    server.wait()


@pytest.fixture(scope="session")
def remote_source(store: Store, tiny_source: Path) -> str:
    """URI of the tiny source in the bucket."""
    return store.upload(tiny_source, "source/tiny")


@pytest.fixture(scope="session")
def remote_dataset(store: Store, tiny_dataset: Path) -> str:
    """URI of the tiny dataset, copied into the bucket. Read only."""
    return store.upload(tiny_dataset, "copied/dataset")
