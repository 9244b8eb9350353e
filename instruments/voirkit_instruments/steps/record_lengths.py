"""How many batches a loader will give, where that can be known without running code of the program.

A ``__len__`` of the program's own is called only if it does nothing but look at plain attributes.
"""

from __future__ import annotations

import functools
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import CodeType
    from typing import Any

# Loads, operators and calls without keywords; what these names begin is common to python 3.10 to 3.13.
_LOOKING = (
    "LOAD_",
    "BINARY_",
    "COMPARE_",
    "UNARY_",
    "RETURN_",
    "CALL",
    "PRECALL",
    "PUSH_NULL",
    "RESUME",
    "CACHE",
    "NOP",
    "COPY_FREE_VARS",
    "TO_BOOL",
)
_HARMLESS = {"len", "int", "sum", "min", "max"}
_PARTS = {"BINARY_SUBSCR", "sum", "min", "max"}  # what looks at the parts of a list
_LIBRARIES = ("torch", "torchvision", "numpy", "pandas")
_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), range, type, property, GetSetDescriptorType, FunctionType)
_MOST = 64  # a longer list is not walked
_DEEPEST = 4
_NOTHING: Any = object()


def batches(loader: Any) -> int | None:
    """How many batches an iterator of the loader will have, or None if that can not be known without running code of the program.

    ``len(loader)`` would tell torch, for an iterable dataset, that the program had asked, and torch then warns of what it would not have
    warned of.
    """
    from torch.utils.data import IterableDataset  # it is there: this is a loader of it

    if issubclass(type(loader.dataset), IterableDataset):
        return None
    own = getattr(loader.batch_sampler, "__dict__", {})
    samplers = [loader.batch_sampler, loader.sampler, own.get("sampler")]
    sources = [getattr(sampler, "__dict__", {}).get("data_source") for sampler in samplers if _is_library(type(sampler))]
    asked = [thing for thing in (loader, loader.dataset, *samplers, *sources) if thing is not None]
    if not _is_library(of_class(type(loader), "__len__")):  # a loader that goes over a sampler for ever tells by what is behind it
        asked = [thing for thing in asked if of_class(type(thing), "__len__") is not _NOTHING]
    return len(loader) if all(map(only_looks, asked)) else None


def only_looks(thing: object, deep: int = _DEEPEST) -> bool:
    """Whether ``len(thing)`` runs nothing of the program but a ``__len__`` that looks at plain attributes.

    Args:
        thing: Anything; it is not asked.
        deep: How many objects of the program may be inside of each other.
    """
    kind = type(thing)
    length = of_class(kind, "__len__")
    if type(length) is not FunctionType:
        return type(length).__name__ == "wrapper_descriptor"  # a list's, a dictionary's
    if deep <= 0 or type(of_class(kind, "__getattribute__")) is FunctionType:
        return False
    code, parts, cells = length.__code__, False, []
    if not _is_library(length):
        done = _done(code)
        if done is None or not _HARMLESS.isdisjoint(length.__globals__):
            return False
        parts = not _PARTS.isdisjoint(done)
        cells = [cell.cell_contents for cell in length.__closure__ or ()]
    names = [name for name in code.co_names if name not in _HARMLESS]
    return all(_is_harmless(value, deep, parts, names) for value in [*cells, *_values(thing, names)])


@functools.lru_cache(maxsize=128)
def _done(code: CodeType) -> frozenset[str] | None:
    """The operations and names in code that calls nothing but ``len`` and the like, and sets nothing; None: it does more."""
    import dis

    done = set(code.co_names)
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if not name.startswith(_LOOKING) or (name.startswith("LOAD_GLOBAL") and instruction.argval not in _HARMLESS):
            return None
        if name in ("LOAD_METHOD", "LOAD_SUPER_ATTR") or (name == "LOAD_ATTR" and "NULL" in instruction.argrepr):
            return None
        done.add(name)
    return frozenset(done)


def _values(thing: Any, names: Iterable[str]) -> list[Any]:
    """What an object has under some names, itself or by its class; ``_NOTHING`` for what code of the program would be run for."""
    kind, values = type(thing), []
    own = vars(thing) if type(of_class(kind, "__dict__")) is GetSetDescriptorType else {}
    for name in names:
        found = of_class(kind, name)
        if type(found) is MemberDescriptorType:  # of __slots__
            try:
                values.append(found.__get__(thing))
            except AttributeError:
                values.append(_NOTHING)
        elif type(found) is property:
            values.append(found if _is_library(found.fget) else _NOTHING)
        elif name in own and not hasattr(type(found), "__set__"):
            values.append(own[name])
        elif found is not _NOTHING or of_class(kind, "__getattr__") is not _NOTHING:
            values.append(found)
    return values


def _is_harmless(value: Any, deep: int, parts: bool, names: Sequence[str]) -> bool:
    """Whether looking at a value, its length, what it has under some names, and its parts if that is done, runs nothing of the program."""
    kind = type(value)
    if kind in (list, tuple, dict):
        if not parts:
            return True
        return len(value) <= _MOST and all(_is_harmless(p, deep - 1, True, names) for p in (value.values() if kind is dict else value))
    if kind in _PLAIN or _is_library(kind):
        return True
    if of_class(kind, "__len__") is not _NOTHING:
        return only_looks(value, deep - 1)
    if value is _NOTHING or deep <= 0 or type(of_class(kind, "__getattribute__")) is FunctionType:
        return False
    return all(_is_harmless(one, deep - 1, parts, names) for one in _values(value, names))


def of_class(kind: type, name: str) -> Any:
    """What a class or one above it has under a name, as it stands there."""
    return next((vars(owner)[name] for owner in kind.__mro__ if name in vars(owner)), _NOTHING)


def _is_library(thing: Any) -> bool:
    """Whether a class or a function is a library's that is known to do no more than it says."""
    return (getattr(thing, "__module__", None) or "").partition(".")[0] in _LIBRARIES
