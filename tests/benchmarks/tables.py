"""`report`, `verify` and `plan` of a dataset of very many documents, from its tables: time and memory of each.

    python tests/benchmarks/scale.py --documents 2000000 --tables --all-loads --keep FOLDER
    python tests/benchmarks/tables.py FOLDER

There are no shards: `verify` checks the tables, and says of every shard that it is missing. Each command runs in a
process of its own, which starts no others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[2]))

from machine import hardware

COMMANDS = {
    "report": "from preshard.packer_service.report.dataset import report_dataset as f; f(at)",
    "verify": "from preshard.packer_service.verify import verify_dataset as f; "
    "f(at, processes=1, progress=NoProgress())",
    "plan": "from preshard.packer_service.job.preview.source import plan_tables as f; "
    "from preshard.packer_service.config import load_config; "
    "from preshard.packer_service.job.resolve import resolve; "
    "f(resolve([at], load_config(None, ['seq_len=73728'], [at])), NoProgress())",
}

PROGRAM = """
import json, resource, sys
from preshard.packer_service.runtime.progress import NoProgress
at = sys.argv[1]
{command}
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]))
"""


def main(folder: Path) -> None:
    rows = {path.name: pq.read_metadata(path).num_rows for path in sorted(folder.glob("*.parquet"))}
    print(f"{hardware()}, load {os.getloadavg()[0]:.1f}; rows: {rows}", flush=True)
    for name, command in COMMANDS.items():
        words = [sys.executable, "-c", PROGRAM.format(command=command), str(folder)]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE)
        cpu, mib = json.loads(done.stdout.splitlines()[-1])
        print(f"{name:<7} {cpu:7.1f} s of CPU, peak {mib:7,.0f} MiB", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
