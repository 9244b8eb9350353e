"""The hot path of the calls instrument in Python, for where ``_calls.c`` was not built: the same functions, the same bytes.

Some 20 times as slow; looks at objects only through types that are known exactly, as the other does, and keeps none alive.
"""

from __future__ import annotations

import threading
from struct import pack
from time import perf_counter_ns as now
from weakref import ref

from voirkit_instruments.calls.record_walk import METHOD, MODULE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NAME = "python"
KEY, AT_END, OPERANDS, ITEMS, LEVELS, TEXT, MANY_SETS, TOO_MANY_SETS, MOST_SETS = 2048, 512, 8, 8, 2, 40, 64, 1024, 1 << 16  # as in C
TENSOR, TRACED = 1, 2
ARGS, KWARGS, RETURNS = 0, 1, 2

_asked: dict[str, Callable[..., Any]] = {}
_span: Callable[..., None]
_kinds: list[int] = []
_names: dict[Any, int] = {}
_sets: dict[bytes, int] = {}
_sets_of: dict[int, int] = {}
_scalars: dict[tuple[int, int], tuple[Any, bool]] = {}  # by function and place: the first, and whether others came
_types: dict[int, tuple[int, int, Any]] = {}  # by identity: number, flags, weak reference
_words: dict[str, int] = {}
_places: dict[int, int] = {}
_totals = [0, 0, 0, 0]
_called: dict[int, bool] = {}  # whether it has been told
_on, _operand = False, 0
_modes: Callable[[], int] | None = None
_codes: dict[Any, int] = {}
_tick: Callable[[int], None] | None = None


class _Here(threading.local):
    quiet = 0

    def __init__(self) -> None:
        self.open: list[_Open] = []


_here = _Here()


class _Open:
    """A call that has begun."""

    __slots__ = ("full", "key", "limit", "name", "number", "object", "operands", "start", "traced")

    def __init__(self, number: int) -> None:
        self.number, self.key, self.limit = number, bytearray(pack("<IB", number, _kinds[number] & METHOD)), KEY - AT_END
        self.object = self.name = self.start = 0
        self.operands: list[tuple[int, int]] = []
        self.full = self.traced = False

    def put(self, data: bytes) -> bool:
        if len(self.key) + len(data) > self.limit:
            self.full = True
            return False
        self.key += data
        return True

    def varies(self, at: int, value: Any) -> bool:
        place = self.number, at & 3 | min(at >> 2 & 0x3FFF, 15) << 2
        first, varied = _scalars.setdefault(place, (value, False))
        if not varied and first != value:
            varied = True
            _scalars[place] = first, True
        return varied and _sets_of.get(self.number, 0) > MANY_SETS

    def value(self, value: Any, at: int, level: int = 0) -> None:
        kind = type(value)
        if value is None or value is True or value is False:
            self.put({None: b"N", True: b"T", False: b"F"}[value])
        elif kind is int:
            fits = -(1 << 63) <= value < 1 << 63
            self.put(b"j" if not fits or self.varies(at, value) else pack("<cq", b"i", value))
        elif kind is float:
            self.put(b"g" if self.varies(at, pack("<d", value)) else pack("<cd", b"f", value))
        elif kind is str:
            self._text(value, at)
        else:
            self._object(value, kind, at, level)

    def _text(self, value: str, at: int) -> None:
        if self.varies(at, value if len(value) <= TEXT else len(value)):
            self.put(b"w")
        elif is_word(value):
            self.put(pack("<cB", b"s", len(value)) + value.encode())
        else:
            self.put(pack("<cq", b"S", len(value)))

    def _object(self, value: Any, kind: type, at: int, level: int) -> None:
        number, flags = _type(kind)
        mro = type.__dict__["__mro__"].__get__(kind)
        self.traced = self.traced or bool(flags & TRACED)
        if flags & TENSOR:
            if len(self.operands) < OPERANDS:
                self.operands.append((id(value), at))
            self._tensor(value, number)
        elif tuple in mro:
            self._many(b"u", number, list(tuple.__iter__(value)), at, level)
        elif list in mro:
            self._many(b"l", number, list(list.__iter__(value)), at, level)
        elif dict in mro:
            self._many(b"d", number, list(dict.items(value)), at, level)
        else:
            self.put(pack("<cH", b"o", number))

    def _tensor(self, value: Any, number: int) -> None:
        seen = tensor(value)
        if seen is None:
            self.put(pack("<cH", b"z", number))
            return
        dtype, device, index, grad, dims = seen
        few = dims[:8] if _sets_of.get(self.number, 0) <= TOO_MANY_SETS else ()
        tag = b"t" if len(few) == len(dims) or len(dims) > 8 else b"y"
        self.put(pack(f"<cHBBBBB{len(few)}q", tag, number, dtype & 255, device & 255, index & 255, grad, len(dims), *few))

    def _many(self, tag: bytes, number: int, items: list[Any], at: int, level: int) -> None:
        many = _sets_of.get(self.number, 0) > TOO_MANY_SETS
        if tag == b"d":
            shown = [(key, item) for key, item in items if type(key) is str and is_word(key)]
        else:
            shown = [("", item) for item in items]
        shown = [] if many or level >= LEVELS else shown[:ITEMS]
        count_at = len(self.key) + 11
        if not self.put(pack("<cHqB", tag, number, -1 if many else len(items), 0)):
            return
        for i, (key, item) in enumerate(shown):
            if self.full or (tag == b"d" and not self.put(pack("<B", len(key)) + key.encode())):
                break
            self.value(item, at if at >> 16 else at | (i + 1) << 16, level + 1)
            self.key[count_at] += 1


