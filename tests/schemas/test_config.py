"""The configuration as a manifest stores it, and the numbers that it and the format fix.

Defaults and largest values stand in docs/packing.md, which a test compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

from preshard.schemas.config import PackConfig, parse_config
from preshard.schemas.dataset.manifest_parts import seal_manifest, stored_config
from preshard.schemas.dataset.measures import BLOCK_VALUES, measure_groups
from preshard.schemas.dataset.read_manifest import decode_manifest
from preshard.schemas.encode import encode_json
from preshard.schemas.errors import ConfigError, ManifestInvalid
from preshard.schemas.files.validation import first_violation, violations_of
from preshard.schemas.header import DocumentSpan
from preshard.schemas.layout import TILE
from preshard.schemas.manifest import Manifest
from preshard.schemas.mask import dense_mask
from preshard.schemas.sections import DuplicatesConfig, nearest_multiples
from preshard.schemas.sequence import CAUSAL_ONLY, IGNORE_INDEX, NOT_POOLED, PADDING_DOC, MaskArrays


@pytest.fixture
def manifest(tiny_dataset: Path) -> Manifest:
    return decode_manifest((tiny_dataset / "manifest.json").read_bytes(), "manifest.json")


def test_what_is_stored_is_what_packed(manifest: Manifest, tiny_config: PackConfig) -> None:
    """Fails when a value changes its type or its order on the way through JSON."""
    assert stored_config(manifest) == tiny_config
    assert parse_config(tiny_config.model_dump(mode="json")) == tiny_config


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda config: config.pop("seq_len"), "config.seq_len is not written out"),
        (lambda config: config["order"].pop("window"), "config.order.window is not written out"),
        (lambda config: config.pop("vision"), "config.vision is not written out"),
        (
            lambda config: config.pop("images"),
            "config.images is not written out.*pack its sources again: preshard pack",
        ),
        (lambda config: config.update(extra=1), "config.extra: unknown key; legal here: seq_len"),
        (lambda config: config["video"].update(rate=1), "config.video.rate: unknown key; legal here: fps, max_frames"),
        (lambda config: config.update(seq_len="1024"), "config.seq_len: '1024' is not legal: give a whole number"),
        (lambda config: config.update(seq_len=1025), "config.seq_len 1025 is not a multiple of"),
    ],
)
def test_a_stored_configuration_has_every_key(
    manifest: Manifest, edit: Callable[[dict[str, Any]], object], said: str
) -> None:
    """Fails when a missing key is replaced by a default in silence: a reader would take another pack for this one."""
    config = {key: dict(value) if isinstance(value, dict) else value for key, value in manifest.config.items()}
    edit(config)
    with pytest.raises(ManifestInvalid, match=said):
        stored_config(manifest.model_copy(update={"config": config}))


def test_a_model_decides_alone() -> None:
    """Fails when a key that the model folder decides is taken beside it, or a default is held against it."""
    assert parse_config({"model": "folder"}).model == "folder"
    for key, given in (("tokenizer", "other"), ("bidirectional", "none"), ("vision", {"max_crops": 4})):
        with pytest.raises(ConfigError, match="contradicts model, whose folder decides it"):
            parse_config({"model": "folder", key: given})
        parse_config({key: given})


@pytest.mark.parametrize(
    ("value", "step", "said"),
    [(10, 4, "8 and 12"), (3, 4, "4"), (8, 4, "8"), (0, 4, "0"), (1, 1, "1"), (5, 2, "4 and 6")],
)
def test_nearest_multiples(value: int, step: int, said: str) -> None:
    """Fails when a message proposes 0, or a value that is not a multiple."""
    assert nearest_multiples(value, step) == said


def test_violations_are_worded_once() -> None:
    """Fails when an acronym loses its capitals, or the place of a fault inside a list is lost."""

    class Model(BaseModel):
        sizes: list[int]

    with pytest.raises(ValidationError) as caught:
        Model.model_validate({"sizes": [1, "x"]})
    violation = first_violation(caught.value)
    assert (violation.path, violation.value) == ("sizes.1", "x")
    assert str(violation).startswith("sizes.1: input should be a valid integer")
    with pytest.raises(ValidationError) as caught:
        Model.model_validate_json("[")
    assert str(first_violation(caught.value)).startswith("invalid JSON")


@pytest.mark.parametrize(
    ("message", "said"),
    [("Field required", "field required"), ("IPv4 expected", "IPv4 expected"), ("JSON expected", "JSON expected")],
)
def test_acronyms_keep_their_capitals(message: str, said: str) -> None:
    """Fails when a name in capitals is written as a word."""
    [violation] = violations_of([{"loc": (), "msg": message, "input": 1, "type": "missing"}])
    assert str(violation) == said


def numbers(section: type[BaseModel], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every number of a configuration and the schema of its value."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from numbers(field.annotation, f"{path}{name}.")
            continue
        schema = section.model_json_schema()["properties"][name]
        for part in (schema, schema.get("items", {}), *schema.get("anyOf", ())):
            if part.get("type") in ("integer", "number"):
                yield f"{path}{name}", part


def test_every_number_has_a_largest_value() -> None:
    """Fails when a key takes any number: a window of 10**12 once kept the report and the service busy for ever."""
    found = dict(numbers(PackConfig))
    assert {"order.window", "cp_sizes", "max_images", "cost.link_gb_per_s"} <= found.keys()
    assert [path for path, schema in found.items() if "maximum" not in schema] == []
    with pytest.raises(ConfigError, match=r"order.window: 1000000000000 is not legal: give at most 1048576"):
        parse_config({"order": {"window": 10**12}})
    with pytest.raises(ConfigError, match=r"order.window: 1000.*\.\.\. is not legal") as caught:
        parse_config({"order": {"window": 10**4000}})
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("settings", [{"mixture": {"a": 0.5}}, {"max_images": 1}, {"vision": {"patch_size": 1}}])
def test_small_values_are_legal(settings: dict[str, Any]) -> None:
    """Fails when the least value of a range, or a weight within it, is refused."""
    assert parse_config(settings)


def test_documents_are_compared_if_anything_asks_for_it() -> None:
    """Fails when equal texts or images are kept though a key says otherwise, or all are hashed for nothing."""
    asked = {(text, images): DuplicatesConfig(text=text, images=images).is_asked
             for text in ("keep", "mark", "drop") for images in ("keep", "mark", "drop")}  # fmt: skip
    assert {kinds for kinds, is_asked in asked.items() if not is_asked} == {("keep", "keep")}


@pytest.mark.parametrize("degree", [0, 4097])
def test_degrees_are_from_1_to_4096(degree: int) -> None:
    """Fails when a degree is legal that no layout can have."""
    for name, other in (("cp_sizes", "ring_degrees"), ("ring_degrees", "cp_sizes")):
        rest = {other: [1], "layouts": ["contiguous"]}
        with pytest.raises(ConfigError, match=rf"{name}.*{degree} is not legal"):
            parse_config({**rest, name: [degree], "seq_len": max(2 * degree, 2)})
        for legal in (1, 4096):
            parse_config({**rest, name: [legal], "seq_len": 2 * legal})
        with pytest.raises(ConfigError, match=rf"{name}: \[\] is not legal"):
            parse_config({**rest, name: []})


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        ({"layouts": ["contiguous"], "cp_sizes": [1], "ring_degrees": [1]}, 2),
        ({"layouts": ["contiguous"], "cp_sizes": [3], "ring_degrees": [1]}, 6),
        ({"layouts": ["contiguous"], "cp_sizes": [1], "ring_degrees": [5]}, 10),
        ({"layouts": ["zigzag"], "cp_sizes": [4], "ring_degrees": [3, 2], "block_size": 1000}, 24),
        ({"layouts": ["balanced_ring"], "cp_sizes": [1], "ring_degrees": [3], "block_size": 10}, 30),
        ({"layouts": ["balanced_gather"], "cp_sizes": [2], "ring_degrees": [1, 5], "block_size": 7}, 140),
    ],
)
def test_seq_len_is_a_multiple_of_what_has_to_divide_it(settings: dict[str, Any], step: int) -> None:
    """Fails when a length is legal that some rank cannot hold an equal part of, or one is refused that all can."""
    for seq_len in range(1, 2 * step + 1):
        if seq_len % step == 0:
            assert parse_config({**settings, "seq_len": seq_len}).seq_len == seq_len
        else:
            with pytest.raises(ConfigError, match=f"take seq_len=.*{step}"):
                parse_config({**settings, "seq_len": seq_len})


def test_documents_are_aligned_to_what_zigzag_cuts() -> None:
    """Fails when a document of the least length cannot be cut into 2R chunks at some degree."""
    assert PackConfig().alignment == 16
    assert PackConfig(ring_degrees=(2, 3), cp_sizes=(1,), seq_len=128 * 12).alignment == 12
    assert PackConfig(layouts=("contiguous", "balanced_ring")).alignment == 1


def test_a_crop_has_patches_and_pooled_rows() -> None:
    """Fails when a last window that is not full is dropped, or a side is counted for the square."""
    vision = PackConfig().vision
    assert (vision.patches_per_crop, vision.pooled_per_crop) == (27 * 27, 81)
    vision = parse_config({"vision": {"image_size": 56, "patch_size": 14, "pool_size": 3}}).vision
    assert (vision.patches_per_crop, vision.pooled_per_crop) == (16, 4)


def test_a_value_given_twice_is_refused() -> None:
    """Fails when a degree listed twice makes two layouts of one name."""
    for name, value in (("cp_sizes", 2), ("ring_degrees", 2), ("layouts", "zigzag")):
        with pytest.raises(ConfigError, match=f"{name}.*twice"):
            parse_config({name: [value, value]})


def test_numbers_of_the_format_fit_an_int64_column() -> None:
    """Fails when a head holds a number that no column can, or refuses one that a column can."""
    span = {"doc_id": "a", "piece": 0, "source": "s", "length": 1, "aligned_length": 1}
    span |= dict.fromkeys(("copy_number", "epoch", "n_units", "n_images", "n_patches", "load"), 0)
    span |= dict.fromkeys(("label_cut", "medium_cut"), False)
    assert DocumentSpan(**span, start=2**63 - 1).start == 2**63 - 1
    for outside in (2**63, -1):
        with pytest.raises(ValueError, match="start"):
            DocumentSpan(**span, start=outside)


def test_a_manifests_hash_is_taken_with_64_zeros_in_its_place(tiny_dataset: Path) -> None:
    """Fails when another reader of the format, who puts 64 zeros there, gets another hash."""
    data = (tiny_dataset / "manifest.json").read_bytes()
    manifest = Manifest.model_validate_json(data)
    assert hashlib.sha256(data.replace(manifest.sha256.encode(), b"0" * 64)).hexdigest() == manifest.sha256
    assert encode_json(seal_manifest(manifest)) == data


def test_constants_of_the_format() -> None:
    """Fails when what docs/format.md writes out as a number is another number here."""
    assert (TILE, BLOCK_VALUES) == (128, 8_388_608)
    assert (IGNORE_INDEX, PADDING_DOC, CAUSAL_ONLY, NOT_POOLED) == (-100, -1, -1, -1)
    config = parse_config({"ring_degrees": [4, 2], "cp_sizes": [2, 1], "layouts": ["zigzag", "contiguous"]})
    assert [(group.scheme, group.degree) for group in measure_groups(config)] == [
        ("contiguous", 2), ("contiguous", 4), ("zigzag", 2), ("zigzag", 4), (None, 1), (None, 2),
    ]  # fmt: skip


def test_the_mask_written_out() -> None:
    """Fails when a query sees another document, another annotation, a later token outside its group, or padding."""
    doc = np.array([0, 0, 0, 0, 0, 1, 1, -1], np.int32)
    branch = np.array([0, 0, 1, 1, 2, 0, 0, 0], np.int32)
    group = np.array([0, 0, -1, -1, 0, 1, 1, -1], np.int32)
    mask = MaskArrays(doc_ids=doc, branch_ids=branch, group_ids=group)
    rows = ["11000000", "11000000", "11100000", "11110000", "11001000", "00000110", "00000110", "00000000"]
    every = np.array([[letter == "1" for letter in row] for row in rows])
    np.testing.assert_array_equal(dense_mask(mask), every)
    queries, keys = np.array([4, 2, 5]), np.array([6, 1, 4, 2])
    np.testing.assert_array_equal(dense_mask(mask, queries, keys), every[queries][:, keys])
    np.testing.assert_array_equal(dense_mask(mask, queries), every[queries])
    np.testing.assert_array_equal(dense_mask(mask, keys=keys), every[:, keys])


@pytest.mark.parametrize("name", ["model", "chat_template", "tokenizer", "form"])
def test_an_empty_name_is_refused(name: str) -> None:
    """Fails when an empty text stands for the folder that the job is started in."""
    with pytest.raises(ConfigError, match=f"{name}.*at least 1 character"):
        parse_config({name: ""})
    assert getattr(parse_config({name: "x"}), name) == "x"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seq_length": 1}, "seq_length: unknown key; did you mean seq_len?"),
        ({"max_image": 1}, "max_image: unknown key; did you mean max_images?"),
        ({"fps": 1}, "fps: unknown key; did you mean video.fps?"),
        ({"video": {"max_frame": 1}}, "video.max_frame: unknown key; did you mean max_frames?"),
        ({"xyz": 1}, "xyz: unknown key; legal here: "),
    ],
)
def test_a_wrong_key_gets_the_nearest(values: dict[str, Any], message: str) -> None:
    """Fails when a slip of the pen is answered by a list of forty keys."""
    with pytest.raises(ConfigError) as told:
        parse_config(values)
    assert str(told.value).startswith(message)
