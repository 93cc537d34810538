"""Where a rank looks for its crops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from preshard.schemas.errors import ImagesInvalid
from preshard.trainer.data.reader import read_crops


@pytest.mark.parametrize(
    ("first", "said"), [(0, "crops 0 to 4 lie at byte 2048,"), (2, "crops 2 to 4 lie at byte 4096,")]
)
def test_crops_outside_of_their_sample_are_named(first: int, said: str) -> None:
    """Fails when other crops are named than those that were asked for, or the place of another one."""
    images = [SimpleNamespace(height=8, width=8, offset=1024 * at, size=500) for at in range(5)]
    place: Any = SimpleNamespace(header_size=2048, size=2048 + 5 * 1024 - 600, where="here")
    head, files = SimpleNamespace(images=images), SimpleNamespace(read_range=None)
    with pytest.raises(ImagesInvalid, match=f"^here: {said} outside the sample"):
        read_crops(files, place, head, range(first, 5), image_format="jpeg")  # type: ignore[arg-type]
