"""The programs of docs/integrations.md for trainers that tokenise themselves take the packs of a plan."""

from __future__ import annotations

import importlib
import json
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from pages import programs_of
from torch.utils.data import SequentialSampler

from preshard.packer_service.cli import main

FLATTENED, SWIFT, AXOLOTL = programs_of("integrations", "Trainers that tokenise themselves")
SEQ_LEN = 512


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, Any]]]:
    """The rows of each pack of a plan, which lies beside its source in the working folder."""
    monkeypatch.chdir(tmp_path)
    texts = ["a few words " * (1 + 7 * number % 30) for number in range(60)]
    Path("rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    settings = ["--set", f"seq_len={SEQ_LEN}", "--set", "ring_degrees=[1]"]
    with pytest.raises(SystemExit, match="0"):
        main(["plan", "rows.jsonl", "--export", "plan.parquet", *settings])
    rows = pq.read_table("plan.parquet").to_pylist()
    assert len(rows) == len(texts)
    return [list(pack) for _, pack in groupby(rows, lambda row: row["pack_id"])]


def test_batches_of_a_flattening_collator_are_packs(planned: list[list[dict[str, Any]]]) -> None:
    """Fails when a batch holds other documents than its pack, or in another order."""
    pytest.importorskip("datasets")
    lengths = {row["line"]: row["length"] for pack in planned for row in pack}

    def tokenize(_: dict[str, str], number: int) -> dict[str, list[int]]:
        return {"input_ids": [number + 1] * lengths[number + 1], "labels": [number + 1] * lengths[number + 1]}

    code = FLATTENED.replace(".map(tokenize)", '.map(tokenize, with_indices=True, remove_columns=["text"])')
    made: dict[str, Any] = {"tokenize": tokenize}
    exec(code, made)
    batches = list(made["loader"])
    assert len(batches) == len(planned) > 5
    for batch, pack in zip(batches, planned, strict=True):
        assert batch["input_ids"][0].tolist() == [row["line"] for row in pack for _ in range(row["length"])]
        assert batch["cu_seq_lens_q"].diff().tolist() == [row["length"] for row in pack]
        assert batch["input_ids"].numel() <= SEQ_LEN


@pytest.mark.skipif(find_spec("swift") is None, reason="needs ms-swift, which wants transformers below 5.20")
def test_the_packing_dataset_of_ms_swift_holds_the_same_packs(planned: list[list[dict[str, Any]]]) -> None:
    """Fails when a pack of ms-swift holds other documents than the plan's. It runs where ms-swift is installed."""
    sft: Any = importlib.import_module("swift.pipelines.train.sft")
    lengths = {row["line"]: row["length"] for pack in planned for row in pack}

    class Rows(list[int]):
        """A dataset of line numbers with a column of lengths."""

        def __getitem__(self, key: Any) -> Any:
            return [lengths[line] for line in sorted(lengths)] if key == "lengths" else super().__getitem__(key)

    exec(SWIFT.replace("sft.sft_main()", ""), {})
    packs = sft.PackingDataset(SimpleNamespace(max_length=SEQ_LEN), Rows(sorted(lengths)), packing_length=SEQ_LEN)
    assert [packs[number] for number in range(len(packs))] == [[row["line"] for row in pack] for pack in planned]
    assert packs.packed_length == [sum(row["length"] for row in pack) for pack in planned]


@pytest.mark.skipif(find_spec("axolotl") is None, reason="needs axolotl, which pins other versions of most packages")
def test_the_sampler_of_axolotl_gives_the_same_packs(planned: list[list[dict[str, Any]]]) -> None:
    """Fails when axolotl packs by itself, or counts other packs than the plan's. It runs where axolotl is installed."""
    made: dict[str, Any] = {}
    exec(AXOLOTL, made)
    lengths = {row["line"]: row["length"] for pack in planned for row in pack}
    sampler = made["MultipackBatchSampler"](
        SequentialSampler(range(len(lengths))),
        batch_size=1,
        batch_max_len=SEQ_LEN,
        lengths=[lengths[line] for line in sorted(lengths)],
        bin_size=200,
    )
    assert list(sampler) == [[[row["line"] - 1 for row in pack]] for pack in planned]
    assert len(sampler) == len(planned)
