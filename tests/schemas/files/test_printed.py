"""Printing of what a file spells: a terminal does not obey it, and every line that is said has an end."""

from __future__ import annotations

import io
import pickle

import pytest
from rich.console import Console

from preshard.packer_service.cli.options import say
from preshard.packer_service.report.console import cleaned, saying
from preshard.packer_service.report.records import RejectReason
from preshard.schemas.errors import ConfigError, DocumentError, FormatError, TableInvalid
from preshard.schemas.files.printed import LONGEST_LINE, printable

EVIL = "\x1b[2J\x1b]0;title\x07\r\udcff\u202eok"


@pytest.mark.parametrize("text", [EVIL, "x" * 10_000_000, f"{EVIL * 1000}\n{EVIL * 1000}"])
def test_errors_and_lines_are_printable(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails when a terminal obeys what a file spells, or a value of megabytes fills it."""
    say(text)
    said = [str(ConfigError(f"DATASET {text}")), str(FormatError("a.tar", text)), capsys.readouterr().out]
    console = Console(width=110, record=True, file=io.StringIO())
    saying(console)(f"source: {printable(text)}")
    for each in (*said, console.export_text()):
        assert not set(each) & set("\x1b\x07\r\u202e\udcff")
        assert max(map(len, each.split("\n"))) <= LONGEST_LINE


def test_text_that_may_be_printed_stays(capsys: pytest.CaptureFixture[str]) -> None:
    """Fails when a name in another script, or a line break of ours, is spelled out."""
    text = "Grüße, 日本語, می‌خواهم, 👩‍🔬\n\tnext line"
    assert printable(text) == text
    say(text)
    assert capsys.readouterr().out == text + "\n"


def test_an_error_stays_itself_when_it_travels() -> None:
    """Fails when an error of a worker has lost its code or its detail."""
    for error in (TableInvalid("packs.parquet", EVIL), DocumentError("bad_row", EVIL)):
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), vars(again)) == (str(error), vars(error))


def test_a_report_is_clean() -> None:
    """Fails when a source, or the message of a reject, is printed as a file spells it."""
    reason = RejectReason(code=EVIL, documents=1, message=EVIL, location=None, doc_id=EVIL)
    assert "\x1b" not in repr(cleaned({EVIL: [reason]})).replace("\\x1b", "")
    assert not any("\x1b" in value for value in cleaned(reason).model_dump().values() if isinstance(value, str))
