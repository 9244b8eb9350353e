"""Code of python 3.11 that tells when it is entered and left, made from a function's code without its source, in some 50 us.

Only 3.11 needs it: there the interpreter runs the functions of Python that a function calls without asking anybody (``_entry.c``). The
body keeps its instructions, lines, names and frame; added are a call after the start, one before each return, and a handler of exceptions
around all, which passes them on as they were::

    way(<parameters>)
    B, where ``return value`` is ``return left(value)``
    except BaseException as exc: failed(exc); raise
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from itertools import accumulate
from opcode import hasjrel, opmap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import CodeType
    from typing import Any

VARARGS, VARKEYWORDS = 0x04, 0x08  # CO_VARARGS, CO_VARKEYWORDS
_GENERATES = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR
MOST = 60  # parameters
_NOWHERE = 15  # what the table of lines has of instructions that are of no line
_WORD = 8  # units that an entry of that table can tell of
_LINES = re.compile(rb"[\x80-\xff][\x00-\x7f]*")  # only the first byte of an entry has its highest bit set
_JUMPS = re.compile(b"[" + re.escape(bytes(hasjrel)) + b"]")
_op: Any = opmap.get  # of names that only 3.11 has


class CanNotEnter(Exception):
    """Code that this can not be done to; the message says why, as the end of a sentence."""


def parameters(code: CodeType) -> int:
    """How many variables hold what a call passes: parameters, then those of ``*args`` and of ``**kwargs``."""
    return code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & VARARGS) + bool(code.co_flags & VARKEYWORDS)


def why_not(code: CodeType) -> str:
    """Why some code can not be entered, if it can not; the end of a sentence."""
    if code.co_flags & _GENERATES:
        return "is a generator or async, which is entered later than it is called"
    return "has too many parameters" if parameters(code) > MOST else ""


def entered(code: Any, way: Callable[..., Any], left: Callable[[Any], Any], failed: Callable[[BaseException], Any]) -> CodeType:
    """New code for a function, of python 3.11.

    Args:
        code: The function's; there is nothing that says ``why_not``.
        way: Called with the values of its parameters.
        left: Called with what is returned, and returns it.
        failed: Called with the exception.

    None of these may raise.

    Raises:
        CanNotEnter: It can not be made.
    """
    raw = code.co_code
    ops = raw[::2]
    n = parameters(code)
    start = ops.index(_op("RESUME")) + 1
    if raw[2 * start - 1] != 0:
        raise CanNotEnter("does not begin as code does")
    beginning, ending, handler = _added(code, n)
    returns = [found.start() for found in re.finditer(bytes([_op("RETURN_VALUE")]), ops) if found.start() >= start]
    jumps = list(_jumps(raw, ops, start))
    more = dict.fromkeys(returns, len(ending) // 2)  # units that are put before the instruction at a place
    while True:
        places = Places(more, start, len(beginning) // 2)
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
        co_consts=(*code.co_consts, way, left, failed),
        co_stacksize=max(code.co_stacksize + 3, n + 3, 7),
        co_linetable=_lines(code.co_linetable, more, start, len(beginning) // 2, len(handler) // 2),
        co_exceptiontable=bytes(_handlers(_moved(code.co_exceptiontable, places), start, silent, end)),
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


class Places:
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

    def distance(self, at: int, to: int) -> int:
        """How far a jump at a place goes."""
        return abs(self.of(to) - (at + self._sums[bisect_right(self.at, at)] + self._first + 1))


def _jumps(raw: bytes, ops: bytes, start: int) -> Iterator[tuple[int, int, int, int]]:
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


def _lines(table: bytes, more: dict[int, int], start: int, first: int, last: int) -> bytes:
    """The table of lines: what is put before an instruction is where that is; the beginning and the end are of no line.

    Raises:
        CanNotEnter: The table is not as the compiler makes it.
    """
    entries = _LINES.findall(table)
    at = list(accumulate(((entry[0] & 7) + 1 for entry in entries), initial=0))
    index = {place: i for i, place in enumerate(at)}
    for place in sorted(more, reverse=True):
        if place not in index:
            raise CanNotEnter("has a table of lines of another form")
        i = index[place]
        entry = entries[i]
        still = _on_the_line(entry)
        entries[i : i + 1] = [*_of_units(entry, still, more[place]), bytes([still[0] & 0xF8 | entry[0] & 7]) + still[1:]]
    if start not in index:
        raise CanNotEnter("has a table of lines of another form")
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


def _moved(table: bytes, places: Places) -> Iterator[tuple[int, int, int, int]]:
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


def _handlers(known: Iterable[tuple[int, int, int, int]], start: int, silent: list[tuple[int, int]], end: int) -> Iterator[int]:
    """The table of handlers, with one more for all that has none; what follows the last call before a return is left out."""
    done = start
    known = list(known)
    taken = sorted([*known, *((a, b, -1, 0) for a, b in silent), (end, end, -1, 0)])
    for begin, to, target, depth in taken:
        if begin > done:
            yield from _handler(done, begin, end, 1)  # at depth 0, with the place of the exception
        if target >= 0:
            yield from _handler(begin, to, target, depth)
        done = max(done, to)


def _handler(begin: int, to: int, target: int, depth: int) -> Iterator[int]:
    first = 128
    for number in (begin, to - begin, target, depth):
        for shift in range((max(number.bit_length(), 1) - 1) // 6 * 6, -1, -6):
            yield number >> shift & 63 | (64 if shift else 0) | first
            first = 0
