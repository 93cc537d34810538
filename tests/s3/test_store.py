"""A dataset in a store that fails, and in a cache that several processes share."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import io
import os
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import range_server
import torch
from pyarrow import fs
from range_server import FAULTS, served_ranges

from preshard.packer_service.config import load_config
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.schemas.errors import FormatError, ReaderError
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.extra import range_cache
from preshard.trainer.extra.range_cache import HEAD, RangeCache, read_size
from preshard.trainer.extra.store import read_ahead

SPLIT: dict[str, Any] = {"ring_degree": 2, "cp_rank": 1, "layout": "balanced_ring"}
LIMIT = "64MB"


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that are as short as faults here are, and no sample that is small enough to be read whole."""
    monkeypatch.setattr("preshard.trainer.extra.store.SMALL", 0)
    monkeypatch.setattr("preshard.trainer.extra.store.FIRST_WAIT", 0.001)
    monkeypatch.setattr("preshard.trainer.extra.store.LEAST_SLOW", 600.0)
    monkeypatch.setattr(range_server, "STALL", 0.3)
    monkeypatch.setattr(range_server, "DRIP", 256)


def require_equal(found: list[RankBatch], expected: list[RankBatch]) -> None:
    """Each pack equal, in the same order."""
    assert [batch.pack_id for batch in found] == [batch.pack_id for batch in expected]
    for mine, other in zip(found, expected, strict=True):
        assert mine.tensors.keys() == other.tensors.keys()
        for name, tensor in mine.tensors.items():
            assert torch.equal(tensor, other.tensors[name]), name


