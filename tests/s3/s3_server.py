"""moto's S3 server in a process of its own, and a bucket on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyarrow import fs

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",  # else a client without credentials asks the network for some
}
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


@contextmanager
def s3_store() -> Iterator[Store]:
    """A bucket on a server that ends with the block. A process, since Ray's workers and loaders must reach it too."""
    for name, value in CREDENTIALS.items():
        os.environ.setdefault(name, value)
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        assert server.stdout is not None
        endpoint = f"127.0.0.1:{int(server.stdout.readline())}"
        filesystem = fs.S3FileSystem(
            endpoint_override=endpoint, scheme="http", region="us-east-1", allow_bucket_creation=True
        )
        filesystem.create_dir(BUCKET)
        try:
            yield Store(filesystem=filesystem, query=f"endpoint_override={endpoint}&scheme=http&region=us-east-1")
        finally:
            server.kill()
