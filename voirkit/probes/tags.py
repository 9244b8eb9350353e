"""The tags that an annotation names; only attributes and ``&`` are evaluated."""

from __future__ import annotations

import ast
from typing import Any

from voirkit.probes.language import tag_names
from voirkit.probes.names import dotted


def tags_of(annotation: ast.expr | None, names: Any) -> frozenset[str]:
    """The names of the tags.

    Args:
        annotation: ``tag.Weight & tag.Loss``, ``"@Weight"``; None has none.
        names: What it can mean: the globals of the function; None if the module has not run.
    """
    if names is None:  # what is called `tag` is taken for it
        path = dotted(annotation) if annotation is not None else ""
        if path.startswith(("tag.", "ptera.tag.", "voirkit.tag.")):
            return frozenset([path.rpartition(".")[2]])
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitAnd):
        return tags_of(annotation.left, names) | tags_of(annotation.right, names)
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        words = [word.strip() for word in annotation.value.split("&")]
        if all(word.startswith("@") for word in words):
            return frozenset(word[1:] for word in words)
        try:
            return tags_of(ast.parse(annotation.value, mode="eval").body, names)
        except SyntaxError:
            return frozenset()
    first, *rest = (dotted(annotation) if annotation is not None else "").split(".")
    if not first or names is None or first not in names:
        return frozenset()
    found = names[first]
    if rest and not (type(found).__name__ == "_TagFactory" or hasattr(found, "__path__") or hasattr(found, "__spec__")):
        return frozenset()
    for part in rest:
        found = getattr(found, part, None)
    return tag_names(found)
