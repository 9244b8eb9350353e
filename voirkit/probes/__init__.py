"""Probes: a selector becomes a stream of what variables of named functions are set to.

From the inside out: ``language`` and ``grammar`` read selectors, ``catalogue`` and ``selectors`` say what is wrong with them, ``plan``
says what they ask for, ``sites`` puts taps into trees, ``source`` and ``weave`` get trees from live functions and put new code into them,
``imports`` does so before a module runs, ``taps`` and ``matching`` are what is called, ``compiled`` keeps torch.compile off, ``engine``
holds it together, ``stream`` is what users have in hand. ``processes``, ``spawn``, ``children`` and ``exchange`` are for child processes,
which need no stream: the names here are imported when they are first used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit.probes.live_functions import Scope
    from voirkit.probes.stream import Probe, global_probe, probing, refstring

__all__ = ["Probe", "Scope", "global_probe", "probing", "refstring"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'voirkit.probes' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module("voirkit.probes.live_functions" if name == "Scope" else "voirkit.probes.stream"), name)
    globals()[name] = value
    return value
