"""A packed dataset as a source: what comes of it is what its own source would have given, byte for byte."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from once import MadeOnce
from repacked import KINDS, Listener, make_source, packed, rejects, shards, without

from preshard.packer_service.cli import main
from preshard.packer_service.config import load_config
from preshard.packer_service.ingest.source.files import list_fragments
from preshard.packer_service.ingest.source.listing import list_sources
from preshard.packer_service.job.pack import pack
from preshard.packer_service.job.preview.show import show_document
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.verify import verify_dataset
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError, ReaderError
from preshard.trainer.data.dataset import PackedDataset
from tests.support.hostile_datasets import read_manifest, seal

OTHER = ["cp_sizes=[1,4]", "ring_degrees=[1,2]", "layouts=[contiguous,balanced_ring]", "order.seed=7", "max_images=40"]
"""A job that differs from the first in everything that can change without the source."""


@pytest.fixture(scope="module")
def squares(made_once: MadeOnce) -> tuple[Path, list[str]]:
    """A folder with a ``source`` for the generic way, and the settings that pack it."""

    def make(folder: Path) -> None:
        (folder / "settings.json").write_text(json.dumps(make_source(folder, "square")))

    folder = made_once("repacked", make)
    return folder, json.loads((folder / "settings.json").read_text())


@pytest.fixture(scope="module")
def old(squares: tuple[Path, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of the generic way. Read only: copy it before changing anything."""
    folder, common = squares
    return packed(folder / "source", tmp_path_factory.mktemp("old") / "old", [*common, "seq_len=512"])


def check_equal(source: Path, folder: Path, first: list[str], second: list[str]) -> tuple[Path, Path]:
    """Packs a source, then what came of it, and compares with packing at once all that could come through."""
    old = packed(source, folder / "old", first)
    return old, check_same(source, old, folder, first, second)


def check_same(source: Path, old: Path, folder: Path, first: list[str], second: list[str]) -> Path:
    """Checks like :func:`check_equal`, for a source that is packed already. Returns what came through the dataset."""
    through = packed(old, folder / "through", second)
    refused = {name for name, why in rejects(through).items() if why.startswith("it was split")}
    chosen = without(source, folder / "chosen", {*rejects(old), *refused})
    at_once = packed(chosen, folder / "at-once", [*first, *second])
    assert documents(through)
    assert shards(through) == shards(at_once)
    assert rejects(through).keys() - refused == rejects(at_once).keys()
    return through


@pytest.fixture(scope="module")
def in_pieces(made_once: MadeOnce) -> Callable[[str], tuple[Path, list[str]]]:
    """A folder with the ``source`` of a family and with ``old``, packed with long documents split; and its settings."""

    def make(folder: Path, family: str) -> None:
        short = 64 if family in ("square", "qwen3") else 160
        common = [*make_source(folder, family), f"seq_len={short}", "oversize=split"]
        (folder / "settings.json").write_text(json.dumps(common))
        packed(folder / "source", folder / "old", common)

    def made(family: str) -> tuple[Path, list[str]]:
        folder = made_once(f"repacked {family}", lambda folder: make(folder, family))
        return folder, json.loads((folder / "settings.json").read_text())

    return made


CONFIGURATIONS = {
    "square": f"seq_len=1024 packs_per_shard=3 {' '.join(OTHER)}",
    "qwen3": "seq_len=256 ring_degrees=[1,2] cp_sizes=[2] layouts=[zigzag] order.window=1 max_images=null",
    "qwen3_vl": "seq_len=1024 ring_degrees=[2,4] cp_sizes=[1,4] layouts=[balanced_gather] order.window=4 max_images=9",
    "qwen3_5": "seq_len=1024 ring_degrees=[1] cp_sizes=[4] layouts=[contiguous] order.window=2 max_images=40",
    "qwen2_5_vl": "seq_len=384 ring_degrees=[1] cp_sizes=[1,4] layouts=[balanced_ring] order.window=1 max_images=40",
    "internvl": "seq_len=1024 ring_degrees=[2,4] cp_sizes=[1] layouts=[contiguous] order.window=2 max_images=null",
    "molmo2": "seq_len=1024 ring_degrees=[1,2] cp_sizes=[1] layouts=[zigzag] order.window=4 max_images=9",
    "exaone4_5": "seq_len=512 ring_degrees=[1,2] cp_sizes=[4] layouts=[balanced_gather] order.window=4 max_images=20",
    "kimi_k25": "seq_len=768 ring_degrees=[2] cp_sizes=[1,4] layouts=[zigzag] order.window=1 max_images=12",
    "glm46v": "seq_len=768 ring_degrees=[1] cp_sizes=[2] layouts=[contiguous] order.window=2 max_images=12",
    "mistral3": "seq_len=1024 ring_degrees=[2] cp_sizes=[1,2] layouts=[balanced_gather] order.window=2 max_images=20",
    "gemma3": "seq_len=384 ring_degrees=[2] cp_sizes=[2] layouts=[balanced_ring] order.window=2 max_images=12",
    "gemma4": "seq_len=512 ring_degrees=[2] cp_sizes=[1,4] layouts=[balanced_gather] order.window=1 max_images=null",
}
"""Configurations of the generic way and each family, all different. Together they have every value of each key, lengths
at which documents are joined whole, and lengths at which joined ones are split elsewhere.
"""


