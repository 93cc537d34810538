"""Functions called in the processes that read: answering a question about a dataset, and looking at one folder.

Every answer is a line of JSON and a body. The line says what was wrong, if anything was; nothing here raises.
"""

from __future__ import annotations

import gc
import gzip
import importlib
import json
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from starlette.responses import Response

from preshard.packer_service.http.dataset.cache import Cache
from preshard.packer_service.http.dataset.catalog import (
    Found,
    entry_of,
    examine,
    name_of,
    stamps_of,
    what_lies_in,
    whole_or_refuse,
)
from preshard.packer_service.http.dataset.folder import ServedFolder
from preshard.packer_service.http.dataset.reader import ServedDataset
from preshard.packer_service.http.middleware.compress import LEVEL, is_worth_compressing
from preshard.packer_service.http.models.datasets import PageOf
from preshard.packer_service.http.problems import ProblemError
from preshard.packer_service.layout.area import area_by_rank
from preshard.packer_service.runtime.scratch import keep_little_memory
from preshard.schemas.sequence import MaskArrays

MOST_LOOKS = 64
"""Folders that are looked at at once, those that do not answer included."""


@dataclass(frozen=True, slots=True)
class DatasetPlace:
    """A dataset: where it lies below which root, and the tag of the state that is asked about."""

    root: str
    path: str
    name: str
    tag: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerQuestion:
    """A question to a worker.

    Attributes:
        place: the dataset; None where there is none.
        function: a module's function that gets the dataset and the parameters, and returns a model or a response.
        parameters: by name.
        tokenizers: files that may decode the dataset's tokens.
        cache_bytes: what this process may keep.
        compresses: whether the client reads gzip.
    """

    place: DatasetPlace | None
    function: Callable[..., Any]
    parameters: dict[str, Any]
    tokenizers: tuple[str, ...]
    cache_bytes: int
    compresses: bool = False


class _ChangedError(Exception):
    """The dataset is no longer in the state that is asked about."""


_CACHE = Cache(0)
_OPEN: dict[DatasetPlace, Found] = {}
_LOCK = threading.Lock()


def answer(question: WorkerQuestion) -> bytes:
    """The answer to a question. Its head has ``status``, ``headers``, ``broken`` and ``cache``, or what is wrong."""
    if _CACHE.limit != question.cache_bytes:
        _CACHE.resize(question.cache_bytes)
    dataset: ServedDataset | None = None
    head: dict[str, Any] = {}
    body = b""
    try:
        given = dict(question.parameters)
        if question.place is not None:
            dataset = given["dataset"] = _open(question.place, question.tokenizers)
        headers, body = _encode(question.function(**given), compresses=question.compresses)
        head = {"headers": headers}
    except _ChangedError:
        head = {"changed": True}
    except ProblemError as error:
        head = {"problem": error.as_arguments()}
    except MemoryError:
        name = question.place.name if question.place else "this question"
        detail = f"{name}: the answer takes more memory than the service gives one dataset; ask for less."
        head = {"problem": ProblemError(503, "too-large", "Too large to read", detail).as_arguments()}
    except Exception as error:  # the listening process logs it, under the id that it gave the request
        head = {"error": "".join(traceback.format_exception(error))}
    if dataset is not None and dataset.broken is not None:
        head["broken"] = dataset.broken
    head["cache"] = [_CACHE.bytes, len(_CACHE), _CACHE.hits, _CACHE.misses]
    return json.dumps(head).encode() + b"\n" + body


def _open(place: DatasetPlace, tokenizers: tuple[str, ...]) -> ServedDataset:
    """The dataset, opened once; again where it was broken and is asked about all the same, for it may be repaired."""
    with _LOCK:
        found = _OPEN.get(place)
        if not isinstance(found, ServedDataset) or found.broken is not None:
            folder = ServedFolder(place.root, place.path)
            found = _OPEN[place] = examine(place.name, folder, _CACHE, looks_at_shards=False)
    dataset = whole_or_refuse(place.name, found)
    if dataset.tag != place.tag:
        raise _ChangedError
    dataset.tokenizers = tokenizers
    return dataset


def _encode(value: Any, *, compresses: bool) -> tuple[dict[str, str], bytes]:
    if isinstance(value, Response):
        return {"content-type": value.headers["content-type"]}, bytes(value.body)
    headers = {"content-type": "application/json"}
    if isinstance(value, PageOf):
        headers |= value.link_header()
    body = value.model_dump_json().encode()
    if compresses and is_worth_compressing(len(body)):
        body = gzip.compress(body, LEVEL)
        headers |= {"content-encoding": "gzip", "vary": "Accept-Encoding"}
    return headers, body


def look_at(root: str, path: str, stamps: Any, is_thorough: bool) -> bytes:
    """Looks at a folder below the root.

    Args:
        root: the root.
        path: of the folder below it.
        stamps: those that the dataset in it had when it was examined; None to examine it in any case.
        is_thorough: whether to read every table's footer, and hash those that are not large.

    Returns:
        A head with the folders ``below`` it; or ``same``; or ``found``, the dataset's entry, ``tag`` and ``stamps``.
    """
    pa.set_io_thread_count(MOST_LOOKS)  # Arrow has 8, and a listing that never comes takes one
    folder = ServedFolder(root, path)
    is_dataset, below = what_lies_in(folder)
    if not is_dataset:
        return json.dumps({"below": below}).encode() + b"\n"
    now: Any = None
    with suppress(OSError):
        now = [None if stamp is None else list(stamp) for stamp in stamps_of(folder)]
    if stamps is not None and now == stamps:
        return b'{"same": true}\n'
    began = time.monotonic()
    found = examine(name_of(path, root), folder, Cache(0), is_thorough=is_thorough)
    head = {
        "found": entry_of(found).model_dump(mode="json"),
        "tag": found.tag if isinstance(found, ServedDataset) else "",
        "stamps": now,
        "seconds": time.monotonic() - began,
    }
    return json.dumps(head).encode() + b"\n"


MODULES = (
    "pyarrow.compute",
    "pyarrow.parquet",
    "preshard.packer_service.http.app",
    "preshard.packer_service.layout.measures",
    "preshard.packer_service.ingest.text.load",
)
"""Modules that answering needs; none of it starts a thread."""


def preload() -> Iterator[None]:
    """Imports what answering needs; returns what loads the rest, some tenths of a second at a time."""
    keep_little_memory()
    for name in MODULES:
        importlib.import_module(name)
    _settle()
    return _preload_rest()


def _preload_rest() -> Iterator[None]:
    """Loads pandas, which Arrow imports wherever it takes Python's values; a compiled loop; what plans import; and the
    tokenizer that is built in.
    """
    with suppress(ImportError):
        importlib.import_module("pandas")
    _settle()
    yield
    ids = np.zeros(128, np.int32)
    mask = MaskArrays(doc_ids=ids, branch_ids=ids, group_ids=ids - 1)
    area_by_rank(mask, np.array([[0, 0, len(ids)]], np.int32), 1)
    _settle()
    yield
    # not the loops of plans: where no cache has them yet, compiling them would keep every process from starting
    importlib.import_module("preshard.packer_service.report.planned.what_if")
    _settle()
    yield
    importlib.import_module("preshard.packer_service.ingest.text.load").load_decoder("tekken").decode([])
    _settle()


def _settle() -> None:
    """Forks share the pages of what is there now until they are written, which collecting it would do."""
    gc.collect()
    gc.freeze()
