"""All views by clicks, what they say beside the service's own figures, and their addresses."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest


def _json(address: str) -> Any:
    with urlopen(address) as answer:
        return json.load(answer)


def test_a_reader_clicks_through_everything(reader: Callable[..., Any]) -> None:
    """Fails when a view does not come, or the browser complains on the way; leaves a screenshot of each."""
    person = reader()
    page = person.page
    person.open()
    assert page.locator("tbody time").count() >= 2  # when it was written
    person.photograph("1-datasets")
    person.follow("demo")
    assert page.locator(".plot .main-svg").count() >= 6
    person.photograph("2-overview")
    for number, part in enumerate(("Balance", "Which split?", "Shards", "Packs", "Documents", "Rejects"), start=3):
        person.follow(part)
        assert page.locator("nav.tabs [aria-current=page]").inner_text() == part
        person.photograph(f"{number}-{part.rstrip('?').replace(' ', '-').lower()}")
    person.follow("Packs")
    page.locator("tbody th a[href*='/packs/1?'], tbody th a[href$='/packs/1']").first.click()  # it has neighbours
    person.settle()
    for heading in ("Along the sequence", "The mask and its owners", "Work of each rank", "Tokens as text"):
        assert page.get_by_role("heading", name=heading).is_visible()
    person.photograph("8-pack")
    person.follow("← Previous pack")
    person.follow("Next pack →")
    page.get_by_role("link", name="What if").click()
    person.settle()
    person.photograph("9-what-if")


def test_the_overview_says_what_the_service_says(reader: Callable[..., Any], service: str) -> None:
    """Fails when a figure is shown in a wrong place, unit or rounding."""
    detail = _json(f"{service}/v1/datasets/demo")
    person = reader()
    person.open("d/demo")
    assert f"{100 * detail['fill']:.1f}% full" in person.page.locator(".heading").inner_text()
    facts = dict(zip(*(person.page.locator(f".facts {tag}").all_inner_texts() for tag in ("dt", "dd")), strict=True))
    for name, key in (("Documents", "documents"), ("Rejected", "rejected"), ("Tokens", "tokens"), ("Crops", "images")):
        assert facts[name].startswith(f"{detail['counts'][key]:,}"), name
    page = person.page
    first = page.locator(".tabs + .view").evaluate(
        "view => [...view.children].slice(0, 3).map((part) => part.innerText)"
    )
    assert first[0] == detail["warnings"][0]  # above what it makes doubtful
    assert first[1].startswith(f"{100 * detail['fill']:.1f}% of all tokens are real.")
    assert first[2].startswith("What to train with")
    page.get_by_text("The figures as a table").first.click()
    rows = page.get_by_role("table", name="Padding by cause").locator("tbody tr").all_inner_texts()
    shown = {row.split("\t")[0]: row.split("\t")[2] for row in rows}
    assert shown == {cause.replace("_", " "): f"{tokens:,}" for cause, tokens in detail["padding"].items()}
    encoder = _json(f"{service}/v1/datasets/demo/encoder")["encoder_straggler"]
    table = page.get_by_role("table", name="Encoder stragglers by data-parallel size")
    assert table.locator("tbody tr").all_inner_texts() == [f"{size}\t{ratio:.4f}" for size, ratio in encoder.items()]
    assert len(encoder) > 1


def test_every_figure_is_in_the_views_that_show_figures(reader: Callable[..., Any], service: str) -> None:
    """Fails when a view has a list of its own, and so misses a new figure of the service's list."""
    figures = _json(f"{service}/v1/figures")
    person = reader()

    def missing(wanted: set[str]) -> set[str]:
        headings = " ".join(person.page.locator("main thead th").all_inner_texts()).lower()
        return {label for label in wanted if label not in headings}

    def labels(place: str, *, sorts: bool = False) -> set[str]:
        return {each["label"].lower() for each in figures if place in each["where"] and (each["worst"] or not sorts)}

    person.open("d/demo/balance")
    assert len(labels("page")) > 5
    assert not missing(labels("page"))
    person.turn_to("d/demo/packs")
    assert not missing(labels("page", sorts=True))
    person.turn_to("d/demo/shards")
    offered = {text.lower() for text in person.page.get_by_label("Worst by").locator("option").all_inner_texts()}
    assert offered == labels("page", sorts=True)


def test_a_dataset_of_nothing_draws_nothing(reader: Callable[..., Any]) -> None:
    """Fails when charts without a bar stand where a sentence would do, or a part of nothing is an error."""
    person = reader()
    person.open("d/empty")
    assert "Nothing was packed." in person.says()
    assert person.page.locator("figure, .plot").count() == 0
    for part in ("Balance", "Which split?", "Shards", "Packs", "Documents"):
        person.follow(part)
        assert "This dataset holds no pack." in person.says(), part
    person.follow("Rejects")
    assert "1 document of 1 (100.0%) could not be packed." in person.says()


