"""What the numbers in records stand for: names and sets of arguments, interned for the life of the
process.

There is no lock: a signal handler, a destructor or another thread may intern at any moment, in the
middle of this very code. Two that intern the same at once may get two numbers; both are right. A
number is handed out only when its line is in the file, if there is a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from json.encoder import encode_basestring_ascii as _quoted

from voirkit.trace import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_NAMES = 1 << 16
MOST_ARGUMENTS = 1 << 13  # sets in each of two tables, and their characters
MOST_CHARACTERS = 1 << 22
TABLES_KEPT = 24  # from before there was a file, when another recording begins: three for each
TOO_MANY = "(names beyond what is kept)"

_encode = json.JSONEncoder(separators=(",", ":")).encode
_HUGE = 1 << 8191  # python refuses to write, and to read, decimal numbers of more than 4300 digits
_Key = tuple[str, str, str, "str | None"]  # category, name, kind, key of the value


class Names:
    """The names and arguments of this process.

    Args:
        write: Takes a line, and whether it is a name's; called when something new is interned.
            Without a file it does nothing.
        too_many: Called when there are more names than are kept.
    """

    def __init__(self, write: Callable[[bytes, bool], None], too_many: Callable[[], None]) -> None:
        self._write, self._too_many = write, too_many
        self._ids: dict[Any, int] = {}
        self._names: dict[int, _Key] = {}
        self._next_name, self._next_arguments = count(1), count(1)
        # Arguments are kept in two tables. When the young one is full it becomes the old one, and
        # what nobody asked for since is forgotten: who asks for it again gets a new number, and
        # numbers that were handed out stay right, since their lines are in the file.
        self._young: dict[str, int] = {}
        self._old: dict[str, int] = {}
        self._characters = 0
        # Where the lines of numbers from before there was a file may be found. Tables are only
        # appended, that of a new file before it is the young one: whatever other threads do
        # meanwhile, none is lost to which one of them is about to add something.
        self._before: list[dict[str, int]] = []

    def name(self, category: str, name: str, kind: str = "span", value: str | None = None) -> int:
        """The number of a name; 0, whose records are counted as dropped, if there are too many."""
        try:
            id = self._ids.get((category, name, kind, value))
        except TypeError:
            id = None
        if id is not None:
            return id
        key: _Key = (
            text_of(category),
            text_of(name),
            text_of(kind),
            None if value is None else text_of(value),
        )
        id = self._ids.get(key)
        if id is not None:
            return id
        number = next(self._next_name)
        if number > MOST_NAMES:
            self._too_many()
            return 0
        # before it is looked whether there is a file: who makes one then writes what is here
        self._names[number] = key
        self._write(_name_line(number, key), True)
        return self._ids.setdefault(key, number)

    def arguments(self, mapping: Mapping[str, Any]) -> int:
        """The number of a set of arguments; 0 of an empty one, and of what is not a mapping."""
        try:
            text = _text_of_arguments(mapping)
        except RecursionError:
            raise
        except (AttributeError, TypeError, ValueError, RuntimeError):
            return 0  # it is not a mapping, or is being changed
        return 0 if text == "{}" else self.arguments_as_json(text)

    def arguments_as_json(self, text: str) -> int:
        """The number of a set of arguments that is a line of JSON already, of one object: what is
        nested stays so."""
        id = self._young.get(text)
        if id is not None:
            return id
        number = self._old.get(text)
        if number is None:
            number = next(self._next_arguments)
            if number >= layout.THREAD:
                return 0
            self._write(_arguments_line(number, text), False)
        young = self._young
        if (
            len(young) >= MOST_ARGUMENTS or self._characters >= MOST_CHARACTERS
        ) and self._young is young:
            self._old, self._young, self._characters = young, {}, 0
        self._characters += len(text)
        # Of two threads that intern the same at once the first has the entry: before there is a
        # file it is where a number's line is found.
        return self._young.setdefault(text, number)

    def begin_recording(self) -> None:
        """What was interned long ago, for recordings that have ended, need not be found any
        more."""
        del self._before[:-TABLES_KEPT]

    def begin_file(self) -> int:
        """There is a file now, or another one: what was interned before gets its line when it is
        used, and what is asked for a new number. Returns a number above those of all arguments so
        far."""
        young: dict[str, int] = {}
        self._before.extend((self._old, self._young, young))
        self._old, self._young, self._characters = {}, young, 0
        return next(self._next_arguments)

    def line_of_arguments(self, number: int) -> bytes | None:
        """The line of a set that was interned before there was a file, if it is still kept."""
        for table in (self._young, self._old, *reversed(self._before)):
            for text, other in list(table.items()):
                if other == number:
                    return _arguments_line(number, text)
        return None

    def lines(self) -> Iterator[bytes]:
        """The lines of all names so far."""
        for number, key in list(self._names.items()):
            yield _name_line(number, key)

    def describe(self, number: int) -> str:
        """The name of a number as reports show it: ``category.name``."""
        if number not in self._names:
            return TOO_MANY if not number else "(unknown)"
        category, name = self._names[number][:2]
        return f"{category}.{name}"

    def key(self, number: int) -> tuple[str, str, str]:
        """(category, name, kind) of a number; empty if it is nobody's."""
        return self._names[number][:3] if number in self._names else ("", "", "")


def _name_line(number: int, key: _Key) -> bytes:
    category, name, kind, value = key
    return _line(
        {layout.NAME: number, "kind": kind, "category": category, "name": name, "value": value}
    )


def _text_of_arguments(mapping: Mapping[str, Any]) -> str:
    """A set of arguments as JSON: as ``_encode`` has it, which takes three times as long for whole
    numbers."""
    parts = []
    for key, value in mapping.copy().items() if type(mapping) is dict else mapping.items():
        if type(value) is not int or not -_HUGE < value < _HUGE:
            kind = type(value)
            value = _quoted(value) if kind is str else _encode(_plain(value))
        parts.append(f"{_quoted(key if type(key) is str else text_of(key))}:{value}")
    return f"{{{','.join(parts)}}}"


def _arguments_line(number: int, text: str) -> bytes:
    return f'{{"{layout.ARGUMENTS}":{number},"arguments":{text}}}\n'.encode()


def thread_line(tid: int, name: str) -> bytes:
    """The line of a thread."""
    return _line({layout.THREAD_NAME: tid, "thread": name})


def group_line(rank: int, world_size: int) -> bytes:
    """The line of a process that has learnt its rank."""
    return _line({layout.GROUP: rank, "world_size": world_size})


def ends_line(ends: dict[int, int]) -> bytes:
    """The line of a process that has ended its recording: the bytes of each of its segments."""
    return _line({layout.ENDS: {str(number): end for number, end in ends.items()}})


def _line(data: dict[str, Any]) -> bytes:
    return _encode(data).encode() + b"\n"


header_line = _line


def text_of(value: Any) -> str:
    """A text as it is, anything else as its type's name; runs no code of the program, as ``str`` of
    an unknown object would."""
    kind = type(value)
    if kind is str:
        return value  # type: ignore[no-any-return]
    if issubclass(kind, str):
        return str.__str__(value)
    return _type_name(kind)


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind is str or kind is float or kind is bool or value is None:
        return value
    if issubclass(kind, int):
        number = int.__int__(value)
        return number if -_HUGE < number < _HUGE else {"hex": hex(number)}
    if issubclass(kind, float):
        return float.__float__(value)
    return text_of(value)


def _type_name(kind: type) -> str:
    name = type.__dict__["__name__"].__get__(kind)
    return name if type(name) is str else "object"
