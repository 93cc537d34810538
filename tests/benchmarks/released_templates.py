"""A table of the chat templates of released models that conversations were compared with.

python tests/benchmarks/released_templates.py [--of-each 20]

``trl`` carries most of them. Those of Llama 4 and Mistral are compared as well where axolotl is installed, which needs
none of its requirements for that: pip install --no-deps axolotl==0.19.0
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from released_chats import Judge  # noqa: E402

RELATIONS = ("equal", "without the prompt", "without reasoning", "without the next header", "with the space behind")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--of-each", type=int, default=20)
    of_each = parser.parse_args().of_each
    with tempfile.TemporaryDirectory() as made:
        judge = Judge(Path(made) / "model")
    print("| template | conversations | answers | equal | otherwise | refused |")
    print("|---|---|---|---|---|---|")
    n_conversations = 0
    for name in [*judge.pairs, *judge.by_hand]:
        found = judge.compare(name, of_each) if name in judge.pairs else judge.count_by_hand(name, of_each)
        answers = sum(found[relation] for relation in RELATIONS)
        others = ", ".join(f"{found[relation]} {relation}" for relation in RELATIONS[1:] if found[relation])
        refused = ", ".join(
            what.removeprefix("refused ") + (f" ({number})" if number < of_each else "")
            for what, number in found.items()
            if what.startswith("refused")
        )
        n_conversations += found["compared"]
        print(f"| `{name}` | {found['compared']} | {answers} | {found['equal']} | {others} | {refused} |")
    print(f"{n_conversations} conversations of {len(judge.pairs) + len(judge.by_hand)} templates")


if __name__ == "__main__":
    main()
