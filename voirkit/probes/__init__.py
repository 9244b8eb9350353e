"""Probes: a selector becomes a stream of what variables of named functions are set to.

From the inside out: ``language`` and ``grammar`` read selectors, ``catalogue`` and ``selectors`` say what is wrong with them, ``plan``
says what they ask for, ``sites`` puts taps into trees, ``source`` and ``weave`` get trees from live functions and put new code into them,
``imports`` does so before a module runs, ``taps`` and ``matching`` are what is called, ``compiled`` keeps torch.compile off, ``engine``
holds it together, ``stream`` is what users have in hand.  ``around`` stands around whole functions, without selector or stream;
``origins`` knows whose code is whose.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit.probes.scope import Scope
    from voirkit.probes.stream import Probe, global_probe, probing, refstring

__all__ = ["Probe", "Scope", "global_probe", "probing", "refstring"]


def __getattr__(name: str) -> Any:  # ``around`` is on in every run, and must not load giving
    if name not in __all__:
        raise AttributeError(f"module 'voirkit.probes' has no attribute {name!r}")
    from voirkit.probes import scope, stream

    value = getattr(scope if name == "Scope" else stream, name)
    globals()[name] = value
    return value
