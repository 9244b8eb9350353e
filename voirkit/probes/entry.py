"""Ways into functions: each call of chosen ones, thousands at once, is told on its way in and out, and nothing else changes.

A call is told from the object that is called (``_entry.c``): identity, code, source, frames, pickles and what torch's compilers look at
stay as they are, and calls of all who have the function already are seen. On python 3.11 functions of Python get new code for it
(``entry_code.py``), that keeps all of this but ``co_code``; there generators are not told. While they are off the functions are as they
were. Nothing here may know torch.

Not told, anywhere: C methods that were bound before (``f = x.relu``), what is compiled (torch.compile, torch.jit), and whatever happens
inside of functions that are deaf.

Checked with CPython 3.10 to 3.13.
"""

from __future__ import annotations

import sys
import weakref
from importlib import import_module
from types import FunctionType, MethodType

from voirkit.probes import weave, woven

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import CodeType
    from typing import Any


def _extension() -> Any:
    try:
        return import_module("voirkit.probes._entry")
    except ImportError:  # no compiler where voirkit was installed
        return None


_entry = _extension()
IS_BUILT = _entry is not None  # else there can be no Entry

REWRITES = sys.version_info[:2] == (3, 11)
if REWRITES:
    from voirkit.probes import entry_code, entry_compiled
_BOUND = (MethodType, classmethod, staticmethod)
ASKS_NOT = sys.version_info >= (3, 13)  # for ``__init__``, where one line makes many objects
_TOO_DEEP = "calls itself too deeply, and is left alone since it was seen to"


ALL = "the ways into functions"  # who stands over code, for weave.py


class Entry:
    """Calls of functions, told to hooks; off at first.

    Args:
        hooks: A capsule of C functions (``_entry.h``); or three functions: ``begin(number, callable, args, kwargs)``, which says whether
            the end is to be told, ``end(number, value)``, ``failed(number, exception)``. They may switch this on and off.
    """

    def __init__(self, hooks: Any) -> None:
        self._skipped: dict[int, str] = {}
        self._made_by: list[weakref.ref[type]] = []
        self._ways = _entry.Entries(*(hooks if isinstance(hooks, tuple) else (hooks,)))
        self._layers: list[Layer] = []
        self._by_number: dict[int, Layer] = {}
        self._is_on = False
        if REWRITES:
            entry_compiled.watch(_looked_at)
            weave.stand_around(ALL)

    def put(self, functions: Mapping[int, object]) -> None:
        """Tell calls of more functions.

        Args:
            functions: Functions of Python, builtin functions, method descriptors, by their number; of a method, class method or static
                method the function inside is meant. They are not kept alive.
        """
        for number, function in functions.items():
            why = self._put(number, function, False)
            if why:
                self._skipped[number] = why

    @property
    def skipped(self) -> dict[int, str]:
        """By number, why a function is not told (or no more): the end of a sentence."""
        deep: list[int] = self._ways.deep()
        return self._skipped | dict.fromkeys([number for number in deep if number >= 0], _TOO_DEEP)

    def deaf(self, functions: Iterable[object]) -> None:
        """Tell nothing of what a thread does inside of calls of these. They may be told themselves."""
        for function in functions:
            self._put(-1, function, True)

    def on(self, numbers: Iterable[int] | None = None) -> None:
        """Put the ways in place: all, or of some functions, by their numbers."""
        numbers = None if numbers is None else list(numbers)
        if numbers is None:
            self._is_on = True
            self._ways.on()
        else:
            self._ways.turn(numbers, True)
        for layer in self._layers_of(numbers):
            layer.on(self)

    def off(self, numbers: Iterable[int] | None = None) -> None:
        """Put the functions back as they were, all or some; a call that is open is told to its end."""
        numbers = None if numbers is None else list(numbers)
        if numbers is None:
            self._is_on = False
            self._ways.off()
        else:
            self._ways.turn(numbers, False)
        for layer in self._layers_of(numbers):
            layer.off(self)

    def _layers_of(self, numbers: Iterable[int] | None) -> Iterable[Layer]:
        if numbers is None:
            return self._layers
        return [self._by_number[number] for number in numbers if number in self._by_number]

    def remove(self) -> None:
        """Put the functions back as they were, for good."""
        self.off()
        self._skipped = self.skipped
        for layer in self._layers:
            layer.go(self)
        self._layers.clear()
        self._by_number.clear()
        for kind in self._made_by:
            made = kind()
            if made is not None:
                _entry.making(made, False)
        self._ways.remove()

    def _put(self, number: int, function: Any, deaf: bool) -> str:
        function = getattr(function, "__func__", function) if type(function) in _BOUND else function
        rewritten = REWRITES and type(function) is FunctionType
        layer = weave.over.get(id(function)) if rewritten else None
        if rewritten and layer is None:
            why = entry_code.why_not(function.__code__)
            if why:
                return why
        why = self._ways.put(number, function, deaf, rewritten) or ""
        if not why and rewritten:
            try:
                layer = layer or Layer(function, self._ways)
            except entry_code.CanNotEnter as exc:
                return str(exc)
            if self not in layer.owners:
                layer.owners.add(self)
                self._layers.append(layer)
            self._by_number[number] = layer
            if self._is_on:
                layer.on(self)
            if _compiles:
                layer.keep()
        if not why and ASKS_NOT and type(function) is FunctionType and function.__name__ == "__init__":
            for kind in _made_with(function):
                _entry.making(kind, True)
                self._made_by.append(weakref.ref(kind))
        return why


