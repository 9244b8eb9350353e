"""Puts taps into live functions, and takes them out again.

Code with the taps (``woven.py``) takes the place of the function's own.  When the last tap goes the function gets its
own code back, the very object.
"""

from __future__ import annotations

import gc
import threading
import weakref
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

from voirkit import streams
from voirkit.interruptions import is_from_handler
from voirkit.probes import compiled, scripted, woven
from voirkit.probes.same import AWAITABLE
from voirkit.probes.sites import CanNot, Listener
from voirkit.probes.source import NoSource, all_codes, is_code_of
from voirkit.probes.woven import Path, Want

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from voirkit.probes.entry import Layer

FROZEN_BY_PYTHON = 1000  # 3.12 begins with 375
FEW_CODES = 64  # up to which it is quicker to ask who refers to them than to look at all objects
MANY = 8  # probes on a function
lock = threading.RLock()  # held while functions get and lose taps
over: dict[int, Layer] = {}  # by identity of the function: what stands over its code, whatever that is (python 3.11)
_patches: dict[int, Patch] = {}
_live: set[int] = set()  # identities of the listeners that are on
_around: set[int] = set()  # identities of those who stand around whole functions (``around.py``)


def code_of(function: FunctionType) -> CodeType:
    """The code of a function, without what stands over it."""
    layer = over.get(id(function))
    return function.__code__ if layer is None else layer.under(function)


def place(function: FunctionType, code: CodeType) -> None:
    """Give a function other code, under what stands over it."""
    layer = over.get(id(function))
    if layer is None:
        function.__code__ = code
    else:
        layer.put_under(function, code)


class Patch:
    """A function that has taps, or will have when somebody listens."""

    def __init__(self, function: FunctionType) -> None:
        key = id(function)
        self.function = weakref.ref(function, woven.forget(_patches, key))
        self.keep: FunctionType | None = None
        origin = woven.origin(code_of(function))  # it may be compiled, or made by a function, with taps
        self.original = origin.old if origin is not None else code_of(function)
        self.before = code_of(function)
        self.wants: list[Want] = [want for want in origin.wants if id(want[1]) in _live] if origin is not None else []
        self._made: tuple[list[Want], CodeType] = ([], self.original)

    def made(self, wants: list[Want]) -> CodeType:
        """The function's code with taps."""
        if wants != self._made[0]:
            function = self.function()
            assert function is not None  # the caller holds it
            code = woven.woven(self.original, function.__qualname__, function.__globals__, wants)
            self._made = (list(wants), code)
        return self._made[1]

    def apply(self) -> None:
        """Make the function run with the taps that are wanted now.

        This may stand in the middle of the program: what goes wrong is told, and the function keeps the taps that it has.
        """
        try:
            self.put()
        except Exception as exc:
            if is_from_handler(exc):
                raise
            function = self.function()
            has = self._made[0] if function is not None and code_of(function) is self._made[1] else []
            if function is not None and any(want[1].is_awake and want not in has for want in self.wants):
                where = f"{function.__qualname__} ({self.original.co_filename}:{self.original.co_firstlineno})"
                why = exc if isinstance(exc, NoSource | CanNot) else f"can not be changed: {streams.describe(exc)}."
                streams.report(f"{where} {why}\n  Not all its probes are on.")

    def put(self) -> None:
        """As ``apply``.

        Raises:
            NoSource, CanNot: The taps can not be had.
        """
        function = self.function()
        if function is None:
            return
        if code_of(function).co_flags & AWAITABLE & ~self.original.co_flags:  # types.coroutine has been called on it since
            self.original, self.before = (code.replace(co_flags=code.co_flags | AWAITABLE) for code in (self.original, self.before))
            self._made = ([], self.original)
        if not self.wants:
            place(function, self.before if _stays(self.before) else self.original)
            _patches.pop(id(function), None)
            return
        awake = [want for want in self.wants if want[1].is_awake]
        if self._has_few_more(awake, function):
            return
        place(function, self.made(awake) if awake else self.original.replace())

    def _has_few_more(self, awake: list[Want], function: FunctionType) -> bool:
        """Whether the code in place will do: of many taps a few are without use, which are not worth making all the others anew."""
        placed, code = self._made
        more = len(placed) - len(awake)
        return len(awake) >= MANY and 0 < more * MANY < len(awake) * 2 and code_of(function) is code and set(placed) >= set(awake)


def tried(function: FunctionType, path: Path, listener: Listener) -> Patch:
    """Make a function's code with the taps of one more listener, without putting it in place.

    Raises:
        NoSource, CanNot: It can not be made.
    """
    patch = _patches.get(id(function)) or Patch(function)
    patch.keep = function  # until it is attached
    wants = [(path, listener)]
    if _with(patch.wants, wants[0]) == wants:
        patch.made(wants)
    else:  # not with those of the others, which is done once, by who puts it in place
        woven.woven(patch.original, function.__qualname__, function.__globals__, wants)
    return patch


