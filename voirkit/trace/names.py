"""Interns names and arguments: assigns the integer ids by which records refer to them.

There is no lock: a signal handler, a destructor or another thread may intern at any moment, even in
the middle of this code. Two callers that intern the same thing at the same time may get two
different ids; both are valid. If there is a ``.names`` file, an id is returned only after its line
has been written there.
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
# limits of a table of arguments (see ``Names.__init__``): number of entries, and of characters
MOST_ARGUMENTS = 1 << 13
MOST_CHARACTERS = 1 << 22
TABLES_KEPT = 24  # number of older tables to keep when a recording begins; each file adds three
TOO_MANY = "(names beyond what is kept)"

_encode = json.JSONEncoder(separators=(",", ":")).encode
# integers beyond this are written in hex: Python refuses to convert more than 4300 decimal digits
_HUGE = 1 << 8191
_Key = tuple[str, str, str, "str | None"]  # category, name, kind, key of the value


class Names:
    """The interned names and arguments of this process.

    Args:
        write: Called with a line for each new name or arguments, and whether it is for a name.
            Without a file it must do nothing.
        too_many: Called when there are more than ``MOST_NAMES`` names.
    """

    def __init__(self, write: Callable[[bytes, bool], None], too_many: Callable[[], None]) -> None:
        self._write, self._too_many = write, too_many
        self._ids: dict[Any, int] = {}
        self._names: dict[int, _Key] = {}
        self._next_name, self._next_arguments = count(1), count(1)
        # Arguments are in two tables. When the young table is full, it replaces the old one, whose
        # entries are forgotten unless they were used in the meantime. Forgotten arguments get a new
        # id when they are interned again. Their earlier ids stay valid, since their lines are in
        # the file.
        self._young: dict[str, int] = {}
        self._old: dict[str, int] = {}
        self._characters = 0
        # Tables with arguments that were interned before the current file existed, to find their
        # lines. Tables are only appended, and a new young table is appended before it is used. So
        # no table is lost to which another thread is just adding an entry.
        self._before: list[dict[str, int]] = []

    def name(self, category: str, name: str, kind: str = "span", value: str | None = None) -> int:
        """Return the id of a name. If there are too many names, return 0; records with the id 0 are
        counted as dropped."""
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
        # Stored before ``write`` checks for a file: if another thread then creates the file, it
        # writes all names stored here.
        self._names[number] = key
        self._write(_name_line(number, key), True)
        return self._ids.setdefault(key, number)

    def arguments(self, mapping: Mapping[str, Any]) -> int:
        """Return the id of a set of arguments; 0 if it is empty or not a mapping."""
        try:
            text = _text_of_arguments(mapping)
        except RecursionError:
            raise
        except (AttributeError, TypeError, ValueError, RuntimeError):
            return 0  # not a mapping, or another thread changes it during the iteration
        return 0 if text == "{}" else self.arguments_as_json(text)

    def arguments_as_json(self, text: str) -> int:
        """Return the id of a set of arguments given as JSON text: an object, on one line. Nested
        values are kept."""
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
        # If two threads intern the same text at once, both must return the id of the first: without
        # a file, the line of an id can be found only through its entry here.
        return self._young.setdefault(text, number)

    def begin_recording(self) -> None:
        """Drop the oldest tables. Their arguments were interned for recordings that have ended, and
        need not be found any more."""
        del self._before[:-TABLES_KEPT]

    def begin_file(self) -> int:
        """Begin a new file, which has no lines of arguments yet.

        The line of arguments that were interned before is written when a record first uses their
        id. If they are interned again, they get a new id.

        Returns:
            A number greater than the ids of all arguments so far.
        """
        young: dict[str, int] = {}
        self._before.extend((self._old, self._young, young))
        self._old, self._young, self._characters = {}, young, 0
        return next(self._next_arguments)

    def line_of_arguments(self, number: int) -> bytes | None:
        """Return the line of the arguments with an id, if they were interned before the current
        file existed; None if they are no longer kept."""
        for table in (self._young, self._old, *reversed(self._before)):
            for text, other in list(table.items()):
                if other == number:
                    return _arguments_line(number, text)
        return None

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of all names interned so far."""
        for number, key in list(self._names.items()):
            yield _name_line(number, key)

    def describe(self, number: int) -> str:
        """Return the name with an id in the form that reports show: ``category.name``."""
        if number not in self._names:
            return TOO_MANY if not number else "(unknown)"
        category, name = self._names[number][:2]
        return f"{category}.{name}"

    def key(self, number: int) -> tuple[str, str, str]:
        """Return (category, name, kind) of a name id; empty strings if the id is unknown."""
        return self._names[number][:3] if number in self._names else ("", "", "")


def _name_line(number: int, key: _Key) -> bytes:
    category, name, kind, value = key
    return _line(
        {layout.NAME: number, "kind": kind, "category": category, "name": name, "value": value}
    )


def _text_of_arguments(mapping: Mapping[str, Any]) -> str:
    """Return arguments as JSON. The result equals that of ``_encode``, which takes three times as
    long for integers."""
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
    """Return the line of the ``.names`` file for a thread."""
    return _line({layout.THREAD_NAME: tid, "thread": name})


def group_line(rank: int, world_size: int) -> bytes:
    """Return the line of the ``.names`` file for a process that has learned its rank."""
    return _line({layout.GROUP: rank, "world_size": world_size})


def ends_line(ends: dict[int, int]) -> bytes:
    """Return the last line of the ``.names`` file. ``ends``: the size of each segment in bytes, by
    number."""
    return _line({layout.ENDS: {str(number): end for number, end in ends.items()}})


def _line(data: dict[str, Any]) -> bytes:
    return _encode(data).encode() + b"\n"


header_line = _line


def text_of(value: Any) -> str:
    """Return a text unchanged, and for any other value the name of its type. Unlike ``str``, this
    runs no code of the program."""
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
