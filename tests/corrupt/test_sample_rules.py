"""A corrupt dataset for every rule of a sample: its head, arrays, layouts, boundaries, images and loads."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from changed_places import add, drop, put
from PIL import Image

from preshard.schemas.errors import FORMAT_RULES
from preshard.schemas.layout import boundaries_from_edges

breaks = pytest.mark.breaks

NOTHING = dict.fromkeys(("n_units", "n_images", "n_patches", "load"), 0)
"""Counts of a document without images."""


def test_a_broken_rule_is_named(
    rule: str, also: tuple[str, ...], corrupt: Callable[[Any], None], editable: Any, assert_breaks: Callable[..., Any]
) -> None:
    """Fails when a fault of a sample is not found, is named as another, or hides behind others."""
    corrupt(editable)
    editable.save()
    verdict = assert_breaks(editable, rule, *also)
    assert all(fault.sample or fault.file == "measures.parquet" for fault in verdict.broken), verdict.as_lines()
    assert verdict.checked["packs"] == len(editable.samples())


def test_every_rule_of_the_sample_has_a_case(corrupt_rules: set[str]) -> None:
    """Fails when a rule is added without a corrupt dataset that raises it."""
    assert corrupt_rules == {rule for rule in FORMAT_RULES if rule.startswith("P")}


def padded(data: Any) -> tuple[Any, int]:
    """A sample with padding, and the place of its last padding token."""
    sample = data.sample_where(lambda s: (s.sequence["doc_ids"] < 0).any())
    return sample, int(np.flatnonzero(sample.sequence["doc_ids"] < 0)[-1])


def annotated(data: Any) -> tuple[Any, int]:
    """A sample with a document of several annotations, and that document's number."""
    sample = data.sample_where(lambda s: s.sequence["branch_ids"].max() > 1)
    return sample, int(sample.sequence["doc_ids"][sample.sequence["branch_ids"].argmax()])


def pictured(data: Any) -> Any:
    """A sample with at least two units of one crop each in front, and more."""
    return data.sample_where(lambda s: len(s.head["cum_image_bounds"]) >= 4)


def labelled(sample: Any) -> int:
    return int(np.flatnonzero(sample.sequence["labels"] != -100)[0])


@breaks("P1")
def boundaries_with_an_unknown_field(data: Any) -> None:
    data.samples()[0].head["image_shard_boundaries"]["1"]["0"]["more"] = 1


@breaks("P1")
def head_with_a_number_that_no_column_holds(data: Any) -> None:
    data.samples()[0].head["documents"][0]["start"] = 2**63


@breaks("P1")
def head_without_a_checksum(data: Any) -> None:
    sample = data.samples()[0]
    sample.members(sample.key)
    sample.repaired = False
    del sample.head["crc32c"]["layouts.npz"]


@breaks("P2")
def positions_of_more_axes(data: Any) -> None:
    sequence = data.samples()[0].sequence
    sequence["position_ids"] = np.repeat(sequence["position_ids"], 3, axis=0)


@breaks("P2")
def tokens_of_another_type(data: Any) -> None:
    sequence = data.samples()[0].sequence
    sequence["tokens"] = sequence["tokens"].astype(np.int64)


@breaks("P2")
def array_of_another_length(data: Any) -> None:
    sequence = data.samples()[0].sequence
    sequence["labels"] = sequence["labels"][:-1]


def with_column(data: Any, dtype: type = np.float32) -> Any:
    """Gives every pack a column, 0 everywhere, and returns a sample with padding."""
    data.manifest["config"]["token_columns"] = {"value": "float32"}
    for sample in data.samples():
        sample.sequence["columns.value"] = np.zeros(len(sample.sequence["tokens"]), dtype)
    return padded(data)[0]


@breaks("P20")
def column_that_is_not_configured(data: Any) -> None:
    with_column(data)
    data.manifest["config"]["token_columns"] = {}


