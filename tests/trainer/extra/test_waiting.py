"""Words for what a run does before its first step."""

from __future__ import annotations

import sys
from io import StringIO

import pytest

from preshard.trainer.extra import waiting


def test_an_interrupt_while_torch_is_loaded_has_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when Ctrl+C prints forty lines of an import, or an error prints none."""
    log, others = StringIO(), list[type[BaseException]]()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(sys, "excepthook", lambda kind, *_: others.append(kind))
    monkeypatch.setattr(waiting, "_line", [])
    waiting.begin("loading torch")
    for error in (KeyboardInterrupt(), ImportError()):
        sys.excepthook(type(error), error, None)
    waiting.end()
    assert log.getvalue() == "interrupted\n"
    assert others == [ImportError]
