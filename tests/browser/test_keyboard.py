"""Use by keyboard alone: everything is reached, shows the focus and keeps it, and what changes is said."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

FOCUSED = "document.activeElement.id"


def _tab_to(page: Any, name: str, most: int = 80) -> None:
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


def _press(person: Any, key: str, until: str) -> None:
    """Presses a key and waits until the address has a part, and its view is shown."""
    person.page.keyboard.press(key)
    person.page.wait_for_function("(part) => location.hash.includes(part)", arg=until)
    person.settle()


def _fill(page: Any, name: str, text: str) -> None:
    """Types into a field in place of what is there."""
    _tab_to(page, name)
    page.keyboard.press("Control+A")
    page.keyboard.type(text)


def _said(page: Any, pattern: str) -> None:
    """Waits until a screen reader is told something of that form."""
    page.wait_for_function(
        "(pattern) => new RegExp(pattern).test(document.getElementById('status').textContent)", arg=pattern
    )


def test_by_keyboard_alone(reader: Callable[..., Any]) -> None:
    """Fails when a way through the page needs a mouse, or the focus is lost or hidden on it."""
    person = reader()
    page = person.page
    person.open()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    _tab_to(page, "demo")
    _press(person, "Enter", "d/demo")
    assert page.evaluate(FOCUSED) == "main"
    _tab_to(page, "Packs")
    _press(person, "Enter", "packs")
    _tab_to(page, "Ring degree")
    _press(person, "ArrowUp", "ring=4")
    assert page.evaluate(FOCUSED) == "ring"
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
    assert page.evaluate(FOCUSED) == "main"
    assert page.locator("nav.tabs [aria-current=page]").inner_text() == "Shards"


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_questions_are_asked_by_keyboard(reader: Callable[..., Any], width: int, scheme: str) -> None:
    """Fails when a form, a choice or a link of the views that answer questions needs a mouse, hides or loses the focus,
    or when what it brings is not said to those who do not see it."""
    person = reader(viewport={"width": width, "height": 844}, color_scheme=scheme)
    _which_split(person)
    _compare(person)
    _what_if(person)
    _document(person)


def _which_split(person: Any) -> None:
    page = person.page
    person.open("d/demo/split?gpus=8")
    _fill(page, "GPUs", "4")
    _press(person, "Enter", "gpus=4")
    assert page.evaluate(FOCUSED) == "gpus"
    _said(page, "^Train with ")
    _tab_to(page, "Kind")
    _press(person, "ArrowDown", "gpu=h200")
    assert page.evaluate(FOCUSED) == "gpu"
    _tab_to(page, page.locator("summary", has_text="assumptions").inner_text())
    page.keyboard.press("Enter")
    _fill(page, "memory_gb", "1")
    _press(person, "Enter", "memory_gb=1")
    _said(page, "^No split fits into memory")
    assert page.evaluate(FOCUSED) == "assume-memory_gb"
    _tab_to(page, "Back to the usual values")
    page.keyboard.press("Enter")
    page.wait_for_function("() => !location.hash.includes('memory_gb')")
    person.settle()
    assert page.evaluate(FOCUSED) == "main"  # the link has gone


def _compare(person: Any) -> None:
    page = person.page
    person.turn_to("compare?first=demo&second=hostile")
    _tab_to(page, "Swap them")
    _press(person, "Enter", "first=hostile")
    _said(page, "^hostile is .* full and lost 1 of 3 documents; demo is ")
    assert page.evaluate(FOCUSED) == "swap"
    page.keyboard.press("Shift+Tab")
    _press(person, "ArrowDown", "second=empty")
    assert page.evaluate(FOCUSED) == "second"


def _what_if(person: Any) -> None:
    page = person.page
    person.turn_to("plan?dataset=demo")
    _fill(page, "seq_len", "20480")
    _tab_to(page, "Layouts")
    page.keyboard.press("Enter")
    _tab_to(page, "zigzag")
    page.keyboard.press("Space")
    _tab_to(page, "Plan it")
    page.keyboard.press("Enter")
    _said(page, "^With this configuration: ")
    assert page.evaluate(FOCUSED) == "plan-it"
    assert "seq_len=20480" in page.url
    assert "layouts=" in page.url


def _document(person: Any) -> None:
    page = person.page
    person.turn_to("d/demo/packs/3/documents/1")
    _tab_to(page, "Show tokens and positions")
    _press(person, "Enter", "positions=shown")
    assert page.evaluate(FOCUSED) == "positions"
    _said(page, "positions are shown$")
    assert page.locator(".place").count() > 0
    _tab_to(page, "Document")
    before = page.evaluate("document.activeElement.scrollTop")
    page.keyboard.press("End")
    page.wait_for_function("(before) => document.activeElement.scrollTop > before", arg=before)


def _as_if_many(route: Any) -> None:
    """Passes the list of datasets on as if it were the first of many parts."""
    answer = route.fetch()
    route.fulfill(response=answer, json={**answer.json(), "total": 5_000})


def test_a_dataset_beyond_those_that_a_list_offers(reader: Callable[..., Any]) -> None:
    """Fails when datasets beyond the first two hundred are neither listed nor to be named where one is chosen."""
    person = reader()
    page = person.page
    page.route(re.compile(r"/v1/datasets\?"), _as_if_many)
    person.open()
    assert page.locator(".pages").inner_text().startswith("1 to ")
    _tab_to(page, "Next")
    _press(person, "Enter", "offset=200")
    person.turn_to("compare?first=demo&second=hostile")
    _fill(page, "Second", "empty")
    _press(person, "Enter", "second=empty")
    assert page.evaluate(FOCUSED) == "second"
    assert page.locator(".verdict").inner_text().endswith("empty holds no pack and lost 1 of 1 document.")