def _as_if_huge(route: Any) -> None:
    """Passes an answer on with the counts of a million packs, 62,500 shards and 5,000 sources."""
    answer = route.fetch()
    body = answer.json()
    if "items" in body:
        body["total"] = 62_500 if "/shards?" in route.request.url else 1_000_000
        body["offset"] = int(re.search(r"offset=(\d+)|$", route.request.url).group(1) or 0)
    else:
        names = [f"source {number}" for number in range(5_000)]
        body["counts"]["packs"], body["shards"] = 1_000_000, 62_500
        body["sources"] = [{**body["sources"][0], "source": name} for name in names]
        body["rejects_by_source"] = {name: {"empty": 1} for name in names}
    route.fulfill(response=answer, json=body)


@pytest.mark.slow
def test_a_million_packs_are_shown_page_by_page(reader: Callable[..., Any]) -> None:
    """Fails when what a view holds grows with packs, shards or sources, or a far page is thousands of steps away."""
    person = reader()
    page = person.page
    page.route(re.compile(r"/v1/datasets/demo(/(packs|shards|documents|rejects)\?.*)?$"), _as_if_huge)
    person.open()
    for part in ("", "/shards", "/packs", "/documents", "/rejects"):
        person.turn_to(f"d/demo{part}")
        assert page.evaluate("document.querySelectorAll('main *').length") < 4_000, part
    person.turn_to("d/demo/packs")
    assert "of 1,000,000" in page.locator(".pages").inner_text()
    page.get_by_label("Page", exact=True).fill("20000")
    person.follow("Go", "button")
    page.wait_for_function("() => location.hash.includes('offset=999950')")
    person.settle()
    assert page.locator(".pages span").inner_text().startswith("999,951 to ")
    assert page.get_by_label("Page", exact=True).input_value() == "20000"


def test_rejects_fit_a_phone(reader: Callable[..., Any], service: str) -> None:
    """Fails when a phone gets a desk's page of rejects, as cards one below the other, or cannot turn to the next."""
    total = _json(f"{service}/v1/datasets/demo/rejects")["total"]
    person = reader(viewport={"width": 390, "height": 844})
    person.open("d/demo/rejects")
    rows = person.page.get_by_role("table", name=f"{total} rejects").locator("tbody tr")
    assert rows.count() == 10 < total
    assert person.page.evaluate("document.documentElement.scrollHeight") < 7 * 844
    first = rows.first.inner_text()
    person.follow("Next")
    assert rows.count() > 0
    assert rows.first.inner_text() != first


@pytest.mark.parametrize(
    ("layout", "ring"), [("balanced_ring", 8), pytest.param("contiguous", 4, marks=pytest.mark.slow)]
)
def test_a_pack_shows_the_loads_of_its_ranks(reader: Callable[..., Any], service: str, layout: str, ring: int) -> None:
    """Fails when a rank's tiles, a step's slowest rank or a path are another layout's, or shown in a wrong row."""
    answer = _json(f"{service}/v1/datasets/demo/packs/3/layout?layout={layout}&ring={ring}")
    person = reader()
    person.open(f"d/demo/packs/3?layout={layout}&ring={ring}")
    steps = person.page.get_by_role("table", name=re.compile("Tiles of each rank")).locator("tbody tr")
    for rank in range(ring):
        cells = [text.split()[0] for text in steps.nth(rank).locator("th, td").all_inner_texts()]
        tiles = [step["tiles"][rank] for step in answer["steps"]]
        assert cells == [str(rank), *(f"{count:,}" for count in [*tiles, sum(tiles)])]
    waited = steps.nth(ring).locator("td").all_inner_texts()
    most = [max(step["tiles"]) for step in answer["steps"]]
    assert waited == [f"{count:,}" for count in [*most, answer["ring_path_tiles"]]]
    waited_for = [
        sum(tiles == step["most"] for tiles in step["tiles"]) for step in answer["steps"] if len(set(step["tiles"])) > 1
    ]
    assert person.page.locator(".slowest").count() == sum(waited_for) > 0