def is_word(text: str) -> bool:
    """Whether a text is a short identifier."""
    return len(text) <= TEXT and text.isascii() and text.isidentifier()


def _type(kind: type) -> tuple[int, int]:
    found = _types.get(id(kind))
    if found is None or found[2]() is not kind:
        both = _asked["type"](kind)
        found = _types[id(kind)] = both & 0xFFFF, both >> 16, ref(kind)
    return found[:2]


def _word(word: str) -> int:
    found = _words.get(word)
    if found is None:
        found = _words[word] = _asked["word"](word)
    return found


def _begin(number: int, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
    _called.setdefault(number, False)
    if not _on or _here.quiet:
        return False
    _totals[0] += 1
    one = _Open(number)
    kind = _kinds[number]
    named: Any = number
    if kind & METHOD and args:
        one.object = id(args[0])
        if kind & MODULE:
            named = type(args[0])
    place = named if type(named) is int else _type(named)
    found = _names.get(place)
    if found is None:
        found = _names[place] = _asked["name"](named) if named is number else _asked["class"](named)
    one.name = found
    for i, value in enumerate(args):
        one.value(value, ARGS | i << 2)
    for word, value in (kwargs or {}).items():
        code = _word(word)
        one.put(pack("<cH", b"K", code))
        one.value(value, KWARGS | code << 2)
    _here.open.append(one)
    one.start = now()
    return True


def _end(_: int, value: Any) -> None:
    end = now()
    one = _here.open.pop()
    one.limit = KEY
    one.put(b"R")
    one.value(value, RETURNS)
    _record(one, end)


def _failed(_: int, exc: BaseException) -> None:
    end = now()
    one = _here.open.pop()
    one.limit = KEY
    if StopIteration not in type.__dict__["__mro__"].__get__(type(exc)):
        one.put(pack("<cH", b"E", _type(type(exc))[0]))
    _record(one, end)


def _record(one: _Open, end: int) -> None:
    if one.traced:
        return
    key = bytes(one.key)
    args = _sets.get(key, 0)
    if not args and len(_sets) < MOST_SETS:
        args = _sets[key] = _asked["set"](key)
        _sets_of[one.number] = _sets_of.get(one.number, 0) + 1
    _totals[3] += not args
    for tensor_id, at in one.operands:
        place = _places.get(at)
        if place is None:
            place = _places[at] = _asked["place"](at & 3, at >> 2 & 0x3FFF, at >> 16)
        _span(_operand, one.start, one.start, place, tensor_id)
    _span(one.name, one.start, end, args, one.object)
    _totals[1] += 1 + len(one.operands)
    _totals[2] += now() - end


# what record_tracing.py and record_tensors.py call


def hooks() -> Any:
    """What is called before and after a call, for ``voirkit.probes.entry``."""
    return _begin, _end, _failed


def ticks() -> Any:
    """The same, for what says that a step begins."""

    def begin(number: int, *_: Any) -> bool:
        if _tick is not None:
            _tick(number)
        return False

    return begin, begin, begin


def install(_: Any, span: Callable[..., None], *asked: Any) -> None:
    """Set what is asked: of a type, a word, a function's name, a class's, a set of arguments, a place; and what is told of a step."""
    global _span, _tick
    *functions, _tick = asked
    _span = span
    _asked.update(zip(("type", "word", "name", "class", "set", "place"), functions, strict=True))
    for table in (_names, _sets, _sets_of, _scalars, _types, _words, _places, _called):
        table.clear()
    _kinds.clear()
    _totals[:] = 0, 0, 0, 0


def add(kind: int) -> int:
    """One more function; its number."""
    _kinds.append(kind)
    return len(_kinds) - 1


def called() -> list[int]:
    """The numbers of functions that have been called since this was asked."""
    found = [number for number, is_told in list(_called.items()) if not is_told]
    _called.update(dict.fromkeys(found, True))
    return found


def switch(on: bool, operand: int) -> None:
    """Record, or do not; the name of operands."""
    global _on, _operand
    _on, _operand = on, operand


def quiet(more: int) -> None:
    """Record nothing in this thread as long as the sum of what was given here is not 0."""
    _here.quiet += more


def totals() -> tuple[int, ...]:
    """(calls, records, own ns, calls without arguments)"""
    return tuple(_totals)


def forked() -> None:
    """This is a forked child."""
    _totals[:] = 0, 0, 0, 0
    _sets.clear()
    _places.clear()


def ask(modes: Callable[[], int], codes: dict[Any, int]) -> None:
    """Read tensors by their attributes, unless a mode of the program would see it."""
    global _modes
    _modes = modes
    _codes.update(codes)


def tensor(value: Any) -> tuple[int, int, int, int, tuple[int, ...]] | None:
    """(dtype, device, index, requires grad, dims); None: it can not be read."""
    try:
        if _modes is None or _modes():
            return None
        device = value.device
        index = -1 if device.index is None else device.index
        return _codes.get(value.dtype, 255), _codes.get(device.type, 255), index, int(value.requires_grad), tuple(value.shape)
    except Exception:  # nested tensors have no shape
        return None


def words(address: int, n: int) -> tuple[int, ...]:
    """Memory is not looked at."""
    raise NotImplementedError
