"""Offers: values that voirkit hands to new Python processes of the program. In the new process, a
function (the receiver of the offer) is called with the value.

multiprocessing (spawn, forkserver) pickles preparation data, loaded before the child's main module,
and then the ``Process``. voirkit adds the offers to both, in front of the program's own data.
loky, alone and inside joblib, and multiprocess start processes in the same way and are treated
alike. A Python process that is started by ``subprocess`` takes the same offers when it imports
torch (``subprocesses``).

The program's objects gain no attribute, and neither ``os.environ`` nor ``sys.path`` changes. If
something fails here, the program's process still starts as it would without voirkit. Checked with
Python 3.10 to 3.15.
"""

from __future__ import annotations

import os
import sys

from voirkit.imports import PatchPoint, when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType
    from typing import Any

PATCH_POINTS = (
    # the class gets a __reduce_ex__ method
    PatchPoint("multiprocessing.process", "BaseProcess", "python 3.10 to 3.15"),
    PatchPoint("multiprocessing.spawn", "get_preparation_data", "python 3.10 to 3.15", ("name",)),
    PatchPoint("multiprocess.process", "BaseProcess", "multiprocess 0.70"),
    PatchPoint("multiprocess.spawn", "get_preparation_data", "multiprocess 0.70", ("name",)),
    PatchPoint(
        "joblib.externals.loky.backend.spawn",
        "get_preparation_data",
        "joblib 1.4 to 1.6",
        ("name",),
    ),
    PatchPoint("loky.backend.spawn", "get_preparation_data", "loky 3.4 to 3.7", ("name",)),
    # patched by processes.subprocesses, which imports nothing and so cannot declare a PatchPoint
    PatchPoint("subprocess", "_fork_exec|_posixsubprocess", "python 3.10 to 3.15"),
)
# modules that define a process class; loky uses the class of multiprocessing
_PROCESSES = ("multiprocessing.process", "multiprocess.process")
_PREPARATIONS = (
    "multiprocessing.spawn",
    "multiprocess.spawn",
    "joblib.externals.loky.backend.spawn",
    "loky.backend.spawn",
)
_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Code that is executed in the child: for offers marked ``before_main``, before multiprocessing
# loads the main module; for other offers, after that and before the target of the process is
# loaded. The code loads voirkit from its folder, since the child has the program's sys.path:
# voirkit may be missing there, or another package may have the name.
_START_TEXT = """
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
    from voirkit.processes import inherit
    inherit.accept(offers, before_main)
except Exception as exc:
    if sys.stderr is not None:
        try:
            print(f"voirkit: sees nothing in a process that was started anew ({type(exc).__name__}: {exc}).", file=sys.stderr)
        except (OSError, ValueError):
            pass
"""

# An offer in pickled form: the receiver, module and name of the function that made the value, True
# if subprocesses take the offer too, and the value, which is pickled separately.
PickledOffer = tuple[str, str, str, bool, bytes]


class _Offer:
    """A value that is offered to each new process, in which a receiver is called with it.

    Each call of ``watch``, in this module, makes one offer. ``function`` makes the value, for each
    process anew: it is the argument ``offer`` of ``watch``. The others have the same name there.
    """

    def __init__(
        self, function: Callable[[], object | None], before_main: bool, subprocesses: bool
    ) -> None:
        self.function = function
        self.before_main = before_main
        self.subprocesses = subprocesses
        self.has_failed = False


class InheritState:
    """The state of this module; there is one instance.

    Attributes:
        n_handed: The number of processes that were handed offers.
        main_needs_offers: True if the main module cannot be loaded without the offers, since it
            imports an alias (``voirkit.plugins``).
        served: A WeakSet of the ``Popen`` objects (multiprocessing's and the like) whose process
            object was pickled; None before the first.
    """

    def __init__(self) -> None:
        self.n_handed = 0
        self.main_needs_offers = False
        self.served: Any = None


state = InheritState()
_offers: dict[str, _Offer] = {}  # by receiver

