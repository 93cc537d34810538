"""`report`, `verify` and `plan` of a dataset of very many documents, from its tables: time and memory of each.

    python tests/benchmarks/tables.py [--packs 1000000] [--documents-per-pack 10] [--against TREE] [--folder FOLDER]

The tables and the manifest are written, and no shard: `verify` checks the tables, and says of every shard that it is
missing. Each command runs in a process of its own, at `--num-cpus 1`. With ``--against``, another working tree of this
project does the same, and the answers are compared: figures may differ by rounding, as sums of parts are summed.
FOLDER keeps the tables, and is taken as it is if it holds some.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from machine import hardware  # noqa: E402

from preshard.packer_service.ingest.packed.settings import packed_target  # noqa: E402
from preshard.packer_service.job.writing.tables import write_table  # noqa: E402
from preshard.packer_service.shards.store import Folder  # noqa: E402
from preshard.schemas.codec import encode_json, sample_key, shard_name  # noqa: E402
from preshard.schemas.config import PackConfig  # noqa: E402
from preshard.schemas.dataset.identity import dataset_id  # noqa: E402
from preshard.schemas.dataset.manifest_parts import manifest_parts  # noqa: E402
from preshard.schemas.dataset.measures import MeasureOrder  # noqa: E402
from preshard.schemas.manifest import FORMAT_VERSION, MANIFEST, Counts, ManifestHead, ShardEntry  # noqa: E402
from preshard.schemas.tables import DOCUMENTS, PACKS, REJECTS, TABLES  # noqa: E402
from tests.support.made_records import made_measures  # noqa: E402

CONFIG = PackConfig(
    packs_per_shard=256, layouts=("zigzag", "balanced_gather"), ring_degrees=(1, 8), cp_sizes=(8,), max_images=None
)
"""104 loads for each pack: enough that the measures are the largest table."""

PACKS_EACH = 6_000
"""Packs that are made at a time."""

COMMANDS = {
    "report": "from preshard.packer_service.report.dataset import report_dataset as f; "
    "answer = f(at).model_dump_json()",
    "verify": "from preshard.packer_service.verify import verify_dataset as f; "
    "answer = json.dumps(f(at, processes=1, progress=Quiet()).as_json())",
    "plan": "from preshard.packer_service.job.preview.tables import plan_tables as f; "
    "from preshard.packer_service.config import load_config; "
    "answer = f([at], load_config(None, ['seq_len=73728'], [at]), Quiet()).model_dump_json()",
}
"""What runs in each tree."""

PROGRAM = """
import json, resource, sys, time
class Quiet:
    def note(self, message): ...
    def step(self, *done, **more): ...
