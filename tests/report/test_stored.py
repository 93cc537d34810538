"""The figures that are stored of a finished dataset, against the tables and against questions to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from preshard.packer_service.report import measures
from preshard.packer_service.report.compare import LENGTHS
from preshard.packer_service.report.dataset import open_dataset
from preshard.packer_service.report.stored import PERCENTS, read_figures, write_figures
from preshard.packer_service.report.tables import open_measures
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset import measures as table
from preshard.schemas.dataset.manifest_parts import stored_config
from preshard.schemas.dataset.measures import measure_groups
from preshard.schemas.manifest import FIGURES
from tests.support.made_records import CONFIG, MadeRecords, finished

LAYOUTS = ("contiguous", "zigzag", "balanced_ring")
MANY = CONFIG.model_copy(update={"layouts": LAYOUTS, "ring_degrees": (1, 2, 4), "cp_sizes": (1, 2, 4)})
NO_LOSS: frozenset[tuple[int, int]] = frozenset()


@pytest.mark.parametrize("config", [CONFIG, MANY], ids=["one layout", "nine"])
@pytest.mark.parametrize(
    ("n_packs", "pieces", "lost"),
    [(0, False, NO_LOSS), (1, False, NO_LOSS), (2, True, NO_LOSS), (61, True, frozenset({(2, 1), (3, 0), (60, 2)}))],
)
def test_stored_figures_are_those_that_the_tables_are_asked_for(
    n_packs: int,
    pieces: bool,
    lost: frozenset[tuple[int, int]],
    config: PackConfig,
    tmp_path: Path,
    progress: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails when what is stored of all packs is not what the same packs give as a range, or what their rows say."""
    monkeypatch.setattr(table, "BLOCK_VALUES", 1000)
    made, folder = MadeRecords(n_packs, config=config, pieces=pieces, lost=lost), Folder(str(tmp_path))
    manifest = finished(made, tmp_path, progress).head
    found = read_figures(folder, manifest)
    with open_measures(folder, config, n_packs) as stored:
        assert n_packs < 60 or len(list(stored.order.blocks())) > 1
        for group in measure_groups(config):
            if group.scheme:
                asked: Any = measures.layout_balance(stored, group, range(n_packs))
                assert found.balance[group.scheme][group.degree] == asked
            else:
                assert found.images[group.degree] == measures.image_balance(stored, group, range(n_packs))
        preferred = measures.preferred(stored, config.layouts, config.ring_degrees, range(n_packs))
        assert found.preferred == preferred
        assert {degree: sum(each.values()) for degree, each in preferred.items()} == dict.fromkeys(preferred, n_packs)
    rows = pq.read_table(tmp_path / "measures.parquet").to_pylist()
    own = [row for row in rows if (row["scheme"], row["degree"]) == ("contiguous", 1)]
    paths = [row["gather_path"] / row["attention_tiles"] for row in own if row["attention_tiles"]]
    spread = found.balance["contiguous"][1].gather_path
    assert (spread.packs, spread.max) == (len(paths), max(paths, default=None))
    assert spread.p95 == (sorted(paths)[-(-len(paths) * 95 // 100) - 1] if paths else None)
    documents = pq.read_table(tmp_path / "documents.parquet").to_pylist()
    assert [(each.source, each.pieces, each.documents) for each in found.sources] == (
        [("s", len(documents), len({row["doc_id"] for row in documents}))] if documents else []
    )
    lengths = sorted(row["length"] for row in documents)
    places = {percent: lengths[(len(lengths) - 1) * percent // 100] for percent in PERCENTS if lengths}
    assert found.lengths.percentiles == places
    assert found.lengths.mean == (sum(lengths) / len(lengths) if lengths else None)


def test_figures_have_the_same_bytes_however_they_are_computed(
    tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when the file depends on how many figures and layouts fit into a query."""
    folder, wanted = Folder(str(tmp_path)), (tiny_dataset / FIGURES).read_bytes()
    for name in ("packs", "documents", "rejects", "measures"):
        (tmp_path / f"{name}.parquet").symlink_to(tiny_dataset / f"{name}.parquet")
    _, manifest = open_dataset(str(tiny_dataset))
    config = stored_config(manifest)
    for values in (1, 100):
        monkeypatch.setattr(measures, "QUANTILE_VALUES", values)
        assert write_figures(folder, config, manifest.counts.packs) == manifest.figures
        assert (tmp_path / FIGURES).read_bytes() == wanted


def test_percentiles_that_are_compared_are_stored() -> None:
    """Fails when a comparison names a percentile of lengths that no dataset stores."""
    assert {*LENGTHS} == {*PERCENTS}
