"""The three questions that people have, and what-if, answered by clicking and typing alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest


def _json(address: str) -> Any:
    with urlopen(address) as answer:
        return json.load(answer)


@pytest.mark.slow
def test_which_shard_is_worst_balanced_at_cp_8_and_why(reader: Callable[..., Any], service: str) -> None:
    """Fails when the page's worst shard is not the one whose packs wait longest on average, or it gives no reason."""
    packs = _json(f"{service}/v1/datasets/demo/packs?layout=contiguous&ring=8&cp=8&limit=1000")["items"]
    of_shard = {pack["shard"]: [p for p in packs if p["shard"] == pack["shard"]] for pack in packs}
    shard = max(of_shard, key=lambda name: sum(p["ring_path"] for p in of_shard[name]) / len(of_shard[name]))
    worst = max(of_shard[shard], key=lambda pack: pack["ring_path"])
    person = reader()
    person.open()
    person.follow("demo")
    person.follow("Shards")
    person.page.get_by_label("Layout", exact=True).select_option("contiguous")
    person.settle()
    verdict = person.page.locator(".verdict").inner_text()
    assert verdict.startswith(shard)
    assert "ring degree 8, CP size 8" in verdict
    assert f"In pack {worst['pack_id']} the ring critical path is {worst['ring_path']:.3f} times" in verdict
    assert "of its tokens" in verdict
    person.page.locator(".verdict a").click()
    person.settle()
    assert person.page.locator("h1").inner_text() == f"Pack {worst['pack_id']}"


def test_where_did_a_document_go(reader: Callable[..., Any], service: str) -> None:
    """Fails when a packed document's place or ranks are not shown, a rejected one's reason, or another source's."""
    row = _json(f"{service}/v1/datasets/demo/documents?limit=1&offset=100")["items"][0]
    lost = _json(f"{service}/v1/datasets/demo/rejects?limit=1")["items"][0]
    person = reader()
    person.open()
    person.follow("demo")
    person.follow("Documents")
    person.page.get_by_label("Document id").fill(row["doc_id"])
    person.follow("Where did it go?", "button")
    places = person.page.get_by_role("table").first
    assert f"pack {row['pack_id']}" in places.inner_text()
    assert f"{row['start']:,}" in places.inner_text()
    places.get_by_role("link").first.click()
    person.settle()
    assert f"{row['doc_id']} has {row['length']:,} tokens, starting at token {row['start']:,}." in person.says()
    person.page.go_back()
    person.settle()
    person.page.get_by_label("Source").select_option("multi_qa")
    person.settle()
    listed = person.page.get_by_role("region", name="Documents").locator("tbody tr").all_inner_texts()
    assert listed
    assert all(row.split("\t")[1] == "multi_qa" for row in listed)
    person.page.get_by_label("Document id").fill(lost["doc_id"])
    person.follow("Where did it go?", "button")
    assert lost["code"] in person.says()
    assert lost["message"] in person.says()


def test_what_a_packed_document_looks_like(reader: Callable[..., Any], service: str) -> None:
    """Fails when a document's pictures do not stand in its text, or what is marked is not what carries loss."""
    row = _json(f"{service}/v1/datasets/demo/documents?source=image_qa&limit=1")["items"][0]
    person = reader()
    person.open(f"d/demo/documents?id={quote(row['doc_id'])}")
    person.follow("read")
    assert person.page.locator("h1").inner_text() == row["doc_id"]
    path = person.page.url.partition("#/d/demo/")[2]
    answer = _json(f"{service}/v1/datasets/demo/{path}")
    text = person.page.get_by_role("region", name="Document", exact=True)
    assert text.locator("mark").all_text_contents() == [span["text"] for span in answer["spans"] if span["loss"]]
    pictures = text.locator("img")
    assert pictures.count() == row["n_images"] > 0
    person.page.wait_for_function("() => document.querySelector('.unit img').naturalWidth > 0")
    page = person.page
    assert page.locator(".place").count() == 0
    person.follow("Show tokens and positions")
    places = [span for span in answer["spans"] if span["unit"] is None]
    first, last = places[0]["positions"][0]
    shown = page.locator(".place").all_text_contents()[0].replace("\u2013", "-")
    assert shown == f"{places[0]['start']}-{places[0]['end'] - 1} at {first}-{last}"
    assert page.locator(".place").count() == len(places)
    person.photograph("document")


@pytest.mark.slow
def test_how_much_was_lost_and_why(reader: Callable[..., Any], service: str) -> None:
    """Fails when a count does not lead to exactly its rows."""
    detail = _json(f"{service}/v1/datasets/demo")
    source, codes = max(detail["rejects_by_source"].items(), key=lambda entry: max(entry[1].values()))
    code = max(codes, key=lambda code: codes[code])
    person = reader()
    person.open()
    person.follow("demo")
    person.follow("Rejects")
    assert f"{detail['counts']['rejected']} documents of {detail['counts']['source_documents']}" in person.says()
    person.follow(f"{codes[code]}: show {code} in {source}")
    rows = person.page.get_by_role("region", name="Rows").locator("tbody tr").all_inner_texts()
    assert len(rows) == codes[code] > 1
    assert all(code in row and source in row for row in rows)


