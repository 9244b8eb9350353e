"""Probes: streams of the values that variables of selected functions are set to.

``stream`` has the classes that users work with, ``engine`` connects the other modules.
``selector/`` parses and checks selectors, and runs nothing. ``live_functions`` finds the selected
functions, now or in modules that are imported later. ``source`` finds their syntax trees,
``instrumenter`` and ``tap_emitter`` insert calls into the trees, and ``weave`` compiles them.
``compatibility`` keeps compilers and picklers away from the result. ``taps`` has the functions that
the inserted calls call. ``processes``, ``children`` and ``exchange`` are for child processes.
``around`` and ``call_hooks`` observe calls for instruments, without selectors.

The public names are imported when they are first used: a child process needs no stream.
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