OFTEN = {"square", "qwen3", "qwen3_vl"}


def test_every_family_has_a_configuration() -> None:
    """Fails when a new family is left out, which the slow tests alone would say."""
    assert CONFIGURATIONS.keys() == KINDS.keys()


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] * (name not in OFTEN)) for name in KINDS]
)
def test_another_length_gives_the_bytes_that_the_source_would_give(
    in_pieces: Callable[[str], tuple[Path, list[str]]], tmp_path: Path, family: str
) -> None:
    """Fails when a token, label, position, group, unit or crop changes on its way through a pack or a join, or when
    some configuration makes the way through a dataset of a model differ from the way at once.
    """
    folder, first = in_pieces(family)
    number = list(CONFIGURATIONS).index(family)
    second = [f"order.seed={number}", f"packs_per_shard={1 + number % 4}", *CONFIGURATIONS[family].split()]
    through = check_same(folder / "source", folder / "old", tmp_path, first, second)
    several = {row["doc_id"] for row in documents(folder / "old") if row["piece"] > 0}
    joined = several & {row["doc_id"] for row in documents(through)}
    assert joined >= ({"long text"} if family == "qwen3" else {"long text", "annotated"})


def documents(dataset: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(dataset / "documents.parquet").to_pylist()
    return rows


SECONDS = {
    "shorter": "seq_len=96 ring_degrees=[2] packs_per_shard=3 layouts=[contiguous]",
    "one image per pack": "max_images=1 order.seed=3 ring_degrees=[2] packs_per_shard=4 layouts=[balanced_gather]",
}
"""Settings of the second job, where the first packed whole documents of up to 512 tokens."""


@pytest.mark.parametrize("second", SECONDS)
def test_a_smaller_configuration_gives_the_same_bytes(
    squares: tuple[Path, list[str]], old: Path, tmp_path: Path, second: str
) -> None:
    """Fails when what no longer fits a pack makes the way through a dataset differ from the way at once."""
    folder, common = squares
    changes = [*SECONDS[second].split(), "cost.vision_num_layers=3"]
    check_same(folder / "source", old, tmp_path, [*common, "seq_len=512"], changes)


KILLED = """
import os, signal, sys, time
sys.path[:0] = sys.argv[4].split(":")
import numpy as np
from preshard.packer_service.config import load_config
from preshard.packer_service.job.pack import pack
from preshard.packer_service.job.preview.show import show_document
from preshard.packer_service.plan.pack import pack_documents
from preshard.packer_service.runtime.executors import PlainExecutor
from repacked import Listener

pack_documents(np.array([3, 2]), np.array([0, 0]), seq_len=4, max_images=1)  # numba starts once for all forks
old, out, settings = sys.argv[1], sys.argv[2], sys.argv[3].split()


class Tells(PlainExecutor):
    has_told = False

    def run(self, function, items):
        for number, item in enumerate(items):
            if self.has_told:
                time.sleep(600)  # a busy machine must not let the job end before the kill
            if (function.func.__name__, number) == wanted:
                os.write(ready, b".")
                self.has_told = True
            yield from ((number, result) for _, result in super().run(function, [item]))


for name, number, delay in (("measure_and_keep", 0, 0), ("build_and_keep", 0, 0.002), ("build_and_keep", 2, 0.01)):
    wanted = (name, number)
    told, ready = os.pipe()
    child = os.fork()
    if not child:
        pack([old], out, load_config(None, settings, [old]), Tells(), Listener())
        os._exit(0)
    os.read(told, 1)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), os.path.exists(os.path.join(out, "manifest.json")))
"""


def test_a_job_that_is_killed_ends_with_the_same_bytes(old: Path, tmp_path: Path) -> None:
    """Fails when a SIGKILL leaves a shard of which a part was copied, and the next run takes it for whole."""
    setting = ["seq_len=512", "packs_per_shard=1", "order.seed=3"]
    out = tmp_path / "killed"
    where = ":".join(path for path in sys.path if path)
    command = [sys.executable, "-c", KILLED, str(old), str(out), " ".join(setting), where]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    phases = ["measure_and_keep", "build_and_keep", "build_and_keep"]
    assert done.stdout.splitlines() == [f"{phase} -9 False" for phase in phases], done.stderr
    whole = packed(old, tmp_path / "whole", setting)
    assert len(shards(whole)) > 2 * 3, "shards and their indices: some were not begun at the last kill"
    packed(old, out, setting)
    assert shards(out) == shards(whole)
    assert (out / "manifest.json").read_bytes() == (whole / "manifest.json").read_bytes()
    assert not list(out.rglob("*.tmp-*"))


def test_copies_of_a_document_come_out_once(squares: tuple[Path, list[str]], tmp_path: Path) -> None:
    """Fails when copies and epochs of a dataset multiply, or a mixture takes other documents the second time."""
    folder, common = squares
    mixed = ["mixture={mixed: 1.5, default: 0.5}", "epochs=2"]
    old, through = check_equal(folder / "source", tmp_path, [*common, "seq_len=512", *mixed], ["seq_len=1024"])
    copies = [(row["doc_id"], row["copy_number"], row["epoch"]) for row in documents(old)]
    assert sorted(copies) == sorted((row["doc_id"], row["copy_number"], row["epoch"]) for row in documents(through))
    assert len({name for name, *_ in copies}) < len(copies) / 2
    once = packed(old, tmp_path / "once", ["seq_len=512", "mixture={}", "epochs=1"])
    assert sorted(row["doc_id"] for row in documents(once)) == sorted({name for name, *_ in copies})


def test_what_was_cut_short_stays_so_and_is_said(squares: tuple[Path, list[str]], tmp_path: Path) -> None:
    """Fails when a document that lost its end grows tokens again, or loses them without a word."""
    folder, common = squares
    old = packed(folder / "source", tmp_path / "old", [*common, "seq_len=160", "oversize=truncate"])
    progress = Listener()
    longer = packed(old, tmp_path / "longer", ["seq_len=512"], progress)
    lost = sum(row["truncated_tokens"] for row in documents(old))
    assert lost > 0
    assert sum(row["truncated_tokens"] for row in documents(longer)) == lost
    assert f"old: documents that were cut short stay so ({lost} tokens are gone)" in progress.notes
    shorter = packed(old, tmp_path / "shorter", ["seq_len=96"])
    at_once = packed(folder / "source", tmp_path / "at-once", [*common, "seq_len=96", "oversize=truncate"])
    assert shards(shorter) == shards(at_once)


def test_nothing_is_read_but_the_dataset(
    squares: tuple[Path, list[str]], old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when packing a dataset again loads a tokenizer, or probes or decodes an image."""
    folder, common = squares
    expected = packed(folder / "source", tmp_path / "at-once", [*common, "seq_len=1024"])

    def never(*_: object, **__: object) -> None:
        raise AssertionError("not needed")

    monkeypatch.setattr("preshard.packer_service.ingest.text.configured.load_tokenizer", never)
    monkeypatch.setattr("preshard.packer_service.runtime.workers.Isolated.call", never)
    found = packed(old, tmp_path / "through", ["seq_len=1024"])
    assert shards(found) == shards(expected)
    assert sum(row["n_images"] for row in documents(found)) > 0
    assert verify_dataset(str(found), processes=1, progress=Listener()).sound


def test_a_packed_document_is_shown_as_its_row_is(squares: tuple[Path, list[str]], old: Path) -> None:
    """Fails when `show` gives another text, loss, position or picture of a document once it is packed."""
    folder, common = squares
    rows = load_config(None, [*common, "seq_len=512"])
    units, config = 0, load_config(None, [], [str(old)])
    for row in documents(old):
        packed_one = show_document([str(old)], config, doc_id=row["doc_id"])
        assert packed_one.pieces == show_document([str(folder / "source")], rows, doc_id=row["doc_id"]).pieces
        units += sum(len(piece.units) for piece in packed_one.pieces)
    assert units > 3
    with pytest.raises(ConfigError, match=r"--row 999: SOURCE .* has no such document; it holds \d+, counted from 1"):
        show_document([str(old)], config, row="999")


def test_a_model_folder_is_not_needed_again(tmp_path: Path) -> None:
    """Fails when a dataset whose model folder is gone cannot be packed, or another model is taken for the same."""
    common = make_source(tmp_path, "qwen3")
    old = packed(tmp_path / "source", tmp_path / "old", [*common, "seq_len=512"])
    other = [*make_source(tmp_path / "other", "qwen3_vl"), "seq_len=512"]
    with pytest.raises(ConfigError, match=r"model: model_type is 'qwen3_vl' now.*leave the key out"):
        packed(old, tmp_path / "refused", other)
    shutil.rmtree(tmp_path / "model")
    again = packed(old, tmp_path / "again", ["seq_len=512"])
    assert shards(again) == shards(old)
    rows = tmp_path / "rows.jsonl"
    turns = [{"role": role, "content": role} for role in ("user", "assistant")]
    rows.write_text(json.dumps({"id": "beside", "messages": turns}))
    both = [str(again), str(rows)]  # that one carries what it was given
    pack(both, str(tmp_path / "both"), load_config(None, [], both), PlainExecutor(), Listener())
    assert "beside" in {row["doc_id"] for row in documents(tmp_path / "both")}
    assert read_manifest(tmp_path / "both")["carried"] == read_manifest(old)["carried"] != []
    assert verify_dataset(str(tmp_path / "both"), processes=1, progress=Listener()).sound


@pytest.mark.parametrize(("name", "said"), [("config.json", "is not the file"), ("tokenization.py", "is not listed")])
def test_carried_files_are_those_of_the_manifest(
    in_pieces: Callable[[str], tuple[Path, list[str]]], tmp_path: Path, name: str, said: str
) -> None:
    """Fails when rows are read with files that somebody put into a dataset's folder later."""
    old = shutil.copytree(in_pieces("qwen3_vl")[0] / "old", tmp_path / "old")
    (old / "model" / name).write_text("{}")
    (tmp_path / "rows.jsonl").write_text('{"text": "beside it"}')
    with pytest.raises(ConfigError, match=f"model/{name} {said}"):
        load_config(None, [], [str(old), str(tmp_path / "rows.jsonl")])
    progress = Listener()
    pack([str(old)], str(tmp_path / "alone"), load_config(None, [], [str(old)]), PlainExecutor(), progress)
    assert (read_manifest(tmp_path / "alone")["carried"] == []) == (name == "config.json")


def test_stills_of_two_backends_are_not_mixed(
    in_pieces: Callable[[str], tuple[Path, list[str]]], tmp_path: Path
) -> None:
    """Fails when stills that Pillow scaled get beside those of torchvision, or are read as them, with nothing said."""
    folder, first = in_pieces("qwen3_vl")
    old, pil = folder / "old", packed(folder / "source", tmp_path / "pil", [*first, "images.backend=pil"])
    assert shards(pil) != shards(old)
    with pytest.raises(
        ConfigError, match=r"images.backend: 'pil' .* for old, .*'torchvision': pictures are not scaled"
    ):
        packed(old, tmp_path / "new", ["images.backend=pil"])
    differ = r"images.backend: is 'torchvision' in .*old and 'pil' in .*pil: pictures are not scaled again; pack one"
    with pytest.raises(ConfigError, match=differ):
        load_config(None, [], [str(old), str(pil)])
    through = packed(pil, tmp_path / "through", ["order.seed=1"])
    manifest = json.loads((through / "manifest.json").read_text())
    assert manifest["config"]["images"]["backend"] == manifest["model"]["settings"]["image_backend"] == "pil"
    with pytest.raises(ReaderError, match=r"pil cannot be mixed with .*old: images.backend is pil, not torchvision"):
        PackedDataset([(old, 1), (pil, 1)])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "video.fps=1",
            r"video.fps: 1.0 is not possible for old, .* packed with 100.0: frames are not sampled again; leave",
        ),
        ("image_format=jpeg", r"image_format: 'jpeg' is not possible for old, .*'png': crops are copied as they are"),
        (
            "vision.image_size=112",
            r"vision.image_size: 112 is not possible for old, .* with 56: crops are not cut again",
        ),
        ("annotation_weight=none", r"annotation_weight: 'none' is not possible for old"),
        ("bidirectional=none", r"bidirectional: 'none' is not possible for old"),
        ("special_tokens.eos=<pad>", r"special_tokens.eos: '<pad>' is not possible for old"),
    ],
)
def test_what_needs_the_source_is_refused_in_one_line(old: Path, tmp_path: Path, setting: str, message: str) -> None:
    """Fails when a key that changes documents is accepted and does nothing."""
    with pytest.raises(ConfigError, match=message) as refused:
        packed(old, tmp_path / "new", [setting])
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "new").exists()


