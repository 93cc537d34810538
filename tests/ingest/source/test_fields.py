"""Values that documents keep: whole numbers exactly, however they are spelled."""

from __future__ import annotations

from typing import Any

import pytest

from preshard.packer_service.ingest.source.forms.fields import kept_value
from preshard.schemas.errors import DocumentError

TWEET = 1_767_000_000_000_000_003
"""Number of more than 53 bits, as ids of posts are."""


@pytest.mark.parametrize("value", [TWEET, str(TWEET), f" {TWEET} ", f"{TWEET}.0"])
def test_a_whole_number_is_kept_exactly(value: Any) -> None:
    """Fails when an id passes through a float, which rounds it to another one."""
    assert kept_value("int", value, "tweet") == TWEET


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 0.5, "0.5", "1e999999999", "nan", "many", True, [1]])
def test_what_is_no_whole_number_of_64_bits_is_rejected(value: Any) -> None:
    """Fails when it is cut, rounded or written out at length."""
    with pytest.raises(DocumentError, match="keep_columns asks for int"):
        kept_value("int", value, "tweet")
    assert kept_value("int", -(2**63), "tweet") == -(2**63)
