"""A tiny model folder of each family, with what ``transformers`` makes of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from model_oracle import VOCABULARY, Oracle

from preshard.packer_service.demo.model import write_model_folder
from preshard.schemas.model.families import FAMILIES as FOLLOWED

sys.path.insert(0, str(Path(__file__).parents[2] / "hostile"))

SAME = {"qwen3_vl_moe", "qwen3_5_moe", "glm4v_moe", "glm_ocr"}
"""Models whose processor is another's."""


ALIKE = {"exaone4_5", "glm46v", "qwen3_5", "lighton_ocr", "paddleocr_vl"}
"""Models whose processor differs from another's in its name, limits or marks alone."""

FAMILIES = [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in sorted(FOLLOWED.keys() - SAME)]


@pytest.fixture(scope="session", params=FAMILIES)
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """One family's."""
    folder = tmp_path_factory.mktemp(request.param)
    write_model_folder(folder, request.param, vocabulary=VOCABULARY)
    return Oracle(folder)
