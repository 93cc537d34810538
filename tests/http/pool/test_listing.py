"""What the process that listens makes of what one that looks tells it, or no longer tells it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from preshard.packer_service.http.answers.entries import entry_of
from preshard.packer_service.http.dataset.unfinished import Unfinished
from preshard.packer_service.http.pool.frames import Frame
from preshard.packer_service.http.pool.listing import SETTLED_SECONDS, Listing
from preshard.packer_service.http.settings import ServiceSettings

LONG = 60.0
SCAN_SECONDS = 0.05

Told = Callable[[Frame], None]
Play = Callable[["FakeScanner", dict[str, Any]], None]


class FakeScanner:
    """Stands for a process that looks, and says what a test has it say."""

    def __init__(self, told: Told, play: Play) -> None:
        self._told, self._play = told, play
        self.ended: Exception | None = None
        self.over = asyncio.Event()

    async def wait(self) -> None: ...

    def tell(self, head: dict[str, Any]) -> None:
        self._play(self, head)

    def say(self, **head: Any) -> None:
        self._told(Frame(head))

    def say_found(self, path: str) -> None:
        entry = entry_of(Unfinished(name=path, shards_done=0, shards_total=None, bytes=0)).model_dump(mode="json")
        self.say(at=path)
        self.say(found={"path": path, "tag": "", "entry": entry})

    def end(self, reason: str) -> None:
        self.ended = self.ended or RuntimeError(reason)
        self.over.set()


class FakePool:
    """Starts fake processes, each with the next part of a play."""

    def __init__(self, *plays: Play) -> None:
        self._plays = list(plays)
        self.started: list[FakeScanner] = []
        self.broken: dict[str, tuple[str, str]] = {}

    def start_scanner(self, told: Told) -> FakeScanner:
        self.started.append(FakeScanner(told, self._plays.pop(0)))
        return self.started[-1]


def looked(pool: FakePool, name: str | None = None) -> Listing:
    """A list after its first look."""
    settings: Any = ServiceSettings(root=".", scan_seconds=SCAN_SECONDS, rescan_seconds=0)
    fake: Any = pool

    async def look() -> Listing:
        listing = Listing(settings, fake)
        async with asyncio.timeout(LONG):
            while not listing.has_looked:
                await listing.fresh(name)
        return listing

    return asyncio.run(look())


def hangs_in(path: str, scanner: FakeScanner, head: dict[str, Any]) -> None:
    if "skip" in head:
        scanner.say(at=path)
        scanner.say_found("sound")
    else:
        assert head == {"leave": [path]}
        scanner.say(left=path)
        scanner.say(end=False)


def test_a_folder_that_takes_too_long_is_listed_with_the_reason_and_the_others_as_they_are() -> None:
    """Fails when one folder that never answers ends the look, hides a sound one, or is not said to be the cause."""
    pool = FakePool(lambda scanner, head: hangs_in("a/never", scanner, head))
    listing = looked(pool)
    entries = listing.look()
    assert {name: entry.state for name, entry in entries.items()} == {"a:never": "damaged", "sound": "unfinished"}
    assert entries["a:never"].reason == f"looking at it took longer than {SCAN_SECONDS:g} seconds"
    assert not listing.complete
    assert pool.started[0].ended is not None, "the thread that waits is still there"


def test_what_ends_the_process_is_found_by_looking_at_one_folder_at_a_time() -> None:
    """Fails when a folder is blamed for what another one did, or a crash is tried again and again."""

    def crashes(scanner: FakeScanner, head: dict[str, Any]) -> None:
        assert head == {"skip": [], "alone": False}
        scanner.say(at="sound")
        scanner.say(at="crash")
        scanner.end("gone")

    def crashes_alone(scanner: FakeScanner, head: dict[str, Any]) -> None:
        assert head == {"skip": [], "alone": True}
        scanner.say(at="crash")
        scanner.end("gone")

    def ends(scanner: FakeScanner, head: dict[str, Any]) -> None:
        assert head == {"skip": ["crash"], "alone": True}
        scanner.say_found("sound")
        scanner.say(end=True)

    listing = looked(FakePool(crashes, crashes_alone, ends))
    assert {name: entry.state for name, entry in listing.look().items()} == {"crash": "damaged", "sound": "unfinished"}
    assert "ended the process" in str(listing.look()["crash"].reason)
    assert not listing.complete


def test_a_process_that_does_not_even_leave_a_folder_is_ended() -> None:
    """Fails when a process in which nothing moves any more keeps the list as it is for ever."""

    def stands_still(scanner: FakeScanner, head: dict[str, Any]) -> None:
        if "skip" in head:
            scanner.say(at="still")

    def ends(scanner: FakeScanner, head: dict[str, Any]) -> None:
        assert head["skip"] == ["still"]
        scanner.say_found("sound")
        scanner.say(end=True)

    pool = FakePool(stands_still, ends)
    listing = looked(pool)
    assert {name: entry.state for name, entry in listing.look().items()} == {"still": "damaged", "sound": "unfinished"}
    assert pool.started[0].ended is not None


def test_a_request_waits_for_its_dataset_and_for_no_other() -> None:
    """Fails when a question about a dataset that was found waits until the whole root was looked through."""

    def found_only(scanner: FakeScanner, head: dict[str, Any]) -> None:
        scanner.say(at="never")
        scanner.say_found("sound")

    settings: Any = ServiceSettings(root=".", rescan_seconds=0)
    fake: Any = FakePool(found_only)

    async def ask() -> Listing:
        listing = Listing(settings, fake)
        await listing.fresh("sound")
        listing.close()
        return listing

    listing = asyncio.run(ask())
    assert not listing.has_looked
    assert listing.find("sound") is not None


def test_a_request_waits_longer_for_its_own_dataset_than_for_other_folders() -> None:
    """Fails when a dataset so large that looking at it takes a while is said not to be there yet."""

    settings: Any = ServiceSettings(root=".")
    fake: Any = FakePool(lambda scanner, _: scanner.say(at="years/large"))

    async def ask() -> tuple[bool, bool]:
        listing = Listing(settings, fake)
        await listing.fresh(None)
        own = asyncio.ensure_future(listing.fresh("years:large"))
        await asyncio.sleep(2 * SETTLED_SECONDS)
        has_waited = not own.done()
        fake.started[0].say_found("years:large")
        await own
        listing.close()
        return has_waited, listing.find("years:large") is not None

    assert asyncio.run(ask()) == (True, True)


def test_a_root_that_does_not_answer_leaves_the_list_as_it_is() -> None:
    """Fails when the root itself is listed as a damaged dataset, or the look never ends."""
    listing = looked(FakePool(lambda scanner, _: scanner.say(at="")))
    assert listing.look() == {}
    assert not listing.complete
