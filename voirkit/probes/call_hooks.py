"""Hooks on functions: they report the beginning and the end of each call of chosen functions,
thousands of them at once, and change nothing else.

A hook is in the called object itself (``_entry.c``), so calls by code that already holds the
function are reported too. The function's identity, code, source, frames and pickles stay as they
are, and so do the parts that torch's compilers read. On Python 3.11, the interpreter bypasses such
a hook if Python code calls a Python function, so the function gets new code. That code is made
without the source; of the above, only ``co_code`` changes. Generators are not reported on 3.11.
While the hooks are off, the functions are as they were. This module must not know torch.

Never reported: C methods that were bound before (``f = x.relu``), compiled code (torch.compile,
torch.jit), and calls inside of muted functions.

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
from typing import NamedTuple

from voirkit.probes import weave

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import CodeType
    from typing import Any


def _extension() -> Any:
    try:
        return import_module("voirkit.probes._entry")
    except ImportError:  # not built, since there was no compiler where voirkit was installed
        return None


_entry = _extension()
IS_BUILT = _entry is not None  # CallHooks need the extension

REWRITES = sys.version_info[:2] == (3, 11)
if REWRITES:
    from voirkit.probes import compatibility
_BOUND = (MethodType, classmethod, staticmethod)
# True if the interpreter bypasses the hook of ``__init__`` in a line that makes many objects
SKIPS_INIT_HOOK = sys.version_info >= (3, 13)
_TOO_DEEP = "calls itself too deeply, and is left alone since it was seen to"


ALL_HOOKS = "the ways into functions"  # weave.py registers code with hooks under this object's id


class CallHooks:
    """Reports calls of functions to hooks; off at first.

    Args:
        hooks: A capsule of C functions (``voirkit_entry_hooks``); or three functions:
            ``begin(number, callable, args, kwargs)``, which returns True if the end is to be
            reported, ``end(number, value)``, ``failed(number, exception)``. They may call ``on``
            and ``off``.
    """

    def __init__(self, hooks: Any) -> None:
        self._skipped: dict[int, str] = {}
        self._made_by: list[weakref.ref[type]] = []
        all_hooks = hooks if isinstance(hooks, tuple) else (hooks,)
        self._entries = _entry.Entries(*all_hooks)
        self._layers: list[Layer] = []
        self._by_number: dict[int, Layer] = {}
        self._is_on = False
        if REWRITES:
            compatibility.watch_dynamo_reader(_code_for_torch_compile)
            weave.register_around(ALL_HOOKS)

    def add(self, functions: Mapping[int, object]) -> None:
        """Report calls of more functions.

        Args:
            functions: Python functions, builtin functions and method descriptors, by number. Of a
                method, class method or static method, calls of the function inside are reported.
                The functions are not kept alive.
        """
        for number, function in functions.items():
            why = self._add(number, function, False)
            if why:
                self._skipped[number] = why

    @property
    def skipped(self) -> dict[int, str]:
        """Reasons why functions are not reported, or no longer, by number; each is the end of a
        sentence."""
        deep: list[int] = self._entries.deep()
        numbers = [number for number in deep if number >= 0]
        return self._skipped | dict.fromkeys(numbers, _TOO_DEEP)

    def mute(self, functions: Iterable[object]) -> None:
        """Report no calls that a thread makes inside of calls of these functions. Calls of these
        functions themselves may be reported."""
        for function in functions:
            self._add(-1, function, True)

    def on(self, numbers: Iterable[int] | None = None) -> None:
        """Switch the hooks on: for all functions, or for those with these numbers."""
        numbers = None if numbers is None else list(numbers)
        if numbers is None:
            self._is_on = True
            self._entries.on()
        else:
            self._entries.turn(numbers, True)
        for layer in self._layers_of(numbers):
            layer.on(self)

    def off(self, numbers: Iterable[int] | None = None) -> None:
        """Restore the functions: all, or those with these numbers. The end of a call that has begun
        is still reported."""
        numbers = None if numbers is None else list(numbers)
        if numbers is None:
            self._is_on = False
            self._entries.off()
        else:
            self._entries.turn(numbers, False)
        for layer in self._layers_of(numbers):
            layer.off(self)

    def _layers_of(self, numbers: Iterable[int] | None) -> Iterable[Layer]:
        if numbers is None:
            return self._layers
        return [self._by_number[number] for number in numbers if number in self._by_number]

    def remove(self) -> None:
        """Restore all functions permanently."""
        self.off()
        self._skipped = self.skipped
        for layer in self._layers:
            layer.release(self)
        self._layers.clear()
        self._by_number.clear()
        for kind in self._made_by:
            cls = kind()
            if cls is not None:
                _entry.making(cls, False)
        self._entries.remove()

    def _add(self, number: int, function: Any, is_muted: bool) -> str:
        """Report calls of a function, or mute it. Returns the reason if that is not possible, or an
        empty text."""
        if type(function) in _BOUND:
            function = getattr(function, "__func__", function)
        is_rewritten = REWRITES and type(function) is FunctionType
        if is_rewritten and id(function) not in weave.overlays:
            why = why_not_rewritable(function.__code__)
            if why:
                return why
        why = self._entries.put(number, function, is_muted, is_rewritten) or ""
        if why:
            return why
        if is_rewritten:
            try:
                self._add_layer(number, function)
            except NotRewritable as exc:
                return str(exc)
        if SKIPS_INIT_HOOK and type(function) is FunctionType and function.__name__ == "__init__":
            self._watch_classes(function)
        return ""

    def _watch_classes(self, init: FunctionType) -> None:
        for kind in _classes_made_with(init):
            _entry.making(kind, True)
            self._made_by.append(weakref.ref(kind))

    def _add_layer(self, number: int, function: FunctionType) -> None:
        layer = weave.overlays.get(id(function)) or Layer(function, self._entries)
        if self not in layer.owners:
            layer.owners.add(self)
            self._layers.append(layer)
        self._by_number[number] = layer
        if self._is_on:
            layer.on(self)
        if _torch_compile.is_used:
            layer.freeze()


class _TorchCompile:
    """State of ``torch.compile`` in this process; it compares the code of functions by identity."""

    __slots__ = ("is_used",)

    def __init__(self) -> None:
        self.is_used = False


_torch_compile = _TorchCompile()


def _code_for_torch_compile(code: CodeType) -> CodeType:
    """Return the original of code with hooks; other code as it is. The first call freezes all
    layers: each one stays in place, except the layer over the code that torch.compile reads
    first."""
    layers = list(weave.overlays.values())
    if not _torch_compile.is_used:
        _torch_compile.is_used = True
        for layer in layers:
            layer.freeze(layer.base is not code)
    for layer in layers:
        if layer.with_hooks is code:
            return layer.base
    return code


def _classes_made_with(init: FunctionType) -> Iterator[type]:
    """Yield the classes that use an ``__init__``: the class that defines it, and the existing
    subclasses that inherit it."""
    owner: Any = sys.modules.get(init.__module__)
    for name in init.__qualname__.split(".")[:-1]:
        owner = getattr(owner, "__dict__", {}).get(name)
    stack = [owner] if isinstance(owner, type) else []
    while stack:
        kind = stack.pop()
        if _init_of(kind) is init:
            yield kind
            stack += type.__subclasses__(kind)


def _init_of(kind: type) -> Any:
    for above in kind.__mro__:
        if "__init__" in vars(above):
            return vars(above)["__init__"]
    return None


class Layer:
    """Code with calls of the hooks, which replaces the code of a function while the hooks are on
    (Python 3.11). ``is_on``: True if the new code is in place; ``is_frozen``: True if this must not
    change any more."""

    __slots__ = (
        "_call",
        "_function",
        "base",
        "is_frozen",
        "is_on",
        "owners",
        "users",
        "with_hooks",
    )

    def __init__(self, function: FunctionType, entries: Any) -> None:
        key = id(function)
        code = function.__code__
        n_named = code.co_argcount + code.co_kwonlyargcount
        self._call = entries.way(
            function,
            code.co_varnames[:n_named],
            code.co_argcount,
            code.co_kwonlyargcount,
            bool(code.co_flags & VARARGS),
            bool(code.co_flags & VARKEYWORDS),
        )
        self._function = weakref.ref(function, weave.forgetter(weave.overlays, key))
        self.owners: set[CallHooks] = set()  # the CallHooks that use this layer
        self.users: set[CallHooks] = set()  # the owners that are on
        self.is_on = False
        self.is_frozen = False
        self.base = code  # the function's code without this layer
        self.with_hooks = self._add_hooks(code)  # the same code with calls of the hooks
        weave.overlays[key] = self

    def _add_hooks(self, code: CodeType) -> CodeType:
        new = with_call_hooks(code, self._call, _entry.left, _entry.failed)
        weave.register_overlay(new, code, frozenset([id(ALL_HOOKS)]))
        return new

    def on(self, user: CallHooks) -> None:
        """Put the code with hooks in place for a user, unless the layer is frozen."""
        self.users.add(user)
        if not self.is_on and not self.is_frozen:
            self._install()

    def freeze(self, on: bool = True) -> None:
        """Freeze the layer, after its code with hooks is put in place if ``on``."""
        if on and not self.is_on and not self.is_frozen:
            self._install()
        self.is_frozen = True

    def _install(self) -> None:
        function = self._function()
        if function is None:
            return
        if function.__code__ is not self.base:
            self.base = function.__code__
            try:
                self.with_hooks = self._add_hooks(self.base)
            except NotRewritable:
                return
        function.__code__ = self.with_hooks
        self.is_on = True

    def off(self, user: CallHooks) -> None:
        """Remove a user; without users, the code without this layer is put in place. Code that
        others have put into the function since then stays."""
        self.users.discard(user)
        function = self._function()
        if function is None or self.users:
            return
        if self.is_on and not self.is_frozen:
            self.is_on = False
            if function.__code__ is self.with_hooks:
                function.__code__ = self.base

    def release(self, owner: CallHooks) -> None:
        """Remove an owner; without owners the layer is removed."""
        self.owners.discard(owner)
        self.is_frozen = self.is_frozen and bool(self.owners)
        self.off(owner)
        function = self._function()
        if function is not None and not self.owners:
            weave.overlays.pop(id(function), None)

    def under(self, function: FunctionType) -> CodeType:
        """Return the function's code without this layer."""
        if self.is_on and function.__code__ is self.with_hooks:
            return self.base
        return function.__code__

    def put_under(self, function: FunctionType, code: CodeType) -> None:
        """Give the function other code, with this layer still on top of it if it is on."""
        if not self.is_on or function.__code__ is not self.with_hooks:
            function.__code__ = code
            return
        try:
            with_hooks = self._add_hooks(code)
        except NotRewritable:
            with_hooks = code
        self.base = code
        self.with_hooks = with_hooks
        function.__code__ = with_hooks