def test_datasets_and_rows_mix_and_ids_are_checked_across_all(
    squares: tuple[Path, list[str]], old: Path, tmp_path: Path
) -> None:
    """Fails when a document that two sources hold is packed twice, or fresh rows are not rendered as the others."""
    folder, common = squares
    rows = [{"id": "fresh", "source": "more", "text": "new " * 9}, {"id": "long text", "text": "of an earlier source"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = [str(old), str(tmp_path / "rows.jsonl"), str(shutil.copytree(old, tmp_path / "copy"))]
    config = load_config(None, ["seq_len=1024"], sources)
    counts = pack(sources, str(tmp_path / "new"), config, PlainExecutor(), Listener()).manifest.counts
    ids = [row["doc_id"] for row in documents(tmp_path / "new")]
    assert sorted(ids) == sorted([*(row["doc_id"] for row in documents(old)), "fresh", "long text#2"])
    assert (counts.rejected, counts.numbered) == (len(documents(old)), 1)
    assert set(pq.read_table(tmp_path / "new" / "rejects.parquet")["code"].to_pylist()) == {"duplicate_row"}
    other = packed(folder / "source", tmp_path / "other", [*common, "seq_len=1024"])
    with pytest.raises(
        ConfigError, match=r"seq_len: is 512 in .*old and 1024 in .*other; say which with --set seq_len="
    ):
        load_config(None, [], [str(old), str(other)])


def test_a_damaged_pack_costs_its_documents_and_no_others(old: Path, tmp_path: Path) -> None:
    """Fails when a flipped bit in an old shard ends the job, reaches the new dataset, or costs other documents."""
    broken = shutil.copytree(old, tmp_path / "old")
    packs = pq.read_table(broken / "packs.parquet").to_pylist()
    with_crops = [row for row in packs if row["n_images"]]
    in_head, in_crops = next(row for row in packs if row is not with_crops[-1]), with_crops[-1]
    flip(broken / "shards" / in_head["shard"], in_head["offset"] + 512 + 20)
    flip(broken / "shards" / in_crops["shard"], in_crops["offset"] + in_crops["header_size"] + 512 + 20)
    found = packed(broken, tmp_path / "new", ["seq_len=1024"])
    why = rejects(found)
    lost = {row["doc_id"] for row in documents(old) if row["pack_id"] == in_head["pack_id"]}
    damaged = why.keys() - lost
    assert lost <= why.keys()
    assert all("the pack that holds it is damaged: old/shards/preshard-" in why[name] for name in lost)
    assert len(damaged) == 1, "the document of the crop"
    assert all("its stored crops are damaged" in why[name] for name in damaged)
    assert {row["doc_id"] for row in documents(found)} == {row["doc_id"] for row in documents(old)} - why.keys()
    assert verify_dataset(str(found), processes=1, progress=Listener()).sound


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def test_a_stopped_job_continues_and_notices_another_dataset(
    squares: tuple[Path, list[str]], old: Path, tmp_path: Path, stopping: Any
) -> None:
    """Fails when a job that was killed mixes what it had with another dataset, or does everything again."""
    moved = shutil.copytree(old, tmp_path / "old")
    config = load_config(None, ["seq_len=1024"], [str(moved)])
    out = tmp_path / "new"
    with pytest.raises(stopping.Stopped):
        pack([str(moved)], str(out), config, stopping(2), Listener())
    record = json.loads((out / ".work" / "job.json").read_text())
    assert record["files"][0]["dataset"]["dataset_id"] == json.loads((old / "manifest.json").read_text())["dataset_id"]
    folder, common = squares
    shutil.rmtree(moved)
    packed(folder / "source", moved, [*common, "seq_len=256"])
    with pytest.raises(ConfigError, match=r"\(old changed: the dataset \w{12} with the manifest \w{12}, now "):
        pack([str(moved)], str(out), config, PlainExecutor(), Listener())
    shutil.rmtree(moved)
    shutil.copytree(old, moved)
    rest = stopping(1000)
    pack([str(moved)], str(out), config, rest, Listener())
    assert rest.ran["measure_and_keep"] == 0
    assert shards(out) == shards(packed(old, tmp_path / "undisturbed", ["seq_len=1024"]))


NAMED = {
    "form": "planted_form:document",
    "tokenizer": "/planted/tokenizer.json",
    "model": "/planted/model",
    "chat_template": "/planted/template.jinja",
}


@pytest.mark.parametrize("key", NAMED)
def test_what_only_a_manifest_names_is_neither_imported_nor_read(
    tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: Any, key: str
) -> None:
    """Fails when rows beside somebody else's dataset are read by code of its choice, or by files of its choice."""
    old = shutil.copytree(tiny_dataset, tmp_path / "old")
    manifest = read_manifest(old)
    vision = {"vision": PackConfig().vision.model_dump()} if key == "model" else {}
    seal(old, manifest | {"config": manifest["config"] | {key: NAMED[key]} | vision})
    (tmp_path / "planted_form.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef document(row): return row\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "rows.jsonl").write_text('{"text": "beside it"}\n')
    both = [str(old), str(tmp_path / "rows.jsonl")]
    with pytest.raises(ConfigError, match=rf"^{key}: .*'{NAMED[key]}'.* (--form|--set {key}=).* if you trust it"):
        load_config(None, [], both)
    # alone, the dataset needs none of it
    assert getattr(load_config(None, ["order.seed=1"], both[:1]), key) == NAMED[key]
    pack(both[:1], str(tmp_path / "alone"), load_config(None, ["order.seed=1"], both[:1]), PlainExecutor(), progress)
    assert not (tmp_path / "ran").exists()
    if key == "form":
        list_sources(both, load_config(None, [f"form={NAMED[key]}"], both))
        assert (tmp_path / "ran").exists(), "the function would not have been found"


def test_what_is_no_whole_dataset_is_refused(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails when an older or unfinished dataset is read as a folder of tars, or damage of a table goes unnoticed."""

    def said(source: Path) -> str:
        with pytest.raises(SystemExit) as stopped:
            main(["pack", str(source), "--out", str(tmp_path / "new")])
        assert stopped.value.code == 2
        return capsys.readouterr().err.splitlines()[-1]

    first = shutil.copytree(old, tmp_path / "first")
    manifest = json.loads((first / "manifest.json").read_text())
    (first / "manifest.json").write_text(json.dumps(manifest | {"format_version": 1}))
    assert "pack its sources again: preshard pack SOURCE" in said(first)
    unfinished = tmp_path / "unfinished"
    (unfinished / ".work").mkdir(parents=True)
    (unfinished / ".work" / "job.json").write_text("{}")
    assert "this dataset is unfinished" in said(unfinished)
    torn = shutil.copytree(old, tmp_path / "torn")
    flip(torn / "documents.parquet", 40)
    assert "documents.parquet is damaged" in said(torn)


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("counts", "packs", 10**18, "packs.parquet has "),
        ("config", "seq_len", 1 << 50, "manifest.json: config.seq_len: 1125899906842624 is not legal"),
    ],
)
def test_a_forged_manifest_is_named_before_anything_follows_from_it(
    old: Path, tmp_path: Path, section: str, key: str, value: int, said: str
) -> None:
    """Fails when a list of a manifest's count takes all memory, or a key is refused as if the user had given it."""
    forged = tmp_path / "forged"
    shutil.copytree(old, forged)
    manifest = read_manifest(forged)
    manifest[section][key] = value
    seal(forged, manifest)
    with pytest.raises(ConfigError) as refused:
        list_fragments(list_sources([str(forged)], load_config(None, [], [str(forged)])).files)
    assert str(refused.value).startswith(f"SOURCE {'forged' if section == 'counts' else forged}: {said}")