@breaks("P20")
def value_in_padding(data: Any) -> None:
    sample = with_column(data)
    sample.sequence["columns.value"][sample.sequence["doc_ids"] < 0] = 1


@breaks("P20")
def value_behind_a_branch(data: Any) -> None:
    with_column(data)
    sample, _ = annotated(data)
    sample.sequence["columns.value"][np.flatnonzero(sample.sequence["branch_ids"] == 2)[0] - 1] = 1


@breaks("P1")
def values_that_no_document_keeps(data: Any) -> None:
    data.samples()[0].head["documents"][0]["columns"] = {"quality": 1.5}


@breaks("P2")
def token_outside_of_the_vocabulary(data: Any) -> None:
    data.samples()[0].sequence["tokens"][0] = data.manifest["tokenizer"]["vocab_size"]


@breaks("P3")
def documents_that_overlap(data: Any) -> None:
    sample = data.sample_where(lambda s: len(s.head["documents"]) > 1)
    sample.head["documents"][1]["start"] -= data.alignment
    data.relist()


@breaks("P3")
def document_that_is_not_aligned(data: Any) -> None:
    sample, _ = padded(data)
    sample.head["documents"][-1]["start"] += 1
    data.relist()


@breaks("P3")
def aligned_length_that_is_not_rounded(data: Any) -> None:
    sample = data.sample_where(lambda s: len(s.head["documents"]) == 1 or s.head["documents"][-1]["start"] < 1000)
    sample.head["documents"][-1]["aligned_length"] += 1
    data.relist()


@breaks("P3")
def padding_token_in_a_document(data: Any) -> None:
    sample, at = padded(data)
    sample.sequence["doc_ids"][at] = 0
    data.derive(sample)
    data.relist()


@breaks("P3")
def document_under_a_number_that_does_not_exist(data: Any) -> None:
    sample = data.samples()[0]
    doc = sample.sequence["doc_ids"]
    doc[doc == doc.max()] = 2**31 - 1


@breaks("P3")
def document_that_reaches_past_the_pack(data: Any) -> None:
    span = data.samples()[0].head["documents"][-1]
    more = len(data.samples()[0].sequence["tokens"])
    span["length"], span["aligned_length"] = span["length"] + more, span["aligned_length"] + more
    data.relist()


@breaks("P3")
def document_without_a_token(data: Any) -> None:
    sample = padded(data)[0]
    spans = sample.head["documents"]
    end = spans[-1]["start"] + spans[-1]["aligned_length"]
    spans.append({**spans[-1], "doc_id": "empty", "start": end, "length": 0, "aligned_length": 0, **NOTHING})
    data.relist()
    data.manifest["counts"]["source_documents"] += 1
    data.manifest["counts"]["rejected"] += 1


@breaks("P4")
def padding_with_a_position(data: Any) -> None:
    sample, at = padded(data)
    sample.sequence["position_ids"][0, at] = 5


@breaks("P4")
def padding_with_a_label(data: Any) -> None:
    sample, at = padded(data)
    sample.sequence["labels"][at] = 1
    sample.sequence["loss_weights"][at] = 1


@breaks("P5")
def annotation_left_out(data: Any) -> None:
    branch = annotated(data)[0].sequence["branch_ids"]
    branch[branch == branch.max()] += 1


@breaks("P5")
def prefix_after_an_annotation(data: Any) -> None:
    sample, doc = annotated(data)
    last = np.flatnonzero(sample.sequence["doc_ids"] == doc)[-1]
    sample.sequence["branch_ids"][last] = 0
    data.derive(sample)


@breaks("P21")
def preference_with_an_answer_without_labels(data: Any) -> None:
    sample, doc = annotated(data)
    sample.head["documents"][doc]["preference"] = True
    second = (sample.sequence["doc_ids"] == doc) & (sample.sequence["branch_ids"] == 2)
    sample.sequence["labels"][second] = -100
    sample.sequence["loss_weights"][second] = 0


