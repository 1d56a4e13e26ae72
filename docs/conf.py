"""The site of the documentation: `make docs` writes it to build/docs/html, from the pages where they lie.

Every warning is an error there, so a link or a name that leads nowhere fails.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from collectives import __version__  # noqa: E402

project = "treering"
release = version = __version__
root_doc = "docs/index"
include_patterns = [
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**.md", "benchmarks/README.md", "examples/README.md",
    "tuning_tables/README.md",
]  # fmt: skip

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
default_role = "code"

# Reference from docstrings: members in the order of the source, types where they are written.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = f"treering {version}"
html_show_sourcelink = False
html_copy_source = False
