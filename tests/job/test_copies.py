"""Documents that repeat others: which of them stays, how it is said, and that neither order nor partitions decide."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from datasketch import MinHash
from PIL import Image
from repacked import Listener, packed, rejects

from preshard.data import PackedDataset
from preshard.packer_service.cli import main
from preshard.packer_service.config import load_config
from preshard.packer_service.job.pack import pack
from preshard.packer_service.job.planning import partitions
from preshard.packer_service.job.planning.identify import PERMUTATIONS, minhash
from preshard.packer_service.report.dataset import report_dataset
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.verify import verify_dataset
from preshard.schemas.errors import ConfigError

SETTINGS = ["seq_len=1024", "block_size=16", "cp_sizes=[1]", "ring_degrees=[1]", "layouts=[contiguous]"]
SMALL = [*SETTINGS, "vision.image_size=28"]
MARKED = "keep_columns={duplicate_of: string}"
NEAR = 0.75
Row = dict[str, Any]


def texts() -> dict[str, list[Row]]:
    """Families of texts that grow apart, in two files: equal, near and only alike to the first."""
    rng = random.Random(0)
    words = [f"w{number}" for number in range(2000)]
    files: dict[str, list[Row]] = {"b.jsonl": [], "a.jsonl": []}
    for family in range(12):
        said = rng.choices(words, k=60)
        for member in range(8):
            name = rng.choice(list(files))
            files[name].append({"id": f"{family}-{member}", "source": f"s{member % 2}", "text": " ".join(said)})
            for _ in range(2 * (member % 3)):
                said[rng.randrange(60)] = rng.choice(words)
    return files


def written(folder: Path, files: dict[str, list[Row]]) -> Path:
    folder.mkdir(parents=True)
    for name, rows in files.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def lost(dataset: Path) -> list[Row]:
    rows: list[Row] = pq.read_table(dataset / "rejects.parquet").to_pylist()
    return rows


def similarity(a: np.ndarray, b: np.ndarray) -> float:
    """Similarity as ``datasketch`` estimates it."""
    first, second = (MinHash(hashvalues=values, scheme="affine32") for values in (a, b))
    return float(first.jaccard(second))


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("repeated") / "s", texts())


@pytest.fixture(scope="module")
def dropped(repeated: Path) -> Path:
    settings = [*SETTINGS, f"duplicates={{text: drop, near: {NEAR}}}"]
    return packed(repeated, repeated.parent / "dropped", settings)


def test_what_goes_is_near_to_what_stays(repeated: Path, dropped: Path) -> None:
    """Fails when a document goes without one that stays and says the same, or near ones are not found."""
    tokens: dict[str, np.ndarray] = {}
    whole = packed(repeated, repeated.parent / "whole", SETTINGS)
    for batch in PackedDataset(str(whole), layout="contiguous"):
        for span in batch.documents:
            tokens[span.doc_id] = np.asarray(batch.tokens[span.start : span.start + span.length])
    signatures = {doc_id: minhash(each) for doc_id, each in tokens.items()}
    places = {f"s/{name}:{line}": row["id"] for name, rows in texts().items() for line, row in enumerate(rows, start=1)}
    order = {doc_id: place for place, doc_id in enumerate(places[key] for key in sorted(places, key=_by_file))}
    stays = set(pq.read_table(dropped / "documents.parquet")["doc_id"].to_pylist())
    codes = set()
    for row in lost(dropped):
        original = places[row["message"].split("'")[1]]
        assert original in stays
        assert order[original] < order[row["doc_id"]]
        assert (row["code"] == "duplicate_text") == np.array_equal(tokens[original], tokens[row["doc_id"]])
        assert similarity(signatures[original], signatures[row["doc_id"]]) >= NEAR
        codes.add((row["stage"], row["code"]))
    assert codes == {("plan", "duplicate_text"), ("plan", "near_duplicate")}
    pairs = [(a, b) for a in stays for b in stays if a < b and similarity(signatures[a], signatures[b]) >= NEAR + 0.05]
    assert not pairs
    assert len(stays) > 12, "families grow apart"
    assert stays | {row["doc_id"] for row in lost(dropped)} == set(tokens)


def _by_file(place: str) -> tuple[str, int]:
    name, _, line = place.rpartition(":")
    return name, int(line)


def test_counts_and_report_say_it_by_source(repeated: Path, dropped: Path) -> None:
    """Fails when what was asked to go counts as a failure of the source, or is not counted."""
    assert not verify_dataset(str(dropped), processes=1, progress=Listener()).broken
    counts = json.loads((dropped / "manifest.json").read_text())["counts"]
    assert counts["duplicates"] == counts["rejected"] == len(lost(dropped)) > 0.05 * counts["source_documents"]
    by_source = report_dataset(str(dropped)).rejects_by_source
    assert sum(sum(codes.values()) for codes in by_source.values()) == counts["rejected"]
    assert set(by_source) == {"s0", "s1"}
    words = [word for each in [*SETTINGS, f"duplicates={{text: drop, near: {NEAR}}}"] for word in ("--set", each)]
    with pytest.raises(SystemExit, match="0"):
        main(["pack", str(repeated), "--out", str(dropped), *words])


class Stops(PlainExecutor):
    """Stops the job before the partitions are planned."""

    def run(self, function: Any, items: Any) -> Any:
        if "plan_partition" in str(function):
            raise KeyboardInterrupt
        return super().run(function, items)


def test_neither_runs_nor_stops_decide(
    tmp_path: Path, repeated: Path, dropped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when the copy that stays depends on how documents meet, or a stopped job compares them anew."""
    settings = [*SETTINGS, f"duplicates={{text: drop, near: {NEAR}}}"]
    config = load_config(None, settings, [str(repeated)])
    asked = []
    monkeypatch.setattr(
        partitions, "find_copies", lambda *a, found=partitions.find_copies, **k: asked.append(1) or found(*a, **k)
    )
    for executor in (Stops(), PlainExecutor()):
        try:
            pack([str(repeated)], str(tmp_path / "out"), config, executor, Listener(), partition_rows=20)
        except KeyboardInterrupt:
            assert (tmp_path / "out" / ".work" / "duplicates.parquet").exists()
    assert asked == [1]
    key = ("doc_id", "code", "message")
    found = [sorted(tuple(row[name] for name in key) for row in lost(each)) for each in (tmp_path / "out", dropped)]
    assert found[0] == found[1]


