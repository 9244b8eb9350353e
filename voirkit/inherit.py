"""What processes that multiprocessing starts anew (spawn, forkserver) inherit from voirkit in this one: an offer each, and who takes it.

The ``Process`` that multiprocessing pickles for such a child is given one thing more to load, before the program's own.  The program's
objects gain no attribute, and neither ``os.environ`` nor ``sys.path`` changes; whatever fails here, the program's process starts as it
would without.  Checked with python 3.10 to 3.13.
"""

from __future__ import annotations

import os
import sys

from voirkit.imports import when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))

# Run in the child, when multiprocessing has loaded the main module and before it loads what the process is to do.  The child's sys.path is
# the program's: voirkit need not be on it, and what has its name there may be something else.
_BEGIN = """
try:
    import os, sys
    init = os.path.join(folder, "__init__.py")
    if "voirkit" not in sys.modules and os.path.isfile(init):
        import importlib.util
        spec = importlib.util.spec_from_file_location("voirkit", init, submodule_search_locations=[folder])
        sys.modules["voirkit"] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules["voirkit"])
        except BaseException:
            del sys.modules["voirkit"]
            raise
    from voirkit import inherit
    inherit.take(offers)
except Exception as exc:
    if sys.stderr is not None:
        try:
            print(f"voirkit: sees nothing in a process that was started anew ({type(exc).__name__}: {exc}).", file=sys.stderr)
        except (OSError, ValueError):
            pass
"""

_offers: dict[str, Callable[[], object | None]] = {}
_is_waiting = False  # for multiprocessing to be imported
_complained: set[str] = set()

# in the process that starts another


def watch(begin: str, offer: Callable[[], object | None]) -> None:
    """From now on a process that multiprocessing starts anew calls a function with what is offered here; so do those started from there.

    Args:
        begin: ``"module:function"``.  Called in the child, with one argument, when its main module has been loaded and before what the
            process is to do is.  What it raises is told there.
        offer: Called here for each such process: what to hand to it, plain and picklable; None if there is nothing.  If it can be found
            by its module and name in the child, it is watched there too, unless ``begin`` did not return.
    """
    global _is_waiting
    _offers[begin] = offer
    if "multiprocessing.process" in sys.modules or not _is_waiting:
        _is_waiting = True
        when_imported("multiprocessing.process", _patch)


def unwatch(begin: str) -> None:
    """No more."""
    _offers.pop(begin, None)
    process = sys.modules.get("multiprocessing.process")
    base = getattr(process, "BaseProcess", None)
    if not _offers and base is not None and base.__dict__.get("__reduce_ex__") is _reduce_ex:
        del base.__reduce_ex__


def _patch(process: ModuleType) -> None:
    global _is_waiting
    _is_waiting = False
    if _offers and "__reduce_ex__" not in process.BaseProcess.__dict__:
        process.BaseProcess.__reduce_ex__ = _reduce_ex


def _reduce_ex(self: Any, protocol: Any) -> Any:
    """What is pickled of a process."""
    reduced = super(sys.modules["multiprocessing.process"].BaseProcess, self).__reduce_ex__(protocol)
    try:
        offers = _collected() if isinstance(reduced, tuple) and _is_first() else []
    except Exception:  # the program's process is started, whatever becomes of this
        offers = []
    if not offers:
        return reduced
    make, arguments, *state = reduced
    # The entries of a dictionary are loaded in their order.
    names = {"begin": _Begin({"offers": offers, "folder": _FOLDER}), "make": make, "arguments": arguments}
    return (eval, ("make(*arguments)", names), *state)


class _Begin:
    """Is loaded by running the text."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_BEGIN, self._names)


_served: Any = None


def _is_first() -> bool:
    """Whether this is the process that is being started, and not another among what is sent to it."""
    global _served
    context = sys.modules.get("multiprocessing.context")
    popen = context.get_spawning_popen() if context is not None else None
    if popen is None:
        return False
    if _served is None:
        from weakref import WeakSet

        _served = WeakSet()
    if popen in _served:
        return False
    _served.add(popen)
    return True


def _collected() -> list[tuple[str, str, str, bytes]]:
    """For each offer who takes it, who makes it (module and name), and the offer, pickled: it may fail to load there."""
    from pickle import dumps

    found = []
    for begin, offer in list(_offers.items()):
        try:
            offered = offer()
            if offered is not None:
                module, name = str(getattr(offer, "__module__", "")), str(getattr(offer, "__qualname__", ""))
                found.append((begin, module, name, dumps(offered)))
        except Exception as exc:
            if begin not in _complained:
                _complained.add(begin)
                from voirkit.errors import tell

                tell(f"{begin.partition(':')[0]} does not reach processes that are started anew ({type(exc).__name__}).")
    return found


# in the process that was started


def take(offers: list[tuple[str, str, str, bytes]]) -> None:
    """Call those who take what has been offered; none can keep the others from it."""
    from pickle import loads

    for begin, module, name, offered in offers:
        try:
            _found(*begin.split(":"))(loads(offered))
            if begin not in _offers and module and name.isidentifier():
                watch(begin, _found(module, name))
        except Exception as exc:
            from voirkit.errors import tell

            tell(f"{begin.partition(':')[0]} does not work in a process that was started anew ({type(exc).__name__}: {exc}).")


def _found(module: str, name: str) -> Any:
    from importlib import import_module

    return getattr(import_module(module), name)


__all__ = ["take", "unwatch", "watch"]
