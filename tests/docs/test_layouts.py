"""The pictures of ``docs/layouts.md`` are made from a dataset's bytes, and show what is in them."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from preshard.schemas.layout import SCHEMES
from preshard.schemas.mask import dense_mask

RING = 4
DRAWN = ["zigzag", "balanced_ring"]
"""Two schemes show all that the pictures do with one: their panels take most of the time."""


@pytest.fixture
def plot(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, imported as it imports its neighbour: with its own folder on the path."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs"))
    return importlib.import_module("plot_layouts")


def test_the_script_draws_three_pictures_of_a_packed_pack(plot: ModuleType, tiny_dataset: Path, tmp_path: Path) -> None:
    """Fails when the format, the measures or matplotlib change under the script, or a picture comes out blank."""
    where = ["--ring", str(RING), "--out", str(tmp_path / "pictures")]
    plot.main([str(tiny_dataset), "0", *where, "--layouts", *DRAWN])
    drawn = sorted((tmp_path / "pictures").iterdir())
    assert [file.name for file in drawn] == ["mask.png", "owners.png", "paths.png"]
    for file in drawn:
        assert file.stat().st_size < 120_000, f"{file.name} is too large for a page"
        with Image.open(file) as image:
            pixels = np.asarray(image.convert("RGB"))
        shown = len(np.unique(pixels.reshape(-1, 3)[::7] @ [65536, 256, 1]))
        assert shown > 50, f"{file.name} shows {shown} colours"
        assert 0.02 < (pixels != 255).any(axis=2).mean() < 0.9, f"{file.name} is blank, or has lost its background"


def test_shares_of_tiles_are_those_of_the_dense_mask(plot: ModuleType, tiny_dataset: Path) -> None:
    """Fails when a tile is drawn with another share of allowed pairs than the mask has there."""
    mask = plot.load_pack(str(tiny_dataset), 0, RING).mask
    side = mask.seq_len // plot.TILE
    dense = dense_mask(mask).reshape(side, plot.TILE, side, plot.TILE).mean(axis=(1, 3))
    assert 0 < np.count_nonzero(dense) < dense.size
    np.testing.assert_array_equal(np.nan_to_num(plot.tile_shares(mask)), dense)


def test_every_token_is_drawn_on_one_lane_in_its_documents_colour(plot: ModuleType, tiny_dataset: Path) -> None:
    """Fails when a layout's picture leaves a token out, draws it twice, or in the colour of another document."""
    pack = plot.load_pack(str(tiny_dataset), 0, RING)
    assert [layout.scheme for layout in pack.layouts] == list(SCHEMES)
    assert len(np.unique(pack.kinds)) > 1
    colours = np.array([plot.to_rgb(colour) for colour in plot.KINDS.values()])
    for layout in pack.layouts:
        lanes = plot.lanes_of(pack, layout)
        assert lanes.shape == (RING, pack.mask.seq_len, 3)
        np.testing.assert_allclose((1 - lanes).sum(axis=0), 1 - colours[pack.kinds])


@pytest.mark.parametrize(
    ("arguments", "said"), [(["99"], "packs 0 to"), (["0", "--ring", "3"], "zigzag of degrees 1, 2, 4, 8")]
)
def test_a_pack_or_degree_that_is_not_there_is_one_line(
    plot: ModuleType, tiny_dataset: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    """Fails when a reader's slip ends in a traceback, or in a line that does not say what there is."""
    with pytest.raises(SystemExit) as ended:
        plot.main([str(tiny_dataset), *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