def test_the_mask_has_the_colours_of_its_owners(reader: Callable[..., Any], service: str) -> None:
    """Fails when the picture is turned, a cell is empty that has an allowed pair, or an owner's colour is another's."""
    person = reader()
    person.open("d/demo/packs/3?layout=zigzag&ring=4")
    size, encoded = person.page.evaluate(
        """() => {
            const canvas = document.querySelector('.mask .square canvas');
            const bytes = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            let text = '';
            for (const byte of bytes) text += String.fromCharCode(byte);
            return [canvas.width, btoa(text)];
        }"""
    )
    picture = _json(f"{service}/v1/datasets/demo/packs/3/mask?layout=zigzag&ring=4&size={size}")
    assert size == picture["size"] == 288
    pixels = np.frombuffer(base64.b64decode(encoded), np.uint8).reshape(size, size, 4)
    opacity = pixels[..., 3]
    np.testing.assert_array_equal(opacity > 0, np.array(picture["share"]) > 0)
    owners = np.broadcast_to(np.array(picture["owners"])[:, None], opacity.shape)
    is_exact = opacity > 250  # the canvas keeps colours exactly only where they are opaque
    shown = np.unique(np.column_stack([owners[is_exact], pixels[is_exact]])[:, :4], axis=0)
    assert shown[:, 0].tolist() == [0, 1, 2, 3]  # one colour for each owner
    assert len(np.unique(shown[:, 1:], axis=0)) == 4


@pytest.mark.slow
def test_every_rank_shows_its_own_images(reader: Callable[..., Any], service: str) -> None:
    """Fails when a boundary is off by one, or thumbnails are not those of the rank."""
    packs = _json(f"{service}/v1/datasets/demo/packs?sort=-n_images&limit=1")["items"]
    detail = _json(f"{service}/v1/datasets/demo/packs/{packs[0]['pack_id']}")
    person = reader()
    person.open(f"d/demo/packs/{detail['pack_id']}?ring=2&ulysses=2")
    sections = person.page.locator(".ranks > section")
    assert sections.count() == 4
    shown = 0
    for boundary, section in zip(detail["boundaries"]["4"], sections.all(), strict=True):
        for button in section.get_by_role("button").all():
            button.click()
        said = section.locator("img").evaluate_all("images => images.map((image) => image.alt)")
        indices = [int(re.match(r"Crop (\d+) of ", alt).group(1)) for alt in said]  # type: ignore[union-attr]
        assert indices == list(range(boundary["start_image"], boundary["end_image"]))
        shown += len(indices)
    assert shown == detail["n_images"] > 100
    first = person.page.locator(".thumbs img").first
    first.scroll_into_view_if_needed()
    first.evaluate("image => image.decode()")
    assert first.evaluate("image => image.naturalWidth") == detail["images"][0]["width"]


def test_tokens_are_text_and_those_with_loss_are_marked(reader: Callable[..., Any], service: str) -> None:
    """Fails when marks lie on tokens without loss, or text is missing."""
    answer = _json(f"{service}/v1/datasets/demo/packs/3/text?start=16384&end=18432")
    person = reader()
    person.open("d/demo/packs/3?tokens=16384")
    marks = person.page.locator(".tokens mark").all_text_contents()
    assert marks == [span["text"] for span in answer["spans"] if span["loss"] and span["kind"] == "text"]
    assert marks
    text = person.page.locator(".tokens[role=region]").text_content()
    assert all(span["text"] in text for span in answer["spans"] if span["kind"] == "text")


def test_an_address_shows_the_same_to_someone_else(reader: Callable[..., Any]) -> None:
    """Fails when a choice is kept anywhere but in the address, or Back does not undo it."""
    person = reader()
    person.open("d/demo/packs/3")
    person.page.get_by_label("Layout", exact=True).select_option("zigzag")
    person.settle()
    person.page.get_by_label("Ring degree").select_option("2")
    person.settle()
    person.page.locator("#rank-1").click()
    person.settle()
    assert person.page.evaluate("document.activeElement.id") == "rank-1"
    address = person.page.url.split("#/")[1]
    other = reader()
    other.open(address)
    assert other.says() == person.says()
    assert other.page.locator("#rank-1").get_attribute("aria-current") == "true"
    assert "zigzag, ring degree 2" in other.says()
    person.page.go_back()
    person.page.go_back()
    person.settle()
    assert person.page.get_by_label("Ring degree").input_value() == "8"


def test_a_table_says_that_it_scrolls_only_while_it_does(reader: Callable[..., Any]) -> None:
    """Fails when someone with a phone takes the columns in sight for all, or a desk is told to scroll."""
    person = reader(viewport={"width": 390, "height": 844})
    person.open("d/demo/balance")
    said = "[...document.querySelectorAll('caption span')].map((it) => getComputedStyle(it, '::after').content)"
    overflow = "[...document.querySelectorAll('.scroll')].map((it) => it.scrollWidth > it.clientWidth)"
    for width, scrolls in ((390, True), (1280, False)):
        person.page.set_viewport_size({"width": width, "height": 844})
        person.page.wait_for_function(f"{overflow}.includes(true) === {str(scrolls).lower()}")
        person.page.wait_for_function(
            "(wanted) => document.querySelector('.scroll[role=region]') !== null === wanted", arg=scrolls
        )
        assert any("scrolls" in each for each in person.page.evaluate(said)) is scrolls
