"""What the bytes of ``_calls_summary.h`` say of a call's arguments and result, as the JSON of a record; and names of types.

Nothing here sees an object of the program but its type.
"""

from __future__ import annotations

import json
from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

BOUND = 1
END: Any = object()  # the bytes end here: there was no room for more

_u16, _i64, _f64 = Struct("<H"), Struct("<q"), Struct("<d")
_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=True).encode
_CONSTANTS: dict[str, Any] = {
    "N": None, "T": True, "F": False, "j": {"type": "int"}, "g": {"type": "float"}, "w": {"type": "str"},
}  # fmt: skip
_TORCH = {"torch.nn.parameter.Parameter": "torch.nn.Parameter", "torch.nn.parameter.Buffer": "torch.nn.Buffer"}  # as users spell them


def type_name(kind: type) -> str:
    """``module.qualname``, without ``builtins``; runs no code of a metaclass."""
    name = type.__dict__["__qualname__"].__get__(kind)
    namespace = type.__dict__["__dict__"].__get__(kind)
    is_of_python = type.__dict__["__flags__"].__get__(kind) & 1 << 9
    module = namespace.get("__module__") if is_of_python else type.__dict__["__module__"].__get__(kind)
    if type(module) is not str or module == "builtins":
        return str(name)
    return _TORCH.get(f"{module}.{name}", f"{module}.{name}")


def is_of(value: object, kind: type) -> bool:
    """``isinstance``, asked of no ``__class__`` that the value may have made up."""
    return kind in type.__dict__["__mro__"].__get__(type(value))


class Vocabulary:
    """What numbers in the bytes stand for.

    Attributes:
        types: Names of types by number; 0 is one beyond those that are kept.
        words: Names of keyword arguments by number.
        dtypes: Names of torch's dtypes, by its own number.
        devices: Names of kinds of devices, by torch's own number.
    """

    def __init__(self) -> None:
        self.types: list[str] = ["object"]
        self.words: list[str] = ["(keyword)"]
        self.dtypes: Mapping[int, str] = {}
        self.devices: Mapping[int, str] = {}

    def as_json(self, key: bytes) -> str:
        """The arguments of a record: see docs/calls.md."""
        return _dumps(_Reader(self, key).read())


class _Reader:
    def __init__(self, vocabulary: Vocabulary, key: bytes) -> None:
        self._say, self._key, self._at = vocabulary, key, 5

    def read(self) -> dict[str, Any]:
        key = self._key
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        said: dict[str, Any] = {}
        while self._at < len(key):
            tag = chr(key[self._at])
            if tag == "K":
                self._at += 1
                value, word = END, self._word()
                value = self._value()
                if value is not END:
                    kwargs[word] = value
            elif tag == "R":
                self._at += 1
                value = self._value()
                if value is not END and value is not None:
                    said["returns"] = value
            elif tag == "E":
                self._at += 1
                said["error"] = self._type()
            else:
                value = self._value()
                if value is not END:
                    args.append(value)
        parts = {"args": args, "kwargs": kwargs, **said, "bound": bool(key[4] & BOUND)}
        return {name: value for name, value in parts.items() if name == "returns" or value not in ([], {}, False)}

    def _number(self, of: Struct) -> Any:
        (number,) = of.unpack_from(self._key, self._at)
        self._at += of.size
        return number

    def _type(self) -> str:
        number: int = self._number(_u16)
        return self._say.types[number]

    def _word(self) -> str:
        number: int = self._number(_u16)
        return self._say.words[number]

    def _text(self) -> str:
        size = self._key[self._at]
        self._at += 1 + size
        return self._key[self._at - size : self._at].decode()

    def _value(self) -> Any:
        if self._at >= len(self._key):
            return END
        tag = chr(self._key[self._at])
        self._at += 1
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag == "i":
            return self._number(_i64)
        if tag == "f":
            return self._number(_f64)
        if tag == "s":
            return self._text()
        if tag == "S":
            return {"type": "str", "n": self._number(_i64)}
        if tag in "ty":
            return self._tensor(tag)
        if tag == "z":
            return {"tensor": self._type()}
        if tag in "lud":
            return self._many(tag)
        return {"type": self._type()}

    def _tensor(self, tag: str) -> dict[str, Any]:
        kind = self._type()
        dtype, device, index, grad, ndim = self._key[self._at : self._at + 5]
        self._at += 5
        where = self._say.devices.get(device, f"device {device}")
        said: dict[str, Any] = {"tensor": kind, "dtype": self._say.dtypes.get(dtype, f"dtype {dtype}")}
        if tag == "t":
            said["shape"] = [self._number(_i64) for _ in range(min(ndim, 8))]
        if tag == "y" or ndim > 8:
            said["dims"] = ndim
        return {**said, "device": where if index == 255 else f"{where}:{index}", "grad": bool(grad)}

    def _many(self, tag: str) -> dict[str, Any]:
        said: dict[str, Any] = {"type": self._type()}
        n, count = self._number(_i64), self._key[self._at]
        self._at += 1
        if n >= 0:
            said["n"] = n
        items: list[tuple[str, Any]] = []
        for _ in range(count):
            name = self._text() if tag == "d" else ""
            items.append((name, self._value()))
        kept = [(name, value) for name, value in items if value is not END]
        if kept:
            said["items"] = dict(kept) if tag == "d" else [value for _, value in kept]
        return said


def place(kind: int, index: int, item: int, words: Sequence[str]) -> str:
    """Where a tensor stands in a call: ``args.0``, ``kwargs.weight``, ``returns.1``."""
    parts = (["args", str(index)], ["kwargs", words[index] if index < len(words) else "?"], ["returns"])[kind]
    return ".".join([*parts, *([str(item - 1)] if item else [])])