class Plan:
    """Faults of every third answer about shards, each kind in its turn."""

    def __init__(self, kinds: tuple[str, ...], every: int = 3) -> None:
        self._kinds, self._every, self.asked, self.planted = cycle(kinds), every, 0, list[str]()

    def __call__(self, method: str, name: str) -> str:
        self.asked += 1
        if self.asked % self._every or (method == "HEAD" and name.startswith("shards")):
            return ""
        self.planted.append(next(self._kinds))
        return self.planted[-1]


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_epoch_from_a_store_that_fails_has_every_pack(
    tiny_dataset: Path, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a fault of a store ends a run, changes a pack or its order, or is not counted."""
    monkeypatch.setattr("preshard.trainer.extra.store.LEAST_SLOW", 0.05)
    plan, found = Plan(FAULTS), list[RankBatch]()
    with served_ranges(tiny_dataset, fault=plan) as server:
        for epoch in range(4):
            found += PackedDataset(server.uri, **SPLIT, epoch=epoch, ahead=ahead)
    expected = [batch for epoch in range(4) for batch in PackedDataset(tiny_dataset, **SPLIT, epoch=epoch)]
    require_equal(found, expected)
    assert set(plan.planted) == set(FAULTS)
    assert sum(batch.reads["retries"] for batch in found) > len(plan.planted) // 2
    assert all(batch.reads["fetched_bytes"] >= batch.bytes_read for batch in found)


def test_the_first_pack_is_read_alone() -> None:
    """Fails when packs that are read ahead take turns with the one that the loop waits for, or come out of order."""
    others = threading.Event()

    def first() -> bool:
        return others.wait(0.2)

    def other(number: int) -> int:
        others.set()
        return number

    calls = [(number, partial(other, number) if number else first) for number in range(5)]
    assert list(read_ahead(iter(calls), 2)) == [(0, False), (1, 1), (2, 2), (3, 3), (4, 4)]


@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "throttles"])
def test_a_store_that_never_answers_is_named(tiny_dataset: Path, hangs: bool) -> None:
    """Fails when a run waits longer for a store than it was told, or ends without what it said."""
    down, over = threading.Event(), threading.Event()
    wait: dict[str, Any] = {"before": lambda _: over.wait(60) if down.is_set() else None}
    refuse: dict[str, Any] = {"fault": lambda *_: "throttled" if down.is_set() else ""}
    last = "no answer" if hangs else "(SLOW_DOWN|SlowDown|503)"
    with served_ranges(tiny_dataset, **(wait if hangs else refuse)) as server:
        dataset = PackedDataset(server.uri, **SPLIT, store_timeout=0.4)
        down.set()
        said = r": no usable answer in 0\.4 s \(asked .*, last: .*" + last + r".*; store_timeout \(--store-timeout\)"
        with pytest.raises(ReaderError, match=r"^s3://folder/shards/preshard-\d+\.tar\?.*" + said):
            list(dataset)
        opening = r"^s3://folder/manifest\.json\?.*" + said.replace(last, "")  # a client of its own asks again
        with pytest.raises(ReaderError, match=opening):
            PackedDataset(server.uri, **SPLIT, store_timeout=0.4)
        over.set()
    with pytest.raises(ReaderError, match="store_timeout is 0; give seconds above 0"):
        PackedDataset(server.uri, store_timeout=0)


@pytest.mark.parametrize("status", ["301", "403"])
def test_what_asking_again_cannot_mend_ends_at_once(tiny_dataset: Path, status: str) -> None:
    """Fails when a bucket of another region or a lack of rights is asked for two minutes."""
    planted = set[str]()
    said = rf": asked once, last: .*(HTTP status {status}|ACCESS_DENIED)"
    with served_ranges(tiny_dataset, fault=lambda method, _: status if method in planted else "") as server:
        dataset = PackedDataset(server.uri, **SPLIT, store_timeout=2)
        planted.add("GET")
        with pytest.raises(ReaderError, match=r"^s3://folder/shards/.*" + said):
            next(iter(dataset))
        planted.add("HEAD")
        with pytest.raises(ReaderError, match=r"^s3://folder/manifest\.json.*" + said):
            PackedDataset(server.uri, store_timeout=2)


def test_a_size_that_does_not_come_is_asked_for_again(tiny_dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when the second request beside a slow one waits for the same answer about the shard's size."""
    monkeypatch.setattr("preshard.trainer.extra.store.LEAST_SLOW", 0.05)
    held, over = set[str](), threading.Event()

    def hold(method: str, name: str) -> str:
        if method == "HEAD" and name.startswith("shards") and name not in held:
            held.add(name)
            over.wait(30)
        return ""

    with served_ranges(tiny_dataset, fault=hold) as server:
        found = list(PackedDataset(server.uri, **SPLIT, store_timeout=2.5))  # below libcurl's own patience
        over.set()
    require_equal(found, list(PackedDataset(tiny_dataset, **SPLIT)))
    assert held
    ranges = sum(1 + bool(len(batch.images)) for batch in found)
    assert sum(batch.reads["retries"] for batch in found) >= len(held)
    assert sum(batch.reads["requests"] for batch in found) >= ranges + 2 * len(held), "sizes count as requests"


def test_a_range_may_take_as_long_as_its_bytes(tiny_dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a slow link is taken for one that hangs, and each range is begun anew until the time is over."""
    monkeypatch.setattr("preshard.trainer.extra.store.STUCK", 0.1)
    monkeypatch.setattr("preshard.trainer.extra.store.SLOWEST", 1 << 10)
    monkeypatch.setattr("preshard.trainer.extra.store.LEAST_SLOW", 0.05)
    monkeypatch.setattr(range_server, "DRIP", 8192)
    slow: dict[str, Any] = {"fault": lambda method, name: "dripping" * (method == "GET" and name.startswith("shards"))}
    with served_ranges(tiny_dataset, **slow) as server:
        batch = next(iter(PackedDataset(server.uri, **SPLIT, store_timeout=20, ahead=0)))
    assert batch.bytes_read > 4 * 8192, "longer than such a time"
    assert batch.reads["retries"] == 2, "of two ranges, each asked for twice at most"


class Failing(io.BytesIO):
    """A file of other people's software, which now and then fails in its own way, or keeps wrong bytes."""

    opened = 0

    def __init__(self, content: bytes, name: str) -> None:
        type(self).opened += "shards" in name
        self._fails = "shards" in name and self.opened % 2 == 1
        if "shards" in name and self.opened % 4 == 2:
            content = content.replace(b"\xff\xd8\xff", b"\xff\xd8\xfe")
        super().__init__(content)

    def read(self, size: int | None = -1) -> bytes:
        if self._fails:
            raise asyncio.InvalidStateError("the payload is not complete")
        return super().read(size)


class OtherPeoples(fs.FSSpecHandler):
    """A filesystem of fsspec's kind."""

    def open_input_file(self, path: str) -> Any:
        return pa.PythonFile(Failing(Path(path).read_bytes(), path), mode="r")


def test_a_filesystem_fails_in_its_own_way(tiny_dataset: Path) -> None:
    """Fails when a filesystem's own errors, which are not OSError, end a run, or stale bytes read ahead are reused."""
    filesystem = fs.PyFileSystem(OtherPeoples(None))
    found = list(PackedDataset(tiny_dataset, **SPLIT, filesystem=filesystem, ahead=0))
    require_equal(found, list(PackedDataset(tiny_dataset, **SPLIT)))
    assert Failing.opened > 4
    assert sum(batch.reads["retries"] for batch in found) > 2


def test_the_last_words_of_a_store_are_kept(tiny_dataset: Path) -> None:
    """Fails when a store that first throttles and then hangs is said to have given no answer."""
    over, said = threading.Event(), iter([OSError("SlowDown")])

    def ask() -> None:
        for error in said:
            raise error
        over.wait(30)

    filesystem = fs.PyFileSystem(OtherPeoples(None))
    store: Any = PackedDataset(tiny_dataset, filesystem=filesystem, store_timeout=0.3).files.store
    with pytest.raises(
        ReaderError, match=r"manifest\.json.*no usable answer in 0\.3 s \(asked 2 times, last: SlowDown\)"
    ):
        store.persist("manifest.json", ask)
    over.set()


def test_what_is_missing_or_short_is_no_fault_of_the_store(tiny_dataset: Path, tmp_path: Path) -> None:
    """Fails when a dataset that is damaged is asked for again until the time is over, or the error is another."""
    shutil.copytree(tiny_dataset, tmp_path / "short")
    for path in (tmp_path / "short" / "shards").glob("*.tar"):
        with path.open("r+b") as file:
            file.truncate(1000)
    with served_ranges(tmp_path / "short") as server:
        with pytest.raises(FormatError, match=r"has only .* it was cut short"):
            list(PackedDataset(server.uri, **SPLIT))
        shutil.rmtree(tmp_path / "short" / "shards")
        with pytest.raises(FormatError, match=r"^s3://folder/shards/preshard-\d+\.tar\?.*: is missing"):
            list(PackedDataset(server.uri, **SPLIT))


def test_a_node_reads_each_range_once(tiny_dataset: Path, tmp_path: Path) -> None:
    """Fails when ranks of a pack each fetch its header, or a later epoch, run or reader fetches what was kept."""
    degrees: dict[str, Any] = {"ulysses_degree": 2, "ring_degree": 2, "layout": "zigzag"}
    cached = {"cache_dir": tmp_path / "cache", "cache_limit": LIMIT}
    with served_ranges(tiny_dataset) as server:
        ranks = [PackedDataset(server.uri, **degrees, cp_rank=rank, **cached) for rank in range(4)]
        steps = list(zip(*ranks, strict=True))
        for rank in range(4):
            local = list(PackedDataset(tiny_dataset, **degrees, cp_rank=rank))
            require_equal([step[rank] for step in steps], local)
        headers = sum(ranks[0].files.packs()[step[0].pack_id].header_size for step in steps)
        fetched = sum(batch.reads["fetched_bytes"] for step in steps for batch in step)
        assert fetched == sum(batch.bytes_read for step in steps for batch in step) - 3 * headers
        sent = sum(server.sent[name] for name in server.sent if name.startswith("shards/"))
        assert sent == fetched
        server.take()
        again = list(PackedDataset(server.uri, **degrees, cp_rank=3, **cached, epoch=1))
        assert [batch.reads["requests"] for batch in again] == [0] * len(again)
        assert not [name for name in server.requests if name.startswith("shards/")]
    require_equal(again, list(PackedDataset(tiny_dataset, **degrees, cp_rank=3, epoch=1)))


def damage(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def sealed_wrongly(content: bytes) -> bytes:
    """Other bytes under a checksum that fits them, as of a store that sent them."""
    mark, key, _, size = HEAD.unpack(content[: HEAD.size])
    data = bytes(reversed(content[HEAD.size :]))
    return HEAD.pack(mark, key, range_cache.crc32c(data), size) + data


@pytest.mark.parametrize("change", [damage, sealed_wrongly, lambda content: content[:40], lambda _: b""])
def test_a_damaged_range_is_fetched_again(tiny_dataset: Path, tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    """Fails when bytes of a cache are trusted: those of a broken disk, or ones that were damaged before."""
    cached = {"cache_dir": tmp_path, "cache_limit": LIMIT}
    expected = list(PackedDataset(tiny_dataset, **SPLIT))
    for _ in range(2):
        require_equal(list(PackedDataset(tiny_dataset, **SPLIT, **cached)), expected)
        files = [path for path in tmp_path.glob("ranges-*/[0-9]*/*") if len(path.name) == 32]
        assert len(files) > len(expected)
        for path in files:
            path.write_bytes(change(path.read_bytes()))
    found = list(PackedDataset(tiny_dataset, **SPLIT, **cached))
    require_equal(found, expected)
    assert sum(batch.reads["cached_bytes"] for batch in list(PackedDataset(tiny_dataset, **SPLIT, **cached)))


def test_a_dataset_that_takes_the_place_of_another_is_read(
    tiny_dataset: Path, tiny_source: Path, tiny_settings: list[str], progress: Any, tmp_path: Path
) -> None:
    """Fails when a cache goes by addresses: bytes of the dataset that lay there before."""
    cached = {"cache_dir": tmp_path / "cache", "cache_limit": LIMIT}
    config = load_config(None, [*tiny_settings, "jpeg_quality=60"])
    pack([str(tiny_source)], str(tmp_path / "other"), config, PlainExecutor(), progress)
    for folder in (tiny_dataset, tmp_path / "other", tiny_dataset):
        shutil.rmtree(tmp_path / "dataset", ignore_errors=True)
        shutil.copytree(folder, tmp_path / "dataset")
        found = list(PackedDataset(tmp_path / "dataset", **cached))
        require_equal(found, list(PackedDataset(folder)))
    assert sum(batch.reads["requests"] for batch in found) == 0, "what both were read with is kept"
    elsewhere = list(PackedDataset(tiny_dataset, **cached))
    assert sum(batch.reads["requests"] for batch in elsewhere) == 0, "the same content at another address"


def test_a_cache_gives_no_damaged_range(tmp_path: Path) -> None:
    """Fails when a range's checksum is not compared, which samples' own checksums would hide."""
    cache = RangeCache(tmp_path, LIMIT)
    assert cache.read("range", 5, lambda: b"right") == (b"right", False)
    assert cache.read("range", 5, lambda: b"other") == (b"right", True)
    [path] = [path for path in tmp_path.glob("ranges-*/[0-9]*/*") if len(path.name) == 32]
    path.write_bytes(damage(path.read_bytes()))
    assert cache.read("range", 5, lambda: b"right") == (b"right", False)


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_cache_that_cannot_be_used_is_read_past(
    tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a full disk, or a cache_dir that is not a folder, ends a run, or says so for each range."""
    expected = list(PackedDataset(tiny_dataset, **SPLIT))
    (tmp_path / "file").write_bytes(b"")
    for folder, said in ((tmp_path / "file", "Not a directory"), (tmp_path / "full", "No space left on device")):
        monkeypatch.setattr(range_cache.RangeCache, "_make_room", staticmethod(no_room))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                found = list(PackedDataset(tiny_dataset, **SPLIT, cache_dir=folder, cache_limit=LIMIT))
                require_equal(found, expected)
        assert [said in str(each.message) for each in caught] == [True], [str(each.message) for each in caught]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cache_dir": "x"}, "cache_dir is x without cache_limit: give the bytes"),
        ({"cache_limit": 2**30}, "without cache_dir: name a folder"),
        ({"cache_dir": "x", "cache_limit": "much"}, "cache_limit is 'much'; give 1 MiB or more"),
        ({"cache_dir": "x", "cache_limit": -1}, "cache_limit is -1; give 1 MiB or more"),
    ],
)
def test_a_cache_without_its_limit_is_refused(tiny_dataset: Path, given: dict[str, Any], said: str) -> None:
    """Fails when a cache takes whatever a disk has, or a limit means nothing."""
    with pytest.raises(ReaderError, match=said):
        PackedDataset(tiny_dataset, **given)


def test_sizes_are_read_as_people_write_them() -> None:
    """Fails when a unit is taken for another."""
    assert [read_size(each) for each in (2**20, "1MiB", "1.5 GB", "2tb", "3000k", "1 Gi")] == [
        *(2**20, 2**20, 15 * 10**8, 2 * 10**12, 3 * 10**6, 2**30)
    ]


def content_of(number: int) -> bytes:
    """Bytes of a range, of many sizes, none of them and more than a cache takes among them."""
    drawn = np.random.default_rng(number)
    size = int(drawn.choice([0, 1, 4096, 60_000, 300_000, 2_000_000], p=[0.1, 0.1, 0.3, 0.3, 0.19, 0.01]))
    return drawn.bytes(size)


def key_of(number: int) -> str:
    return hashlib.sha256(f"range {number}".encode()).hexdigest()[:32]


def kept_bytes(folder: Path) -> int:
    """Bytes that files take, in whole blocks."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += -(-path.stat().st_size // 4096) * 4096 * path.is_file()
        except FileNotFoundError:
            continue
    return total


def use(folder: Path, limit: int, seed: int, wrong: Path) -> None:
    """Reads ranges by chance until killed; one that is not what it should be leaves a file."""
    cache, drawn = RangeCache(folder, limit), np.random.default_rng(seed)
    while True:
        number = int(drawn.integers(60))
        content = content_of(number)
        if cache.read(f"range {number}", len(content), partial(content_of, number))[0] != content:
            wrong.touch()


def test_processes_that_are_killed_leave_a_sound_cache(tmp_path: Path) -> None:
    """Fails when a kill leaves a half-written range that is taken for a whole one, a lock, or more than the limit."""
    context, folder, wrong, limit = get_context("fork"), tmp_path / "cache", tmp_path / "wrong", 2**20
    drawn, running = np.random.default_rng(0), dict[int, Any]()
    most, kills, until = 0, 0, time.monotonic() + float(os.environ.get("KILL_SECONDS", "1.5"))
    while time.monotonic() < until or kills < 12:
        for slot in range(4):
            if slot not in running:
                running[slot] = context.Process(target=use, args=(folder, limit, kills * 8 + slot, wrong))
                running[slot].start()
        time.sleep(float(drawn.uniform(0, 0.1)))
        most = max(most, kept_bytes(folder))
        victim = running.pop(int(drawn.integers(4)))
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        kills += 1
    for process in running.values():
        process.kill()
        process.join()
    assert not wrong.exists()
    assert limit // 2 < most <= limit + 4096, "the form of the folder is no range"
    cache, whole = RangeCache(folder, limit), 0
    for number in range(60):
        [path, content] = folder.glob(f"*/*/{key_of(number)}"), content_of(number)
        whole += (found := next(path, None)) is not None and found.read_bytes()[HEAD.size :] == content
    assert whole > 0
    assert whole >= sum(1 for _ in folder.glob("*/[0-9]*/*")) - 5, "a file of each lock, and four half-written ones"
    for number in range(60):
        assert cache.read(f"range {number}", len(content_of(number)), partial(content_of, number))[0] == content_of(
            number
        )
    assert not list(folder.rglob("*.new"))
    RangeCache(folder, limit * 4).read("more", 4, lambda: b"more")
    smaller = RangeCache(folder, 2**20)
    assert kept_bytes(folder) <= 2**20 + 4096
    assert smaller.read("more", 4, lambda: b"more") == (b"more", True)


def test_one_of_many_fetches_a_range(tmp_path: Path) -> None:
    """Fails when those who want a range at a time all fetch it, or one waits for ever for another that hangs."""
    from concurrent.futures import ThreadPoolExecutor

    caches, fetched = [RangeCache(tmp_path, LIMIT) for _ in range(8)], list[int]()

    def fetch() -> bytes:
        fetched.append(1)
        time.sleep(0.1)
        return b"range"

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda cache: cache.read("range", 5, fetch), caches))
    assert [data for data, _ in found] == [b"range"] * 8
    assert len(fetched) == 1


def test_a_range_that_cannot_be_fetched_is_an_error_of_each(tmp_path: Path) -> None:
    """Fails when an error of the store is taken for one of the cache, or the next one waits for a lock."""
    cache = RangeCache(tmp_path, LIMIT)

    def fail() -> bytes:
        raise OSError("AWS Error SLOW_DOWN")

    for _ in range(2):
        with pytest.raises(OSError, match="SLOW_DOWN"):
            cache.read("range", 5, fail)
    assert cache.read("range", 5, lambda: b"range") == (b"range", False)
    assert cache.read("range", 5, fail) == (b"range", True)