def test_what_if(reader: Callable[..., Any], service: str) -> None:
    """Fails when a form does not begin with the dataset's values, asks for something else than what it shows, or leaves
    out what a plan loses; or a mistake in lengths is not pointed out."""
    person = reader()
    person.open("plan?dataset=demo&oversize=truncate")
    page = person.page
    config = _json(f"{service}/v1/datasets/demo")["config"]
    assert page.get_by_label("Lengths").count() == 0
    assert page.get_by_label("max_images").input_value() == str(config["max_images"])
    page.get_by_label("seq_len").fill("8192")
    page.get_by_text("keys that a plan cannot answer for").click()
    assert "video.fps: frames are not sampled again" in page.locator(".refused").inner_text()
    asked: list[Any] = []
    page.on("response", lambda answer: asked.append(answer) if answer.url.endswith("/v1/plan") else None)
    person.follow("Plan it", "button")
    page.locator("#answer .verdict").wait_for()
    before, after = (answer.json() for answer in asked)
    assert [answer.request.post_data_json["config"] for answer in asked] == [
        {},
        {"seq_len": 8192, "oversize": "truncate"},
    ]
    rows = page.get_by_role("table", name="Figures").locator("tbody tr").all_inner_texts()
    said = {row.split("\t")[0]: row.split("\t")[1:3] for row in rows}
    lost = [sum(answer["truncated_tokens"].values()) for answer in (before, after)]
    assert lost[1] > lost[0]
    assert said["Tokens cut off"] == [f"{tokens:,}" for tokens in lost]
    assert said["Packs"] == [f"{answer['packs']:,}" for answer in (before, after)]
    assert "seq_len=8192" in page.url
    page.get_by_label("Documents").select_option("")
    person.settle()
    page.get_by_label("Lengths").fill("many")
    person.follow("Plan it", "button")
    assert "two whole numbers" in page.get_by_role("alert").inner_text()


def test_which_split(reader: Callable[..., Any], service: str) -> None:
    """Fails when another split than the service's fastest is named, its time or memory is another's, or an assumption
    that was changed is not asked for."""
    person = reader()
    person.open("d/demo/split?gpus=8")
    page = person.page
    answer = _json(f"{service}/v1/datasets/demo/advice?gpus=8&limit=10")
    assert answer["splits"][0]["reason"] in page.locator(".verdict").inner_text()
    rows = page.get_by_role("table", name=re.compile("The fastest splits")).locator("tbody tr")
    assert [row.split("\t")[0] for row in rows.all_inner_texts()] == [
        _in_words(split["ulysses_degree"], split["ring_degree"]) for split in answer["splits"]
    ]
    best = next(split for split in answer["splits"])
    assert page.locator(".verdict code").first.inner_text() == "torchrun"
    assert "--data demo" in page.locator(".verdict").inner_text()
    assert best["options"] in " ".join(page.locator(".verdict code").all_inner_texts())
    waits = page.get_by_role("link", name="Which ranks wait?")
    assert waits.count() == int(best["ring_degree"] > 1 and not best["derived"])
    if waits.count():
        assert f"layout={best['layout']}&ring={best['ring_degree']}" in str(waits.get_attribute("href"))
    memory = [f"{split['memory']['total']:.1f} GB" for split in answer["splits"]]
    assert all(shown in row for shown, row in zip(memory, rows.all_inner_texts(), strict=True))
    page.get_by_text("assumptions, to be changed").click()
    page.get_by_label("linear_efficiency").fill("0.25")
    person.follow("Estimate again", "button")
    page.wait_for_function("() => location.hash.includes('linear_efficiency=0.25')")
    person.settle()
    slower = _json(f"{service}/v1/datasets/demo/advice?gpus=8&limit=10&linear_efficiency=0.25")
    assert slower["splits"][0]["reason"] in page.locator(".verdict").inner_text()
    assert page.get_by_text("given here").count() == 1


def _in_words(ulysses: int, ring: int) -> str:
    parts = [f"Ulysses {ulysses}"] * (ulysses > 1) + [f"ring {ring}"] * (ring > 1)
    return ", ".join(parts) or "whole packs"


@pytest.mark.slow
def test_two_datasets_side_by_side(reader: Callable[..., Any], service: str) -> None:
    """Fails when a figure stands in the other dataset's column, or a key that differs is left out."""
    person = reader()
    person.open("compare?first=demo&second=hostile")
    page = person.page
    first, second = (_json(f"{service}/v1/datasets/{name}")["counts"] for name in ("demo", "hostile"))
    figures = [row.split("\t") for row in page.locator(".columns tbody tr").all_inner_texts()]
    shown = {cells[0]: cells[1:3] for cells in figures}
    for name, key in (("packed documents", "documents"), ("tokens", "tokens"), ("packs", "packs")):
        assert shown[name] == [f"{counts[key]:,}" for counts in (first, second)], name
    keys = page.get_by_role("table", name="Keys of the configuration that differ").inner_text()
    assert "seq_len" in keys
    assert "image_format" not in keys
    person.follow("Swap them")
    assert page.get_by_label("First").input_value() == "hostile"
