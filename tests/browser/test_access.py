"""For everyone: by keyboard alone, in the dark, on a phone, and to the ears of a screen reader."""

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
PHONE = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "has_touch": True, "is_mobile": True}


WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


def _faults(page: Any) -> list[str]:
    """What axe finds against its rules, each with the elements that it means."""
    options = {"runOnly": WCAG, "resultTypes": ["violations"]}
    found = page.evaluate("(options) => axe.run(document, options)", options)
    return [f"{fault['id']}: {node['html'][:200]}" for fault in found["violations"] for node in fault["nodes"]]


@pytest.mark.parametrize(
    "window",
    [{"color_scheme": "light"}, {"color_scheme": "dark", **PHONE}],
    ids=["light", "dark-phone"],
)
def test_no_view_shuts_anyone_out(reader: Callable[..., Any], window: dict[str, Any]) -> None:
    """Fails when a control has no name, a contrast is too low, a landmark, heading or caption is missing, or a view is
    wider than its window; tables may scroll inside themselves."""
    person = reader(**window)
    person.open()
    person.page.evaluate(AXE_SCRIPT)
    faults, wide = {}, {}
    for name, view in VIEWS.items():
        person.turn_to(view)
        faults[name] = _faults(person.page)
        wide[name] = person.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        if "is_mobile" in window and name in ("overview", "split", "compare", "plan"):
            person.photograph(f"{name}-phone")
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


def _tab_to(page: Any, name: str, most: int = 60) -> None:
    """Presses Tab until the focus lies on something of that name, whose focus is to be seen."""
    told = """() => { const e = document.activeElement;
        return [e.getAttribute('aria-label') || e.labels?.[0]?.textContent || e.innerText || '',
                e.matches(':focus-visible') && getComputedStyle(e).outlineStyle !== 'none']; }"""
    for _ in range(most):
        page.keyboard.press("Tab")
        label, visible = page.evaluate(told)
        if label.strip() == name:
            assert visible, f"{name} has the focus and does not show it"
            return
    raise AssertionError(f"{name!r} is not reached by {most} times Tab")


def test_by_keyboard_alone(reader: Callable[..., Any]) -> None:
    """Fails when a way through the page needs a mouse, or the focus is lost or hidden on it."""
    person = reader()
    page = person.page
    person.open()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    _tab_to(page, "demo")
    page.keyboard.press("Enter")
    person.settle()
    assert page.evaluate("document.activeElement.id") == "main"
    _tab_to(page, "Packs")
    page.keyboard.press("Enter")
    person.settle()
    _tab_to(page, "Ring degree")
    page.keyboard.press("ArrowUp")
    person.settle()
    page.wait_for_function("() => location.hash.includes('ring=4')")
    person.settle()
    assert page.evaluate("document.activeElement.id") == "ring"
    _tab_to(page, "Cost")
    page.keyboard.press("Enter")
    person.settle()
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("Cost")
    assert page.evaluate("document.activeElement.innerText").startswith("Cost")


def test_the_skip_link_skips(reader: Callable[..., Any]) -> None:
    """Fails when the first stop of the Tab key is not a way past the navigation, or leads to another view."""
    person = reader()
    person.open("d/demo/shards")
    page = person.page
    page.evaluate("document.activeElement.blur()")
    page.locator("body").press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert page.locator("nav.tabs [aria-current=page]").inner_text() == "Shards"
