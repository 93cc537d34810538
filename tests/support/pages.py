"""The programs of the pages."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def programs_of(page: str, section: str) -> list[str]:
    """The Python blocks of a section of a page."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8").partition(f"\n## {section}\n")[2]
    return re.findall(r"```python\n(.*?)```", text.partition("\n## ")[0], re.DOTALL)