at, clock = sys.argv[1], time.perf_counter()
{command}
usage = resource.getrusage(resource.RUSAGE_SELF)
[peak] = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")]
took = [time.perf_counter() - clock, usage.ru_utime + usage.ru_stime, peak / 1024]
print(json.dumps([took, json.loads(answer)]))
"""

ROUNDING = 1e-12
UNEQUAL = ("plan_seconds",)


def documents_of(packs: range, each: int) -> pa.Table:
    """The documents of some packs: `each` of equal length in every pack."""
    n = len(packs) * each
    numbers = np.arange(packs.start * each, packs.start * each + n)
    place, length = numbers % each, CONFIG.seq_len // each // 256 * 256
    columns: dict[str, Any] = {name: np.zeros(n, np.int64) for name in DOCUMENTS.names}
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 10, "0")
    columns |= {
        "doc_id": pc.binary_join_element_wise("document-", digits, ""),
        "source": pa.array(["web", "books", "video"]).take(pa.array(numbers % 3)),
        "pack_id": numbers // each,
        "start": place * length,
        "length": length - numbers % 97,
        "aligned_length": np.full(n, length),
        "n_units": numbers % 2,
        "n_images": numbers % 2,
    }
    return pa.table(columns, schema=DOCUMENTS)


def packs_of(packs: range, each: int) -> pa.Table:
    numbers = np.arange(packs.start, packs.stop)
    of_documents = documents_of(packs, each)
    tokens = of_documents["length"].to_numpy().reshape(-1, each).sum(axis=1)
    columns: dict[str, Any] = {name: np.zeros(len(packs), np.int64) for name in PACKS.names}
    columns |= {
        "pack_id": numbers,
        "key": [sample_key(number) for number in packs],
        "shard": [shard_name(number // CONFIG.packs_per_shard) for number in packs],
        "index_in_shard": numbers % CONFIG.packs_per_shard,
        "n_tokens": tokens,
        "n_padding": CONFIG.seq_len - tokens,
        "n_images": of_documents["n_images"].to_numpy().reshape(-1, each).sum(axis=1),
        "attention_tiles": 20_000 + numbers * 7919 % 997,
        "cost": 100 + numbers * 7919 % 997 / 1e4,
    }
    return pa.table(columns, schema=PACKS)


def write_dataset(folder: Path, packs: int, each: int) -> None:
    """Tables and manifest of a dataset, which are sound but for the shards."""
    spans = [range(first, min(first + PACKS_EACH, packs)) for first in range(0, packs, PACKS_EACH)]
    rows = {
        "packs.parquet": lambda: (packs_of(span, each) for span in spans),
        "documents.parquet": lambda: (documents_of(span, each) for span in spans),
        "rejects.parquet": lambda: iter([REJECTS.empty_table()]),
        "measures.parquet": lambda: (made_measures(np.array(span), CONFIG) for span in spans),
    }
    order, target = MeasureOrder.of(CONFIG, packs), packed_target(CONFIG, [])
    tables = [write_table(Folder(str(folder)), name, rows[name](), order, schema) for name, schema in TABLES.items()]
    sums = dict.fromkeys(("n_tokens", "n_padding", "n_images"), 0)
    for table in rows["packs.parquet"]():
        sums = {name: total + pc.sum(table[name]).as_py() for name, total in sums.items()}
    counts = dict.fromkeys(Counts.model_fields, 0) | {
        "packs": packs,
        "pieces": packs * each,
        "images": sums["n_images"],
    }
    counts |= {"source_documents": packs * each, "documents": packs * each}
    counts |= {"tokens": sums["n_tokens"], "padding_tokens": sums["n_padding"]}
    head = ManifestHead(
        format_version=FORMAT_VERSION,
        dataset_id=dataset_id(CONFIG, target.tokenizer, target.model, rows["documents.parquet"]()),
        preshard_version="0",
        config=CONFIG.model_dump(mode="json"),
        tokenizer=target.tokenizer,
        model=target.model,
        sources=["rows.jsonl"],
        unused_columns={},
        unread_files={},
        filtered={},
        phases=[],
        counts=Counts(**counts),
        tables=tables,
        carried=[],
    )
    with (folder / MANIFEST).open("wb") as file:
        for part in manifest_parts(head, _shards(packs)):
            file.write(part)


def _shards(packs: int) -> Iterator[bytes]:
    for number, first in enumerate(range(0, packs, CONFIG.packs_per_shard)):
        held = min(CONFIG.packs_per_shard, packs - first)
        yield encode_json(
            ShardEntry(name=shard_name(number), bytes=2048, sha256="0" * 64, packs=held, first_pack=first)
        )


def run(command: str, tree: Path, folder: Path) -> Any:
    """What a command answers, and prints what it took."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    words = [sys.executable, "-c", PROGRAM.format(command=COMMANDS[command]), str(folder)]
    done = subprocess.run(words, cwd=tree, env=environment, check=True, capture_output=True)
    (clock, cpu, mib), answer = json.loads(done.stdout.splitlines()[-1])
    print(f"{command:<7} {tree.name:<12} {clock:7.1f} s, {cpu:7.1f} s of CPU, peak {mib:7,.0f} MiB", flush=True)
    return answer


def differences(one: Any, other: Any, at: str = "") -> Iterator[str]:
    """Where two answers differ by more than rounding."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from () if key in UNEQUAL else differences(one[key], other[key], f"{at}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from differences(a, b, f"{at}[{number}]")
    elif isinstance(one, float) and isinstance(other, float) and math.isclose(one, other, rel_tol=ROUNDING):
        return
    elif one != other:
        yield f"{at}: {one!r:.80} and {other!r:.80}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packs", type=int, default=1_000_000)
    parser.add_argument("--documents-per-pack", type=int, default=10)
    parser.add_argument("--commands", nargs="+", choices=list(COMMANDS), default=list(COMMANDS))
    parser.add_argument("--against", type=Path, help="another working tree")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / MANIFEST).exists():
            write_dataset(folder, given.packs, given.documents_per_pack)
        sizes = {path.name: path.stat().st_size // 2**20 for path in sorted(folder.iterdir())}
        print(f"{hardware()}, load {os.getloadavg()[0]:.1f}; {given.packs:,} packs; MiB: {sizes}", flush=True)
        for command in given.commands:
            answer = run(command, ROOT, folder)
            if given.against:
                found = list(differences(run(command, given.against, folder), answer))
                print(f"{'':<7} " + ("the same answer" if not found else "; ".join(found[:5])), flush=True)


if __name__ == "__main__":
    main()
