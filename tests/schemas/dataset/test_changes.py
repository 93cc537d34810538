"""Keys that may differ from those that a dataset was packed with."""

from __future__ import annotations

import pytest

from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.changes import refuse_changes
from preshard.schemas.errors import ConfigError

STORED = PackConfig()


def test_what_plans_and_lays_out_may_change() -> None:
    """Fails when a dataset cannot be planned with other packs than it has."""
    refuse_changes(STORED.model_copy(update={"seq_len": 2 * STORED.seq_len}), "x", STORED, names=True)


def test_what_asks_for_the_source_may_not() -> None:
    """Fails when a dataset seems to be packed again with crops that were cut otherwise."""
    wanted = STORED.model_copy(update={"jpeg_quality": STORED.jpeg_quality - 1})
    with pytest.raises(ConfigError, match=r"^jpeg_quality: .* is not possible for x, .* crops are copied"):
        refuse_changes(wanted, "x", STORED)


def test_names_of_files_are_compared_only_on_demand() -> None:
    """Fails when a tokenizer in another folder is refused where files are compared, or taken where they cannot be."""
    wanted = STORED.model_copy(update={"tokenizer": "elsewhere"})
    refuse_changes(wanted, "x", STORED)
    with pytest.raises(ConfigError, match="tokenizer: 'elsewhere' is not possible"):
        refuse_changes(wanted, "x", STORED, names=True)
