"""Access for everyone: in the dark, on a phone, and to the ears of a screen reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT

VIEWS = {
    "datasets": "",
    "overview": "d/demo",
    "balance": "d/demo/balance",
    "split": "d/demo/split?gpus=8&linear_efficiency=0.5",
    "shards": "d/demo/shards",
    "packs": "d/demo/packs",
    "documents": "d/demo/documents",
    "rejects": "d/demo/rejects",
    "pack": "d/demo/packs/3?ring=8",
    "document": "d/demo/packs/3/documents/0",
    "compare": "compare?first=demo&second=hostile",
    "plan": "plan?dataset=demo&order.window=32&layouts=zigzag&cost.num_layers=30",
}
PHONE, DESK = 360, 1280
"""Pixels: the narrowest phone that the page fits, and a desk."""

WINDOWS = {
    "phone by night": (PHONE, "dark", 0),
    "phone by day": (PHONE, "light", 1),
    "desk by day": (DESK, "light", 0),
    "desk by night": (DESK, "dark", 1),
}
"""Widths and themes, and whether every view from the first or from the second on, by twos, is looked at there: each
view has all four values, each pair half of the views."""
OFTEN = "phone by night"

WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
PICTURES = ".plot .svg-container"
"""Elements that charts draw: each is one picture with a name; its parts would be half of what there is to look at."""

LATER_ROWS = "tbody tr:nth-child(n+13)"
"""Rows of lists, made as the dozen above them. Tables whose cells are coloured by their values have fewer."""


def _faults(page: Any) -> list[str]:
    """Faults that axe finds against its rules, each with the elements that it means."""
    what = {"include": ["html"], "exclude": [PICTURES, LATER_ROWS]}
    options = {"runOnly": WCAG, "resultTypes": ["violations"]}
    found = page.evaluate("([what, options]) => axe.run(what, options)", [what, options])
    return [f"{fault['id']}: {node['html'][:200]}" for fault in found["violations"] for node in fault["nodes"]]


@pytest.mark.parametrize("where", [pytest.param(name, marks=[pytest.mark.slow] * (name != OFTEN)) for name in WINDOWS])
def test_no_view_shuts_anyone_out(reader: Callable[..., Any], where: str) -> None:
    """Fails when a control has no name, a contrast is too low, a landmark, heading or caption is missing, or a view is
    wider than its window, on a desk or a phone, by day or night; tables may scroll inside themselves."""
    width, scheme, first = WINDOWS[where]
    person = reader(color_scheme=scheme)
    page = person.page
    page.set_viewport_size({"width": width, "height": 844})
    person.open()
    page.evaluate(AXE_SCRIPT)
    faults, wide = {}, {}
    for name, view in list(VIEWS.items())[first::2]:
        person.turn_to(view)
        faults[name] = _faults(page)
        wide[name] = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert len(wide) == len(VIEWS) // 2
    assert {name: found for name, found in faults.items() if found} == {}
    assert {name: pixels for name, pixels in wide.items() if pixels > 0} == {}


def test_it_is_dark_in_the_dark(reader: Callable[..., Any]) -> None:
    """Fails when a theme's colours do not reach the page or the charts, also when the theme changes while one reads."""
    person = reader(color_scheme="dark")
    person.open("d/demo/balance")
    brightness = (
        "() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number).reduce((a, b) => a + b)"
    )
    ink = "() => getComputedStyle(document.querySelector('.plot .xtick text')).fill"
    assert person.page.evaluate(brightness) < 120
    in_the_dark = person.page.evaluate(ink)
    person.photograph("balance-dark")
    person.page.emulate_media(color_scheme="light")
    assert person.page.evaluate(brightness) > 600
    person.page.wait_for_function(f"(before) => ({ink})() !== before", arg=in_the_dark)
    person.page.emulate_media(color_scheme="dark")
    person.open("d/demo/packs/3?ring=4")
    person.photograph("pack-dark")