@breaks("P21")
def preference_of_one_answer(data: Any) -> None:
    sample = data.sample_where(lambda s: not s.sequence["branch_ids"][s.sequence["doc_ids"] == 0].any())
    sample.head["documents"][0]["preference"] = True


@breaks("P6")
def annotation_that_counts_on_from_the_one_before(data: Any) -> None:
    sample, doc = annotated(data)
    inside = sample.sequence["doc_ids"] == doc
    sample.sequence["position_ids"][0, inside] = np.arange(inside.sum())


@breaks("P7")
def label_of_another_token(data: Any) -> None:
    sample = data.samples()[0]
    sample.sequence["labels"][labelled(sample)] += 1


@breaks("P7")
def label_past_the_end_of_a_document(data: Any) -> None:
    sample = data.sample_where(lambda s: len(s.head["documents"]) > 1)
    last = sample.head["documents"][0]["length"] - 1
    sample.sequence["labels"][last] = sample.sequence["tokens"][last + 1]
    sample.sequence["loss_weights"][last] = 1


@breaks("P7")
def label_across_annotations(data: Any) -> None:
    sample, doc = annotated(data)
    inside = np.flatnonzero(sample.sequence["doc_ids"] == doc)
    last = inside[np.flatnonzero(np.diff(sample.sequence["branch_ids"][inside]))[-1]]
    sample.sequence["labels"][last] = sample.sequence["tokens"][last + 1]
    sample.sequence["loss_weights"][last] = 1


@breaks("P7")
def label_that_was_not_shifted(data: Any) -> None:
    sample = data.samples()[0]
    at = labelled(sample)
    sample.sequence["labels"][at] = sample.sequence["tokens"][at]


@breaks("P8")
def label_without_weight(data: Any) -> None:
    sample = data.samples()[0]
    sample.sequence["loss_weights"][labelled(sample)] = 0


@breaks("P8")
def weight_that_is_not_a_number(data: Any) -> None:
    sample = data.samples()[0]
    sample.sequence["loss_weights"][labelled(sample)] = np.nan


@breaks("P8")
def weight_below_zero(data: Any) -> None:
    sample = data.samples()[0]
    sample.sequence["loss_weights"][labelled(sample)] = -0.5


@breaks("P9")
def pooled_rows_out_of_order(data: Any) -> None:
    pool = pictured(data).sequence["pool_ids"]
    at = np.flatnonzero(pool >= 0)[:2]
    pool[at] = pool[at[::-1]]


@breaks("P9")
def pooled_row_on_another_token(data: Any) -> None:
    sequence = pictured(data).sequence
    sequence["tokens"][np.flatnonzero(sequence["pool_ids"] >= 0)[0]] = 5


@breaks("P9")
def bounds_that_lack_the_last_unit_of_a_document(data: Any) -> None:
    head = data.sample_where(lambda s: sum(span["n_images"] > 0 for span in s.head["documents"]) > 1).head
    at = head["cum_image_bounds"].index(next(span["n_images"] for span in head["documents"] if span["n_images"]))
    del head["cum_image_bounds"][at], head["cum_token_pooling_bounds"][at]


@breaks("P9")
def pooled_row_that_fills_no_token(data: Any) -> None:
    pool = pictured(data).sequence["pool_ids"]
    pool[pool.argmax()] = -1


@breaks("P19")
def fewer_crops_than_the_bounds_count(data: Any) -> None:
    sample = pictured(data)
    last = [span for span in sample.head["documents"] if span["n_images"]][-1]
    bounds = sample.head["cum_image_bounds"]
    last["n_images"] -= bounds[-1] - bounds[-2]
    data.relist()


