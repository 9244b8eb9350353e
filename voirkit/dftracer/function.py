"""``dft_fn``: DFTracer's annotation with a category and a name of the user's own.

What a function's parameters say of a call, its epoch or step, belongs to the record of that call and to no other.
"""

from __future__ import annotations

import sys

from voirkit.ai.decorate import timed
from voirkit.ai.node import ALWAYS, Node, Use, last_open, pop_open, push_open, set_arguments
from voirkit.ai.values import PLAIN, plain, real, whole
from voirkit.dftracer.constants import EntityRelation, EntityStore, declare, described
from voirkit.trace import recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from typing import Any, TypeVar

    T = TypeVar("T")

_MAGIC = ("epoch", "step", "image_idx", "image_size")


class dft_fn(Node):
    """Records of one category, by decorating functions, as a context manager, around the items of a loop, or from call to call.

    Args:
        cat: The category.
        name: The name of what the context manager and ``flush`` record; without one, the name of the function that makes this.
        epoch: An argument of all records, as are the others.
        step: An integer.
        image_idx: An integer.
        image_size: A number.
        enable: Whether anything is recorded; ``enable()`` and ``disable()`` change it.
    """

    def __init__(
        self, cat: str, name: str | None = None, epoch: Any = None, step: Any = None, image_idx: Any = None, image_size: Any = None,
        enable: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(str(cat), str(name or sys._getframe(1).f_code.co_name))
        set_arguments(self._own, self._now(), epoch, step, image_idx, image_size, None)
        self._own_is_new = True
        self._switch = (0, bool(enable))
        self._begun = [recorder.now(), False]  # when, and whether that is recorded

    # from call to call, and as a context manager

    def __enter__(self) -> dft_fn:
        push_open(self, [recorder.now(), False])
        return self

    def __exit__(self, *exc: object) -> None:
        begun = pop_open(self)
        if begun is not None and not begun[1]:
            self._write(begun[0])

    def flush(self) -> dft_fn:
        """Record what has gone on since the ``with`` was entered, the last ``reset()``, or this was made; returns this."""
        begun = last_open(self) or self._begun
        begun[1] = True
        self._write(begun[0])
        return self

    def reset(self) -> dft_fn:  # type: ignore[override]  # DFTracer's returns itself here, and None there
        """Begin again, from now; returns this."""
        begun = last_open(self) or self._begun
        begun[:] = (recorder.now(), False)
        for name in ("used", "generated", "invalidated", "updated"):
            if name in self._own:
                self.forget(name)
        return self

    def _write(self, start_ns: int) -> None:
        self.record(start_ns, recorder.now())

    # functions

    def log(self, func: Callable[..., Any] | None = None, name: str | None = None) -> Any:
        """Decorate a function: ``@fn.log``, ``@fn.log()`` or ``@fn.log(name=...)``.

        Parameters that are called epoch, step, image_idx or image_size, and attributes of ``self`` of these names, become arguments.

        Args:
            func: The function.
            name: Of its records; without one, the function's qualified name.
        """

        def decorate(f: Any) -> Any:
            called = getattr(f, "fget", f)  # of a property
            own = Node(self.cat, str(name or getattr(called, "__qualname__", "") or type(f).__name__), self)
            return timed(f, own, _chooser(f, own))

        return decorate(func) if func is not None else decorate

    def log_init(self, init: Callable[..., Any] | None = None, name: str | None = None) -> Any:
        """Decorate an ``__init__``, as ``log`` does."""
        return self.log(init, name)

    def log_static(self, func: Callable[..., Any] | None = None, name: str | None = None) -> Any:
        """Decorate a static method, below or above ``@staticmethod``, as ``log`` does."""
        return self.log(func, name)

    def iter(self, func: Iterable[T], name: str = "loop", iter_name: str = "step") -> Generator[T, None, None]:  # type: ignore[override]
        """Iterate over the same items, and record ``<name>.iter``, the wait for each, and ``<name>.yield``, the body of the loop.

        Args:
            func: What to iterate over.
            name: The beginning of the names.
            iter_name: The argument that numbers the items, from 1.
        """
        return self._loop(func, f"{name}.iter", f"{name}.yield", str(iter_name))

    def log_metadata(self, key: str, value: Any) -> None:
        """Record a name and a value of the run."""
        if self.is_on():
            recorder.mark(recorder.name("dftracer", str(key), "meta"), recorder.now(), recorder.arguments({"value": plain(value)}))

    # what the records have to do with

    def relate(self, relation: Any, entity: int) -> dft_fn:
        """Name a thing that was declared, in an argument called after the relation; returns this."""
        try:
            word = EntityRelation(int(relation)).name.lower()
        except (TypeError, ValueError):
            return self
        if entity and int(relation) < 16:
            before = self._own.get(word, (0, None))[1]
            thing = described(entity)
            self.update(args={word: f"{before}, {thing}" if type(before) is str else thing})
        return self

    def relate_entity(self, relation: Any, type: str, key: Any, store: Any = EntityStore.MEMORY, uri: str = "") -> int:
        """Declare a thing and name it; returns its number."""
        entity = declare(type, key)
        self.relate(relation, entity)
        return entity

    def uses(self, type: str, key: Any, store: Any = EntityStore.MEMORY, uri: str = "") -> int:
        """What is recorded reads this thing."""
        return self.relate_entity(EntityRelation.USED, type, key, store, uri)

    def generates(self, type: str, key: Any, store: Any = EntityStore.MEMORY, uri: str = "") -> int:
        """What is recorded makes this thing."""
        return self.relate_entity(EntityRelation.GENERATED, type, key, store, uri)

    def __repr__(self) -> str:
        return f"<dft_fn {self.name} of {self.cat}>"

    def __reduce__(self) -> Any:
        return _unpickled, (self.cat, self.name, {name: value for name, value in self._own.items() if type(value[1]) in PLAIN}, self._on[1])


def _unpickled(cat: str, name: str, own: dict[str, tuple[float, Any]], enable: bool) -> dft_fn:
    found = dft_fn(cat, name, enable=enable)
    found._own.update(own)
    return found


def _chooser(f: Any, own: Node) -> Callable[[tuple[Any, ...], dict[str, Any]], Node] | None:
    """Finds the span of a call: with arguments, if the function's parameters have them; None if it can have none."""
    f = getattr(f, "__func__", f)
    code = getattr(f, "__code__", None)
    if code is None:
        return None
    positional = code.co_varnames[: code.co_argcount]
    known = {name: i for i, name in enumerate(positional) if name in _MAGIC}
    known.update({name: -1 for name in code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount] if name in _MAGIC})
    has_self = bool(positional) and positional[0] == "self"
    if not known and not has_self:
        return None
    given = getattr(f, "__defaults__", None) or ()
    defaults = dict(zip(positional[len(positional) - len(given) :], given, strict=True)) | (getattr(f, "__kwdefaults__", None) or {})

    def choose(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        if not own.is_on():
            return own
        found: dict[str, Any] = _of_object(args[0]) if has_self and args else {}
        for name, i in known.items():
            value = kwargs[name] if name in kwargs else args[i] if 0 <= i < len(args) else defaults.get(name)
            if value is not None:
                found[name] = real(value) if name == "image_size" else whole(value)
        if not found:
            return own
        use = Use(own)
        use._own = {name: (ALWAYS, value) for name, value in found.items()}
        use._own_is_new = True
        return use

    return choose


def _of_object(thing: Any) -> dict[str, Any]:
    """The numbers that an object has under the names of arguments; a property is asked, as by DFTracer."""
    found = {}
    for name in _MAGIC:
        try:
            value = getattr(thing, name, None)
        except Exception:
            continue
        if type(value) in PLAIN and value is not None:
            found[name] = real(value) if name == "image_size" else value
    return found


__all__ = ["dft_fn"]
