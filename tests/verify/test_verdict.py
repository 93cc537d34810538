"""Verdicts: capped, printable, and the same for a person and a program."""

from __future__ import annotations

import json

from preshard.packer_service.verify.verdict import Fault, Faults, Verdict
from preshard.schemas.errors import LabelsInvalid, ManifestMissing, ShardChanged


def _verdict(faults: Faults) -> Verdict:
    return Verdict(dataset="here", checked={"packs": 2}, broken=faults.listed, unlisted=faults.unlisted())


def test_merging_keeps_the_cap_and_the_count() -> None:
    """Fails when faults of two processes together pass the cap, or when those beyond it are forgotten."""
    together = Faults()
    for _ in range(3):
        part = Faults()
        part.extend([(LabelsInvalid, f"labels[{i}]") for i in range(30)], "a.tar", "0000000001")
        together.merge(part)
    together.extend([(ShardChanged, "has 5 bytes")], "b.tar")
    verdict = _verdict(together)
    assert len(verdict.broken) == 21
    assert verdict.unlisted == {("P7", "a.tar"): 70}
    assert verdict.as_json()["unlisted"] == [{"rule": "P7", "file": "a.tar", "count": 70}]
    assert verdict.as_lines()[-2:] == [
        "P7 LabelsInvalid: a.tar: 70 more",
        "here: not sound, faults: 91, broken rules: 2 (checked 2 packs)",
    ]


def test_a_fault_is_the_exception_of_its_rule() -> None:
    fault = Fault.of(LabelsInvalid, "a.tar", "labels[3] is 5, not 7", "0000000001")
    assert isinstance(fault.error(), LabelsInvalid)
    assert str(fault.error()) == "a.tar 0000000001: labels[3] is 5, not 7"
    assert fault.as_json()["name"] == "LabelsInvalid"


def test_what_damaged_bytes_spell_can_be_printed() -> None:
    """Fails when a fault's text can break a terminal's line or a JSON reader."""
    fault = Fault.of(ManifestMissing, "a\x1b[31m\nb", "\ud800 \x00 " + "x" * 5000)
    assert fault.file == "a\\x1b[31m b"
    assert fault.detail.startswith("\\ud800 \\x00 x")
    assert len(fault.detail) < 600
    line = _verdict(Faults(listed=[fault])).as_lines()[0]
    assert line.isprintable()
    assert json.loads(json.dumps(fault.as_json()))["rule"] == "D1"