@breaks("P19")
def documents_that_share_a_unit(data: Any) -> None:
    sample = data.sample_where(lambda s: sum(span["n_images"] > 0 for span in s.head["documents"]) > 1)
    first, second = [span for span in sample.head["documents"] if span["n_images"]][:2]
    bounds = sample.head["cum_image_bounds"]
    step = 1 if first["n_images"] + 1 not in bounds else -1
    assert first["n_images"] + step not in bounds
    first["n_images"] += step
    second["n_images"] -= step
    data.relist()


@breaks("P9")
def unit_half_in_the_prefix_and_half_in_an_annotation(data: Any) -> None:
    """Positions continue through the only annotation, so that no other rule is broken."""
    ids = [(sample, n) for sample in data.samples() for n, span in enumerate(sample.head["documents"])
           if span["doc_id"] == "annotated-0"]  # fmt: skip
    sample, doc = ids[0]
    sequence = sample.sequence
    prefix = np.flatnonzero((sequence["doc_ids"] == doc) & (sequence["branch_ids"] == 0))
    pooled = prefix[sequence["pool_ids"][prefix] >= 0]
    sequence["branch_ids"][pooled[-1] : prefix[-1] + 1] = 1
    data.derive(sample)


@breaks("P19")
def crops_of_another_document(data: Any) -> None:
    sample = data.sample_where(lambda s: sum(span["n_images"] > 0 for span in s.head["documents"]) > 1)
    first, second = [span for span in sample.head["documents"] if span["n_images"]][:2]
    numbers = [unit["document"] for unit in sample.head["units"]]
    bounds, at = sample.head["cum_image_bounds"], numbers.index(sample.head["documents"].index(second))
    moved = bounds[at] - bounds[at - 1]
    first["n_images"] += moved
    second["n_images"] -= moved
    for image in sample.head["images"][bounds[at - 1] : bounds[at]]:
        image["doc_id"] = first["doc_id"]
    data.relist()


@breaks("P10")
def unit_without_a_group(data: Any) -> None:
    sample = pictured(data)
    group = sample.sequence["group_ids"]
    group[group == 1] = -1
    data.derive(sample)


@breaks("P10")
def two_units_in_one_group(data: Any) -> None:
    sample = pictured(data)
    group = sample.sequence["group_ids"]
    group[group == 1] = 0
    data.derive(sample)


@breaks("P11")
def missing_layout(data: Any) -> None:
    layouts = data.samples()[0].layouts
    del layouts["zigzag.ring2"], layouts["zigzag.ring2.needs"]


@breaks("P11")
def unknown_layout(data: Any) -> None:
    layouts = data.samples()[0].layouts
    layouts["mine.ring1"], layouts["mine.ring1.needs"] = layouts["zigzag.ring1"], layouts["zigzag.ring1.needs"]


@breaks("P11")
def degree_that_is_no_number(data: Any) -> None:
    layouts = data.samples()[0].layouts
    layouts["zigzag.ring\u00b2"], layouts["zigzag.ring\u00b2.needs"] = (
        layouts["zigzag.ring1"],
        layouts["zigzag.ring1.needs"],
    )


@breaks("P11")
def layout_of_another_type(data: Any) -> None:
    layouts = data.samples()[0].layouts
    layouts["zigzag.ring2"] = layouts["zigzag.ring2"].astype(np.int64)


@breaks("P11")
def needs_of_another_width(data: Any) -> None:
    layouts = data.samples()[0].layouts
    layouts["zigzag.ring2.needs"] = layouts["zigzag.ring2.needs"][:, :-1]


@breaks("P12")
def layout_that_repeats_a_token(data: Any) -> None:
    data.samples()[0].layouts["balanced_ring.ring2"][1, 1] -= 1


@breaks("P12")
def layout_of_unequal_slices(data: Any) -> None:
    data.samples()[0].layouts["contiguous.ring2"][:] = [[0, 0, 256], [1, 256, 768]]


@breaks("P12")
def layout_of_a_rank_that_does_not_exist(data: Any) -> None:
    data.samples()[0].layouts["contiguous.ring2"][1, 0] = 2


