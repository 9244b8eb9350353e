"""Probes as users hold them: giving streams with a selector, checked early, switched on and off.

A probe may be made before the function that it names exists; it is put on the function when that is
defined.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from bdb import BdbQuit
from typing import Any

from voirkit import streams
from voirkit.errors import SelectorError, VoirkitError
from voirkit.phases import StopProgram
from voirkit.probes import processes
from voirkit.probes.live_functions import NotDefinedYet, Scope, find_absolute, innermost
from voirkit.probes.selector import check, parse
from voirkit.probes.selector.catalogue import catalogue
from voirkit.probes.source import lines_of, remember_lines
from voirkit.streams import FastSubscriber, OnPurpose, Stream, describe, place, raise_on_purpose

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from voirkit.probes.engine import Engine
    from voirkit.runner.script import Program


class Probe(Stream):
    """A stream of what the variables that selectors name are set to, in the functions that they
    name.

    Each event is a dictionary from the captured names to values. Make one with ``ov.probe``,
    ``probing`` or ``global_probe``.

    Args:
        selectors: One or more, such as ``"f > x"`` or ``"//train_epoch > loss"``.
        raw: Whether events hold ptera's ``Capture`` objects, which know the variable's name,
            instead of values.
        probe_type: ``"immediate"`` (an event whenever the focus variable is set), ``"total"`` (one
            at the end of the outer call), or None: immediate if the selector has a focus.
        env: What plain names in the selectors stand for; by default what is in scope where the
            probe is made.
        overridable: Whether ``override`` and ``koverride`` may replace what the focus variable is
            set to.

    Attributes:
        selectors: The selectors.
        made_at: ``file:line`` where the probe was made.
        site: ``file:line`` of the function it watches, or None if that is not known.
        events: How often it fired, while somebody listened, in all processes.
        dropped: How many events of other processes were lost because they came faster than they
            could be taken.

    Raises:
        TypeError: No selector, or an unknown ``probe_type``.
        SelectorError: A selector cannot be read.
    """

    def __init__(
        self,
        *selectors: str,
        raw: bool = False,
        probe_type: str | None = None,
        env: Mapping[str, Any] | None = None,
        overridable: bool = False,
        where: str = "",
        _obs: Any = None,
        _root: Any = None,
    ) -> None:
        label = "probe " + ", ".join(map(repr, selectors))
        if where:
            label = f"{label} ({where})"
        super().__init__(label=label, _obs=_obs, _root=_root)
        if _root is not None:
            return
        if not selectors:
            raise TypeError("a probe takes at least one selector")
        if probe_type not in ("immediate", "total", None):
            raise TypeError(f"probe_type is 'immediate', 'total' or None, not {probe_type!r}")
        self.selectors = selectors
        self.made_at = where
        self.site: str | None = None
        self._parsed = [parse(selector, where) for selector in selectors]
        self._scope: Mapping[str, Any] = env if env is not None else Scope(sys._getframe(1))
        self._kind: dict[str, Any] = {
            "raw": raw,
            "probe_type": probe_type,
            "overridable": overridable,
        }
        self._engine: Engine | None = None
        self._is_checked = False
        self._complaints: set[str] = set()
        self._pid = os.getpid()
        self._relayed = processes.Relayed()

    @property
    def events(self) -> int:
        """The number of events, while somebody listened, in this process and its children."""
        engine = self._root._engine
        return 0 if engine is None else int(engine.events) + self._root._relayed.events

    @property
    def dropped(self) -> int:
        """The number of events of child processes that were lost because they came faster than they
        could be taken."""
        return processes.dropped(self._root)

    @property
    def overrides(self) -> bool:
        """True if something replaces the value that the focus variable is set to."""
        return bool(self._root._relayed.overriding)

    # checking

    def check(self, program: Program) -> None:
        """Make sure, without running anything, that all that the selectors name exists.

        Raises:
            SelectorError: There is no such function, variable or loop.
        """
        script = None
        if program.source is not None and program.path is not None:
            script = catalogue(program.source, program.path)
            remember_lines(program.path, lines_of(program.source))
        for parsed in self._parsed:
            site = check.check_all(
                parsed,
                script,
                program.name,
                self._scope,
                probe_type=self._kind["probe_type"],
                overridable=self._kind["overridable"],
            )
            self.site = self.site or site
            for function in parsed.functions:
                if function.module and function.is_top:
                    program.defer()  # the script may import it anywhere
                elif function.is_top and not program.defer(function.variables + function.loops):
                    next = "Make the probe before `yield ov.phases.load_script`."
                    raise function.wrong(
                        "what it names has been set, while the script was loaded.", next
                    )
        self._is_checked = True

    # on and off

    def activate(self) -> None:
        """Start watching; what is not defined yet, as soon as it is.

        Raises:
            SelectorError: A function cannot be watched.
        """
        if self._root is not self:
            self._root.activate()
            return
        if self._engine is not None or self._ended:
            raise RuntimeError("a probe can only be entered once; make another")
        from voirkit.probes.engine import Engine

        engine = Engine(
            self._parsed,
            self._scope,
            self._failed,
            self._complain,
            may_wait=self._is_checked,
            **self._kind,
        )
        engine.listen(*self._emitter())
        engine.start()
        processes.add_probe(self, self._scope)
        self._engine = engine
        self._scope = {}  # a scope keeps the program's objects alive
        engine.listen(*self._emitter())  # somebody may have subscribed meanwhile

    def deactivate(self) -> None:
        """Stop watching and end the stream, so that reductions come out."""
        if self._root is not self:
            self._root.deactivate()
            return
        self.switch_off()
        self._end()

    def switch_off(self) -> None:
        """Stop watching; the stream stays open."""
        if self._engine is not None:
            self._engine.stop()
            processes.raise_at_end(self)

    def _end(self) -> None:
        try:
            processes.end_probe(self)
        finally:
            super()._end()

    def __exit__(self, exc_type: Any = None, exc: Any = None, tb: Any = None) -> None:
        if exc is not None and self._root is self:
            self._relayed.is_forgiven = True  # that exception is on its way
        super().__exit__(exc_type, exc, tb)

    def end(self) -> None:
        """End the stream with the run: there is nothing left to stop."""
        try:
            self._end()
        except StopProgram:
            pass

    def _enter(self) -> None:
        self.activate()

    def _exit(self) -> None:
        self.switch_off()

    # events

    def _changed(self) -> None:
        super()._changed()
        engine = getattr(self, "_engine", None)
        # a forked child's events are the parent's, whoever subscribes here
        if engine is not None and self._relayed.emit is None:
            engine.listen(*self._emitter())
            if self._relayed.is_missed and self._observers:
                self._relayed.is_missed = False
                problem = (
                    "nobody listened to it when processes were started before: it sees nothing in"
                    " those."
                )
                next = "Subscribe before the processes are started."
                self._complain(VoirkitError(problem, next=next))

    def _emitter(self) -> tuple[Callable[[Any], None] | None, Any]:
        """The function that takes events: the only subscriber itself, the whole stream, or none;
        and those that take begin and end."""
        observers = self._observers
        if not observers:
            return None, None
        if len(observers) == 1 and isinstance(observers[0], FastSubscriber):
            return observers[0].on_next, observers[0].pair
        return self._hand_on, None

    def _failed(self, exc: BaseException) -> None:
        """The only subscriber raised something, or any of them on purpose."""
        if isinstance(exc, OnPurpose):
            raise_on_purpose(exc)
        if isinstance(exc, BdbQuit) or streams.is_meant(exc):
            streams.reraise(exc)
        if len(self._observers) == 1:
            self._switch_off(self._observers[0], exc)

    def _complain(self, exc: Exception) -> None:
        """A condition raised something, or an event cannot be made: reported once."""
        if streams.is_meant(exc):
            streams.reraise(exc)
        text = str(exc) if isinstance(exc, VoirkitError) else describe(exc)
        if text not in self._complaints:
            self._complaints.add(text)
            streams.report(f"{self.label}: {text}")

    # replacing values

    def override(self, setter: Any = lambda value: value) -> Any:
        """Replace the value that the focus variable is set to.

        Args:
            setter: Called with each element of this stream, its result is the value; or the value
                itself.
        """
        new_value: Callable[[Any], Any] = setter if callable(setter) else lambda _: setter
        return self._subscribe_override(lambda element: self._replace(new_value(element)))

    def koverride(self, setter: Callable[..., Any]) -> Any:
        """Replace the value that the focus variable is set to; the setter gets the captured values
        as keyword arguments."""
        return self._subscribe_override(lambda element: self._replace(setter(**element)))

    def _subscribe_override(self, function: Callable[[Any], None]) -> Any:
        subscription = self.subscribe(function)
        # a subscriber that replaces values does so in forked children too
        self._root._relayed.overriding += self._root._observers[-1:]
        return subscription

    def _replace(self, value: Any) -> None:
        root = self._root
        if not root._kind["overridable"]:
            raise TypeError("this probe cannot override: make it with overridable=True")
        if root._engine is not None:
            root._engine.set_value(value)


def probing(
    *selectors: str,
    raw: bool = False,
    probe_type: str | None = None,
    env: Mapping[str, Any] | None = None,
    overridable: bool = False,
) -> Probe:
    """A probe to use in a ``with`` statement.

    >>> def f(x):
    ...     a = x * x
    ...     return a
    >>> with probing("f > a").values() as seen:
    ...     f(4)
    16
    >>> seen
    [{'a': 16}]

    Arguments, attributes and errors are those of ``Probe``.
    """
    frame = sys._getframe(1)
    return Probe(
        *selectors,
        raw=raw,
        probe_type=probe_type,
        env=env if env is not None else Scope(frame),
        overridable=overridable,
        where=place(frame),
    )


_global_probes: weakref.WeakSet[Probe] = weakref.WeakSet()


def global_probe(
    *selectors: str,
    raw: bool = False,
    probe_type: str | None = None,
    env: Mapping[str, Any] | None = None,
) -> Probe:
    """A probe that is active from now until ``deactivate()`` or the end of the process.

    Arguments, attributes and errors are those of ``Probe``.
    """
    frame = sys._getframe(1)
    probe = Probe(
        *selectors,
        raw=raw,
        probe_type=probe_type,
        env=env if env is not None else Scope(frame),
        where=place(frame),
    )
    probe.__enter__()
    _global_probes.add(probe)
    return probe


@atexit.register
def _end_global_probes() -> None:
    if processes.end_after_children(_end_global_probes):
        return
    for probe in list(_global_probes):
        if probe._pid == os.getpid():
            probe.deactivate()


def refstring(function: Any) -> str:
    """The absolute reference of a function, to use in selectors: ``/module/Class/method``, ``//f``
    for one of the script.

    Raises:
        TypeError: It is not a function.
        SelectorError: It cannot be found under its own name again.
    """
    from types import FunctionType

    from voirkit.probes.selector import ParsedFunction

    thing = function
    if isinstance(function, type):
        thing = vars(function).get("__init__", function)
    call = getattr(type(thing), "__call__", None)  # noqa: B004 (to see if it is Python code)
    if not hasattr(thing, "__qualname__") and isinstance(call, FunctionType):
        thing = call
    module = getattr(thing, "__module__", None)
    qualname = getattr(thing, "__qualname__", None)
    has_code = hasattr(innermost(thing), "__code__")
    if not isinstance(module, str) or not isinstance(qualname, str) or not has_code:
        raise TypeError(f"a {type(function).__name__} without Python code has no reference")
    path = tuple(part for part in qualname.split(".") if part != "<locals>")
    module = "" if module == "__main__" else module
    reference = f"/{module}/{'/'.join(path)}"
    try:
        find_absolute(ParsedFunction(reference, module, path, (), reference, ""))
    except (NotDefinedYet, AttributeError):
        raise SelectorError(
            f"there is no function {reference!r}, though {qualname} says that it is there."
        ) from None
    return reference
