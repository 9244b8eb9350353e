"""Hooks on functions: each call of chosen ones, thousands at once, is reported on its way in and out, and nothing else changes.

A call is seen from the object that is called (``_entry.c``): identity, code, source, frames, pickles and what torch's compilers look at
stay as they are, and calls by all who have the function already are seen. On python 3.11 the interpreter runs functions of Python that a
function calls without asking anybody: there they get new code, made without their source, that keeps all of this but ``co_code``;
generators are not reported there. While the hooks are off the functions are as they were. Nothing here may know torch.

Never reported: C methods that were bound before (``f = x.relu``), what is compiled (torch.compile, torch.jit), and whatever happens
inside of functions that are muted.

Checked with CPython 3.10 to 3.13.
"""

from __future__ import annotations

import re
import sys
import weakref
from bisect import bisect_left, bisect_right
from importlib import import_module
from itertools import accumulate
from opcode import hasjrel, opmap
from types import FunctionType, MethodType

from voirkit.probes import weave

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import CodeType
    from typing import Any


def _extension() -> Any:
    try:
        return import_module("voirkit.probes._entry")
    except ImportError:  # no compiler where voirkit was installed
        return None


_entry = _extension()
IS_BUILT = _entry is not None  # else there can be no CallHooks

REWRITES = sys.version_info[:2] == (3, 11)
if REWRITES:
    from voirkit.probes import compatibility
_BOUND = (MethodType, classmethod, staticmethod)
SKIPS_INIT_HOOK = sys.version_info >= (3, 13)  # for ``__init__``, where one line makes many objects
_TOO_DEEP = "calls itself too deeply, and is left alone since it was seen to"


ALL_HOOKS = "the ways into functions"  # who stands over code, for weave.py


class CallHooks:
    """Calls of functions, reported to hooks; off at first.

    Args:
        hooks: A capsule of C functions (``voirkit_entry_hooks``); or three functions: ``begin(number, callable, args, kwargs)``, which
            says whether the end is to be told, ``end(number, value)``, ``failed(number, exception)``. They may switch this on and off.
    """

    def __init__(self, hooks: Any) -> None:
        self._skipped: dict[int, str] = {}
        self._made_by: list[weakref.ref[type]] = []
        self._ways = _entry.Entries(*(hooks if isinstance(hooks, tuple) else (hooks,)))
        self._layers: list[Layer] = []
        self._by_number: dict[int, Layer] = {}
        self._is_on = False
        if REWRITES:
            compatibility.watch_dynamo_reader(_code_for_torch_compile)
            weave.register_around(ALL_HOOKS)

    def add(self, functions: Mapping[int, object]) -> None:
        """Tell calls of more functions.

        Args:
            functions: Functions of Python, builtin functions, method descriptors, by their number; of a method, class method or static
                method the function inside is meant. They are not kept alive.
        """
        for number, function in functions.items():
            why = self._add(number, function, False)
            if why:
                self._skipped[number] = why

    @property
    def skipped(self) -> dict[int, str]:
        """By number, why a function is not reported (or no more): the end of a sentence."""
        deep: list[int] = self._ways.deep()
        return self._skipped | dict.fromkeys([number for number in deep if number >= 0], _TOO_DEEP)

    def mute(self, functions: Iterable[object]) -> None:
        """Report nothing of what a thread does inside of calls of these. They may be reported themselves."""
        for function in functions:
            self._add(-1, function, True)

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
        """Put the functions back as they were, all or some; a call that is open is reported to its end."""
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
            layer.release(self)
        self._layers.clear()
        self._by_number.clear()
        for kind in self._made_by:
            made = kind()
            if made is not None:
                _entry.making(made, False)
        self._ways.remove()

    def _add(self, number: int, function: Any, deaf: bool) -> str:
        function = getattr(function, "__func__", function) if type(function) in _BOUND else function
        rewritten = REWRITES and type(function) is FunctionType
        layer = weave.overlays.get(id(function)) if rewritten else None
        if rewritten and layer is None:
            why = why_not_rewritable(function.__code__)
            if why:
                return why
        why = self._ways.put(number, function, deaf, rewritten) or ""
        if not why and rewritten:
            try:
                layer = layer or Layer(function, self._ways)
            except NotRewritable as exc:
                return str(exc)
            if self not in layer.owners:
                layer.owners.add(self)
                self._layers.append(layer)
            self._by_number[number] = layer
            if self._is_on:
                layer.on(self)
            if _compiles:
                layer.freeze()
        if not why and SKIPS_INIT_HOOK and type(function) is FunctionType and function.__name__ == "__init__":
            for kind in _classes_made_with(function):
                _entry.making(kind, True)
                self._made_by.append(weakref.ref(kind))
        return why


