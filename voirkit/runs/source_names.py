"""Names of code that users know by another name than that of its file: the cells of a notebook.

The manifest has them as ``source_names``, by the file. Instruments record files; what is shown of a
run has the names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def rename_sources(value: Any, names: Mapping[str, str]) -> Any:
    """A document, or a text, in which each such file has its name, however much of its path stands
    before it."""
    if not names:
        return value
    by_last_part = {file.rpartition("/")[2]: name for file, name in names.items()}
    alternatives = "|".join(map(re.escape, by_last_part))
    pattern = re.compile(rf"(?:[\w.…/~-]*/)?(?<!\w)({alternatives})")
    return _renamed(value, pattern, by_last_part)


def _renamed(value: Any, pattern: re.Pattern[str], names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return pattern.sub(lambda match: names[match[1]], value)
    if isinstance(value, Mapping):
        return {
            _renamed(key, pattern, names): _renamed(item, pattern, names)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_renamed(item, pattern, names) for item in value]
    return value