# Functions for the process that starts the child


def watch(
    receiver: str,
    offer: Callable[[], object | None],
    *,
    before_main: bool = False,
    subprocesses: bool = True,
) -> None:
    """Have every process spawned from now on call a function with a value that is made here. The
    same holds for processes that these spawn.

    Args:
        receiver: The function, ``"module:function"``. It is called in the child with the value as
            its argument, after the main module and before the target of the process is loaded. If
            it raises, the exception is reported there.
        offer: Called here for each new process. Returns the value to hand over, plain and
            picklable, or None for nothing. If the child finds this function by its module and name,
            and the receiver has returned, ``watch`` is called there too.
        before_main: Call the receiver before the main module is loaded and before ``sys.path`` is
            the program's. That is not possible where the server of forkserver has loaded the main
            module for all its children, as it does since Python 3.14.
        subprocesses: Offer the value to Python processes of ``subprocess`` too. They take it when
            they import torch, which may be before their main module has defined anything.
    """
    is_first = not _offers
    _offers[receiver] = _Offer(offer, before_main, subprocesses)
    if is_first:
        for name in _PROCESSES:
            when_imported(name, _patch_process)
        for name in _PREPARATIONS:
            when_imported(name, _patch_preparation)
        when_imported("subprocess", _patch_subprocess)


def is_watched(receiver: str) -> bool:
    """True if spawned processes call this receiver."""
    return receiver in _offers


def unwatch(receiver: str) -> None:
    """Stop handing the value of a receiver to new processes; the last call restores the patched
    functions."""
    _offers.pop(receiver, None)
    if _offers:
        return
    for base, reduce_ex in _reductions.items():
        if base.__dict__.get("__reduce_ex__") is reduce_ex:
            del base.__reduce_ex__
    _reductions.clear()
    for spawn, (replacement, original) in _preparations.items():
        if spawn.get_preparation_data is replacement:
            spawn.get_preparation_data = original
    _preparations.clear()
    if "voirkit.processes.subprocesses" in sys.modules:
        sys.modules["voirkit.processes.subprocesses"].remove()


# by process class: the ``__reduce_ex__`` that was added to the class
_reductions: dict[Any, Callable[..., Any]] = {}
# by module: the replacement of the module's ``get_preparation_data``, and the original
_preparations: dict[Any, tuple[Callable[..., Any], Callable[..., Any]]] = {}


def _patch_process(process: ModuleType) -> None:
    base: Any = process.BaseProcess
    if not _offers or "__reduce_ex__" in base.__dict__:
        return
    package = process.__name__.rpartition(".")[0]

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        reduced = super(base, self).__reduce_ex__(protocol)
        if not isinstance(reduced, tuple) or not _is_first(package):
            return reduced
        offers = _collect(before_main=False)
        return _with_offers(reduced, offers) if offers else reduced

    base.__reduce_ex__ = __reduce_ex__
    _reductions[base] = __reduce_ex__


def _patch_subprocess(subprocess: ModuleType) -> None:
    if _offers:
        try:
            from voirkit.processes import subprocesses

            subprocesses.install(subprocess, _as_text, _report)
        except Exception as exc:  # the program's import of subprocess, in which this runs, goes on
            error = f"{type(exc).__name__}: {exc}"
            _report(f"pythons that the program starts are not recorded ({error}).")


def _as_text() -> str | None:
    """Return all offers for a Python subprocess as text, which calls their receivers when it is
    unpickled; None without offers."""
    parts = []
    for before_main in (True, False):
        offers = [offer for offer in _collect(before_main) if _is_for_subprocesses(offer)]
        if offers:
            parts.append(_LoadedByRunning(offers, before_main))
    if not parts:
        return None
    from base64 import urlsafe_b64encode
    from pickle import dumps

    return urlsafe_b64encode(dumps(parts)).decode()


def _is_for_subprocesses(offer: PickledOffer) -> bool:
    _, _, _, subprocesses, _ = offer
    return subprocesses