VARARGS, VARKEYWORDS = 0x04, 0x08  # CO_VARARGS, CO_VARKEYWORDS
_GENERATES = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR
MOST_PARAMETERS = 60  # maximum number of parameters of a function that can be rewritten
_NOWHERE = 15  # marks instructions without a line, in the line table (``co_linetable``)
_WORD = 8  # maximum number of code units that an entry of the line table describes
# in the line table, only the first byte of an entry has its highest bit set
_LINES = re.compile(rb"[\x80-\xff][\x00-\x7f]*")
_JUMPS = re.compile(b"[" + re.escape(bytes(op for op in hasjrel if op < 256)) + b"]")
_op: Any = opmap.get  # opcode by name; on other versions, None for names that only 3.11 has


class NotRewritable(Exception):
    """Raised for code that cannot be rewritten; the message says why, as the end of a sentence."""


def parameters(code: CodeType) -> int:
    """Return the number of variables that hold the arguments of a call: the parameters, then
    ``*args`` and ``**kwargs`` if the function has them."""
    n_starred = bool(code.co_flags & VARARGS) + bool(code.co_flags & VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + n_starred


def why_not_rewritable(code: CodeType) -> str:
    """Return why some code cannot be rewritten, as the end of a sentence; empty if it can be."""
    if code.co_flags & _GENERATES:
        return "is a generator or async, which is entered later than it is called"
    return "has too many parameters" if parameters(code) > MOST_PARAMETERS else ""


def with_call_hooks(
    code: Any,
    on_call: Callable[..., Any],
    on_return: Callable[[Any], Any],
    on_raise: Callable[[BaseException], Any],
) -> CodeType:
    """Return code like that of a function, with three calls added; for Python 3.11.

    Args:
        code: The function's code; it can be rewritten (``why_not_rewritable``).
        on_call: Called at the beginning, with the values of the parameters.
        on_return: Called with the returned value, and returns it.
        on_raise: Called with the exception.

    None of these may raise.

    Raises:
        NotRewritable: The new code cannot be made.
    """
    raw = code.co_code
    operations = raw[::2]
    n_parameters = parameters(code)
    start = operations.index(_op("RESUME")) + 1
    if raw[2 * start - 1] != 0:
        raise NotRewritable("does not begin as code does")
    beginning, ending, handler = _instructions_added(code, n_parameters)
    return_value = bytes([_op("RETURN_VALUE")])
    returns = [match.start() for match in re.finditer(return_value, operations)]
    returns = [place for place in returns if place >= start]
    jumps = list(_jumps_in(raw, operations, start))
    units_before = dict.fromkeys(returns, len(ending) // 2)
    places = _widen_jumps(jumps, units_before, start, len(beginning) // 2)
    body = bytearray(raw)
    inserted = dict.fromkeys(returns, ending)
    for jump in jumps:
        units = jump.units + units_before.get(jump.first, 0)
        distance = places.distance(jump.last, jump.target)
        instruction = _with_argument(jump.operation, distance, units)
        n_more = len(instruction) - 2 * jump.units
        inserted[jump.first] = instruction[:n_more]
        body[2 * jump.first : 2 * jump.last + 2] = instruction[n_more:]
    pieces = [bytes(body[: 2 * start]), beginning]
    copied = start
    for place in places.sorted:
        pieces += [bytes(body[2 * copied : 2 * place]), inserted[place]]
        copied = place
    pieces += [bytes(body[2 * copied :]), handler]
    last_calls = [places.of(place) for place in returns]
    silent = [(place, place + len(ending) // 2 + 1) for place in last_calls]
    handlers = _handlers_in(code.co_exceptiontable, places)
    end = places.of(len(operations))
    new: CodeType = code.replace(
        co_code=b"".join(pieces),
        co_consts=(*code.co_consts, on_call, on_return, on_raise),
        co_stacksize=max(code.co_stacksize + 3, n_parameters + 3, 7),
        co_linetable=_line_table(
            code.co_linetable, units_before, start, len(beginning) // 2, len(handler) // 2
        ),
        co_exceptiontable=bytes(_handler_table(handlers, start, silent, end)),
    )
    return new


def _widen_jumps(
    jumps: list[Jump], units_before: dict[int, int], start: int, n_beginning: int
) -> NewPlaces:
    """Give each jump the number of code units (of two bytes) that its new distance needs, and
    return the new places. The units are added to ``units_before``, the number of units to insert
    before the instruction at a place. A wider jump makes other jumps longer, so this repeats until
    all jumps fit."""
    while True:
        places = NewPlaces(units_before, start, n_beginning)
        too_narrow = [
            jump.first
            for jump in jumps
            if _units(places.distance(jump.last, jump.target))
            > jump.units + units_before.get(jump.first, 0)
        ]
        if not too_narrow:
            return places
        for first in too_narrow:
            units_before[first] = units_before.get(first, 0) + 1


def _instructions_added(code: CodeType, n_parameters: int) -> tuple[bytes, bytes, bytes]:
    """Return the instructions to add at the beginning, before each return, and at the end."""
    const = len(code.co_consts)
    cells = frozenset(code.co_cellvars)
    beginning = [_op("PUSH_NULL"), 0, *_load(const)]
    for index, name in enumerate(code.co_varnames[:n_parameters]):
        beginning += (_op("LOAD_DEREF") if name in cells else _op("LOAD_FAST"), index)
    beginning += [*_call(n_parameters), _op("POP_TOP"), 0]
    # ``left(value)``, in the form of a method call: the value takes the place of the object
    ending = [*_load(const + 1), _op("SWAP"), 2, *_call(0)]
    handler = [
        _op("PUSH_NULL"),
        0,
        *_load(const + 2),
        _op("COPY"),
        3,
        *_call(1),
        _op("POP_TOP"),
        0,
        _op("RERAISE"),
        1,
    ]
    return bytes(beginning), bytes(ending), bytes(handler)


def _load(const: int) -> bytes:
    return _with_argument(_op("LOAD_CONST"), const, _units(const))


def _call(n_arguments: int) -> list[int]:
    # the zeros are the code units that hold the interpreter's inline caches
    return [_op("PRECALL"), n_arguments, 0, 0, _op("CALL"), n_arguments, *bytes(8)]


class NewPlaces:
    """Map from the old to the new places of instructions, in code units of two bytes.

    Args:
        units_before: Number of units to insert before the instruction at a place.
        start: Place of the instruction before which the added beginning is inserted; no jump leads
            back to it.
        n_beginning: Number of units of the added beginning.
    """

    def __init__(self, units_before: dict[int, int], start: int, n_beginning: int) -> None:
        self.sorted = sorted(units_before)  # the places before which units are inserted
        self._sums = [0, *accumulate([units_before[place] for place in self.sorted])]
        self._start = start
        self._n_beginning = n_beginning

    def of(self, place: int) -> int:
        """Return the new target of a jump to an old place: the first of the units inserted before
        it, if there are any."""
        new = place + self._sums[bisect_left(self.sorted, place)]
        return new + self._n_beginning if place >= self._start else new

    def distance(self, place: int, target: int) -> int:
        """Return the new distance of a jump from an old place to an old target."""
        units = self._sums[bisect_right(self.sorted, place)] + self._n_beginning
        return abs(self.of(target) - (place + units + 1))


class Jump(NamedTuple):
    """A relative jump in the old code; places are in code units of two bytes."""

    first: int  # first unit of the jump, which has several if its argument takes over one byte
    last: int
    target: int
    operation: int
    units: int  # number of units of the jump


def _jumps_in(raw: bytes, operations: bytes, start: int) -> Iterator[Jump]:
    extended = _op("EXTENDED_ARG")
    for match in _JUMPS.finditer(operations, start):
        last = match.start()
        first = last
        while operations[first - 1] == extended:
            first -= 1
        distance = int.from_bytes(raw[2 * first + 1 : 2 * last + 2 : 2], "big")
        if operations[last] in _BACK:
            distance = -distance
        units = last - first + 1
        yield Jump(first, last, last + 1 + distance, operations[last], units)


_BACK = frozenset(op for name, op in opmap.items() if "JUMP_BACKWARD" in name)


def _units(argument: int) -> int:
    return max(1, (argument.bit_length() + 7) // 8)


def _with_argument(operation: int, argument: int, units: int) -> bytes:
    instruction = bytearray([_op("EXTENDED_ARG"), 0] * units)
    instruction[-2] = operation
    instruction[1::2] = argument.to_bytes(units, "big")
    return bytes(instruction)


def _line_table(
    table: bytes, units_before: dict[int, int], start: int, n_beginning: int, n_end: int
) -> bytes:
    """Return the line table of the new code. Units inserted before an instruction get the line of
    that instruction; the added beginning and end have no line. Raises NotRewritable: the table is
    not in the form in which the compiler makes it."""
    entries = _LINES.findall(table)
    places = accumulate(((entry[0] & 7) + 1 for entry in entries), initial=0)
    index = {place: number for number, place in enumerate(places)}
    if not index.keys() >= {start, *units_before}:
        raise NotRewritable("has a table of lines of another form")
    for place in sorted(units_before, reverse=True):
        number = index[place]
        entry = entries[number]
        following = _on_the_line(entry)
        own_units = bytes([following[0] & 0xF8 | entry[0] & 7]) + following[1:]
        added = _of_units(entry, following, units_before[place])
        entries[number : number + 1] = [*added, own_units]
    nowhere = bytes([0x80 | _NOWHERE << 3])
    entries[index[start] : index[start]] = _of_units(nowhere, nowhere, n_beginning)
    return b"".join([*entries, *_of_units(nowhere, nowhere, n_end)])


def _of_units(entry: bytes, following: bytes, units: int) -> Iterator[bytes]:
    """Yield entries of the line table for ``units`` code units: first ``entry``, then ``following``
    as often as needed."""
    while units > 0:
        yield bytes([entry[0] & 0xF8 | min(units, _WORD) - 1]) + entry[1:]
        units -= _WORD
        entry = following


def _on_the_line(entry: bytes) -> bytes:
    """Return an entry of the line table with the same meaning, for use after an entry of the same
    line."""
    code = entry[0] >> 3 & 15
    if code in (11, 12):
        return bytes([0x80 | 10 << 3]) + entry[1:]
    if code in (13, 14):
        end = 1
        while entry[end] & 64:
            end += 1
        return entry[:1] + b"\0" + entry[end + 1 :]
    return entry


def _handlers_in(table: bytes, places: NewPlaces) -> Iterator[tuple[int, int, int, int]]:
    """Yield the exception handlers of the old code at their new places: start and end of the
    covered code, place of the handler, and stack depth as in the exception table."""
    numbers: list[int] = []
    value = 0
    for byte in table:
        value = value << 6 | byte & 63
        if not byte & 64:
            numbers.append(value)
            value = 0
    for index in range(0, len(numbers), 4):
        start, length, target, depth = numbers[index : index + 4]
        yield places.of(start), places.of(start + length), places.of(target), depth


def _handler_table(
    handlers: Iterable[tuple[int, int, int, int]],
    start: int,
    silent: list[tuple[int, int]],
    end: int,
) -> Iterator[int]:
    """Yield the bytes of the new exception table. All code without a handler is covered by one
    added handler, except the code after the last call before a return."""
    covered = start
    without_handler = [(first, to, -1, 0) for first, to in silent]
    for first, to, target, depth in sorted([*handlers, *without_handler, (end, end, -1, 0)]):
        if first > covered:
            # 1 means stack depth 0, and that the place of the exception is put on the stack too
            yield from _handler(covered, first, end, 1)
        if target >= 0:
            yield from _handler(first, to, target, depth)
        covered = max(covered, to)


def _handler(start: int, to: int, target: int, depth: int) -> Iterator[int]:
    first_bit = 128
    for number in (start, to - start, target, depth):
        n_groups = (max(number.bit_length(), 1) - 1) // 6  # groups of six bits after the first
        for shift in range(n_groups * 6, -1, -6):
            has_more = 64 if shift else 0
            yield number >> shift & 63 | has_more | first_bit
            first_bit = 0
