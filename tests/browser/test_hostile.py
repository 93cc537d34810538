"""Data that is markup, datasets that are damaged or come and go, and a service that asks for a token."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pydantic import SecretStr

from preshard.packer_service.http.settings import ServiceSettings


def test_data_never_becomes_markup(reader: Callable[..., Any], markup: str) -> None:
    """Fails when an id, source, text or message of a dataset is read as HTML anywhere."""
    person = reader()
    person.open()
    for view in (
        "",
        "/documents",
        f"/documents?id={quote(markup)}",
        "/rejects",
        "/packs",
        "/shards",
        "/packs/0",
        "/packs/0/documents/0",
    ):
        person.turn_to(f"d/hostile{view}")
        assert person.page.title() != "owned"
        assert person.page.locator("main b, main script, main img[src='x']").count() == 0, view
    assert markup in person.page.locator(".tokens[role=region]").text_content()
    person.open("d/hostile/rejects")
    assert f"bad {markup}" in person.says()


def test_ids_that_need_encoding_are_found(reader: Callable[..., Any]) -> None:
    """Fails when a slash, a percent sign or a question mark in an id is taken for part of an address."""
    person = reader()
    person.open("d/hostile/documents")
    person.follow("a/b?c=d&e#f %41")
    assert person.page.locator("#whereabouts").inner_text() == "a/b?c=d&e#f %41"
    assert "pack 0" in person.says()


def test_a_dataset_that_is_not_whole_says_so(reader: Callable[..., Any]) -> None:
    """Fails when a damaged or unfinished dataset is shown as whole, stops others, or shows no sentence as its error."""
    person = reader()
    person.open()
    states = person.page.locator("tbody tr").all_inner_texts()
    said = {row.split("\t")[0]: row for row in states}
    assert "damaged" in said["damaged"].split("\t")[1]
    assert "unfinished" in said["unfinished"].split("\t")[1]
    assert "whole" in said["demo"]
    assert person.complaints == []
    for name in ("damaged", "unfinished", "nowhere"):
        person.open(f"d/{name}")
        assert name in person.page.get_by_role("alert").inner_text()
    person.page.get_by_role("link", name="Datasets", exact=True).click()
    person.settle()
    # The browser logs failed answers as errors of its own.
    assert all("the server responded with a status of 4" in complaint for complaint in person.complaints)
    assert len(person.complaints) == 3
    person.complaints.clear()


@pytest.mark.slow
def test_a_dataset_that_vanishes_while_it_is_read(
    reader: Callable[..., Any], served: Callable[..., Any], hostile_dataset: Path, tmp_path: Path
) -> None:
    """Fails when a shard's loss shows as an empty view, or the page does not recover with the dataset."""
    shutil.copytree(hostile_dataset, tmp_path / "root/fleeting")
    with served(ServiceSettings(root=str(tmp_path / "root"), rescan_seconds=0)) as address:
        person = reader(address)
        person.open("d/fleeting/shards")
        shards = tmp_path / "root/fleeting/shards"
        shards.rename(tmp_path / "shards")
        person.open("d/fleeting/packs/0")
        assert person.page.get_by_role("alert").count() >= 1
        (tmp_path / "shards").rename(shards)
        person.open("d/fleeting/packs/0")
        assert person.page.get_by_role("alert").count() == 0
        assert all("the server responded with a status of 4" in complaint for complaint in person.complaints)
        person.complaints.clear()


def test_a_token_is_asked_for_once(reader: Callable[..., Any], served: Callable[..., Any], tiny_dataset: Path) -> None:
    """Fails when a wrong token is taken, a right one asked for again or put in the address, or images lack it."""
    settings = ServiceSettings(root=str(tiny_dataset.parent), token=SecretStr("open sesame"))
    with served(settings) as address:
        person = reader(address)
        page = person.page
        person.open()
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Continue").click()
        page.get_by_role("alert").wait_for()
        page.get_by_label("Token").fill("open sesame")
        page.get_by_role("button", name="Continue").click()
        page.get_by_role("link", name="dataset", exact=True).wait_for()
        person.turn_to("d/dataset/packs")
        assert "sesame" not in page.url
        page.locator("thead a", has_text="Crops").click()
        person.settle()
        page.locator("tbody th a").first.click()
        person.settle()
        picture = page.locator(".thumbs img").first
        picture.scroll_into_view_if_needed()
        page.wait_for_function("() => document.querySelector('.thumbs img').naturalWidth === 56")
        assert all("the server responded with a status of 401" in complaint for complaint in person.complaints)
        person.complaints.clear()
