"""Graphs that outlive their step: ``total += loss`` keeps each step's graph as long as ``total`` lives.

A node of a graph lives in C++, and its Python object comes and goes. What does live as long is the node's ``metadata``, which torch's
anomaly mode uses and nothing else: a marker is put there, and a weak reference to it says whether the node is there still. Nothing is kept
alive.
"""

from __future__ import annotations

import weakref
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KEY = "voirkit"
_EACH, _SELDOM, _MOST = 64, 16, 64  # passes that are all marked; each 16th from then on; markers that are remembered
_DEEP = 3  # nodes from the root: a scaled or divided loss is another one than what is added up
_USUAL = 2  # the last graphs may live: their variables are not assigned anew yet


class Marker:
    """Lives as long as the node that it is in."""

    __slots__ = ("__weakref__",)


class KeptGraphs:
    """The graphs of the backward passes of each line."""

    def __init__(self) -> None:
        self._markers: dict[str | None, deque[weakref.ref[Marker]]] = {}

    def mark(self, root: Any, where: str | None, n: int) -> None:
        """Mark the graph of a backward pass that begins, the ``n``-th of its line."""
        if n > _EACH and n % _SELDOM:
            return
        marker, node = Marker(), root.grad_fn
        for _ in range(_DEEP):
            if node is None or hasattr(node, "variable"):  # a leaf's node lives as long as the leaf
                break
            node.metadata[_KEY] = marker
            following = node.next_functions
            node = following[0][0] if following else None
        self._markers.setdefault(where, deque(maxlen=_MOST)).append(weakref.ref(marker))

    def alive(self, where: str | None) -> int:
        """How many of a line's last marked graphs before the last ones are there still, without a gap."""
        markers = list(self._markers.get(where, ()))[:-_USUAL]
        return next((n for n, marker in enumerate(reversed(markers)) if marker() is None), len(markers))
