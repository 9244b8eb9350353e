"""Operations that the user names, ``--loader-ops module:Class.method``: a tokenizer that a dataset calls, what decodes a sound."""

from __future__ import annotations

import sys
from types import FunctionType

from voirkit.errors import CommandLineError
from voirkit.imports import when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

    from voirkit_instruments.loader.record_operations import Operations

_OPTION = "--loader-ops"
_MAIN = ("__main__", "__mp_main__")


def names(given: Sequence[str]) -> list[str]:
    """The names in the values of the option.

    Raises:
        CommandLineError: One is not of the form ``module:function`` or ``module:Class.method``.
    """
    found = [name.strip() for value in given for name in value.split(",") if name.strip()]
    for name in found:
        module, colon, path = name.partition(":")
        if not colon or not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
            raise CommandLineError(
                f"{name!r} names no function.",
                where=_OPTION,
                next=f"Give module:function or module:Class.method, such as {_OPTION} transformers:BertTokenizerFast.__call__",
            )
    return list(dict.fromkeys(found))


class NamedOperations:
    """Puts what is recorded around them when they are there.

    Args:
        given: Their names.
        operations: What puts it there.

    Attributes:
        missing: For each that has not been found, why.
    """

    def __init__(self, given: Sequence[str], operations: Operations) -> None:
        self._operations = operations
        self.missing = dict.fromkeys(given, "its module was not imported")
        self._over = False

    def watch(self) -> None:
        """Look for each when its module has been imported."""
        for name in self.missing:
            module = name.partition(":")[0]
            if module not in _MAIN:
                when_imported(module, self._imported)

    def unwatch(self) -> None:
        """No more."""
        self._over = True

    def _imported(self, module: ModuleType) -> None:
        if not self._over:
            self.look()

    def look(self) -> None:
        """Look for those that have not been found: a module may define one after it was imported."""
        for name in list(self.missing):
            module, _, path = name.partition(":")
            found = _module(module)
            if found is None:
                continue
            try:
                why = self._put(found, path)
            except Exception as exc:  # whatever an odd module does when it is looked at
                why = f"{type(exc).__name__}: {exc}"
            if why:
                self.missing[name] = why
            else:
                self.missing.pop(name, None)

    def _put(self, module: ModuleType, path: str) -> str:
        """Why it can not be; empty if it is there now."""
        *outer, last = path.split(".")
        owner: Any = module
        for part in outer:
            owner = getattr(owner, part, None)
        if isinstance(owner, type):
            return self._method(owner, last)
        found = getattr(owner, last, None)
        if found is None:
            return f"{module.__name__} has no {path}"
        if isinstance(found, type):
            return f"{path} is a class; name its method, such as {path}.__call__"
        return "" if self._operations.function(found) else _UNSEEN

    def _method(self, kind: type, name: str) -> str:
        owner = next((above for above in kind.__mro__ if name in vars(above)), None)
        if owner is None:
            return f"{kind.__qualname__} has no {name}"
        method = vars(owner)[name]
        if type(method) in (staticmethod, classmethod):
            return "" if self._operations.function(method.__func__, f"{kind.__name__}.{name}") else _UNSEEN
        if type(method) is not FunctionType:
            return _UNSEEN
        return "" if self._operations.method(owner, name, "" if name in ("__call__", "forward") else f".{name}") else _UNSEEN


_UNSEEN = "it is not written in Python, or its source is not there to read"


def _module(name: str) -> ModuleType | None:
    if name in _MAIN:  # a process that was started anew has the script by the other name
        return sys.modules.get("__mp_main__") or sys.modules.get("__main__")
    return sys.modules.get(name)