@breaks("P13")
def needed_block_that_is_not_marked(data: Any) -> None:
    needs = data.samples()[0].layouts["balanced_gather.ring2.needs"]
    needs[tuple(np.argwhere(needs)[0])] = False


@breaks("P13")
def marked_block_that_is_not_needed(data: Any) -> None:
    needs = data.samples()[0].layouts["contiguous.ring2.needs"]
    needs[tuple(np.argwhere(~needs)[0])] = True


@breaks("P14")
def boundaries_with_a_gap(data: Any) -> None:
    part = pictured(data).head["image_shard_boundaries"]["2"]["1"]
    part["start_image_idx"] += 1


@breaks("P14")
def boundaries_that_end_early(data: Any) -> None:
    sample = pictured(data)
    last = sample.head["image_shard_boundaries"]["1"]["0"]
    last["end_image_idx"] = sample.head["cum_image_bounds"][-2]
    last["end_pool_idx"] = last["max_num_tokens"] = sample.head["cum_token_pooling_bounds"][-2]


@breaks("P14")
def pooled_rows_that_are_not_the_crops(data: Any) -> None:
    part = pictured(data).head["image_shard_boundaries"]["1"]["0"]
    part["end_pool_idx"] -= 1
    part["max_num_tokens"] -= 1


@breaks("P14")
def largest_rank_that_is_larger(data: Any) -> None:
    pictured(data).head["image_shard_boundaries"]["2"]["1"]["max_num_tokens"] += 1


def _set_edges(sample: Any, edges: list[int]) -> None:
    parts, size = sample.parts(shares_crops=True), str(len(edges) - 1)
    sample.head["image_shard_boundaries"][size] = boundaries_from_edges(np.array(edges), parts.crops, parts.rows)


@breaks("P15")
def boundaries_that_are_not_the_best(data: Any) -> None:
    sample = pictured(data)
    _set_edges(sample, [0, 1, len(sample.head["images"])])
    data.derive(sample)


@breaks("P16")
def crop_of_a_document_that_is_not_its_own(data: Any) -> None:
    pictured(data).head["images"][0]["doc_id"] = "nobody"


@breaks("P16")
def picture_of_another_size(data: Any) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (57, 56)).save(buffer, "JPEG")
    pictured(data).crops[0] = buffer.getvalue()


@breaks("P16")
def picture_in_grey(data: Any) -> None:
    buffer = io.BytesIO()
    Image.new("L", (56, 56)).save(buffer, "JPEG")
    pictured(data).crops[0] = buffer.getvalue()


@breaks("P16")
def picture_of_another_format(data: Any) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (56, 56)).save(buffer, "PNG")
    pictured(data).crops[0] = buffer.getvalue()


@breaks("P16")
def picture_cut_short(data: Any) -> None:
    crops = pictured(data).crops
    crops[0] = crops[0][:-40]


@breaks("P16")
def times_that_do_not_ascend(data: Any) -> None:
    sample = data.sample_where(lambda s: sum(image["timestamp"] is not None for image in s.head["images"]) > 3)
    at = next(i for i, image in enumerate(sample.head["images"]) if image["timestamp"])
    sample.head["images"][at + 1]["timestamp"] = sample.head["images"][at]["timestamp"]


@breaks("P16")
def time_before_the_clip(data: Any) -> None:
    sample = data.sample_where(lambda s: any(image["timestamp"] is not None for image in s.head["images"]))
    next(image for image in sample.head["images"] if image["timestamp"] is not None)["timestamp"] = -1.0


@breaks("P16")
def time_of_a_still_image(data: Any) -> None:
    sample = data.sample_where(lambda s: np.diff(s.head["cum_image_bounds"], prepend=0).max(initial=0) > 1)
    unit = int(np.diff(sample.head["cum_image_bounds"], prepend=0).argmax())
    next(image for image in sample.head["images"] if image["unit"] == unit)["timestamp"] = 0.0


