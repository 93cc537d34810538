"""Every form of rows in every container that people write it in, from the libraries they use, through one real job."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from datasets import Dataset, DatasetDict, Image, List, disable_progress_bars
from PIL import Image as PillowImage
from stored import documents

from preshard.packer_service.config import load_config
from preshard.packer_service.ingest.text.load import load_tokenizer
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.schemas.dataset.read_manifest import decode_manifest

SETTINGS = [
    *("seq_len=2048", "vision.image_size=28", "vision.pool_size=2", "layouts=[contiguous]"),
    *("cp_sizes=[1]", "ring_degrees=[1]", "max_images=null"),
]
Row = dict[str, Any]
disable_progress_bars()


def picture(number: int) -> bytes:
    out = io.BytesIO()
    PillowImage.new("RGB", (40 + number, 30), (10 * number, 90, 200)).save(out, "PNG")
    return out.getvalue()


NAMES = ["0.png", "1.png"]
ANSWER = {"role": "assistant", "content": "A cat."}
TEXT = "Any text, and 二 words."

FORMS: dict[str, tuple[Row, str, int]] = {
    "messages": (
        {"messages": [{"role": "user", "content": "<image><image>Which is it?"}, ANSWER], "images": NAMES},
        "<s>[INST][IMG][IMG]Which is it?[/INST]A cat.</s>",
        2,
    ),
    "sharegpt": (
        {
            "conversations": [
                {"from": "human", "value": "<image>\nWhat is it?"},
                {"from": "gpt", "value": "A cat."},
                {"from": "human", "value": "And <image>?"},
                {"from": "gpt", "value": "Another."},
            ],
            "images": NAMES,
        },
        "<s>[INST][IMG]\nWhat is it?[/INST]A cat.</s>[INST]And [IMG]?[/INST]Another.</s>",
        2,
    ),
    "alpaca": (
        {"instruction": "Translate.", "input": "Katze", "output": "Cat"},
        "<s>[INST]Translate.\nKatze[/INST]Cat</s>",
        0,
    ),
    "question_answer": (
        {"question": "Which is it?", "response": "A cat.", "images": NAMES[:1]},
        "<s>[INST][IMG]Which is it?[/INST]A cat.</s>",
        1,
    ),
    "cauldron": (
        {
            "texts": [
                {"user": "Which is it?", "assistant": "A cat.", "source": "AI2D"},
                {"user": "And now?", "assistant": "Another.", "source": "AI2D"},
            ],
            "images": NAMES,
        },
        "<s>[INST][IMG][IMG]Which is it?[/INST]A cat.</s>[INST]And now?[/INST]Another.</s>",
        2,
    ),
    "frames": (
        {"conversations": [{"from": "human", "value": "<image>Well?"}, {"from": "gpt", "value": "A cat."}]}
        | {"frames": [NAMES[0]] * 2, "fps": 2.0},
        "<s>[INST]0.0s[IMG]0.5s[IMG]Well?[/INST]A cat.</s>",
        2,
    ),
    "prompt_completion": ({"prompt": "One, two,", "completion": " three."}, "<s>One, two, three.</s>", 0),
    "text": ({"raw_content": TEXT}, f"<s>{TEXT}</s>", 0),
    "own_text": ({"text": TEXT}, f"<s>{TEXT}</s>", 0),
    "caption": ({"image": NAMES[0], "caption": "A cat in the sun."}, "<s>[IMG]A cat in the sun.</s>", 1),
    "obelics": (
        {"images": [None, NAMES[0], None, NAMES[1]], "texts": ["First.", None, "Second.", None]},
        "<s>First.[IMG]Second.[IMG]</s>",
        2,
    ),
    "mmc4": (
        {
            "text_list": ["One.", "Two."],
            "image_info": [{"image_name": NAMES[1], "matched_text_index": 1, "matched_sim": 0.3}],
        },
        "<s>One.[IMG] Two.</s>",
        1,
    ),
    "openai": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Look: "},
                        {"type": "image_url", "image_url": {"url": NAMES[0], "detail": "auto"}},
                    ],
                },
                {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
            ]
        },
        "<s>[INST]Look: [IMG][/INST]A cat.</s>",
        1,
    ),
}
"""A row of each form, the text that it becomes (each run of image tokens as one), and its images."""

COPIES = 2


def rows_of(form: str, container: str) -> list[Row]:
    """Rows with ids of their own, and a column that nothing reads."""
    row = FORMS[form][0]
    return [{"id": f"{form}/{container}/{i}", "origin": "made up", **row} for i in range(COPIES)]


def write_lines(rows: list[Row], path: Path) -> None:
    Dataset.from_list(rows).to_json(path)


def write_array(rows: list[Row], path: Path) -> None:
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=2), encoding="utf-8")


def write_gzip(rows: list[Row], path: Path) -> None:
    pd.DataFrame(rows).to_json(path, orient="records", lines=True, compression="gzip")


def write_zstd(rows: list[Row], path: Path) -> None:
    data = b"\n".join(json.dumps(row).encode() for row in rows)
    with pa.CompressedOutputStream(str(path), "zstd") as out:
        out.write(data)


def with_pictures(rows: list[Row]) -> Dataset:
    """Rows whose pictures stand in a column of Hugging Face, as bytes."""
    dataset = Dataset.from_list(rows)
    if "images" not in dataset.column_names or None in dataset[0]["images"]:
        return dataset
    stored = [[{"bytes": picture(NAMES.index(name)), "path": name} for name in row["images"]] for row in rows]
    return dataset.remove_columns("images").add_column("images", stored).cast_column("images", List(Image()))


def write_parquet(rows: list[Row], path: Path) -> None:
    with_pictures(rows).to_parquet(path)


def write_table(rows: list[Row], path: Path) -> None:
    flat = [{k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows]
    pd.DataFrame(flat).to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")


def write_saved(rows: list[Row], path: Path) -> None:
    DatasetDict(train=with_pictures(rows)).save_to_disk(path)


def write_tar(rows: list[Row], path: Path) -> None:
    """Samples as people shard them: the row without its media as ``json``, the media as members."""
    with webdataset.TarWriter(str(path)) as sink:
        for i, row in enumerate(rows):
            names = row.get("images", row.get("image"))
            names = [names] if isinstance(names, str) else names or []
            media = {f"{k}.png": picture(NAMES.index(name)) for k, name in enumerate(names) if name is not None}
            fields = {k: v for k, v in row.items() if k not in ("image", "images")}
            sink.write({"__key__": f"{i:06d}", "json": fields, **media})


CONTAINERS: dict[str, tuple[str, Callable[[list[Row], Path], None]]] = {
    "jsonl": (".jsonl", write_lines),
    "json": (".json", write_array),
    "gzip": (".jsonl.gz", write_gzip),
    "zstd": (".jsonl.zst", write_zstd),
    "parquet": (".parquet", write_parquet),
    "arrow": ("", write_saved),
    "csv": (".csv", write_table),
    "tsv": (".tsv", write_table),
    "tar": (".tar", write_tar),
}
NOT_IN_TARS = {"obelics", "mmc4", "openai", "frames"}
"""Forms that say themselves where each image stands, which members of a tar cannot."""
MADE = [(form, name) for form in FORMS for name in CONTAINERS if name != "tar" or form not in NOT_IN_TARS]


def decoded(dataset: Path) -> dict[str, tuple[str, int]]:
    """The text of each document, with each run of image tokens as one ``[IMG]``, and its images."""
    manifest = decode_manifest((dataset / "manifest.json").read_bytes(), "manifest.json")
    tokenizer = load_tokenizer("tekken", load_config().special_tokens)
    found = {}
    for span, arrays in documents(dataset):
        image = arrays["tokens"] == manifest.tokenizer.image_id
        kept = arrays["tokens"][~(image & np.append(False, image[:-1]))]
        found[span["doc_id"]] = (tokenizer.decode(kept.tolist()), span["n_images"])
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file for every form in every container."""
    folder = tmp_path_factory.mktemp("forms")
    source = folder / "source"
    source.mkdir()
    for number, name in enumerate(NAMES):
        (source / name).write_bytes(picture(number))
    for form, container in MADE:
        suffix, write = CONTAINERS[container]
        path = source / f"{form}_{container}{suffix}"
        write(rows_of(form, container), path)
        if container == "arrow":  # paths of media are relative to the file of the rows
            for number, name in enumerate(NAMES):
                (path / "train" / name).write_bytes(picture(number))
    return folder


def test_every_form_in_every_container(written: Path, progress: Any) -> None:
    """Fails when a form loses an image, a word or a row in some container, or reads another form than was written."""
    dataset = written / "dataset"
    pack([str(written / "source")], str(dataset), load_config(None, SETTINGS), PlainExecutor(), progress)
    again = pack([str(written / "source")], str(dataset), load_config(None, SETTINGS), PlainExecutor(), progress)
    assert again.already_done  # its record is what was written of it
    rejects = pq.read_table(dataset / "rejects.parquet").to_pylist()
    assert not rejects, rejects[:3]
    found = decoded(dataset)
    for form, container in MADE:
        _, text, images = FORMS[form]
        text = text.replace("[IMG]", "[IMG][IMG_END]")
        for i in range(COPIES):
            assert found[f"{form}/{container}/{i}"] == (text, images), (form, container)
    assert len(found) == COPIES * len(MADE)
    manifest = decode_manifest((dataset / "manifest.json").read_bytes(), "manifest.json")
    assert manifest.unused_columns == {"origin": len(MADE)}
    assert manifest.unread_files == {}  # the pictures are those that rows name
