"""Hugging Face models and their packs, made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def made(made_once: Any, progress: Any) -> Callable[[str], tuple[Path, Any]]:
    """``made(family)``: a folder with a Hugging Face model and its packs, and what the documents of each give alone."""
    from packed_models import make_model, right_answers

    @cache
    def make(family: str) -> tuple[Path, Any]:
        folder = made_once(f"hugging-face-{family}", lambda folder: make_model(folder, family, progress))
        return folder, right_answers(folder, family)

    return make
