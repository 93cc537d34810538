"""How Sphinx builds these pages and the reference of the public modules: ``make docs``."""

from __future__ import annotations

import schemas.version

project = "preshard"
author = "the preshard authors"
release = schemas.version.VERSION
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
