"""Takes the pictures of ``page.md``: the inspection page over packed datasets, in headless Chromium, by day and night.

    python docs/plot_page.py http://127.0.0.1:8000 dataset qwen3_vl [--out docs/page]

`preshard serve` must be running at that address, and Chromium be on the path (``tests/browser/chromium.sh``).
"""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

VIEWS = {
    "overview": ("d/{first}", 900),
    "balance": ("d/{first}/balance", 1212),
    "pack": ("d/{first}/packs/3?layout=balanced_gather&ring=4", 1480),
    "split": ("d/{first}/split?gpus=8", 1400),
    "compare": ("compare?first={first}&second={second}", 1000),
}
"""Name of a picture: the address of its view, and pixels from the top."""

THEMES = {"light": "", "dark": "-dark"}
"""Suffix of a picture's name in each theme."""

WIDTH = 1120
COLOURS = 256
"""A screenshot of flat colours loses nothing that one sees, and takes less than half of the bytes."""

SHOWN = """() => document.querySelector('main').dataset.address === location.hash
    && !document.querySelector('.loading')
    && [...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('.main-svg'))"""

LOADED = "async () => { for (const image of document.images) { image.loading = 'eager'; await image.decode(); } }"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("first", help="the dataset that is shown")
    parser.add_argument("second", help="the dataset that it is compared with")
    parser.add_argument("--out", type=Path, default=Path("docs/page"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (view, height) in VIEWS.items():
            address = f"{given.address}/#/{view.format(first=given.first, second=given.second)}"
            for theme, mark in THEMES.items():
                page = browser.new_page(viewport={"width": WIDTH, "height": height}, color_scheme=theme)
                photograph(page, address).save(given.out / f"{name}{mark}.png", optimize=True)
                page.close()
        browser.close()


def photograph(page: Page, address: str) -> Image.Image:
    """Takes a picture of the window at an address once everything is there."""
    page.goto(address)
    page.wait_for_function(SHOWN)
    page.evaluate(LOADED)
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(COLOURS)


if __name__ == "__main__":
    main()
