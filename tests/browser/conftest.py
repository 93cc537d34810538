"""Headless Chromium before a service over the packed demo and datasets that are hostile, damaged or unfinished."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from preshard.packer_service.http.app import create_app
from preshard.packer_service.http.settings import ServiceSettings
from preshard.schemas.config import PackConfig

CHROMIUM_FLAGS = [
    # Tests may run as root in a container, where the sandbox cannot start.
    "--no-sandbox",
    "--disable-gpu",
    # Without these Chromium looks for hosts outside at every start.
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESKTOP = {"width": 1280, "height": 900}
MARKUP = "<img src=x onerror=\"document.title='owned'\">"
"""Markup that must never become an element of the page."""

LOOK_AGAIN_MS = 25
"""Milliseconds between looks at whether a view is shown. Looks at every frame would make the browser draw them all."""


class OneBrowser:
    """A browser that all tests of this folder share, started for the first of them that runs and ended after the last.

    While it is open an event loop runs in this thread, and no test can run another.
    """

    def __init__(self) -> None:
        self._open = ExitStack()
        self._browser: Browser | None = None
        self._usual: Reader | None = None

    def browser(self) -> Browser:
        if self._browser is None:
            # the one that has no windows takes less processor time
            chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
            if chromium is None:
                pytest.skip("no chromium on the path: tests/browser/chromium.sh installs it where it may")
            playwright = self._open.enter_context(sync_playwright())
            self._browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
            self._open.callback(self._browser.close)
        return self._browser

    def usual_reader(self, address: str, photographs: Path | None) -> Reader:
        """The window that tests use one after the other: the page's files are loaded and compiled once for all.

        A view has nothing but its address, so a test that opens one finds nothing of the test before it.
        """
        if self._usual is None:
            self._usual = Reader(self.browser().new_context(viewport=DESKTOP), address, photographs)
        return self._usual

    def close(self) -> None:
        self._browser = self._usual = None
        self._open.close()


ONE_BROWSER = OneBrowser()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[Any]:
    """Ends the browser when a test from elsewhere follows, or none. Where tests come in any order it starts again."""
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path.parent != item.path.parent:
            ONE_BROWSER.close()


@pytest.fixture
def browser() -> Browser:
    return ONE_BROWSER.browser()


@pytest.fixture(scope="session")
def markup() -> str:
    return MARKUP


def _linked(source: Path, target: Path) -> None:
    """A copy whose files share the bytes of the first."""
    shutil.copytree(source, target, copy_function=os.link)


@pytest.fixture(scope="session")
def hostile_dataset(tmp_path_factory: pytest.TempPathFactory, tiny_config: PackConfig, progress: Any) -> Path:
    """A dataset whose ids, sources, texts and messages are markup, with ids that need encoding in an address."""
    from preshard.packer_service.job.pack import pack
    from preshard.packer_service.runtime.executors import PlainExecutor

    folder = tmp_path_factory.mktemp("hostile")
    rows = [
        {"id": MARKUP, "source": "<b>bold</b>", "text": f"{MARKUP} and </span><script>alert(1)</script> " * 8},
        {"id": "a/b?c=d&e#f %41", "source": "<b>bold</b>", "text": "an id that needs encoding " * 9},
        {"id": f"bad {MARKUP}", "source": MARKUP, "text": " "},
    ]
    source = folder / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pack([str(source)], str(folder / "dataset"), tiny_config, PlainExecutor(), progress)
    return folder / "dataset"


@pytest.fixture(scope="session")
def empty_dataset(tmp_path_factory: pytest.TempPathFactory, tiny_config: PackConfig, progress: Any) -> Path:
    """A dataset whose only row was rejected."""
    from preshard.packer_service.job.pack import pack
    from preshard.packer_service.runtime.executors import PlainExecutor

    folder = tmp_path_factory.mktemp("empty")
    (folder / "rows.jsonl").write_text(json.dumps({"id": "blank", "text": " "}))
    pack([str(folder / "rows.jsonl")], str(folder / "dataset"), tiny_config, PlainExecutor(), progress)
    return folder / "dataset"


@pytest.fixture(scope="session")
def root(
    tmp_path_factory: pytest.TempPathFactory,
    demo_dataset: Path,
    tiny_dataset: Path,
    hostile_dataset: Path,
    empty_dataset: Path,
) -> Path:
    """Folder that the service serves: demo, hostile, an empty one, one whose manifest ends too early, one without."""
    root = tmp_path_factory.mktemp("root")
    whole = {"demo": demo_dataset, "hostile": hostile_dataset, "empty": empty_dataset, "damaged": tiny_dataset}
    for name, source in whole.items():
        _linked(source, root / name)
    _linked(tiny_dataset, root / "unfinished")
    (root / "unfinished/manifest.json").unlink()
    (root / "unfinished/.work").mkdir()
    text = (root / "damaged/manifest.json").read_bytes()
    (root / "damaged/manifest.json").unlink()  # a link: writing into it would damage the first
    (root / "damaged/manifest.json").write_bytes(text[: len(text) // 2])
    return root


@contextmanager
def _served(settings: ServiceSettings) -> Iterator[str]:
    app = create_app(settings)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.02)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(timeout=10)


@pytest.fixture(scope="session")
def service(root: Path) -> Iterator[str]:
    """Address of a service over the root."""
    with _served(ServiceSettings(root=str(root))) as address:
        yield address


@pytest.fixture
def windows() -> list[tuple[BrowserContext, Reader]]:
    """The windows that the test has opened, each with its reader."""
    return []


@pytest.fixture
def served(windows: list[tuple[BrowserContext, Reader]]) -> Callable[[ServiceSettings], Any]:
    """Starts a service with settings of the test's own, as a context that closes the test's windows before it ends.

    A window that outlives the service still asks for pictures, and complains that nobody answers.
    """

    @contextmanager
    def serve(settings: ServiceSettings) -> Iterator[str]:
        with _served(settings) as address:
            yield address
            for context, _ in windows:
                context.close()

    return serve


class Reader:
    """A reader of the page who notices everything that a browser complains about."""

    def __init__(self, context: BrowserContext, address: str, photographs: Path | None) -> None:
        self.page: Page = context.new_page()
        # far below pytest's own limit; a view takes half a minute where others use every core
        self.page.set_default_timeout(120_000)
        self.complaints: list[str] = []
        self._address = address
        self._photographs = photographs
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        self.page.on("requestfailed", lambda request: self._failed(request.url, request.failure))
        self.page.on("request", lambda request: self._asked(request.url))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _failed(self, url: str, failure: str | None) -> None:
        if failure != "net::ERR_ABORTED":  # the reader went on before the answer was there
            self.complaints.append(f"{url}: {failure}")

    def _asked(self, url: str) -> None:
        if not url.startswith((self._address, "blob:", "data:")):
            self.complaints.append(f"something from outside was asked for: {url}")

    def open(self, view: str = "") -> None:
        """Opens a view by its address, as from a link that someone sent, and waits until it is shown."""
        self.empty()
        self.page.goto(f"{self._address}/#/{view}")
        self.settle()

    def empty(self) -> None:
        """Shows nothing of the page. From another site, also a blank one, Chromium would load it in a new process."""
        self.page.goto(f"{self._address}/static/icon.svg")

    def turn_to(self, view: str) -> None:
        """Goes on to another view without loading the page again."""
        self.page.evaluate("(view) => { location.hash = `#/${view}`; }", view)
        self.settle()

    def settle(self) -> None:
        """Waits until what is asked for is shown, nothing is loading and every chart is drawn."""
        self.page.wait_for_function(
            """() => document.querySelector('main').dataset.address === location.hash
                && !document.querySelector('.loading')
                && [...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('.main-svg'))""",
            polling=LOOK_AGAIN_MS,
        )

    def follow(self, name: str, role: Any = "link") -> None:
        """Chooses a link (or a button) by its name and waits for what it shows."""
        self.page.get_by_role(role, name=name, exact=True).first.click()
        self.settle()

    def says(self) -> str:
        return self.page.locator("main").inner_text()

    def photograph(self, name: str) -> None:
        """The whole view into a file, if someone wants to see it: what loads when it comes into sight with it."""
        if self._photographs is None:
            return
        self.page.evaluate(
            "async () => { for (const i of document.images) { i.loading = 'eager'; await i.decode(); } }"
        )
        self._photographs.mkdir(parents=True, exist_ok=True)
        # Playwright would hide the caret by a style of its own, which the content security policy might refuse.
        self.page.screenshot(path=self._photographs / f"{name}.png", full_page=True, caret="initial")

    def leave(self) -> list[str]:
        """Empties the window for the next test; what the browser complained of until then."""
        self.empty()
        self.page.unroute_all(behavior="wait")
        complaints, self.complaints = self.complaints, []
        return complaints


@pytest.fixture(scope="session")
def photographs() -> Path | None:
    """Folder for screenshots: the one that PRESHARD_SCREENSHOTS names. Without it none is taken."""
    named = os.environ.get("PRESHARD_SCREENSHOTS")
    return Path(named) if named else None


@pytest.fixture
def usual_reader(browser: Browser, service: str, photographs: Path | None) -> Reader:
    """The window at the session's service that every test uses first."""
    return ONE_BROWSER.usual_reader(service, photographs)


@pytest.fixture
def reader(
    browser: Browser,
    service: str,
    usual_reader: Reader,
    photographs: Path | None,
    windows: list[tuple[BrowserContext, Reader]],
) -> Iterator[Callable[..., Reader]]:
    """``reader(address, **window)``: a browser window, the second one of a test or at another address a new one.

    Fails the test if the browser complained of anything.
    """
    is_taken = False

    def start(address: str = service, *, viewport: Any = DESKTOP, color_scheme: Any = "light") -> Reader:
        nonlocal is_taken
        if address == service and not is_taken:
            is_taken = True
            usual_reader.page.set_viewport_size(viewport)
            usual_reader.page.emulate_media(color_scheme=color_scheme)
            return usual_reader
        context = browser.new_context(viewport=viewport, color_scheme=color_scheme)
        windows.append((context, Reader(context, address, photographs)))
        return windows[-1][1]

    yield start
    complaints = usual_reader.leave()
    for context, _ in windows:
        context.close()  # does nothing to one that is closed
    assert [*complaints, *(complaint for _, reader in windows for complaint in reader.complaints)] == []