def _patch_preparation(spawn: Any) -> None:
    if not _offers or spawn in _preparations:
        return
    original = spawn.get_preparation_data

    def get_preparation_data(name: str, *arguments: Any, **more: Any) -> dict[str, Any]:
        """Return the data that is pickled for a child before the process object. The child ignores
        keys that it does not know."""
        data: dict[str, Any] = original(name, *arguments, **more)
        offers = _collect(before_main=True)
        # The name "ignore" means that the data is for the server of forkserver, which would load
        # the main module for all its children. The server must not do that if the main module
        # cannot be loaded without the offers.
        if name == "ignore" and state.main_needs_offers:
            for key in ("init_main_from_path", "init_main_from_name", "main_path"):
                data.pop(key, None)
        if offers:
            data["voirkit"] = _LoadedByRunning(offers, before_main=True)
        return data

    _preparations[spawn] = get_preparation_data, original
    spawn.get_preparation_data = get_preparation_data


def _with_offers(reduced: tuple[Any, ...], offers: list[PickledOffer]) -> tuple[Any, ...]:
    """Return the reduced form of a process in which the offers are unpickled before its own
    data."""
    state.n_handed += 1
    callable_, arguments, *rest = reduced
    # The entries of a dictionary are unpickled in order, so the offers come first.
    names = {
        "begin": _LoadedByRunning(offers, before_main=False),
        "make": callable_,
        "arguments": arguments,
    }
    return (eval, ("make(*arguments)", names), *rest)


class _LoadedByRunning:
    """An object whose unpickling executes the code ``_START_TEXT``."""

    def __init__(self, offers: list[PickledOffer], before_main: bool) -> None:
        self._names = {"offers": offers, "folder": _FOLDER, "before_main": before_main}

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_START_TEXT, self._names)


def _is_first(package: str) -> bool:
    """True if the object being pickled is the process that a package is starting. Later process
    objects, among the data sent to this process, are not."""
    context = sys.modules.get(f"{package}.context")
    popen = context.get_spawning_popen() if context is not None else None
    if popen is None:
        return False
    if state.served is None:
        from weakref import WeakSet

        state.served = WeakSet()
    if popen in state.served:
        return False
    state.served.add(popen)
    return True


def _collect(before_main: bool) -> list[PickledOffer]:
    """Return all offers in pickled form. Each value is pickled separately, since it may fail to
    load in the child. Raises nothing: the program's process must start in any case."""
    from pickle import dumps

    pickled = []
    for receiver, offer in list(_offers.items()):
        if offer.before_main is not before_main:
            continue
        try:
            value = offer.function()
            if value is not None:
                module = str(getattr(offer.function, "__module__", ""))
                name = str(getattr(offer.function, "__qualname__", ""))
                pickled.append((receiver, module, name, offer.subprocesses, dumps(value)))
        except Exception as exc:  # an instrument's function may raise anything
            if not offer.has_failed:
                offer.has_failed = True
                owner = receiver.partition(":")[0]
                error = type(exc).__name__
                _report(f"{owner} does not reach processes that are started anew ({error}).")
    return pickled


# Functions for the process that was started


def accept(offers: Iterable[PickledOffer], before_main: bool) -> None:
    """Call the receivers of the offers; an exception of one is reported and does not stop the
    others."""
    from pickle import loads

    for receiver, module, name, subprocesses, value in offers:
        try:
            receive = _resolve(*receiver.split(":"))
            receive(loads(value))
            if receiver not in _offers and module and name.isidentifier():
                offer = _resolve(module, name)
                watch(receiver, offer, before_main=before_main, subprocesses=subprocesses)
        except Exception as exc:  # an instrument's function may raise anything
            owner = receiver.partition(":")[0]
            error = f"{type(exc).__name__}: {exc}"
            _report(f"{owner} does not work in a process that was started anew ({error}).")


def _resolve(module: str, name: str) -> Any:
    from importlib import import_module

    return getattr(import_module(module), name)


def _report(text: str) -> None:
    from voirkit.errors import tell

    tell(text)
