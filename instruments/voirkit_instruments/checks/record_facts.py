"""What the parts of ``--checks`` share: how a fact is written into the trace plane, where in the program it happened, and which thread is
left out.

A fact is a record of the kind and category ``check``: its name says what happened, its arguments ``where`` (``main.py:12``) and more, its
own number is ``value``. Must never raise, and never keep anything of the program alive.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import time
import weakref

from voirkit.fork import at_fork
from voirkit.intercept import ThreadState
from voirkit_instruments.values import ProbeCost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType, ModuleType
    from typing import Any

KIND = CATEGORY = "check"
# What a thread is inside of; a model's call (FORWARD) is left out of another, but for a few steps in which all are seen (COLLECTING).
NOTHING, STEP, COLLECTING, FORWARD, BACKWARD, DEAF = 0, 1, 2, 3, 4, 9

_MOST_FRAMES, _MOST_KNOWN = 200, 4096
_PROGRAM, _LIBRARY, _OWN = 0, 1, 2  # whose code it is: the user's; some library's; torch's, python's or voirkit's own

now = time.perf_counter_ns

_all: weakref.WeakSet[Facts] = weakref.WeakSet()


class Facts:
    """Writes facts.

    Args:
        recorder: ``voirkit.trace.recorder``, or what has its ``name``, ``arguments``, ``mark`` and ``span``.
        warn: Gets, once of each kind, that a fact could not be had.

    Attributes:
        here: What each thread is inside of (one of the levels above).
        span: The recorder's, for facts that last; its first argument is ``name(...)``.
        cost: What inspecting for facts takes.
        after_look: Called when an optimizer is looked at: its number, how many steps it has done, where, and what it holds.
    """

    def __init__(self, recorder: Any, warn: Callable[[str], None]) -> None:
        _all.add(self)
        self.recorder, self.span = recorder, recorder.span
        self.here = type("ThreadState", (ThreadState,), {})()  # a class of its own: what it says of all threads is for this one alone
        self.after_look: list[Callable[[int, int, str | None, list[Any]], None]] = []
        self.cost = ProbeCost(recorder)
        self._warn = warn
        self._pid = os.getpid()
        self._failed: set[str] = set()
        self._arguments: dict[Any, int] = {}
        self.places = Places()

    def name(self, name: str) -> int:
        number: int = self.recorder.name(CATEGORY, name, kind=KIND, value="value")
        return number

    def arguments(self, where: str | None, /, **more: Any) -> int:
        """The interned arguments of a fact; cheap for those that have been asked for before."""
        key = (where, *more.items())
        found = self._arguments.get(key)
        if found is None:
            if len(self._arguments) > _MOST_KNOWN:
                self._arguments.clear()
            found = self._arguments[key] = self.recorder.arguments({**({"where": where} if where else {}), **more})
        return found

    def mark(self, name: str, where: str | None = None, value: int = 0, /, **more: Any) -> None:
        self.mark_at(name, now(), where, value, **more)

    def mark_at(self, name: str, at_ns: int, where: str | None = None, value: int = 0, /, **more: Any) -> None:
        """Write a fact that is known later than it happened."""
        self.recorder.mark(self.name(name), at_ns, self.arguments(where, **more), value)

    def where(self) -> str | None:
        """The innermost line of the user's own code that is being run (``main.py:12``), or of a library's where there is none of theirs."""
        return self.places.of(sys._getframe(1))

    def trains(self) -> None:
        """This process makes an optimizer: it trains. One that another has forked is deaf until then."""
        if self._pid != os.getpid() and not _loads():
            self._pid = os.getpid()
            type(self.here).inside = self.here.inside = NOTHING

    def forked(self) -> None:
        """This process has been forked, by one that may train, to load or prepare data, most often."""
        type(self.here).inside = self.here.inside = DEAF

    def failed(self, what: str, exc: BaseException) -> None:
        if what not in self._failed:
            self._failed.add(what)
            self._warn(f"checks: {what} could not be examined ({type(exc).__name__}: {exc}); this is reported once.")


def never_raises(what: str, returns: int = 1) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a method that runs before or after a function of torch: what fails in it is warned of, as ``what``, by its ``_facts``.

    Args:
        what: What is examined.
        returns: What it returns then; to ``Around``, not 0 is that ``enter`` was there.
    """

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(self: Any, *passed: Any) -> Any:
            try:
                return method(self, *passed)
            except Exception as exc:
                self._facts.failed(what, exc)
                return returns

        return guarded

    return decorate


