"""The class ``Probe``, a stream of events of selectors, and the functions that make a probe.

A probe is checked before the run, and can be switched on and off. It may be made before the
function in its selector exists; then it watches the function as soon as the program defines it.
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
    """A stream of the values that the program assigns to the variables named by selectors.

    Each event is a dictionary from the captured names to values. Make a probe with ``ov.probe``,
    ``probing`` or ``global_probe``.

    Args:
        selectors: One or more selectors, such as ``"f > x"`` or ``"//train_epoch > loss"``.
        raw: Whether events hold ``Capture`` objects (as in ptera), which know the variable's name,
            instead of values.
        probe_type: ``"immediate"`` (an event whenever the focus variable is set), ``"total"`` (one
            event at the end of the outermost call), or None: immediate if the selector has a focus,
            otherwise total.
        env: The values of plain names in the selectors. By default these are the names in scope
            where the probe is made.
        overridable: Whether ``override`` and ``koverride`` may replace the value that the focus
            variable is set to.

    Attributes:
        selectors: The selectors.
        made_at: ``file:line`` where the probe was made.
        site: ``file:line`` of the watched function, or None if unknown.
        events: The number of events in all processes while the probe had a subscriber.
        dropped: The number of events from other processes that were lost because they arrived
            faster than this process could read them.

    Raises:
        TypeError: No selector, or an unknown ``probe_type``.
        SelectorError: A selector cannot be parsed.
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
        """The number of events in this process and its children while the probe had a
        subscriber."""
        engine = self._root._engine
        return 0 if engine is None else int(engine.events) + self._root._relayed.events

    @property
    def dropped(self) -> int:
        """The number of events from child processes that were lost because they arrived faster than
        this process could read them."""
        return processes.dropped(self._root)

    @property
    def overrides(self) -> bool:
        """True if a subscriber replaces the value that the focus variable is set to."""
        return bool(self._root._relayed.overriding)

    # Checking before the run

    def check(self, program: Program) -> None:
        """Check that every function, variable and loop in the selectors exists, without running the
        program.

        Raises:
            SelectorError: A function, variable or loop does not exist.
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
                    program.defer()  # the script may import the module anywhere
                elif function.is_top and not program.defer(function.variables + function.loops):
                    next = "Make the probe before `yield ov.phases.load_script`."
                    raise function.wrong(
                        "what it names has been set, while the script was loaded.", next
                    )
        self._is_checked = True

    # Switching on and off

    def activate(self) -> None:
        """Start to watch the functions; those that are not defined yet, as soon as they are.

        Raises:
            SelectorError: A function cannot be watched.
            RuntimeError: The probe was activated before.
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
        engine.listen(*self._emitter())  # the subscribers may have changed meanwhile

    def deactivate(self) -> None:
        """Stop watching and end the stream, so that reductions (such as a sum) emit their
        result."""
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
            # ``exc`` already propagates: the end of the probe must raise no other exception
            self._relayed.is_forgiven = True
        super().__exit__(exc_type, exc, tb)

    def end(self) -> None:
        """End the stream at the end of the run; ``StopProgram`` is ignored, since the program has
        ended."""
        try:
            self._end()
        except StopProgram:
            pass

    def _enter(self) -> None:
        self.activate()

    def _exit(self) -> None:
        self.switch_off()

    # Passing events to the subscribers

    def _changed(self) -> None:
        super()._changed()
        engine = getattr(self, "_engine", None)
        # a forked child sends its events to the parent, even if the child has subscribers of its
        # own
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
        """Return the function that receives events, and the functions for the begin and the end of
        pairs.

        A single fast subscriber receives events directly, and only it may have functions for pairs.
        Otherwise the stream receives the events; None without subscribers.
        """
        observers = self._observers
        if not observers:
            return None, None
        if len(observers) == 1 and isinstance(observers[0], FastSubscriber):
            return observers[0].on_next, observers[0].pair
        return self._hand_on, None

    def _failed(self, exc: BaseException) -> None:
        """Handle an exception of a subscriber: raise it again if it is meant for the program.
        Otherwise switch the subscriber off, if it is the only one."""
        if isinstance(exc, OnPurpose):
            raise_on_purpose(exc)
        if isinstance(exc, BdbQuit) or streams.is_meant(exc):
            streams.reraise(exc)
        if len(self._observers) == 1:
            self._switch_off(self._observers[0], exc)

    def _complain(self, exc: Exception) -> None:
        """Report, once per text, that a selector's condition raised an exception or that an event
        could not be made."""
        if streams.is_meant(exc):
            streams.reraise(exc)
        text = str(exc) if isinstance(exc, VoirkitError) else describe(exc)
        if text not in self._complaints:
            self._complaints.add(text)
            streams.report(f"{self.label}: {text}")

    # Replacing the values of variables in the program

    def override(self, setter: Any = lambda value: value) -> Any:
        """Replace the value that the focus variable is set to.

        Args:
            setter: The new value, or a function from an element of this stream to the new value.
        """
        new_value: Callable[[Any], Any] = setter if callable(setter) else lambda _: setter
        return self._subscribe_override(lambda element: self._replace(new_value(element)))

    def koverride(self, setter: Callable[..., Any]) -> Any:
        """Replace the value that the focus variable is set to with the result of ``setter``, which
        is called with the captured values as keyword arguments."""
        return self._subscribe_override(lambda element: self._replace(setter(**element)))

    def _subscribe_override(self, function: Callable[[Any], None]) -> Any:
        subscription = self.subscribe(function)
        # forked children call the subscribers that replace values too
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
    """Return a probe for a ``with`` statement.

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
    """Return a probe that is active from now until ``deactivate()`` or the end of the process.

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
    """Return the absolute reference of a function for use in selectors: ``/module/Class/method``,
    or ``//f`` for a function of the script.

    Raises:
        TypeError: ``function`` has no Python code.
        SelectorError: The reference does not lead to a function.
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