@breaks("P17")
def loads_of_no_pack(data: Any) -> None:
    data.tables["measures.parquet"].append(data.tables["measures.parquet"][-1])


@breaks("P18")
def contiguous_that_is_not(data: Any) -> None:
    sample = data.samples()[0]
    sample.layouts["contiguous.ring2"][:, 1] = [512, 0]
    data.derive(sample)


@breaks("P18")
def zigzag_that_is_contiguous(data: Any) -> None:
    sample = data.samples()[0]
    sample.layouts["zigzag.ring2"] = sample.layouts["contiguous.ring2"]
    data.derive(sample)


@breaks("P18")
def balanced_layout_that_cuts_a_block(data: Any) -> None:
    sample = data.samples()[0]
    rows = [[0, 0, 16], [0, 512, 496], [1, 16, 496], [1, 1008, 16]]
    sample.layouts["balanced_ring.ring2"] = np.array(rows, np.int32)
    data.derive(sample)


@breaks("P18")
def balanced_layout_out_of_natural_order(data: Any) -> None:
    sample = data.samples()[0]
    rows = [[0, 256, 256], [0, 0, 256], [1, 512, 512]]
    sample.layouts["balanced_ring.ring2"] = np.array(rows, np.int32)
    data.derive(sample)


@breaks("P19")
def unit_of_another_document(data: Any) -> None:
    sample = data.sample_where(lambda s: len({unit["document"] for unit in s.head["units"]}) > 1)
    sample.head["units"][0]["document"] = sample.head["units"][-1]["document"]


def _and_its_document(sample: Any, field: str, total: str, more: int) -> None:
    """Changes a unit, and the total of its document with it."""
    unit = sample.head["units"][0]
    unit[field] += more
    sample.head["documents"][unit["document"]][total] += more


@breaks("P19")
def unit_with_a_patch_more(data: Any) -> None:
    sample = pictured(data)
    _and_its_document(sample, "patches", "n_patches", 1)
    data.derive(sample)
    data.relist()


@breaks("P19")
def unit_of_another_load(data: Any) -> None:
    """Changes a load too little to move a boundary."""
    sample = pictured(data)
    _and_its_document(sample, "load", "load", 1)
    data.derive(sample)
    data.relist()


@breaks("P19")
def document_of_another_load(data: Any) -> None:
    sample = pictured(data)
    sample.head["documents"][sample.head["units"][0]["document"]]["load"] += 1
    data.relist()


@breaks("P19")
def document_with_a_unit_more(data: Any) -> None:
    data.samples()[0].head["documents"][0]["n_units"] += 1
    data.relist()


@breaks("P19")
def unit_that_ends_before_its_last_row(data: Any) -> None:
    sample = pictured(data)
    unit = sample.head["units"][0]
    unit["end"] = int(np.flatnonzero(sample.sequence["pool_ids"] == unit["rows"] - 1)[0])


@breaks("P19")
def units_that_overlap(data: Any) -> None:
    units = pictured(data).head["units"]
    units[1]["start"] = units[0]["end"] - 1


@breaks("P19")
def unit_that_reaches_past_its_document(data: Any) -> None:
    sample = pictured(data)
    unit = sample.head["units"][-1]
    span = sample.head["documents"][unit["document"]]
    unit["end"] = span["start"] + span["length"] + 1


@breaks("P19")
def unit_in_two_branches(data: Any) -> None:
    """The marks behind the last row belong to an annotation."""
    sample, doc = annotated(data)
    last = max(i for i, unit in enumerate(sample.head["units"]) if unit["document"] == doc)
    branch = sample.sequence["branch_ids"]
    ends = np.flatnonzero((sample.sequence["doc_ids"] == doc) & (branch == 0))
    sample.head["units"][last]["end"] = int(ends[-1]) + 2


