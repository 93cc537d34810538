"""Takes every document out of packs and compares it with ``transformers``, importing nothing of preshard.

Model folders and datasets are made by preshard's commands. Of each document of a dataset, read with tarfile, numpy,
json and Pillow, tokens, labels, weights, positions, mask, units and the encoder's input are compared with what the
folder's template, processor and model make of the row, alone. Prints a line for each family:

PYTHONPATH=tests/support python tests/interop/documents_of_packs.py --documents 140
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from compared_documents import FAMILIES, SETTINGS, compared
from made_by_transformers import Transformers
from mixed_source import write_source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=140)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--backend", choices=["torchvision", "pil"], default="torchvision", help="of stills")
    parser.add_argument("--preshard", default="preshard", help="the command")
    chosen = parser.parse_args()
    for family in chosen.families:
        begin = time.process_time()
        with tempfile.TemporaryDirectory() as name:
            source, model, dataset = Path(name, "source"), Path(name, "model"), Path(name, "dataset")
            source.mkdir()
            rows = write_source(source, chosen.documents, takes=FAMILIES[family])
            subprocess.run([*chosen.preshard.split(), "demo-model", str(model), "--family", family], check=True)
            settings = [
                word
                for setting in [f"model={model}", f"images.backend={chosen.backend}", *SETTINGS]
                for word in ("--set", setting)
            ]
            command = [*chosen.preshard.split(), "pack", str(source / "rows.jsonl"), "--out", str(dataset), *settings]
            subprocess.run(command, check=True)
            oracle, counts = Transformers(model, chosen.backend), Counter[str]()
            for what, found in compared(dataset, source, rows, oracle):
                counts["different" if found else "equal"] += 1
                if found:
                    print(f"{family}, {what}: {'; '.join(found)}", flush=True)
        print(
            f"{family}, {chosen.backend}: {dict(counts)}, {time.process_time() - begin:.0f} s of processor time",
            flush=True,
        )


if __name__ == "__main__":
    main()
