"""Lines by ranges of bytes: each whole and once, and none kept that is longer than a task's memory allows."""

from __future__ import annotations

import io
import tracemalloc

import pytest

from preshard.packer_service.ingest.source.containers import json_lines
from preshard.packer_service.ingest.source.containers.json_lines import Line, read_lines


@pytest.mark.parametrize("step", [1, 3, 10, 1000])
def test_a_line_that_is_too_long_is_known_by_its_size_alone(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Fails when a long line is cut into rows, or hides the lines around it, whichever fragment it begins in."""
    monkeypatch.setattr(json_lines, "MAX_LINE_BYTES", 1000)
    data = b"first\n" + b"x" * 999 + b"\n" + b"y" * 1000 + b"\n" + b"last"
    file = io.BytesIO(data)
    found = [line for start in range(0, len(data), step) for line in read_lines(file, start, start + step)]
    assert found == [
        Line(0, 6, b"first\n"),
        Line(6, 1000, b"x" * 999 + b"\n"),
        Line(1006, 1001, None),
        Line(2007, 4, b"last"),
    ]


def test_a_file_without_line_breaks_is_not_held() -> None:
    """Fails when a file that is not text is read into memory as one line."""
    file = io.BytesIO(bytes(json_lines.MAX_LINE_BYTES * 3))
    tracemalloc.start()
    [line] = read_lines(file, 0, 2**20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert line == Line(0, json_lines.MAX_LINE_BYTES * 3, None)
    assert peak < 1.3 * json_lines.MAX_LINE_BYTES
