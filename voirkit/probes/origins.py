"""Whose code is whose: for code that voirkit has made, the program's own code that it stands for, and for whom it was made."""

from __future__ import annotations

import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

made: dict[int, tuple[Any, CodeType, frozenset[int]]] = {}  # by identity of new code: itself, the program's own code, for whom
live: set[int] = set()  # identities of those who listen
around: set[int] = set()  # those of them that stand around whole functions, with no selector


def forget(table: dict[int, Any], key: int) -> Callable[[Any], None]:
    """Drops an entry when what it is about is gone; holds the table itself, since a module's names are gone when python ends."""
    return lambda _: table.pop(key, None)


def note(code: CodeType, old: CodeType, whose: frozenset[int]) -> None:
    """Remember what new code stands for, as long as there is such code."""
    key = id(code)
    made[key] = (weakref.ref(code, forget(made, key)), old, whose)


def original(code: CodeType) -> CodeType:
    """The program's own code for code that voirkit may have made."""
    found = made.get(id(code))
    return found[1] if found is not None else code


def stays(code: CodeType) -> bool:
    """Whether code is to come back when the last probe on its function goes: something still stands around the function."""
    found = made.get(id(code))
    return found is not None and bool(found[2] & around & live)
