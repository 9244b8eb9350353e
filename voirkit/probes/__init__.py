"""Probes: a selector becomes a stream of what variables of named functions are set to.

``stream`` is what users have in hand, ``engine`` holds the rest together. ``selector/`` reads and
checks selectors and runs nothing. ``live_functions`` finds the functions, now or in modules that
are being imported, ``source`` their syntax trees, ``instrumenter`` and ``tap_emitter`` put calls
into those, ``weave`` compiles them; ``compatibility`` keeps compilers and picklers off. ``taps``
are what is called. ``processes``, ``children`` and ``exchange`` are for child processes. ``around``
and ``call_hooks`` see calls for instruments, without selectors.

The names here are imported when they are first used: a child process needs no stream.
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

    value = getattr(
        import_module(
            "voirkit.probes.live_functions" if name == "Scope" else "voirkit.probes.stream"
        ),
        name,
    )
    globals()[name] = value
    return value