_compiles = False  # torch.compile compares the code of functions by identity from now on


def _code_for_torch_compile(code: CodeType) -> CodeType:
    """The code below that of a layer; all layers stay in place from now on, but one over code that torch.compile begins with."""
    global _compiles
    layers = list(weave.overlays.values())
    if not _compiles:
        _compiles = True
        for layer in layers:
            layer.freeze(layer.base is not code)
    return next((layer.base for layer in layers if layer.made is code), code)


def _classes_made_with(init: FunctionType) -> Iterator[type]:
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
    """The code with calls that stands over a function's own, while it is on (python 3.11). ``is_on``: whether it is in place; ``kept``:
    whether it is to stay as it is."""

    __slots__ = ("_function", "_way", "base", "is_on", "kept", "made", "owners", "users")

    def __init__(self, function: FunctionType, ways: Any) -> None:
        key, code = id(function), function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        rest, named = bool(code.co_flags & VARARGS), bool(code.co_flags & VARKEYWORDS)
        self._way = ways.way(function, names, code.co_argcount, code.co_kwonlyargcount, rest, named)
        self._function = weakref.ref(function, weave.forgetter(weave.overlays, key))
        self.owners: set[CallHooks] = set()  # whose it is
        self.users: set[CallHooks] = set()  # those of them that are on
        self.is_on = self.kept = False
        self.base = code  # what it stands over
        self.made = self._with_hooks(code)  # the code with calls
        weave.overlays[key] = self

    def _with_hooks(self, code: CodeType) -> CodeType:
        made = with_call_hooks(code, self._way, _entry.left, _entry.failed)
        weave.register_overlay(made, code, frozenset([id(ALL_HOOKS)]))
        return made

    def on(self, who: CallHooks) -> None:
        """Put the code in place."""
        self.users.add(who)
        if not self.is_on and not self.kept:
            self._install()

    def freeze(self, on: bool = True) -> None:
        """Leave all as it is from now on: in place, or not."""
        if on and not self.is_on and not self.kept:
            self._install()
        self.kept = True

    def _install(self) -> None:
        function = self._function()
        if function is None:
            return
        if function.__code__ is not self.base:
            self.base = function.__code__
            try:
                self.made = self._with_hooks(self.base)
            except NotRewritable:
                return
        function.__code__ = self.made
        self.is_on = True

    def off(self, who: CallHooks) -> None:
        """Put what is under it in place when nobody is on; other code that somebody has put into the function since stays."""
        self.users.discard(who)
        function = self._function()
        if function is not None and self.is_on and not self.kept and not self.users:
            self.is_on = False
            if function.__code__ is self.made:
                function.__code__ = self.base

    def release(self, who: CallHooks) -> None:
        """One owner less; without any it is no more."""
        self.owners.discard(who)
        self.kept = self.kept and bool(self.owners)
        self.off(who)
        function = self._function()
        if function is not None and not self.owners:
            weave.overlays.pop(id(function), None)

    def under(self, function: FunctionType) -> CodeType:
        """The function's code without this."""
        return self.base if self.is_on and function.__code__ is self.made else function.__code__

    def put_under(self, function: FunctionType, code: CodeType) -> None:
        """Give the function other code, under this."""
        if not self.is_on or function.__code__ is not self.made:
            function.__code__ = code
            return
        try:
            made = self._with_hooks(code)
        except NotRewritable:
            made = code
        self.base, self.made = code, made
        function.__code__ = made


VARARGS, VARKEYWORDS = 0x04, 0x08  # CO_VARARGS, CO_VARKEYWORDS
_GENERATES = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR
MOST_PARAMETERS = 60  # parameters
_NOWHERE = 15  # what the table of lines has of instructions that are of no line
_WORD = 8  # units that an entry of that table can tell of
_LINES = re.compile(rb"[\x80-\xff][\x00-\x7f]*")  # only the first byte of an entry has its highest bit set
_JUMPS = re.compile(b"[" + re.escape(bytes(op for op in hasjrel if op < 256)) + b"]")
_op: Any = opmap.get  # of names that only 3.11 has


class NotRewritable(Exception):
    """Code that this cannot be done to; the message says why, as the end of a sentence."""


def parameters(code: CodeType) -> int:
    """How many variables hold what a call passes: parameters, then those of ``*args`` and of ``**kwargs``."""
    return code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & VARARGS) + bool(code.co_flags & VARKEYWORDS)