_compiles = False  # torch.compile compares the code of functions by identity from now on


def _looked_at(code: CodeType) -> CodeType:
    """The code below that of a layer; all layers stay in place from now on, but one over code that torch.compile begins with."""
    global _compiles
    layers = list(weave.over.values())
    if not _compiles:
        _compiles = True
        for layer in layers:
            layer.keep(layer.base is not code)
    return next((layer.base for layer in layers if layer.made is code), code)


def _made_with(init: FunctionType) -> Iterator[type]:
    """The classes whose objects are made with an ``__init__``: the one that has it, and those of today that inherit it."""
    found: Any = sys.modules.get(init.__module__)
    for name in init.__qualname__.split(".")[:-1]:
        found = getattr(found, "__dict__", {}).get(name)
    stack = [found] if isinstance(found, type) else []
    while stack:
        kind = stack.pop()
        if next((vars(above)["__init__"] for above in kind.__mro__ if "__init__" in vars(above)), None) is init:
            yield kind
            stack += type.__subclasses__(kind)


class Layer:
    """The code with calls that stands over a function's own, while it is on (python 3.11).

    Attributes:
        base: What it stands over.
        made: The code with calls.
        is_on: Whether it is in place.
        kept: Whether it is to stay as it is.
        owners: Whose it is.
        users: Those of them that are on.
    """

    __slots__ = ("_function", "_way", "base", "is_on", "kept", "made", "owners", "users")

    def __init__(self, function: FunctionType, ways: Any) -> None:
        key, code = id(function), function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        rest, named = bool(code.co_flags & entry_code.VARARGS), bool(code.co_flags & entry_code.VARKEYWORDS)
        self._way = ways.way(function, names, code.co_argcount, code.co_kwonlyargcount, rest, named)
        self._function = weakref.ref(function, woven.forget(weave.over, key))
        self.owners: set[Entry] = set()
        self.users: set[Entry] = set()
        self.is_on = self.kept = False
        self.base = code
        self.made = self._make(code)
        weave.over[key] = self

    def _make(self, code: CodeType) -> CodeType:
        made = entry_code.entered(code, self._way, _entry.left, _entry.failed)
        woven.stands_for(made, code, frozenset([id(ALL)]))
        return made

    def on(self, who: Entry) -> None:
        """Put the code in place."""
        self.users.add(who)
        if not self.is_on and not self.kept:
            self._put()

    def keep(self, on: bool = True) -> None:
        """Leave all as it is from now on: in place, or not."""
        if on and not self.is_on and not self.kept:
            self._put()
        self.kept = True

    def _put(self) -> None:
        function = self._function()
        if function is None:
            return
        if function.__code__ is not self.base:
            self.base = function.__code__
            try:
                self.made = self._make(self.base)
            except entry_code.CanNotEnter:
                return
        function.__code__ = self.made
        self.is_on = True

    def off(self, who: Entry) -> None:
        """Put what is under it in place when nobody is on; other code that somebody has put into the function since stays."""
        self.users.discard(who)
        function = self._function()
        if function is not None and self.is_on and not self.kept and not self.users:
            self.is_on = False
            if function.__code__ is self.made:
                function.__code__ = self.base

    def go(self, who: Entry) -> None:
        """One owner less; without any it is no more."""
        self.owners.discard(who)
        self.kept = self.kept and bool(self.owners)
        self.off(who)
        function = self._function()
        if function is not None and not self.owners:
            weave.over.pop(id(function), None)

    def under(self, function: FunctionType) -> CodeType:
        """The function's code without this."""
        return self.base if self.is_on and function.__code__ is self.made else function.__code__

    def put_under(self, function: FunctionType, code: CodeType) -> None:
        """Give the function other code, under this."""
        if not self.is_on or function.__code__ is not self.made:
            function.__code__ = code
            return
        try:
            made = self._make(code)
        except entry_code.CanNotEnter:
            made = code
        self.base, self.made = code, made
        function.__code__ = made
