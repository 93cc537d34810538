"""Half of the demo source, in which every image and video is still shown: decoding and verifying are what it costs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from preshard.packer_service.demo.source import EXPECTED, ROWS

STEP = 2
"""Step between the good rows that stay: media are asked about in several rows each."""


def write_half(demo: Path, folder: Path) -> Path:
    """Writes a source of the same name into a folder, with every bad row, and ``EXPECTED.json`` for it."""
    half = folder / demo.name
    half.mkdir()
    for path in demo.iterdir():
        if path.name not in (ROWS, EXPECTED):
            (half / path.name).symlink_to(path)
    lines = (demo / ROWS).read_text(encoding="utf-8").splitlines()
    good = [line for line in lines if not _is_bad(line)]
    left_out = set(good) - set(good[::STEP])
    kept = [line for line in lines if line not in left_out]
    assert _shown(kept) == _shown(lines), "every image and video is shown"
    (half / ROWS).write_text("\n".join(kept) + "\n", encoding="utf-8")
    expected = json.loads((demo / EXPECTED).read_text(encoding="utf-8"))
    expected["documents"] -= len(left_out)
    broken = expected["rejects"]["bad_row"]  # its last line has no id, but a place
    broken[broken.index(f"{ROWS}:{len(lines)}")] = f"{ROWS}:{len(kept)}"
    expected["rejects"]["bad_row"] = sorted(broken)
    (half / EXPECTED).write_text(json.dumps(expected), encoding="utf-8")
    return half


def _is_bad(line: str) -> bool:
    try:
        return str(json.loads(line)["id"]).startswith("bad-")
    except json.JSONDecodeError:
        return True


def _shown(lines: Iterable[str]) -> set[str]:
    return {name for line in lines for name in re.findall(r'"(?:image|video)": "([^"]+)"', line)}
