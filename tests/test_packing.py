"""Packs of documents in memory: the same documents, packed into a dataset and read from it, give the same batches."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from pages import programs_of
from PIL import Image

import preshard
from preshard.data import PackedDataset
from preshard.packer_service.demo.model import write_model_folder
from preshard.packing import pack_batch
from preshard.schemas.errors import ConfigError, ReaderError

TEXT = {"seq_len": 768, "block_size": 32, "order": {"window": 4}, "cp_sizes": [1, 2, 4], "ring_degrees": [1, 2, 4]}
GENERIC = {**TEXT, "vision": {"image_size": 56, "pool_size": 2}, "max_images": 24}

SPLITS = (
    {"layout": "contiguous"},
    {"layout": "zigzag", "ring_degree": 2, "ulysses_degree": 2},
    {"layout": "balanced_ring", "ring_degree": 4},
    {"layout": "balanced_gather", "ring_degree": 2},
    {"layout": "contiguous", "ring_degree": 3},  # stored nowhere: derived by the reader
)

Show = Callable[[np.ndarray], Any]
"""Forms in which rows show a picture ``(height, width, 3)``, or the frames of a video."""


def _turns(question: Any, answer: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _pixels(number: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 255, (*shape, 3), np.uint8)


def _text_rows(show: Show) -> list[dict[str, Any]]:
    """Every kind of row that shows nothing, two of one id, and bad ones."""
    rows = [{"id": f"text-{i}", "source": "text", "text": f"line {i}. " * (3 + 11 * i)} for i in range(9)]
    rows += [{"id": f"chat-{i}", "messages": _turns(f"{i}? " * 40, "so " * (i + 1))} for i in range(9)]
    rows += [
        {"id": f"annotated-{i}", "text": "read this", "annotations": [_turns(f"{k}?", "x " * k) for k in range(1, i)]}
        for i in range(2, 6)
    ]
    return [*rows, dict(rows[1]), {**rows[1], "text": "another"}, {"id": "bad", "text": " "}, {"text": 1, "id": "odd"}]


def _token_rows(show: Show) -> list[dict[str, Any]]:
    """Rollouts: ids, which of them the policy wrote, and numbers for each."""
    lengths = np.random.default_rng(0).integers(2, 700, 12).tolist()
    return [
        {
            "id": f"rollout-{i}",
            "input_ids": list(range(1000, 1000 + n)),
            "loss_mask": [0, *[1] * (n - 1)],
            "logprobs": [0.25 * k for k in range(n)],
            "advantage": 0.5 * i,
        }
        for i, n in enumerate(lengths)
    ] + [{"id": "empty", "input_ids": []}, {"id": "unknown", "input_ids": [1005, 10**9], "logprobs": 0, "advantage": 0}]


def _picture_rows(show: Show) -> list[dict[str, Any]]:
    """Pictures of odd sizes, several in a document, shared by annotations, and one that is no picture."""
    sizes = [(41, 90), (133, 57), (64, 64), (29, 200)]
    images = [{"type": "image", "image": show(_pixels(i, *size))} for i, size in enumerate(sizes)]
    rows = [
        {"id": f"images-{i}", "messages": _turns([*images[: 1 + i % 4], {"type": "text", "text": "?"}], f"{i} " * i)}
        for i in range(1, 21)
    ]
    rows += [{"id": "column", "images": [images[1]["image"]], "messages": _turns("<image> what?", "that")}]
    rows += [{"id": "annotated", "media": [images[0]], "annotations": [_turns(f"{k}?", "x " * k) for k in range(1, 5)]}]
    return [*rows, {"id": "broken", "messages": _turns([{"type": "image", "image": {"bytes": "AAAA"}}], "x")}]


def _model_rows(show: Show) -> list[dict[str, Any]]:
    clips = [{"type": "video", "video": show(_pixels(i, 5, 60, 90 + 40 * i)), "fps": 2} for i in range(2)]
    rows = [
        {"id": f"video-{i}", "messages": _turns([clip, {"type": "text", "text": "?"}], "a b")}
        for i, clip in enumerate(clips)
    ]
    return [*_picture_rows(show), *rows]


CASES: dict[str, tuple[Callable[[Show], list[dict[str, Any]]], dict[str, Any]]] = {
    "text": (_text_rows, TEXT | {"oversize": "split"}),
    "tokens": (_token_rows, TEXT | {"token_columns": {"logprobs": "float32", "advantage": "float32"}}),
    "generic": (_picture_rows, GENERIC),
    "qwen3_vl": (_model_rows, TEXT | {"seq_len": 1536, "max_patches": 4000}),
}


def _as_files(folder: Path) -> Show:
    """Pictures as the names of files that hold them without loss."""
    numbers = iter(range(10**6))

    def show(pixels: np.ndarray) -> Any:
        if pixels.ndim > 3:
            return [show(frame) for frame in pixels]
        name = f"{next(numbers)}.png"
        Image.fromarray(pixels).save(folder / name)
        return name

    return show


def _in_memory(pixels: np.ndarray) -> Any:
    """A picture of PIL where its height is odd, else a tensor; a video as a tensor."""
    if pixels.ndim == 3 and len(pixels) % 2:
        return Image.fromarray(pixels)
    return torch.from_numpy(pixels).movedim(-1, -3)


def _tensors(row: Mapping[str, Any]) -> dict[str, Any]:
    """Lists of numbers as trainers hold them."""
    return {
        name: torch.tensor(value) if isinstance(value, list) and value and type(value[0]) in (int, float) else value
        for name, value in row.items()
    }


def _differing(ours: Any, theirs: Any) -> list[str]:
    """The fields in which two batches differ."""
    return [
        field.name
        for field in dataclasses.fields(ours)
        if not _equal(getattr(ours, field.name), getattr(theirs, field.name))
    ]


def _equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor | np.ndarray):
        return one.dtype == other.dtype and np.array_equal(np.asarray(one), np.asarray(other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    if dataclasses.is_dataclass(one):
        return not _differing(one, other)
    return bool(one == other)


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("text", "generic"))) for name in CASES]
)
def test_batches_are_those_of_a_dataset(case: str, tmp_path: Path) -> None:
    """Fails when a pack of documents in memory holds others, or otherwise, than one of a job, on any rank."""
    make, config = CASES[case]
    if case == "qwen3_vl":
        write_model_folder(tmp_path / "model", case, vocabulary=400)
        config = config | {"model": str(tmp_path / "model")}
    lines = [json.dumps(row) for row in make(_as_files(tmp_path))]
    (tmp_path / "documents.jsonl").write_text("\n".join(lines), encoding="utf-8")
    preshard.pack(
        tmp_path / "documents.jsonl", tmp_path / "data", progress=False, executor="local", max_rejects=1, **config
    )
    packed = pickle.loads(pickle.dumps(pack_batch(map(_tensors, make(_in_memory)), config)))
    rejects = pq.read_table(tmp_path / "data" / "rejects.parquet").to_pylist()
    assert [{**row, "location": row["location"].replace(".jsonl", "")} for row in rejects] == [
        {**row, "message": row["message"].replace("documents:", "documents.jsonl:")} for row in packed.rejects
    ]
    assert rejects
    for split in SPLITS:
        for rank in range(split.get("ring_degree", 1) * split.get("ulysses_degree", 1)):
            dataset = PackedDataset(tmp_path / "data", cp_rank=rank, **split)
            batches = packed.batches(cp_rank=rank, **split)
            assert len(batches) == len(packed) == dataset.n_packs > 1
            assert [_differing(batch, dataset[i]) for i, batch in enumerate(batches)] == [[]] * len(batches)


def test_modes_of_pictures_are_as_in_a_table_of_hugging_face(tmp_path: Path) -> None:
    """Fails when a picture of PIL counts for other pixels than ``datasets`` writes of it."""
    from datasets import Dataset, Features, Value
    from datasets import Image as ImageColumn

    base = Image.fromarray(_pixels(0, 60, 91))
    pictures = {mode: base.convert(mode) for mode in ("1", "L", "LA", "RGBA", "CMYK", "YCbCr", "F")}
    pictures["P"] = base.quantize(16)
    rows = [
        {"id": mode, "text": "a picture", "image": picture, "source": "pictures"} for mode, picture in pictures.items()
    ]
    texts = {name: Value("string") for name in ("id", "text", "source")}
    (tmp_path / "source").mkdir()
    table = Dataset.from_list(rows, Features({**texts, "image": ImageColumn()}))
    table.to_parquet(tmp_path / "source" / "rows.parquet")
    preshard.pack(tmp_path / "source", tmp_path / "data", progress=False, executor="local", **GENERIC)
    packed = pack_batch(rows, GENERIC)
    dataset = PackedDataset(tmp_path / "data")
    assert not packed.rejects
    assert [_differing(batch, dataset[i]) for i, batch in enumerate(packed.batches())] == [[]] * dataset.n_packs


def test_a_picture_is_its_pixels() -> None:
    """Fails when a picture loses its transparent colour, or is turned by what its file said of the camera."""
    base, file = Image.fromarray(_pixels(0, 60, 91)), BytesIO()
    keyed = base.quantize(16)
    keyed.info["transparency"] = 3
    keyed.save(file, "PNG")
    turned = base.copy()
    turned.info["exif"] = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
    assert turned.getexif()[0x0112] == 6
    for one, other in ((keyed, file.getvalue()), (turned, base)):
        pair = [pack_batch([{"id": "x", "text": "a", "image": image}], GENERIC).batches()[0] for image in (one, other)]
        assert _differing(*pair) == []


def test_numbers_are_those_of_lists_whatever_holds_them() -> None:
    """Fails when numbers of a device or of a dtype that NumPy lacks, or single ones, are refused or change."""
    row = {"id": "a", "input_ids": [1000, 1001, 1002, 1003], "advantage": 0.5, "logprobs": [0.25, 0.5, -1.5, 2.0]}
    config = CASES["tokens"][1]
    [right] = pack_batch([row], config).batches()
    held: list[dict[str, Any]] = [
        {name: torch.tensor(row[name], dtype=torch.bfloat16) for name in ("advantage", "logprobs")},
        {
            "input_ids": torch.tensor(row["input_ids"], dtype=torch.int16),
            "advantage": torch.tensor(0.5, requires_grad=True),
        },
        {name: np.array(row[name]) for name in ("input_ids", "advantage", "logprobs")},
        {"input_ids": tuple(row["input_ids"]), "logprobs": list(np.array(row["logprobs"], np.float32))},
    ]
    for changed in held:
        [batch] = pack_batch([row | changed], config).batches()
        assert _differing(batch, right) == []


def test_packs_do_not_depend_on_the_order_of_documents() -> None:
    """Fails when ranks that get the same documents in another order make other packs."""
    rows = [row for row in _text_rows(_in_memory) if "id" in row]
    one, other = pack_batch(rows, TEXT), pack_batch(rows[::-1], TEXT)
    assert len(one) > 1
    assert [_differing(*pair) for pair in zip(one.batches(), other.batches(), strict=True)] == [[]] * len(one)


def test_every_data_parallel_rank_gets_as_many_packs() -> None:
    """Fails when a pack is given to no rank or to two, or what fills up the last step carries loss."""
    rows = _text_rows(_in_memory)[:9]
    plain = pack_batch(rows, TEXT)
    assert len(plain) % 4
    packed = pack_batch(rows, TEXT, multiple_of=4)
    ranks = [packed.batches(dp_rank=rank, dp_size=4) for rank in range(4)]
    assert {len(own) for own in ranks} == {-(-len(plain) // 4)}
    by_pack = sorted((batch for own in ranks for batch in own), key=lambda batch: batch.pack_id)
    assert [_differing(*pair) for pair in zip(plain.batches(), by_pack, strict=False)] == [[]] * len(plain)
    for batch in by_pack[len(plain) :]:
        assert (batch.total_loss_weight, batch.documents, len(batch.loss_tokens)) == (0, (), 0)
        assert len(batch.tokens) == TEXT["seq_len"]
    with pytest.raises(ReaderError, match=f"dp_size is 4; it does not divide the {len(plain)} packs .* multiple_of=4"):
        plain.batches(dp_size=4)
    with pytest.raises(ReaderError, match="cp_rank is 2; with ulysses_degree"):
        plain.batches(ring_degree=2, cp_rank=2)


REJECTED: dict[str, tuple[Any, str, str]] = {
    "float": (
        {"text": "x", "image": torch.zeros(3, 8, 8)},
        "bad_row",
        r"image is a tensor float32\(3, 8, 8\); legal are pictures uint8\(3, height, width\)",
    ),
    "channels": ({"text": "x", "image": torch.zeros(8, 8, 3, dtype=torch.uint8)}, "bad_row", r"uint8\(8, 8, 3\)"),
    "no pixels": ({"text": "x", "image": torch.zeros(3, 0, 8, dtype=torch.uint8)}, "bad_row", r"uint8\(3, 0, 8\)"),
    "mode": ({"text": "x", "image": Image.new("HSV", (8, 8))}, "bad_image", "image: the picture of mode HSV cannot"),
    "bytes": ({"text": "x", "image": b"no picture"}, "bad_image", "inline bytes"),
    "file": ({"text": "x", "image": "nowhere.png"}, "missing_media", "nowhere.png: no such file"),
    "no object": ("text", "bad_row", "the row is a string, not an object"),
    "too long": ({"text": "word " * 2000}, "too_long", "more than seq_len 768"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_a_bad_document_is_listed_and_the_others_are_packed(case: str) -> None:
    """Fails when a document is neither in a pack nor among the rejects, or takes others with it."""
    row, code, message = REJECTED[case]
    named = {"id": "wrong", **row} if isinstance(row, dict) else row
    packed = pack_batch([{"id": "good", "text": "y", "image": Image.new("RGB", (8, 8))}, named], GENERIC)
    [[reject], [batch]] = packed.rejects, packed.batches()
    assert [span.doc_id for span in batch.documents] == ["good"]
    assert (reject["doc_id"], reject["code"]) == ("wrong" if isinstance(row, dict) else "documents:2", code)
    assert reject["location"] == "documents:2"
    assert re.search(message, reject["message"]), reject["message"]


def test_a_picture_that_does_not_decode_leaves_its_place_empty(tmp_path: Path) -> None:
    """Fails when a picture that is found broken only when it is decoded is in no list, or ends the step."""
    Image.fromarray(_pixels(0, 64, 64)).save(tmp_path / "whole.png")
    whole = bytearray((tmp_path / "whole.png").read_bytes())
    whole[2000:2100] = bytes(100)
    images = {"cut": bytes(whole), "good": Image.new("L", (9, 9))}
    rows = [{"id": name, "text": "a", "image": image} for name, image in images.items()]
    packed = pack_batch(rows, GENERIC)
    assert [(reject["doc_id"], reject["stage"]) for reject in packed.rejects] == [("cut", "write")]
    assert [span.doc_id for batch in packed.batches() for span in batch.documents] == ["good"]


@pytest.mark.parametrize(
    ("rows", "config", "message"),
    [
        (
            [{"text": "x"}],
            {"where": "a > 1", "epochs": 2},
            "where and epochs: documents in memory are packed once each",
        ),
        ([{"text": "x"}], {"mixture": {"web": 2}}, "mixture: .* choose them before, and leave the key out"),
        ([{"question": "x"}], {}, "documents: question alone is no form; the nearest, .*, needs output"),
        ([{"text": "x"}], {"seq_len": 7}, "seq_len 7 is not a multiple of"),
        ({"text": ["x", "y"]}, {}, "documents is a dict; give a list of rows"),
    ],
)
def test_what_holds_for_no_document_is_one_line(rows: Any, config: dict[str, Any], message: str) -> None:
    """Fails when a step is packed otherwise than its configuration says, or an error names no remedy."""
    with pytest.raises(ConfigError, match=message) as raised:
        pack_batch(rows, TEXT | config)
    assert "\n" not in str(raised.value)


def test_no_document_is_no_pack() -> None:
    """Fails when a step without documents, or with bad ones alone, is an error or loses them."""
    assert (len(pack_batch([], TEXT)), len(pack_batch([], TEXT, multiple_of=2))) == (0, 0)
    packed = pack_batch([{"id": "bad", "text": ""}], TEXT)
    assert (len(packed), [reject["doc_id"] for reject in packed.rejects]) == (0, ["bad"])


def test_the_program_of_the_page_prints_what_the_page_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails when the page's program, or what it shows of it, is not what runs."""
    write_model_folder(tmp_path / "model", "qwen3_vl")
    [program] = programs_of("integrations", "Packs of one step, from memory")
    exec(program.replace("my/", f"{tmp_path}/"), {})
    page = (Path(__file__).parents[1] / "docs" / "integrations.md").read_text(encoding="utf-8")
    shown = page.partition("## Packs of one step")[2].partition("```text\n")[2].partition("```")[0]
    assert capsys.readouterr().out == shown