@breaks("P19")
def two_images_that_count_as_one(data: Any) -> None:
    sample = data.sample_where(
        lambda s: any(a["document"] == b["document"] for a, b in pairwise(s.head["units"]) if a["kind"] == "image")
    )
    for a, b in pairwise(sample.head["units"]):
        if a["kind"] == "image" and a["document"] == b["document"]:
            b["medium"] = a["medium"]
            return


@breaks("P16")
def image_that_is_called_a_frame(data: Any) -> None:
    sample = data.sample_where(lambda s: any(unit["kind"] == "image" for unit in s.head["units"]))
    next(unit for unit in sample.head["units"] if unit["kind"] == "image")["kind"] = "frame"


@breaks("P19")
def frame_that_is_called_an_image(data: Any) -> None:
    sample = data.sample_where(lambda s: any(unit["kind"] == "frame" for unit in s.head["units"]))
    next(unit for unit in sample.head["units"] if unit["kind"] == "frame")["kind"] = "image"


@breaks("P19")
def time_step_where_positions_have_one_axis(data: Any) -> None:
    pictured(data).head["units"][0]["time_step"] = 1.0


@breaks("P1")
def label_cut_of_a_whole_document(data: Any) -> None:
    data.samples()[0].head["documents"][0]["label_cut"] = True


@breaks("P1")
def clip_cut_of_a_whole_document(data: Any) -> None:
    clips(data).head["documents"][0]["medium_cut"] = True


@breaks("P1")
def preference_that_is_false(data: Any) -> None:
    data.samples()[0].head["documents"][0]["preference"] = False


@breaks("P9")
def text_that_is_the_image_token(data: Any) -> None:
    sample = pictured(data)
    arrays = sample.sequence
    is_text = (arrays["doc_ids"] >= 0) & (arrays["pool_ids"] < 0) & (np.roll(arrays["labels"], 1) == -100)
    inside = [(unit["start"], unit["end"]) for unit in sample.head["units"]]
    free = [at for at in np.flatnonzero(is_text) if not any(start <= at < end for start, end in inside)]
    arrays["tokens"][free[1]] = data.manifest["tokenizer"]["image_id"]


def clips(data: Any) -> Any:
    """A sample with a document of frames, of several units."""
    return data.sample_where(lambda s: sum(unit["kind"] == "frame" for unit in s.head["units"]) > 2)


@breaks("P16")
def clip_that_begins_behind_its_start(data: Any) -> None:
    """Its first frame would be in time before the second."""
    sample = clips(data)
    first = next(i for i, image in enumerate(sample.head["images"]) if image["timestamp"] is not None)
    sample.head["images"][first]["timestamp"] = sample.head["images"][first + 1]["timestamp"] / 2


@breaks("P19")
def one_video_as_two(data: Any) -> None:
    sample = clips(data)
    frames = [unit for unit in sample.head["units"] if unit["kind"] == "frame"]
    for unit in frames[1:]:
        unit["medium"] += unit["document"] == frames[0]["document"]


@breaks("P19")
def frame_of_several_pictures(data: Any) -> None:
    for unit in clips(data).head["units"]:
        unit["kind"] = unit["kind"].replace("frame", "frames")


@breaks("P16")
def bytes_behind_a_picture(data: Any) -> None:
    crops = pictured(data).crops
    crops[0] += b"more"


@breaks("P16")
def picture_that_says_how_to_turn_it(data: Any) -> None:
    crops = pictured(data).crops
    with Image.open(io.BytesIO(crops[0])) as picture:
        turned, out = Image.Exif(), io.BytesIO()
        turned[0x0112] = 6
        picture.save(out, "JPEG", exif=turned, quality=90)
    crops[0] = out.getvalue()


@breaks("P20")
def value_behind_the_end_of_a_document(data: Any) -> None:
    sample = with_column(data)
    span = sample.head["documents"][0]
    sample.sequence["columns.value"][span["start"] + span["length"] - 1] = 1


