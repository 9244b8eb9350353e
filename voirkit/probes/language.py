"""ptera's selector language, and nothing else of ptera: its parser, its tags, its predicates.

``import ptera`` loads its engine too (``ptera.transform``), and with it codefind and giving's operators: 190 ms.  The
four modules wanted here import only each other, so they are loaded as modules of a package of their own that has
ptera's folder for its path; ``ptera`` itself, should the program import it, is untouched.  Checked with ptera 1.4.1.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from typing import Any

_NAME = f"{__name__}_of_ptera"


def _load(module: str) -> Any:
    if _NAME not in sys.modules:
        found = find_spec("ptera")  # of a package without parents: looks for it and runs nothing
        if found is None or found.submodule_search_locations is None:
            raise ImportError("voirkit needs ptera 1.4.1", name="ptera")
        spec = ModuleSpec(_NAME, None, is_package=True)
        spec.submodule_search_locations = list(found.submodule_search_locations)
        sys.modules[_NAME] = module_from_spec(spec)
    return import_module(f"{_NAME}.{module}")


selector: Any = _load("selector")
opparse: Any = _load("opparse")
tags: Any = _load("tags")
tools: Any = _load("tools")
ABSENT: Any = _load("utils").ABSENT
tag: Any = tags.tag


def tag_names(value: Any) -> frozenset[str]:
    """The names of a tag or of several tags, ptera's own included; none for anything else."""
    members = getattr(value, "members", None)
    found = members if type(value).__name__ == "TagSet" and isinstance(members, frozenset) else [value]
    return frozenset(str(t.name) for t in found if is_tag(t))


def is_tag(value: Any) -> bool:
    """Whether it is a tag: one of these, or one of the package ``ptera`` itself."""
    return type(value).__name__ == "Tag" and type(value).__module__ in (tags.__name__, "ptera.tags")
