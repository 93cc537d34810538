"""Time per conversation of a chat template: rendered in a process of its own, and in this one.

python tests/benchmarks/chat_templates.py [--conversations 500]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from chats import STYLES, draw_row, make_folder, renderer_of  # noqa: E402

from preshard.packer_service.ingest.render import render  # noqa: E402
from preshard.packer_service.ingest.source.rows import parse_document  # noqa: E402
from preshard.packer_service.ingest.text.chat_process import chat_texts, load_folder  # noqa: E402
from preshard.packer_service.ingest.text.configured import folder_tokenizer  # noqa: E402
from preshard.schemas.config import SpecialTokensConfig  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--conversations", type=int, default=500)
    count = parser.parse_args().conversations
    [style] = [style for style in STYLES if style.name == "qwen"]
    with tempfile.TemporaryDirectory() as made:
        folder = str(make_folder(style, Path(made)))
        start = time.perf_counter()
        given = load_folder(folder)
        print(f"the process has loaded a folder after {time.perf_counter() - start:.1f} s")
        tokenizer = folder_tokenizer(folder, SpecialTokensConfig(), given)
    draw = random.Random(0)
    documents = [parse_document(draw_row(style, draw)) for _ in range(count)]
    turns = sum(len(document.branches[0]) for document in documents) / count
    here = renderer_of(tokenizer)
    for name, renderer in (("of its own", replace(here, write_chats=chat_texts)), ("of this one", here)):
        render(renderer, documents[0], [])  # whether the template takes strings is found once
        start = time.perf_counter()
        tokens = sum(len(render(renderer, document, [])) for document in documents) / count
        each = (time.perf_counter() - start) / count * 1000
        print(f"process {name}: {each:.1f} ms per conversation of {tokens:.0f} tokens and {turns:.1f} turns")


if __name__ == "__main__":
    main()
