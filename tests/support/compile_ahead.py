"""Compiles what each worker of the tests would compile at once: the loops that most tests run, and all modules.

What is compiled is kept beside the code. ``compile_ahead.py loops`` and ``compile_ahead.py modules`` share two cores.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from preshard.packer_service.config import load_config
from preshard.packer_service.job.pack import pack
from preshard.packer_service.plan.blend import blend_order
from preshard.packer_service.plan.pack import pack_documents
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.runtime.progress import ConsoleProgress

REPOSITORY = Path(__file__).parents[2]
SETTINGS = ["seq_len=1024", "block_size=32", "order.window=4", "max_images=4"]


def compile_loops() -> None:
    rows = [json.dumps({"text": f"line {i}. " * (1 + i % 90)}) for i in range(300)]
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
        source = Path(folder) / "rows.jsonl"
        source.write_text("\n".join(rows), encoding="utf-8")
        pack([str(source)], f"{folder}/dataset", load_config(None, SETTINGS), PlainExecutor(), ConsoleProgress())
    # two budgets that bind take turns, for which planning has loops of their own
    draw = np.random.default_rng(0).integers
    is_video = draw(0, 2, 3000) == 1
    tokens, images = np.where(is_video, draw(80, 180, 3000), draw(300, 600, 3000)), is_video * draw(60, 100, 3000)
    pack_documents(tokens, images, seq_len=1000, max_images=180)
    # several sources are mixed in more than a thousand packs, and in groups of many: two workers would compile at once
    thousands = np.full(1200, 900)
    pack_documents(thousands, np.zeros(1200, np.int64), seq_len=1000, max_images=None, sources=np.arange(1200) % 2)
    blend_order(draw(0, 1000, (40, 64, 3)))


def compile_modules() -> None:
    """Compiles a new environment: installers compile nothing, and pytest writes the assertions of all tests anew."""
    if not list((REPOSITORY / "tests" / "__pycache__").glob("*-pytest-*.pyc")):
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "--rootdir", str(REPOSITORY)])


if __name__ == "__main__":
    {"loops": compile_loops, "modules": compile_modules}[sys.argv[1]]()
