"""A tiny model folder of each family, with what ``transformers`` makes of it."""

from __future__ import annotations

import pytest
from model_oracle import REAL, Oracle, model_folder


@pytest.fixture(scope="session", params=sorted(REAL))
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """One family's."""
    return Oracle(model_folder(tmp_path_factory.mktemp(request.param), request.param))