def why_not_rewritable(code: CodeType) -> str:
    """Why some code cannot be rewritten, if it cannot; the end of a sentence."""
    if code.co_flags & _GENERATES:
        return "is a generator or async, which is entered later than it is called"
    return "has too many parameters" if parameters(code) > MOST_PARAMETERS else ""


def with_call_hooks(
    code: Any, way: Callable[..., Any], on_return: Callable[[Any], Any], on_raise: Callable[[BaseException], Any]
) -> CodeType:
    """New code for a function, of python 3.11.

    Args:
        code: The function's; there is nothing against it (``why_not_rewritable``).
        way: Called with the values of its parameters.
        on_return: Called with what is returned, and returns it.
        on_raise: Called with the exception.

    None of these may raise.

    Raises:
        NotRewritable: It cannot be made.
    """
    raw = code.co_code
    ops = raw[::2]
    n = parameters(code)
    start = ops.index(_op("RESUME")) + 1
    if raw[2 * start - 1] != 0:
        raise NotRewritable("does not begin as code does")
    beginning, ending, handler = _added(code, n)
    returns = [found.start() for found in re.finditer(bytes([_op("RETURN_VALUE")]), ops) if found.start() >= start]
    jumps = list(_jumps_in(raw, ops, start))
    more = dict.fromkeys(returns, len(ending) // 2)  # units that are put before the instruction at a place
    while True:
        places = NewPlaces(more, start, len(beginning) // 2)
        wide = [first for first, at, to, _ in jumps if _units(places.distance(at, to)) > at - first + 1 + more.get(first, 0)]
        if not wide:
            break
        for first in wide:
            more[first] = more.get(first, 0) + 1
    body, put = bytearray(raw), dict.fromkeys(returns, ending)
    for first, at, to, op in jumps:
        wider = 2 * more.get(first, 0)
        made = _with_argument(op, places.distance(at, to), at - first + 1 + wider // 2)
        put[first], body[2 * first : 2 * at + 2] = made[:wider], made[wider:]
    pieces, done = [bytes(body[: 2 * start]), beginning], start
    for place in places.at:
        pieces += [bytes(body[2 * done : 2 * place]), put[place]]
        done = place
    end = places.of(len(ops))
    silent = [(places.of(place), places.of(place) + len(ending) // 2 + 1) for place in returns]
    new: CodeType = code.replace(
        co_code=b"".join([*pieces, bytes(body[2 * done :]), handler]),
        co_consts=(*code.co_consts, way, on_return, on_raise),
        co_stacksize=max(code.co_stacksize + 3, n + 3, 7),
        co_linetable=_line_table(code.co_linetable, more, start, len(beginning) // 2, len(handler) // 2),
        co_exceptiontable=bytes(_handler_table(_moved(code.co_exceptiontable, places), start, silent, end)),
    )
    return new


def _added(code: CodeType, n: int) -> tuple[bytes, bytes, bytes]:
    """What is put at the beginning, before each return, and at the end."""
    const, cells, names = len(code.co_consts), frozenset(code.co_cellvars), code.co_varnames
    beginning = [_op("PUSH_NULL"), 0, *_load(const)]
    for i in range(n):
        beginning += (_op("LOAD_DEREF") if names[i] in cells else _op("LOAD_FAST"), i)
    beginning += [*_call(n), _op("POP_TOP"), 0]
    ending = [*_load(const + 1), _op("SWAP"), 2, *_call(0)]  # of a method with an object, as the interpreter sees it: left(value)
    handler = [_op("PUSH_NULL"), 0, *_load(const + 2), _op("COPY"), 3, *_call(1), _op("POP_TOP"), 0, _op("RERAISE"), 1]
    return bytes(beginning), bytes(ending), bytes(handler)


def _load(const: int) -> bytes:
    return _with_argument(_op("LOAD_CONST"), const, _units(const))


def _call(n: int) -> list[int]:
    return [_op("PRECALL"), n, 0, 0, _op("CALL"), n, *bytes(8)]  # with the units that the interpreter keeps notes in


class NewPlaces:
    """Where what was at a place, in units of two bytes, is now.

    Args:
        more: Units that are put before the instruction at a place.
        start: After which instruction others are put that no jump comes back to.
        first: How many units these are.
    """

    def __init__(self, more: dict[int, int], start: int, first: int) -> None:
        self.at = sorted(more)
        self._sums = [0, *accumulate([more[place] for place in self.at])]
        self._start, self._first = start, first

    def of(self, place: int) -> int:
        """Where a jump to a place goes now: to what is put there, if anything is."""
        return place + self._sums[bisect_left(self.at, place)] + (self._first if place >= self._start else 0)

    def distance(self, place: int, to: int) -> int:
        """How far a jump at a place goes."""
        return abs(self.of(to) - (place + self._sums[bisect_right(self.at, place)] + self._first + 1))


def _jumps_in(raw: bytes, ops: bytes, start: int) -> Iterator[tuple[int, int, int, int]]:
    """Of each jump: where it begins, where its last unit is, where it goes, what it is."""
    extended = _op("EXTENDED_ARG")
    for found in _JUMPS.finditer(ops, start):
        first = at = found.start()
        while ops[first - 1] == extended:
            first -= 1
        argument = int.from_bytes(raw[2 * first + 1 : 2 * at + 2 : 2], "big")
        op = ops[at]
        yield first, at, (at + 1 - argument if op in _BACK else at + 1 + argument), op


_BACK = frozenset(op for name, op in opmap.items() if "JUMP_BACKWARD" in name)


def _units(argument: int) -> int:
    return max(1, (argument.bit_length() + 7) // 8)


def _with_argument(op: int, argument: int, units: int) -> bytes:
    made = bytearray([_op("EXTENDED_ARG"), 0] * units)
    made[-2] = op
    made[1::2] = argument.to_bytes(units, "big")
    return bytes(made)


def _line_table(table: bytes, more: dict[int, int], start: int, first: int, last: int) -> bytes:
    """The table of lines: what is put before an instruction is where that is; the beginning and the end are of no line. Raises
    NotRewritable: the table is not as the compiler makes it."""
    entries = _LINES.findall(table)
    at = list(accumulate(((entry[0] & 7) + 1 for entry in entries), initial=0))
    index = {place: i for i, place in enumerate(at)}
    for place in sorted(more, reverse=True):
        if place not in index:
            raise NotRewritable("has a table of lines of another form")
        i = index[place]
        entry = entries[i]
        still = _on_the_line(entry)
        entries[i : i + 1] = [*_of_units(entry, still, more[place]), bytes([still[0] & 0xF8 | entry[0] & 7]) + still[1:]]
    if start not in index:
        raise NotRewritable("has a table of lines of another form")
    nowhere = bytes([0x80 | _NOWHERE << 3])
    entries[index[start] : index[start]] = _of_units(nowhere, nowhere, first)
    return b"".join([*entries, *_of_units(nowhere, nowhere, last)])


def _of_units(entry: bytes, others: bytes, n: int) -> Iterator[bytes]:
    """An entry for so many units, then others as far as it does not reach."""
    while n > 0:
        yield bytes([entry[0] & 0xF8 | min(n, _WORD) - 1]) + entry[1:]
        n, entry = n - _WORD, others


def _on_the_line(entry: bytes) -> bytes:
    """An entry that says the same, where the one before it is of the same line."""
    code = entry[0] >> 3 & 15
    if code in (11, 12):
        return bytes([0x80 | 10 << 3]) + entry[1:]
    if code in (13, 14):
        end = 1
        while entry[end] & 64:
            end += 1
        return entry[:1] + b"\0" + entry[end + 1 :]
    return entry


def _moved(table: bytes, places: NewPlaces) -> Iterator[tuple[int, int, int, int]]:
    """The handlers of exceptions: from, to, where they are, and their depth on the stack as the table has it."""
    numbers: list[int] = []
    value = 0
    for byte in table:
        value = value << 6 | byte & 63
        if not byte & 64:
            numbers.append(value)
            value = 0
    for i in range(0, len(numbers), 4):
        begin, length, target, depth = numbers[i : i + 4]
        yield places.of(begin), places.of(begin + length), places.of(target), depth


def _handler_table(handlers: Iterable[tuple[int, int, int, int]], start: int, silent: list[tuple[int, int]], end: int) -> Iterator[int]:
    """The table of handlers, with one more for all that has none; what follows the last call before a return is left out."""
    done = start
    taken = sorted([*handlers, *((a, b, -1, 0) for a, b in silent), (end, end, -1, 0)])
    for begin, to, target, depth in taken:
        if begin > done:
            yield from _handler(done, begin, end, 1)  # at depth 0, with the place of the exception
        if target >= 0:
            yield from _handler(begin, to, target, depth)
        done = max(done, to)


def _handler(start: int, to: int, target: int, depth: int) -> Iterator[int]:
    first = 128
    for number in (start, to - start, target, depth):
        for shift in range((max(number.bit_length(), 1) - 1) // 6 * 6, -1, -6):
            yield number >> shift & 63 | (64 if shift else 0) | first
            first = 0
