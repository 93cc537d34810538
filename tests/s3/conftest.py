"""An S3 server on this machine for the session, and the tiny source and dataset in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from s3_server import CREDENTIALS, Store, s3_store

# At import, since a process for decoders or a Ray that an earlier test started has the environment of its start.
for _name, _value in CREDENTIALS.items():
    os.environ.setdefault(_name, _value)


@pytest.fixture(scope="session")
def store() -> Iterator[Store]:
    """A bucket on a server of its own."""
    with s3_store() as store:
        yield store


@pytest.fixture(scope="session")
def remote_source(store: Store, tiny_source: Path) -> str:
    """URI of the tiny source in the bucket."""
    return store.upload(tiny_source, "source/tiny")


@pytest.fixture(scope="session")
def remote_dataset(store: Store, tiny_dataset: Path) -> str:
    """URI of the tiny dataset, copied into the bucket. Read only."""
    return store.upload(tiny_dataset, "copied/dataset")