def _with(wants: list[Want], want: Want) -> list[Want]:
    return wants if want in wants else [*wants, want]  # it may have been compiled with them


def attach(patch: Patch, path: Path, listener: Listener) -> weakref.ref[FunctionType]:
    """Put the taps of a listener that has been tried into the function; returns a reference to the function.

    Raises:
        NoSource: They can not be had together with those of others.
    """
    function = patch.keep or patch.function()
    assert function is not None  # kept since it was tried
    patch = _patches.setdefault(id(function), patch)
    patch.wants = _with(patch.wants, (path, listener))
    _live.add(id(listener))
    patch.put()
    patch.keep = None
    scripted.watch(is_probed)
    scripted.look(function)
    compiled.look()
    return patch.function


def adopt(function: FunctionType, listener: Listener) -> bool:
    """Take over a function that was compiled with taps; whether it was."""
    with lock:
        if not has_taps(function, listener):
            return False
        _live.add(id(listener))
        _patches.setdefault(id(function), Patch(function))
        return True


def has_taps(function: FunctionType, listener: Listener) -> bool:
    """Whether a function has a listener's taps, or will have when somebody listens."""
    known = _patches.get(id(function)) or woven.origin(code_of(function))
    return known is not None and any(other is listener for path, other in known.wants if not path)


def original(function: FunctionType) -> CodeType:
    """A function's own code."""
    patch, origin = _patches.get(id(function)), woven.origin(code_of(function))
    return patch.original if patch is not None else origin.old if origin is not None else code_of(function)


def is_probed(function: FunctionType) -> bool:
    """Whether a function has taps of anybody."""
    return id(function) in _patches or woven.origin(code_of(function)) is not None


def expect(listener: Listener) -> None:
    """A listener's taps will be compiled into functions: they are to stay."""
    _live.add(id(listener))


def detach(function: FunctionType | None, listener: Listener) -> None:
    """Take a listener's taps out of a function, if that is still there."""
    with lock:
        _live.discard(id(listener))
        patch = _patches.get(id(function))
        if patch is not None:
            patch.wants = [want for want in patch.wants if want[1] is not listener]
            patch.apply()


def refresh(functions: Iterable[FunctionType | None]) -> None:
    """Look again at who listens."""
    with lock:
        for function in functions:
            patch = _patches.get(id(function))
            if patch is not None:
                patch.apply()


def made_at(patch: Patch, path: Path, listener: Listener) -> Iterator[FunctionType]:
    """The live functions that a function has made at a path inside it, and that have no taps of a listener yet.

    Looks through all objects.
    """
    host = patch.function()
    if host is None:
        return
    _, node = woven.tree_of(patch.original, host.__qualname__, host.__globals__)
    nodes = woven.definitions(node, path)
    own = [code for code in all_codes(patch.original) if any(is_code_of(code, n) for n in nodes)]
    runs = [*own, *(origin.code() for origin in woven.origins() if any(origin.old is code for code in own))]
    for function in made_from([code for code in runs if code is not None]):
        if not has_taps(function, listener):
            yield function


def restore_made(listeners: Iterable[Listener]) -> None:
    """Give their own code to functions made with the taps of listeners that are gone.  Looks through all objects."""
    gone = set(map(id, listeners))
    with lock:
        _live.difference_update(gone)
        for patch in list(_patches.values()):
            if any(id(listener) in gone for _, listener in patch.wants):
                patch.wants = [want for want in patch.wants if id(want[1]) not in gone]
                patch.apply()
        codes = (origin.code() for origin in woven.origins() if not origin.everyone & _live)
        for function in made_from([code for code in codes if code is not None]):
            if id(function) not in _patches:
                place(function, woven.own_code(code_of(function)))


def is_frozen() -> bool:
    """Whether ``gc.freeze()`` has been called: looking through all objects then finds none that was there before."""
    return gc.get_freeze_count() > FROZEN_BY_PYTHON


def stand_around(who: object) -> None:
    """Code that was made for somebody without a selector (``woven.note``) comes back when the last probe on its function goes."""
    _live.add(id(who))
    _around.add(id(who))


def go(who: object) -> None:
    """No more."""
    _live.discard(id(who))
    _around.discard(id(who))


def _stays(code: CodeType) -> bool:
    origin = woven.origin(code)
    return origin is not None and bool(origin.everyone & _around & _live)


def made_from(codes: Sequence[CodeType]) -> list[FunctionType]:
    """The live functions that run some codes: looks through all objects once, in 25 ms beside torch, 80 ms for many codes."""
    wanted = set(map(id, codes))
    among = gc.get_referrers(*codes) if len(codes) < FEW_CODES else gc.get_objects()
    # their type itself is asked for: an object of the program may run code when it is asked for its class
    return [found for found in among if type(found) is FunctionType and id(found.__code__) in wanted]
