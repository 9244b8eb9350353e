"""Transforms: what is recorded of each, and around which functions that stands.

A transform is recorded under its class's name, a function under its own; what only calls others in turn (a Compose, a ``nn.Sequential``, an
object with a list ``transforms``) is none itself.  What is around is the class's function, never an object.
Checked with torchvision 0.16 and 0.29, albumentations 2.0.
"""

from __future__ import annotations

import sys
from types import FunctionType

from voirkit_instruments.loader.record_patches import LoaderPatches, innermost, parameter
from voirkit_instruments.loader.record_spans import FETCH, now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit_instruments.loader.record_spans import Recording

_PASSING = {("torchvision.datasets.folder", "default_loader")}  # only calls another function that is recorded


class Operations:
    """What stands around transforms.

    Args:
        recording: Where records go.
        patches: What puts it there.
    """

    def __init__(self, recording: Recording, patches: LoaderPatches) -> None:
        self._recording, self._patches = recording, patches
        self._kinds: set[type] = set()  # classes that have been looked at
        self._leave = self._leaving()

    def _leaving(self) -> Any:
        here, span = self._recording.here, self._recording.span

        def leave(began: Any, was: int, *_: Any) -> None:
            end = now()
            if began:
                span(began[1], began[0], end, here.args, here.item)

        return leave

    # functions

    def function(self, function: Any, name: str | None = None) -> bool:
        """A function that is a transform."""
        function = innermost(function)
        if type(function) is not FunctionType or (function.__module__, function.__name__) in _PASSING:
            return False
        if self._patches.has(function):
            return True
        number = self._recording.operation(name or function.__name__)

        def enter() -> Any:
            return now(), number

        where = f"{function.__module__}.{function.__qualname__}"
        return self._patches.put(where, function, enter, self._leave, FETCH, anywhere=True)

    # classes

    def kind(self, kind: type) -> None:
        """A class whose objects are transforms."""
        if kind in self._kinds:
            return
        self._kinds.add(kind)
        found = called(kind)
        if found is not None:
            self.method(*found)

    def method(self, owner: type, name: str, suffix: str = "") -> bool:
        """The method of a class that does what its objects are for.

        Args:
            owner: The class that defines it.
            name: The method's name.
            suffix: What the operation is called by behind the name of the object's class.
        """
        function = innermost(vars(owner).get(name))
        if type(function) is not FunctionType or self._patches.has(function):
            return type(function) is FunctionType
        first = parameter(function, 0)
        if first is None:
            return False
        names = _Names(self, owner, name, suffix)

        def enter(self: Any) -> Any:
            number = names[type(self)]
            return (now(), number) if number else 0

        def enter_all(arguments: tuple[Any, ...]) -> Any:
            return enter(arguments[0]) if arguments else 0

        where = f"{owner.__module__}.{owner.__qualname__}.{name}"
        return self._patches.put(where, function, enter_all if first[1] else enter, self._leave, FETCH, (first[0],), anywhere=True)

    def named(self, kind: type, owner: type, name: str, suffix: str) -> int:
        """The number of the operation that a method is for objects of a class; 0: another method is, which calls this one."""
        if not suffix:
            found = called(kind)
            if found is not None and found != (owner, name):
                self.kind(kind)
                return 0
        return self._recording.operation(f"{kind.__name__}{suffix}")

    # what calls them in turn

    def container(self, owner: type, name: str, learn: Any) -> None:
        """A class whose objects call their ``transforms`` in turn: what comes into that list later is seen when it is called.

        Args:
            owner: The class that defines the method.
            name: The method.
            learn: Called with each transform of a class that has not been looked at.
        """
        kinds, patches = self._kinds, self._patches
        self._kinds.add(owner)

        def enter(self: Any) -> int:
            try:
                for transform in self.transforms:
                    kind = type(transform)
                    if kind not in kinds and not (kind is FunctionType and patches.has(transform)):
                        learn(transform)
            except Exception:
                pass  # it is no list: the program is about to hear of it
            return 1

        def leave(began: int, was: int) -> None:
            pass

        function = innermost(vars(owner).get(name))
        first = parameter(function, 0) if type(function) is FunctionType else None
        if first is not None and not first[1]:
            self._patches.put(f"{owner.__module__}.{owner.__qualname__}.{name}", function, enter, leave, FETCH, (first[0],), anywhere=True)


class _Names(dict[type, int]):
    """By class of the object the number of an operation."""

    def __init__(self, operations: Operations, owner: type, name: str, suffix: str) -> None:
        self._operations, self._of = operations, (owner, name, suffix)

    def __missing__(self, kind: type) -> int:
        try:
            number = self._operations.named(kind, *self._of)
        except Exception:
            number = 0
        self[kind] = number
        return number


def called(kind: type) -> tuple[type, str] | None:
    """The class and the name of the method that does the work of ``object(...)``, if it is written in Python."""
    module = getattr(sys.modules.get("torch.nn"), "Module", None)
    for owner in kind.__mro__:
        if owner is module:
            break
        if "__call__" in vars(owner):
            return (owner, "__call__") if type(vars(owner)["__call__"]) is FunctionType else None
    if module is not None and issubclass(kind, module):
        for owner in kind.__mro__:
            if "forward" in vars(owner):
                return (owner, "forward") if owner is not module and type(vars(owner)["forward"]) is FunctionType else None
    return None
