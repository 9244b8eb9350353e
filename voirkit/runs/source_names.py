"""Display names for source files that users know by another name, such as the cells of a notebook.

The manifest maps files to these names, under ``source_names``. Instruments record the file names;
reports replace them by the display names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def rename_sources(value: Any, names: Mapping[str, str]) -> Any:
    """Return a document or a string in which each path of a renamed file is replaced by its display
    name. The path may be absolute, relative or shortened.

    Args:
        value: The string, or nested mappings and sequences that contain strings.
        names: Display names, by the path of the file.
    """
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