@breaks("P22")
def mark_that_is_another_token(data: Any) -> None:
    sample = pictured(data)
    sample.sequence["tokens"][sample.head["units"][0]["end"] - 1] = 5


@breaks("P22")
def unit_without_its_last_mark(data: Any) -> None:
    pictured(data).head["units"][0]["end"] -= 1


@breaks("P22")
def unit_with_a_token_of_text(data: Any) -> None:
    pictured(data).head["units"][0]["start"] -= 1


@breaks("P23")
def times_that_are_twice_what_is_written(data: Any) -> None:
    for image in clips(data).head["images"]:
        image["timestamp"] = image["timestamp"] and 2 * image["timestamp"]


CASES = [
    ("P1", "head of another pack", lambda data: put(data.samples()[2].head, "pack_id", 7)),
    ("P1", "head with an unknown field", lambda data: put(data.samples()[0].head, "more", 1)),
    ("P1", "head without a field", lambda data: drop(data.samples()[0].head, "cum_image_bounds")),
    ("P1", "head with a unit of no kind", lambda data: put(pictured(data).head["units"][0], "kind", "clip")),
    ("P2", "missing array", lambda data: drop(data.samples()[0].sequence, "pool_ids")),
    ("P20", "column that is missing", lambda data: drop(with_column(data).sequence, "columns.value")),
    ("P20", "column of another type", lambda data: with_column(data, np.int32)),
    ("P20", "column that is not finite", lambda data: put(with_column(data).sequence["columns.value"], 0, np.nan)),
    ("P3", "more crops than a pack may have", lambda data: put(data.manifest["config"], "max_images", 1)),
    ("P3", "more patches than a pack may have", lambda data: put(data.manifest["config"], "max_patches", 16)),
    ("P6", "position off by one", lambda data: add(data.samples()[0].sequence["position_ids"], (0, 3), 1)),
    ("P8", "weight without label", lambda data: put(data.samples()[0].sequence["loss_weights"], 0, 1)),
    ("P9", "bounds that disagree", lambda data: add(pictured(data).head["cum_token_pooling_bounds"], 0, 1)),
    ("P9", "bounds of fewer units than the other", lambda data: pictured(data).head["cum_token_pooling_bounds"].pop()),
    ("P12", "layout that loses a token", lambda data: add(data.samples()[0].layouts["contiguous.ring2"], (1, 2), -1)),
    ("P14", "rank left out", lambda data: drop(pictured(data).head["image_shard_boundaries"]["4"], "3")),
    ("P14", "cp size left out", lambda data: drop(pictured(data).head["image_shard_boundaries"], "2")),
    ("P16", "crop of another width", lambda data: add(pictured(data).head["images"][0], "width", 1)),
    ("P16", "crop of another unit", lambda data: add(pictured(data).head["images"][0], "unit", 1)),
    ("P16", "crop that is not listed", lambda data: pictured(data).head["images"].pop()),
    ("P17", "load off by one", lambda data: add(data.tables["measures.parquet"][5]["tiles"], 0, 1)),
    ("P17", "sum off by one", lambda data: add(data.tables["measures.parquet"][5], "sum_tiles", 1)),
    ("P17", "images of a layout", lambda data: put(data.tables["measures.parquet"][5], "images", [0])),
    ("P17", "loads left out", lambda data: data.tables["measures.parquet"].pop()),
    ("P19", "unit that is not listed", lambda data: pictured(data).head["units"].pop()),
    ("P19", "unit with a row more", lambda data: add(pictured(data).head["units"][0], "rows", 1)),
    ("P19", "unit of another grid", lambda data: add(pictured(data).head["units"][0]["grid"], 2, 1)),
    ("P19", "image left out of the count", lambda data: add(pictured(data).head["units"][0], "medium", 1)),
]
