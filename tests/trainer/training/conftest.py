"""Datasets small enough to train on in tests (``lessons.py``)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from lessons import make_lessons, make_texts


@pytest.fixture(scope="session")
def lessons(made_once: Any, demo: Any) -> Path:
    """Videos, photographs, annotations and text of the demo in packs of 512 tokens, beside their model. Read only."""
    return made_once("lessons", lambda folder: make_lessons(demo[0], folder)) / "dataset"


@pytest.fixture(scope="session")
def texts(made_once: Any) -> Path:
    """Texts alone in five packs of 512 tokens, beside a model that is quicker to train. Read only."""
    return made_once("texts", make_texts) / "dataset"
