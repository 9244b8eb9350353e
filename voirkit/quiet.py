"""Compiles a source again without giving its warnings again.

``warnings.catch_warnings`` is not for this: it makes python forget which warnings it has given, so that the program's own come once more.
"""

from __future__ import annotations

import os
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class quiet:
    """Leave out the compiler's warnings about a file; in a ``with`` statement."""

    def __init__(self, filename: str) -> None:
        import re

        module = re.compile(re.escape(os.path.splitext(filename)[0]) + r"(\.\w+)?\Z")
        self._mine: Any = ("ignore", None, Warning, module, 0)

    def __enter__(self) -> None:
        filters: Any = warnings.filters
        self._filters = filters  # another thread may put another list there meanwhile
        self._filters.insert(0, self._mine)

    def __exit__(self, *raised: object) -> None:
        self._filters.remove(self._mine)
