"""One part of what is measured on a GPU, as ``make gpu PART=exact`` starts it.

    python tests/gpu/run.py exact|kernel|step|feed|learn [--rehearse] [--data DIR] [--out DIR]

It needs torch, transformers, what the trainer imports, and what ``prepare.py`` made; no environment of ours, and it
writes nothing but the figures. It ends with 1 if a row is red.
"""

from __future__ import annotations

import sys
from importlib import import_module

import common

PARTS = ("exact", "kernel", "step", "feed", "learn")


def main(arguments: list[str] | None = None) -> int:
    """Runs a part; the number of red rows becomes the exit code."""
    part, given = common.parse(PARTS, arguments)
    common.check_data(given.data)
    if given.device == "cuda" and not common.torch.cuda.is_available():
        sys.exit("torch finds no GPU; rehearse on the CPU: make gpu REHEARSE=1")
    module = import_module(part)
    if unknown := set(given.only) - set(module.NAMES):
        sys.exit(f"--only names {min(unknown)!r}; {part} has {'; '.join(module.NAMES) or 'no names'}")
    red: int = module.run(given)
    print(f"{part}: {red} red" if red else f"{part}: no row is red")
    return min(red, 1)


if __name__ == "__main__":
    sys.exit(main())
