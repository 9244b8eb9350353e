"""How Sphinx builds this site: ``make docs``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import voirkit
from voirkit.options.dataclass_fields import field_help

project = "voirkit"
author = "The voirkit authors"
project_copyright = "The voirkit authors, MIT licence"
version = release = voirkit.__version__
language = "en"

extensions = [
    "generate",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["news"]
highlight_language = "text"
nitpicky = True
# What is not of this project is not looked up: the build needs no network.
nitpick_ignore_regex = [
    ("py:.*", r"(?!voirkit).*"),
    (
        "py:.*",
        r"voirkit\.(.*\.T|phases\.GivenOverseer|runs\.trace_files\.Layout)",
    ),  # of private use in public signatures
]
suppress_warnings = ["ref.python"]  # two classes of one name are told apart by their modules

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist", "substitution"]
myst_heading_anchors = 4
myst_substitutions = {"version": release}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_display_short_literal_types = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # the fields of a dataclass are members already
toc_object_entries_show_parents = "hide"

copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
copybutton_line_continuation_character = "\\"

html_theme = "furo"
html_title = f"voirkit {release}"
html_static_path = ["_static"]
html_css_files = ["voirkit.css"]
html_favicon = "_static/favicon.svg"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "navigation_with_keys": True,
    "top_of_page_buttons": [],
    "light_css_variables": {
        "color-brand-primary": "#b3401c",
        "color-brand-content": "#a83a17",
        "color-brand-visited": "#a83a17",
    },
    "dark_css_variables": {
        "color-brand-primary": "#ff9e7a",
        "color-brand-content": "#ff9e7a",
        "color-brand-visited": "#ff9e7a",
    },
}


def setup(app: Any) -> None:
    """Fields of dataclasses and named tuples are described under Attributes, or by comments beside them."""

    def skip(
        app: Any, kind: str, name: str, value: object, is_skipped: bool, options: object
    ) -> bool | None:
        return (
            True
            if str(getattr(value, "__doc__", "")).startswith("Alias for field number")
            else None
        )

    def describe_fields(
        app: Any, kind: str, name: str, value: Any, options: object, lines: list[str]
    ) -> None:
        if kind == "class" and not any(line.startswith(":ivar") for line in lines):
            lines += [
                "",
                *(
                    f":ivar {field}: {text[0].upper()}{text[1:]}"
                    for field, text in field_help(value).items()
                    if text
                ),
            ]

    app.connect("autodoc-skip-member", skip)
    app.connect("autodoc-process-docstring", describe_fields, priority=600)  # behind napoleon
