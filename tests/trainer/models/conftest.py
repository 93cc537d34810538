"""Hugging Face models and their packs, made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

DOCUMENTS = 6
"""As few as fill several packs, with some of text alone."""


@pytest.fixture(scope="session")
def folder_of(made_once: Any, progress: Any) -> Callable[[str], Path]:
    """``folder_of(family)``: a folder with a Hugging Face model and its packs."""
    from packed_models import make_model

    def make(family: str) -> Path:
        return Path(
            made_once(
                f"hugging-face-{family}", lambda folder: make_model(folder, family, progress, documents=DOCUMENTS)
            )
        )

    return make


@pytest.fixture(scope="session")
def made(folder_of: Callable[[str], Path]) -> Callable[[str], tuple[Path, Any]]:
    """``made(family)``: the same folder, and what the documents of each pack give alone, which takes seconds."""
    from packed_models import right_answers

    @cache
    def make(family: str) -> tuple[Path, Any]:
        folder = folder_of(family)
        return folder, right_answers(folder, family)

    return make
