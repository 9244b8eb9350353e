"""How long the program's main thread spends importing modules: the outermost imports, also those inside of functions.

Python takes a lock around each import that finds nothing in ``sys.modules``. That lock's manager is what is timed here: its frames are in
no traceback, and imports inside of an import go on as ever. Checked with python 3.10 to 3.12; where it is not there, nothing is timed.
"""

from __future__ import annotations

import sys
from _thread import get_ident  # threading is imported where the program imports it
from importlib import _bootstrap
from time import perf_counter_ns

from voirkit.imports import as_importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LEAST_NS = 1_000_000  # what is shorter is not kept: an import that fails, in a loop, takes 50 us each time
_MOST = 4096  # imports that are kept until they are recorded

_Manager: Any = getattr(_bootstrap, "_ModuleLockManager", None)


class Import:
    """One import, on the clock of ``time.perf_counter_ns``. No NamedTuple: typing takes 3 ms to import, a tenth of a plain run's start."""

    __slots__ = ("begun_ns", "ended_ns", "module")

    def __init__(self, module: str, begun_ns: int, ended_ns: int) -> None:
        self.module, self.begun_ns, self.ended_ns = module, begun_ns, ended_ns


class _Timed(_Manager or object):  # type: ignore[misc]  # a class of python's own that has no types
    _begun_ns = 0

    def __enter__(self) -> None:
        if get_ident() == _main:
            _bootstrap._ModuleLockManager = _Manager  # type: ignore[attr-defined]  # of the imports inside of this one
            self._begun_ns = perf_counter_ns()
        _Manager.__enter__(self)

    def __exit__(self, *args: Any, **more: Any) -> None:
        _Manager.__exit__(self, *args, **more)
        if self._begun_ns:
            _arrived(self._name, self._begun_ns)


for _method in (_Timed.__enter__, _Timed.__exit__):
    _method.__code__ = as_importlib(_method.__code__)

_main = 0
_on = False
_kept: list[Import] = []  # that are not in the trace yet
_total_ns = 0
_recorder: Any = None


def start() -> None:
    """Time the imports of this thread from now on."""
    global _main, _on, _recorder, _total_ns
    if _Manager is None:
        return
    _main, _on, _recorder, _total_ns = get_ident(), True, None, 0
    _kept.clear()
    _bootstrap._ModuleLockManager = _Timed  # type: ignore[attr-defined]


def end() -> int:
    """Time no more.

    Returns:
        Nanoseconds in imports, recorded or not.
    """
    global _on, _recorder
    _on, _recorder = False, None
    if _Manager is not None and _bootstrap._ModuleLockManager is _Timed:  # type: ignore[attr-defined]
        _bootstrap._ModuleLockManager = _Manager  # type: ignore[attr-defined]
    return _total_ns


def record() -> None:
    """Put what was timed so far, and what will be, into the trace; called by what is about to record there. A trace is not begun for it."""
    global _recorder
    recorder = sys.modules.get("voirkit.trace.recorder")
    if not _on or recorder is None or not recorder.is_recording():
        return
    _recorder = recorder
    for one in _kept:
        _write(one)
    _kept.clear()


def _arrived(module: str, begun_ns: int) -> None:
    global _total_ns
    if not _on:
        return
    _bootstrap._ModuleLockManager = _Timed  # type: ignore[attr-defined]
    ended = perf_counter_ns()
    if ended - begun_ns < LEAST_NS or module.startswith("voirkit"):
        return  # what a script imports for its annotations is no work of its own
    _total_ns += ended - begun_ns
    if _recorder is not None and _recorder.is_recording():
        _write(Import(module, begun_ns, ended))
    elif len(_kept) < _MOST:
        _kept.append(Import(module, begun_ns, ended))


def _write(one: Import) -> None:
    name = _recorder.name("python", "import", kind="phase")
    _recorder.span(name, one.begun_ns, one.ended_ns, _recorder.arguments({"module": one.module}))
