"""Sphinx configuration of these pages and of the reference of the public modules: ``make docs``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.transforms import SphinxTransform

import preshard.schemas

project = "preshard"
author = "the preshard authors"
release = preshard.schemas.VERSION
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"preshard {release}"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_use_rtype = False
napoleon_use_ivar = True  # an attribute that a docstring and a dataclass both name is one entry, not two


class PicturesByTheme(SphinxTransform):
    """Shows ``NAME-dark.png`` in place of ``NAME.png`` in the dark theme, where there is one.

    The pages themselves name one picture, so that they read well as plain Markdown.
    """

    default_priority = 200

    def apply(self, **_: Any) -> None:
        folder = Path(self.env.doc2path(self.env.docname)).parent
        for picture in list(self.document.findall(nodes.image)):
            by_day = Path(picture["uri"])
            by_night = by_day.with_name(f"{by_day.stem}-dark{by_day.suffix}")
            if not (folder / by_night).is_file():
                continue
            other = picture.deepcopy()
            other["uri"] = str(by_night)
            other["classes"].append("only-dark")
            picture["classes"].append("only-light")
            picture.parent.insert(picture.parent.index(picture) + 1, other)


def setup(app: Any) -> None:
    app.add_transform(PicturesByTheme)
