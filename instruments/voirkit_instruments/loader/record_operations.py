"""Operations: transforms and what the user names, and around which functions what records them stands.

A transform is recorded under its class's name, a function under its own; what only calls others in turn (a Compose, a ``nn.Sequential``, an
object with a list ``transforms``) is none itself. What is around is the class's function, never an object, each once; a function that asks
for its own local variables is left alone, since it would find two more. The transforms of torchvision and albumentations are known,
wherever a program calls them, once they have been imported; those of a dataset are found in it (``record_datasets``).

Checked with torchvision 0.16 and 0.29, albumentations 2.0.
"""

from __future__ import annotations

import sys
import weakref
from types import FunctionType, MethodType

from voirkit.errors import CommandLineError
from voirkit.imports import when_imported
from voirkit.intercept import Patches
from voirkit.probes import weave
from voirkit.probes.around import Around
from voirkit.probes.compatibility import watch_picklers
from voirkit_instruments.loader.record_spans import FETCH, now
from voirkit_instruments.steps.torch_functions import COMPILING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

    from voirkit_instruments.loader.record_spans import Recording, ThreadState

_ASKING = {"locals", "vars", "eval", "exec", "dir", "_getframe", "currentframe"}


class LoaderPatches:
    """The patches of the loader instrument.

    Args:
        state: Says where each thread is.

    Attributes:
        patches: The table of them.
    """

    def __init__(self, state: ThreadState) -> None:
        self.patches = Patches()
        self._state = state
        self._known: dict[int, weakref.ref[FunctionType]] = {}
        self._arounds: dict[tuple[Any, ...], Around] = {}

    def record_around(
        self, name: str, function: Any, enter: Any, leave: Any, most: int, passed: tuple[str, ...] = (), on_leave: tuple[str, ...] = (),
        value: bool = False, anywhere: bool = False,
    ) -> bool:  # fmt: skip
        """Put something around a function, through its decorators.

        Args:
            name: What it is called in the table.
            function: The function.
            enter, leave, most, passed, value: As for ``Around``.
            on_leave: As ``left`` for ``Around``.
            anywhere: The program may ask ``torch.compile`` to compile it.

        Returns:
            Whether it is there now.
        """
        function = innermost(function)
        if type(function) is not FunctionType:
            self.patches.table[name] = "is not written in Python"
            return False
        if self.has(function):
            return True
        if _ASKING & set(function.__code__.co_names):
            self.patches.table[name] = "asks for its own local variables"
            return False
        plain = COMPILING if anywhere and "torch" in function.__globals__ and "torch" not in function.__code__.co_varnames else ()
        unasked = anywhere and not plain
        key = (enter, leave, most, passed, on_leave, value, bool(plain), unasked)
        around = self._arounds.get(key)
        if around is None:
            around = self._arounds[key] = Around(self._state, most, enter, leave, passed, value, plain, on_leave, unasked)
        if not self.patches.around(self._unique(name, function), function, around):
            return False
        watch_picklers(weave.own_code)  # the code may be a lambda's that is pickled by value
        key_of = id(function)
        self._known[key_of] = weakref.ref(function, lambda _: self._known.pop(key_of, None))
        return True

    def has(self, function: FunctionType) -> bool:
        """Whether something is around a function."""
        known = self._known.get(id(function))
        return known is not None and known() is function

    def _unique(self, name: str, function: FunctionType) -> str:
        """A name for the table, which undoes by name: lambdas are many, and have one."""
        return (
            name
            if name not in self.patches.table
            else f"{name} at {function.__code__.co_filename}:{function.__code__.co_firstlineno} {id(function)}"
        )

    def remove(self) -> None:
        """Put all back."""
        self.patches.remove()
        self._known.clear()


def innermost(function: Any) -> Any:
    """The function that a method is of, or that decorators written in Python stand around."""
    if type(function) is MethodType:
        function = function.__func__
    while type(function) is FunctionType and type(function.__dict__.get("__wrapped__")) is FunctionType:
        function = function.__dict__["__wrapped__"]
    return function