def test_marks_reach_batches_and_later_mixtures(tmp_path: Path, repeated: Path, dropped: Path) -> None:
    """Fails when a mark is lost on its way, marks what ``drop`` keeps, or is made again where a dataset is a source."""
    marked = packed(repeated, tmp_path / "out", [*SETTINGS, f"duplicates={{text: mark, near: {NEAR}}}", MARKED])
    assert not verify_dataset(str(marked), processes=1, progress=Listener()).broken
    marks = {
        span.doc_id: span.columns["duplicate_of"]
        for batch in PackedDataset(str(marked), layout="contiguous")
        for span in batch.documents
    }
    assert {doc_id: mark for doc_id, mark in marks.items() if mark is not None} == {
        row["doc_id"]: row["message"].split("'")[1] for row in lost(dropped)
    }
    again = packed(marked, tmp_path / "again", ["where=duplicate_of is null"])
    kept = [pq.read_table(each / "documents.parquet")["doc_id"].to_pylist() for each in (again, dropped)]
    assert sorted(kept[0]) == sorted(kept[1])
    assert json.loads((again / "manifest.json").read_text())["config"]["duplicates"]["text"] == "keep"


def test_documents_of_datasets_are_compared_as_their_rows(tmp_path: Path, repeated: Path) -> None:
    """Fails when the text of a stored document does not equal that of its row."""
    whole = packed(repeated, tmp_path / "whole", SETTINGS)
    again = packed(whole, tmp_path / "again", ["duplicates={text: drop}"])
    said = [row["text"] for rows in texts().values() for row in rows]
    assert len(rejects(again)) == len(said) - len(set(said)) > 0


def test_images_are_compared_by_their_pixels(tmp_path: Path) -> None:
    """Fails when names or containers decide, two pictures of one size are one, or text with other images goes."""
    (tmp_path / "s").mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (2, 30, 40, 3), np.uint8)
    for number, name in enumerate(["0.png", "0.bmp", "1.png"]):
        Image.fromarray(pixels[number // 2]).save(tmp_path / "s" / name)

    def row(doc_id: str, name: str, text: str) -> Row:
        return {"id": doc_id, "images": [name], "messages": [
            {"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": text}]}  # fmt: skip

    rows = [row("a", "0.png", "one"), row("b", "0.bmp", "one"), row("c", "0.bmp", "two"), row("d", "1.png", "one")]
    rows.append({"id": "e", "text": "one"})
    (tmp_path / "s" / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    outcomes = {}
    for text, images in (("drop", "keep"), ("keep", "drop"), ("drop", "mark"), ("mark", "drop")):
        asked = f"duplicates={{text: {text}, images: {images}}}"
        out = packed(tmp_path / "s", tmp_path / f"{text}-{images}", [*SMALL, asked, MARKED])
        assert not verify_dataset(str(out), processes=1, progress=Listener()).broken
        table = pq.read_table(out / "documents.parquet").to_pylist()
        marks = {each["doc_id"] for each in table if each["duplicate_of"] is not None}
        outcomes[text, images] = ({each["doc_id"]: each["code"] for each in lost(out)}, marks)
    shows = "duplicate_images"
    assert outcomes == {
        ("drop", "keep"): ({}, set()),  # of another file
        ("keep", "drop"): ({"b": shows, "c": shows}, set()),
        ("drop", "mark"): ({"b": "duplicate_text"}, {"c"}),
        ("mark", "drop"): ({"b": shows, "c": shows}, set()),
    }


def test_signatures_are_those_of_every_version() -> None:
    """Fails when a release of ``datasketch`` or NumPy gives other signatures, and so other bytes."""
    assert minhash(np.arange(100)).tolist()[:3] == [27157560, 79936888, 2451854]
    assert len(minhash(np.zeros(0, np.int32))) == PERMUTATIONS
    long = np.random.default_rng(0).integers(0, 1000, 50_000)
    assert similarity(minhash(long), minhash(long[5_000:])) == pytest.approx(0.9, abs=0.08)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("duplicates={near: 0.8}", "set duplicates.text, too"),
        ("duplicates={text: mark}", "add duplicate_of: string to keep_columns"),
        ("duplicates={text: drop, near: 1.5}", "is not legal"),
        ("duplicates={images: drop}", "holds crops of them: set it when the source is packed"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, dropped: Path, asked: str, words: str) -> None:
    """Fails when a setting does nothing in silence, or is refused with words that do not help."""
    with pytest.raises(ConfigError, match=words):
        packed(dropped, tmp_path / "out", [asked])
