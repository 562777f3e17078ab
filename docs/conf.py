"""The site: Sphinx reads the Markdown pages of this folder. `make docs` builds it; a warning is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes

project = "Freshview"
copyright = "the Freshview authors, Apache-2.0"
html_title = "Freshview"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True  # a link that leads nowhere is a warning

myst_heading_anchors = 4  # a link may name a heading: sql.md#deferred-views

html_theme = "alabaster"
html_theme_options = {
    "description": "Lazily maintained, always fresh materialized views on Apache Spark",
    "fixed_sidebar": True,
    "page_width": "70rem",
}
html_show_sourcelink = False


def _name_folder(_app: Any, _environment: Any, reference: Any, content: nodes.Node) -> nodes.Node | None:
    """A link to a folder is for readers of the repository; the site, which has no page for it, shows its text."""
    folder = Path(__file__).parent / str(reference.get("reftarget", ""))
    return content if folder.is_dir() else None


def setup(app: Any) -> None:
    app.connect("missing-reference", _name_folder)
