"""``preshard.pack`` and ``preshard.open``, as a program or a notebook uses them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import preshard
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError, PreshardError, ReaderError, TooManyRejectsError
from preshard.trainer.data.dataset import PackedDataset

SMALL = {"seq_len": 1024, "cp_sizes": [1], "ring_degrees": [1, 2], "block_size": 64}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    rows = [{"id": f"r{i}", "text": f"row {i} of a program"} for i in range(9)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + "broken\n")
    return file


def test_a_program_packs_and_reads_back(rows: Path, tmp_path: Path) -> None:
    """Fails when the program's configuration is another than the command's, or a text does not come back."""
    (tmp_path / "pack.yaml").write_text("{seq_len: 512, order: {seed: 3, window: 4}}")
    out = tmp_path / "out"
    packed = preshard.pack(rows, out, config=tmp_path / "pack.yaml", max_rejects=0.2, order={"window": 2}, **SMALL)
    assert (packed.documents, packed.rejected, packed.packs, packed.already_done) == (9, 1, 1, False)
    dataset = packed.open()
    assert (dataset.config.seq_len, dataset.config.order.seed, dataset.config.order.window) == (1024, 3, 2)
    assert (len(dataset), len(dataset[0].tokens), len(list(dataset))) == (1, 1024, 1)
    texts = {span.doc_id: dataset[-1].text(number) for number, span in enumerate(dataset[0].documents)}
    assert texts.keys() == {f"r{i}" for i in range(9)}
    assert all(f"row {name[1:]} of a program" in text for name, text in texts.items())
    assert dataset.rejects["code"].to_pylist() == ["bad_row"]
    assert dataset.documents["doc_id"].to_pylist() == list(texts)
    assert (dataset.report.documents, dataset.packs.num_rows) == (9, 1)
    assert preshard.pack(
        [rows], out, config=tmp_path / "pack.yaml", max_rejects=0.2, order={"window": 2}, **SMALL
    ).already_done


def test_what_goes_wrong_is_an_error_of_ours(rows: Path, tmp_path: Path) -> None:
    """Fails when a program gets an exit, a traceback of a library, or a short dataset without a word."""
    with pytest.raises(ConfigError, match="seq_len 1000 is not a multiple of 1024"):
        preshard.pack(rows, tmp_path / "out", seq_len=1000)
    with pytest.raises(ConfigError, match="nonsense: unknown key"):
        preshard.pack(rows, tmp_path / "out", nonsense=1)
    with pytest.raises(ConfigError, match="no such executor"):
        preshard.pack(rows, tmp_path / "out", executor="spark")
    with pytest.raises(TooManyRejectsError, match=r"the dataset is whole, but 1 of 10 rows \(10.00%\) was rejected"):
        preshard.pack(rows, tmp_path / "out", progress=False, **SMALL)
    (tmp_path / "none.jsonl").write_text("broken\n")
    with pytest.raises(PreshardError, match="holds no document: its only row was rejected"):
        preshard.pack(tmp_path / "none.jsonl", tmp_path / "none", progress=False, **SMALL)
    with pytest.raises(ConfigError, match="/nowhere: no such folder"):
        preshard.open("/nowhere")


@pytest.mark.parametrize("wrong", [-1, 2**31 - 1])
def test_an_id_that_no_token_has_is_named(tiny_dataset: Path, wrong: int) -> None:
    """Fails when a damaged dataset's tokens end in an error of the library that decodes them."""
    with pytest.raises(ReaderError, match=rf"^tekken.json: no token has the id {wrong}; preshard verify says where$"):
        preshard.open(tiny_dataset).decode([1, wrong, 2])


def test_the_parts_of_ranks_are_those_that_the_reader_gives(tiny_dataset: Path, tiny_config: PackConfig) -> None:
    """Fails when a rank's tokens or crops here are others than those that it trains on."""
    dataset, seen = preshard.open(tiny_dataset), 0
    for rank in range(4):
        batch = next(iter(PackedDataset(tiny_dataset, ring_degree=2, ulysses_degree=2, cp_rank=rank, layout="zigzag")))
        pack = dataset[batch.pack_id]
        own = pack.positions(rank, ring_degree=2, ulysses_degree=2, layout="zigzag")
        np.testing.assert_array_equal(pack.tokens[own], batch.tokens)
        assert pack.boundaries(rank, 4)["start_pool_idx"] == batch.start_pool_idx
        pictures = pack.images(rank, 4)
        assert len(pictures) == len(batch.images)
        for picture, pixels in zip(pictures, batch.images, strict=True):
            np.testing.assert_array_equal(np.asarray(picture.convert("RGB")), pixels)
        seen += len(pictures)
    pack = next(pack for pack in dataset if "start_image_idx" in pack.boundaries(0, 4))
    assert 0 < seen <= len(pack.images())
    with pytest.raises(ReaderError, match=r"cp_rank 4 is out of range: CP size 4 has the ranks 0 to 3"):
        pack.positions(4, ring_degree=4)
    with pytest.raises(ReaderError, match=r"has no layout .*there are "):
        pack.layout("zigzag", 3)
    with pytest.raises(ReaderError, match="the dataset has the CP sizes"):
        pack.boundaries(0, 3)
    with pytest.raises(IndexError, match=f"has packs 0 to {len(dataset) - 1}"):
        dataset[len(dataset)]


def test_a_pack_is_drawn_in_a_notebook(tiny_dataset: Path) -> None:
    """Fails when the drawing is no picture, shows keys that no query may see, or an id of a row becomes markup."""
    dataset = preshard.open(tiny_dataset)
    pack = max(dataset, key=lambda pack: len(pack.documents))
    assert len(pack.documents) > 1
    picture = ElementTree.fromstring(pack.svg("zigzag", 4))
    bars = picture.findall("{*}rect")
    size = int(picture.attrib["viewBox"].split()[2])
    cell = dataset.config.seq_len // size
    owned = {bar.attrib["fill"] for bar in bars if bar.attrib["y"] == "0"}
    assert len(owned) == 4
    for bar in (bar for bar in bars if int(bar.attrib["y"]) >= 4):
        query = (int(bar.attrib["y"]) - 4) * cell
        documents = set(pack.sequence.doc_ids[query : query + cell]) - {-1}
        keys = pack.sequence.doc_ids[
            int(bar.attrib["x"]) * cell : (int(bar.attrib["x"]) + int(bar.attrib["width"])) * cell
        ]
        assert documents & set(keys)
    pack.documents[0].__dict__["doc_id"] = "<script>"
    assert "&lt;script&gt;" in pack._repr_html_()
    assert "<script>" not in pack._repr_html_()


def test_importing_it_imports_nothing_heavy() -> None:
    """Fails when ``import preshard`` takes seconds, or looking at a dataset loads torch or Ray."""
    program = (
        "import sys, preshard; light = {'numpy', 'pyarrow', 'torch', 'ray', 'pydantic'} & {*sys.modules}; "
        "preshard.open; print(sorted(light), sorted({'torch', 'ray'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"


def test_the_trainer_speaks_before_it_loads_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when someone waits for seconds before the first word, or all ranks say the same."""
    from preshard import train
    from preshard.trainer.extra import waiting

    said: list[int] = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setattr("preshard.trainer.train.main", lambda _: said.append(len(waiting._line)))
        train.main([])
        waiting.end()
    assert said == [1, 0]