class Watcher:
    """What stands around functions of torch and writes facts: ``enter`` and ``leave`` where only the other side matters.

    Args:
        facts: Where facts are written.
        torch: The module.
    """

    def __init__(self, facts: Facts, torch: ModuleType) -> None:
        self._facts, self._torch = facts, torch

    def __deepcopy__(self, memo: object) -> Watcher:
        return self  # torch.compile copies the constants of code, of which its methods are some

    def enter(self, *_: Any) -> int:
        """Nothing is known before the call."""
        return 1

    def leave(self, *_: Any) -> None:
        """Nothing is done after it."""


class Places:
    """Lines of the program by frame."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}  # whose code it is, by identity
        self._kept: list[CodeType] = []  # so that identities stay their own
        self._texts: dict[tuple[int, int], str] = {}
        self._roots = tuple(_roots())

    def of(self, frame: FrameType | None) -> str | None:
        """The first line of the user's own code from a frame outwards; else of a library that is not torch; None without any."""
        library, left = None, _MOST_FRAMES
        known = self._known
        while frame is not None and left:
            code = frame.f_code
            whose = known.get(id(code))
            if whose is None:
                whose = self._whose(code)
            if whose == _PROGRAM:
                return self._texts.get((id(code), frame.f_lasti)) or self._text(frame, code)
            if whose == _LIBRARY and library is None:
                library = frame
            frame, left = frame.f_back, left - 1
        return None if library is None else self._text(library, library.f_code)

    def _whose(self, code: CodeType) -> int:
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
            self._texts.clear()
            self._kept.clear()
        path = os.path.abspath(code.co_filename)
        if code.co_filename.startswith("<"):
            whose = _OWN
        else:
            whose = next((whose for root, whose in self._roots if path.startswith(root)), _PROGRAM)
        self._known[id(code)] = whose
        self._kept.append(code)
        return whose

    def _text(self, frame: FrameType, code: CodeType) -> str:
        found = self._texts[id(code), frame.f_lasti] = f"{_display_path(code.co_filename)}:{frame.f_lineno}"
        return found


def _roots() -> list[tuple[str, int]]:
    """Folders and whose code lies in them, inner ones first."""
    import voirkit
    import voirkit_instruments

    own = [os.path.dirname(os.path.abspath(str(module.__file__))) for module in (voirkit, voirkit_instruments)]
    paths = sysconfig.get_paths()
    libraries = list(dict.fromkeys(os.path.abspath(paths[key]) for key in ("purelib", "platlib")))
    torch = [os.path.join(path, name) for path in libraries for name in ("torch", "functorch")]
    loaded = getattr(sys.modules.get("torch"), "__file__", None)
    if loaded:
        torch.append(os.path.dirname(os.path.abspath(loaded)))
    python = [os.path.abspath(paths[key]) for key in ("stdlib", "platstdlib")]
    found = [(path, _OWN) for path in (*own, *torch)] + [(path, _LIBRARY) for path in libraries] + [(path, _OWN) for path in python]
    return [(path + os.sep, whose) for path, whose in dict.fromkeys(found)]


def _display_path(path: str) -> str:
    """A path as the user knows it: from the folder of the script, or the current one, if it lies there; else the file's name."""
    path = os.path.abspath(path)
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    for folder in (os.path.dirname(os.path.abspath(script)) if script else None, os.getcwd()):
        if folder and path.startswith(folder + os.sep):
            return path[len(folder) + 1 :]
    return os.path.basename(path)


def _loads() -> bool:
    """Whether this process is a loader's worker."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _after_fork() -> None:
    for facts in list(_all):
        facts.forked()


at_fork("instruments", in_child=_after_fork)