def parameter(function: FunctionType, which: int) -> tuple[str, bool] | None:
    """The name of a parameter by position, and whether it is the tuple that has it; None: there is none."""
    code = function.__code__
    if code.co_argcount > which:
        return code.co_varnames[which], False
    if code.co_flags & 0x04:  # *args
        return code.co_varnames[code.co_argcount + code.co_kwonlyargcount], True
    return None


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
        return self._patches.record_around(where, function, enter, self._leave, FETCH, anywhere=True)

    # classes

    def kind(self, kind: type) -> None:
        """A class whose objects are transforms."""
        if kind in self._kinds:
            return
        self._kinds.add(kind)
        found = call_method(kind)
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
        names = _OperationNumbers(self, owner, name, suffix)

        def enter(self: Any) -> Any:
            number = names[type(self)]
            return (now(), number) if number else 0

        def enter_all(arguments: tuple[Any, ...]) -> Any:
            return enter(arguments[0]) if arguments else 0

        where = f"{owner.__module__}.{owner.__qualname__}.{name}"
        return self._patches.record_around(
            where, function, enter_all if first[1] else enter, self._leave, FETCH, (first[0],), anywhere=True
        )

    def named(self, kind: type, owner: type, name: str, suffix: str) -> int:
        """The number of the operation that a method is for objects of a class; 0: another method is, which calls this one."""
        if not suffix:
            found = call_method(kind)
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
            self._patches.record_around(
                f"{owner.__module__}.{owner.__qualname__}.{name}", function, enter, leave, FETCH, (first[0],), anywhere=True
            )


class _OperationNumbers(dict[type, int]):
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


def call_method(kind: type) -> tuple[type, str] | None:
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


_FAMILIES = ("torchvision.transforms", "albumentations.core.composition", "albumentations.core.transforms_interface")
_IN_TURN = ("Compose", "ReplayCompose", "Sequential")  # these only call others
_NOT = ("BaseCompose",)
# Read and decode: a folder dataset's loaders by one name, others by their own.
_READING: dict[str, dict[str, str | None]] = {
    "torchvision.datasets.folder": {"pil_loader": "Loader", "accimage_loader": "Loader"},
    "torchvision.io.image": dict.fromkeys(("read_image", "decode_image", "decode_jpeg", "decode_png", "decode_gif", "decode_webp")),
}


class Libraries:
    """Puts what is recorded around the transforms of libraries.

    Args:
        operations: What puts it there.
        learn: Called with each transform that is called in turn and is of a class that has not been looked at.
    """

    def __init__(self, operations: Operations, learn: Callable[[Any], None]) -> None:
        self._operations, self._learn = operations, learn
        self._looked: set[str] = set()
        self._imported: tuple[int, str] | None = None

    def update(self) -> None:
        """Do it for what has been imported since it was done last: at each ``iter(loader)``, and there are thousands of modules."""
        names = list(sys.modules)
        imported = len(names), names[-1]
        if imported == self._imported:
            return
        self._imported = imported
        for name, module in list(sys.modules.items()):
            if name.startswith(_FAMILIES) and name not in self._looked and ".functional" not in name:
                self._looked.add(name)
                self._classes(name, vars(module))
        for name, functions in _READING.items():
            if name in sys.modules and name not in self._looked:
                self._looked.add(name)
                for function, called_by in functions.items():
                    self._operations.function(vars(sys.modules[name]).get(function), called_by)

    def _classes(self, name: str, namespace: dict[str, Any]) -> None:
        for kind in list(namespace.values()):
            if not isinstance(kind, type) or kind.__module__ != name or kind.__name__ in _NOT:
                continue
            if kind.__name__ in _IN_TURN:
                does = call_method(kind)
                if does is not None:
                    self._operations.container(*does, self._learn)
            else:
                self._operations.kind(kind)


_OPTION = "--loader-ops"
_MAIN = ("__main__", "__mp_main__")


def parse_operation_names(values: Sequence[str]) -> list[str]:
    """The names in the values of the option.

    Raises:
        CommandLineError: One is not of the form ``module:function`` or ``module:Class.method``.
    """
    found = [name.strip() for value in values for name in value.split(",") if name.strip()]
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
        names: Those.
        operations: What puts it there.

    Attributes:
        missing: For each that has not been found, why.
    """

    def __init__(self, names: Sequence[str], operations: Operations) -> None:
        self._operations = operations
        self.missing = dict.fromkeys(names, "its module was not imported")
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
            self.update()

    def update(self) -> None:
        """Look for those that have not been found: a module may define one after it was imported."""
        for name in list(self.missing):
            module, _, path = name.partition(":")
            found = _module(module)
            if found is None:
                continue
            try:
                why = self._record_path(found, path)
            except Exception as exc:  # whatever an odd module does when it is looked at
                why = f"{type(exc).__name__}: {exc}"
            if why:
                self.missing[name] = why
            else:
                self.missing.pop(name, None)

    def _record_path(self, module: ModuleType, path: str) -> str:
        """Why it cannot be; empty if it is there now."""
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
