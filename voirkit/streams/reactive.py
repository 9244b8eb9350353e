"""giving's event streams, made safe for use inside a running program.

Each event reaches all subscribers, in the order of the pushes, from any thread. A subscriber or
operator that fails is reported once and removed, without any effect on the program and the other
subscribers. A reduction without events produces nothing. Only exceptions raised on purpose reach
the program: StopProgram, OverseerAbort, those of ``.fail()`` and related methods, and the
debugger's quit.

Checked with giving 0.4.3 and reactivex 4.0 and 6.1. Importing this module imports both (170 ms of
CPU time). So only ``voirkit.streams`` imports it, when a stream is first needed.
"""

from __future__ import annotations

import inspect
import os
import sys
from bdb import BdbQuit
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import eq, itemgetter
from types import FunctionType
from typing import Any

import giving
import reactivex
from giving.gvn import DisposableWrapper
from giving.gvr import Giver, global_context, global_inherited
from giving.utils import lax_function
from reactivex.disposable import Disposable
from reactivex.internal.exceptions import SequenceContainsNoElementsError

import voirkit
from voirkit import streams
from voirkit.phases import StopProgram
from voirkit.streams import CARRIED, OnPurpose, describe, in_turn, raise_on_purpose, threads

# Undo a side effect: giving imports pdb, and since Python 3.13 pdb loads readline, which sets these
# environment variables for child processes.
for _name in ("COLUMNS", "LINES"):
    if _name not in os.environ:
        os.unsetenv(_name)


def _folder_of(module: Any) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(str(module.__file__))), "")


_LIBRARIES = (*map(_folder_of, (giving, reactivex, voirkit)), "<frozen ")


def place(frame: Any) -> str:
    """Return ``file:line`` of the nearest stack frame outside of giving, reactivex and voirkit;
    empty if there is none."""
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def place_of_failure(exc: BaseException, otherwise: str) -> str:
    """Return ``file:line`` of the innermost traceback entry outside of giving, reactivex and
    voirkit; ``otherwise`` if there is none."""
    location = otherwise
    tb = exc.__traceback__
    while tb is not None:
        filename = tb.tb_frame.f_code.co_filename
        if not filename.startswith(_LIBRARIES):
            location = f"{filename}:{tb.tb_lineno}"
        tb = tb.tb_next
    return location


def of_nothing(exc: BaseException) -> bool:
    """True if an exception means that a reduction got no event: ``min`` raises a dedicated error,
    ``average`` divides by 0."""
    if isinstance(exc, SequenceContainsNoElementsError):
        return True
    return isinstance(exc, ZeroDivisionError) and not place_of_failure(exc, "")


# Fast versions of the operators that streams of a training loop use at every step. Each is a plain
# function that turns a downstream subscriber into an upstream one. They do the same as giving's
# operators of the same names (0.4.3), but without reactivex, whose observers cost a microsecond
# each. They are used if all operators between a stream and a subscriber have a fast version.

Next = Callable[[Any], None]
Operator = Callable[[Next], Next]
# (function to call, its observer, key that an event must have; None: call it for all events)
Listener = tuple[Next, Any, str | None]


def plain_map(function: Callable[[Any], Any]) -> Operator:
    """Return the operator that replaces each element by the result of a function."""

    def operator(downstream: Next) -> Next:
        return lambda element: downstream(function(element))

    return operator


def plain_filter(function: Callable[[Any], Any]) -> Operator:
    """Return the operator that passes on the elements for which a function returns true."""

    def operator(downstream: Next) -> Next:
        def on_next(element: Any) -> None:
            if function(element):
                downstream(element)

        return on_next

    return operator


def plain_where(keys: Iterable[str], conditions: Mapping[str, Any]) -> Operator:
    """Return the operator that passes on the dictionaries that fulfil all conditions.

    Args:
        keys: Keys that must be present; ``"!key"`` for a key that must be absent.
        conditions: For a key that must be present, the value that it must have, or a plain function
            that must return true for its value.
    """
    tests = {
        key: condition if isinstance(condition, FunctionType) else partial(eq, condition)
        for key, condition in conditions.items()
    }
    excluded = [key.lstrip("!") for key in keys if key.startswith("!")]
    required = [key for key in keys if not key.startswith("!")]
    required += tests
    if len(required) == 1 and not tests and not excluded:
        (only,) = required

        def operator(downstream: Next) -> Next:
            def on_next(element: Any) -> None:
                if isinstance(element, dict) and only in element:
                    downstream(element)

            return on_next

        return operator

    def passes(element: Any) -> bool:
        if not isinstance(element, dict):
            return False
        if any(key not in element for key in required):
            return False
        if any(key in element for key in excluded):
            return False
        return all(test(element[key]) for key, test in tests.items())

    return plain_filter(passes)


def plain_getitem(keys: tuple[Any, ...], strict: bool) -> Operator:
    """Return the operator that replaces each element by its value for a key, or by a tuple of the
    values for several keys. Elements without the keys are left out, or raise if ``strict``."""
    get = itemgetter(*keys)

    def operator(downstream: Next) -> Next:
        def strictly(element: Any) -> None:
            downstream(get(element))

        def laxly(element: Any) -> None:
            for key in keys:
                if key not in element:
                    return
            downstream(get(element))

        return strictly if strict else laxly

    return operator


class Wmap:
    """The fast version of giving's operator ``wmap``, for pairs of ``$wrap`` events.

    For each pair, a generator function runs from the begin event to its ``yield``, and is resumed
    at the end event. Its return value is passed on. An end without a begin since the subscription
    is ignored.

    Args:
        name: Only pairs with this name; None for all. The function may be given in its place.
        function: The generator function, which yields exactly once.
        pass_keys: Whether to call it with the keys of the begin event as arguments.

    Raises:
        TypeError: The function is not a generator function.
    """

    def __init__(self, name: Any, function: Any = None, pass_keys: bool = True) -> None:
        if function is None and not isinstance(name, str):
            function = name
            name = None
        if not inspect.isgeneratorfunction(function):
            raise TypeError("wmap() must take a generator function")
        kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
        self.takes_keys = pass_keys and bool(kinds - {inspect.Parameter.VAR_POSITIONAL})
        self.name = name
        self.start = lax_function(function) if self.takes_keys else function

    def __call__(self, downstream: Next) -> Next:
        """Return the function that receives the elements of the stream, and calls ``downstream``
        with each result, as other operators do."""
        name = self.name
        start_pair, end_pair, drop = self.pair(downstream)

        def on_next(element: Any) -> None:
            wrap = element.get("$wrap")
            if wrap is None or (name is not None and wrap["name"] != name):
                return
            if wrap["step"] == "end":
                end_pair(wrap["id"], element)
            else:
                start_pair(wrap["id"], element)

        # for streams that can call these directly, without creating a begin event
        on_next.pair = (start_pair, end_pair, drop)  # type: ignore[attr-defined]
        return on_next

    def pair(
        self, downstream: Next
    ) -> tuple[Callable[..., None], Callable[[Any, Any], None], Callable[[Any], None]]:
        """Return the functions to call for each pair: (begin, end, drop).

        ``begin(key, element)`` starts the generator; ``key`` identifies the pair, and the begin
        event may be left out if the generator function takes no keys. ``end(key, element)`` resumes
        it. ``drop(key)`` is called instead if the pair will have no end.
        """
        start = self.start
        running: dict[Any, Any] = {}
        pop = running.pop
        idle: Any = None  # a driver generator that can be reused for the next pair

        # A driver runs the user's generator by `yield from`, which gets the return value without
        # raising StopIteration. That saves a tenth of a microsecond.
        def drive() -> Any:
            while True:
                yield running
                downstream((yield from start()))

        def drive_with_keys() -> Any:
            while True:
                keys = yield running
                function, keys = start(**keys), None
                downstream((yield from function))

        new = drive_with_keys if self.takes_keys else drive

        def start_pair(key: Any, element: Any = None) -> None:
            nonlocal idle
            driver, idle = idle, None
            if driver is None:
                driver = new()
                next(driver)
            running[key] = driver
            if driver.send(element) is running:
                raise RuntimeError("the function in wmap() should yield exactly once")

        def end_pair(key: Any, element: Any) -> None:
            nonlocal idle
            driver = pop(key, None)
            if driver is not None:
                if driver.send(element) is not running:
                    raise RuntimeError("the function in wmap() should yield exactly once")
                idle = driver

        def drop(key: Any) -> None:
            pop(key, None)

        return start_pair, end_pair, drop


class FastSubscriber:
    """A subscriber that is called without reactivex, directly or through fast operators.

    Attributes:
        on_next: Called with each event.
        on_completed: Called when the stream ends.
        where: ``file:line`` of the subscription, for reports of failures.
        pair: The functions from ``Wmap.pair`` to call instead of ``on_next``, for a ``wmap`` that
            needs no begin event; otherwise None.
        key: Call it only for events with this key; None for all events.
        only_given: Call it only for events that the program gives, not for those that voirkit
            offers.
    """

    __slots__ = ("key", "on_completed", "on_next", "only_given", "pair", "where")

    def __init__(
        self,
        on_next: Callable[[Any], None],
        on_completed: Callable[[], None],
        where: str,
        pair: Any = None,
        key: str | None = None,
        only_given: bool = False,
    ) -> None:
        self.on_next = on_next
        self.on_completed = on_completed
        self.where = where
        self.pair = pair
        self.key = key
        self.only_given = only_given


def _nothing() -> None:
    """Do nothing: the default callback for the end of a stream."""


class Stream(giving.SourceProxy):  # type: ignore[misc]  # giving has no types
    """A ``giving`` stream whose failing subscribers do not affect the program.

    Attributes:
        label: The name of the stream in reports of failures, such as ``probe '//f > x'``.
    """

    def __init__(self, *, label: str = "", _obs: Any = None, _root: Any = None) -> None:
        super().__init__(_obs=_obs, _root=_root)
        if _root is None:
            self._become_root(label)

    # (parent stream, operator) if this stream is the result of a fast operator, otherwise None
    _above: tuple[Any, Operator] | None = None

    def _become_root(self, label: str) -> None:
        self.label = label
        self._ended = False
        self._current: tuple[tuple[Callable[[Any], None], Any], ...] = ()

        def connect(observer: Any, scheduler: Any = None) -> Disposable:
            if self._ended:
                observer.on_completed()
                return Disposable()
            return self._connect(observer)

        self._obs = reactivex.create(connect)

    def _connect(self, observer: Any) -> Disposable:
        with streams.lock:
            self._observers.append(observer)
            self._changed()
        return Disposable(lambda: self._drop(observer))

    def _drop(self, observer: Any) -> None:
        with streams.lock:
            if observer in self._observers:
                self._observers.remove(observer)
                self._changed()

    def _changed(self) -> None:
        """Update the tuple of subscribers after a change. The caller must hold the lock."""
        self._current = tuple((observer.on_next, observer) for observer in self._observers)

    # delivery of events, and the end of the stream

    def _push(self, data: Any) -> None:
        """Push an event from the program. Exceptions raised on purpose reach the caller
        unwrapped."""
        try:
            self._hand_on(data)
        except OnPurpose as carried:
            raise_on_purpose(carried)

    def _hand_on(self, data: Any) -> None:
        """Push an event for a caller that unwraps ``OnPurpose`` itself."""
        if threads():  # this check takes 20 ns; taking the lock takes 165 ns (Python 3.11)
            in_turn(self._deliver, data)
        else:
            self._deliver(data)

    def _deliver(self, data: Any) -> None:
        for on_next, observer in self._current:
            try:
                on_next(data)
            except CARRIED:
                raise
            except BaseException as exc:
                # from a FastSubscriber, or an operator of reactivex that does not call on_error
                if streams.is_meant(exc):
                    raise OnPurpose(exc) from None
                self._switch_off(observer, exc)

    def _switch_off(self, observer: Any, exc: BaseException) -> None:
        self._drop(observer)
        self._report(exc, getattr(observer, "where", ""))

    def _report(self, exc: BaseException, where: str) -> None:
        location = place_of_failure(exc, where)
        prefix = f"{location}: " if location else ""
        streams.report(
            f"{prefix}a subscriber of {self.label or 'a stream'} raised {describe(exc)}.\n"
            "  It is switched off; the program goes on."
        )

    def _end(self) -> None:
        """End the stream: reductions produce their results, and later subscribers get nothing."""
        with streams.lock:
            self._observers.sort(key=lambda observer: isinstance(observer, FastSubscriber))
            # Fast subscribers are ended last: a reduction that ends before them may give events,
            # and only subscribers that are still in the list receive these.
            while self._observers:
                observer = self._observers.pop(0)
                self._changed()
                try:
                    observer.on_completed()
                except StopProgram:
                    pass  # the program has ended
                except OnPurpose as carried:
                    raise_on_purpose(carried)
                except BdbQuit:
                    raise
                except BaseException as exc:  # a subscriber or operator may raise anything
                    if not isinstance(exc, Exception) or streams.is_meant(exc):
                        raise
                    if not of_nothing(exc):
                        self._report(exc, "")
            self._ended = True

    def __exit__(self, exc_type: Any = None, exc: Any = None, tb: Any = None) -> None:
        if self._root is not self:
            self._root.__exit__(exc_type, exc, tb)
            return
        try:
            self._end()
        finally:
            self._exit()

    # operators with fast versions, used if all operators before them have fast versions too

    def _plainly(self, child: Any, operator: Operator) -> Any:
        if self._root is self or self._above is not None:
            child._above = (self, operator)
        return child

    def map(self, *args: Any, **kwargs: Any) -> Any:
        """Return the stream of the results of a function for each element."""
        child = super().map(*args, **kwargs)
        if len(args) != 1 or kwargs or not callable(args[0]):
            return child
        return self._plainly(child, plain_map(*args))

    def filter(self, *args: Any, **kwargs: Any) -> Any:
        """Return the stream of the elements for which a function returns true."""
        child = super().filter(*args, **kwargs)
        if len(args) != 1 or kwargs or not callable(args[0]):
            return child
        return self._plainly(child, plain_filter(*args))

    def where(self, *keys: str, **conditions: Any) -> Any:
        """Return the stream of the dictionaries that fulfil all conditions; see ``plain_where``."""
        return self._plainly(super().where(*keys, **conditions), plain_where(keys, conditions))

    def getitem(self, *keys: Any, strict: bool = False) -> Any:
        """Return the stream of the values for some keys; see ``plain_getitem``."""
        return self._plainly(super().getitem(*keys, strict=strict), plain_getitem(keys, strict))

    def wmap(self, name: Any, fn: Any = None, pass_keys: bool = True) -> Any:
        """Return the stream of the results of a generator function, which runs once for each pair
        of ``$wrap`` events; see ``Wmap``."""
        return self._plainly(super().wmap(name, fn, pass_keys), Wmap(name, fn, pass_keys))

    # subscriptions

    def subscribe(
        self, on_next: Any = None, on_error: Any = None, on_completed: Any = None, **kwargs: Any
    ) -> Any:
        """Subscribe a function or an observer. If it raises, that is reported once, and ends only
        this subscription.

        Args:
            on_next: The function, called with each element; or an observer.
            on_error: Called if an operator before the subscriber fails; by default, the failure is
                reported.
            on_completed: Called when the stream ends.

        Returns:
            A subscription with ``dispose()``.
        """
        if hasattr(on_next, "on_next"):
            observer = on_next
            on_next = observer.on_next
            on_error = observer.on_error
            on_completed = observer.on_completed
        root = self._root
        where = place(sys._getframe(1))
        is_plain = callable(on_next) and on_error is None and not kwargs and not root._ended
        if is_plain and (root is self or self._above is not None):
            direct = self._make_direct(on_next, on_completed or _nothing, where)
            return DisposableWrapper(self, root._connect(direct))
        subscription: list[Any] = []
        failed = False

        def fail(exc: BaseException) -> None:
            nonlocal failed
            if streams.is_meant(exc):
                raise OnPurpose(exc) from None
            if not failed and not of_nothing(exc):
                root._report(exc, where)
            failed = True
            if subscription:
                subscription[0].dispose()

        def guard(function: Any) -> Any:
            if function is None:
                return None

            def call(*args: Any) -> None:
                if failed:
                    return
                try:
                    function(*args)
                except CARRIED:
                    raise
                except BaseException as exc:  # a subscriber may raise anything
                    fail(exc)

            return call

        handlers = (guard(on_next), guard(on_error) or fail, guard(on_completed))
        subscription.append(super().subscribe(*handlers, **kwargs))
        return subscription[0]

    def _make_direct(
        self, on_next: Next, on_completed: Callable[[], None], where: str
    ) -> FastSubscriber:
        """Return a ``FastSubscriber`` of the root stream that applies the fast operators between
        the root and this stream."""
        stream: Any = self
        pair = None
        while stream is not self._root:
            stream, operator = stream._above
            on_next = operator(on_next)
            pair = None
            if isinstance(operator, Wmap) and operator.name is None and not operator.takes_keys:
                pair = on_next.pair  # type: ignore[attr-defined]  # ``pair`` needs no begin event
        return FastSubscriber(on_next, on_completed, where, pair)

    def give(self, *keys: str, **extra: Any) -> Any:
        """Give each element, as giving's ``give`` does, but from any thread."""
        giver = Giver(keys=keys or None, extra=extra, context=_everywhere)
        if not keys:
            inherited_values = global_inherited.get
            handlers_here = global_context.get

            def produce(values: Any) -> None:  # does the same as giver.produce
                inherited = inherited_values()
                values = {**inherited, **extra, **values} if inherited or extra else values.copy()
                for handler in handlers_here():
                    handler(values)
                for handler in _everywhere.handlers:
                    handler(values)

            return self.subscribe(produce)
        if len(keys) == 1:
            return self.subscribe(giver)
        return self.subscribe(lambda values: giver(*values))

    def fail(
        self,
        message: str | None = None,
        exc_type: Any = giving.Failure,
        skip: Any = ("giving.*", "rx.*"),
    ) -> Any:
        """Raise an exception in the program if the stream produces an element."""
        return super().fail(message, _purposely(exc_type), list(skip))

    def fail_if_false(
        self,
        message: str | None = None,
        exc_type: Any = giving.Failure,
        skip: Any = ("giving.*", "rx.*"),
    ) -> Any:
        """Raise an exception in the program if an element is falsy."""
        return super().fail_if_false(message, _purposely(exc_type), list(skip))

    def fail_if_empty(
        self,
        message: str | None = None,
        exc_type: Any = giving.Failure,
        skip: Any = ("giving.*", "rx.*"),
    ) -> Any:
        """Raise an exception in the program if the stream ends without an element."""
        return super().fail_if_empty(message, _purposely(exc_type), list(skip))


def _purposely(exc_type: Any) -> Callable[[Any], OnPurpose]:
    return lambda data: OnPurpose(exc_type(data))


class _Everywhere:
    """Replacement for giving's context variable that works in all threads.

    giving keeps its handlers in a ContextVar, which is empty in a new thread, so that calls of
    ``give`` there have no effect. While an overseer runs, this object replaces the ContextVar. It
    adds the overseer's handlers to those in the ContextVar.
    """

    def __init__(self) -> None:
        self.handlers: tuple[Callable[[Any], None], ...] = ()

    def get(self) -> tuple[Callable[[Any], None], ...]:
        of_thread: tuple[Callable[[Any], None], ...] = global_context.get()
        return (*of_thread, *self.handlers)

    def set(self, value: Any) -> Any:
        return global_context.set(value)

    def reset(self, token: Any) -> None:
        global_context.reset(token)


_everywhere = _Everywhere()


class Given(Stream, giving.Given):  # type: ignore[misc]  # giving has no types
    """The stream of all events that the program gives, by ``give`` in any thread.

    Attributes:
        events: The number of events given so far.
    """

    def __init__(self, *, label: str = "given", _obs: Any = None, _root: Any = None) -> None:
        giving.SourceProxy.__init__(self, _obs=_obs, _root=_root)
        if _root is None:
            self._become_root(label)
            self._counts: dict[Any, int] = {}
            self.events = 0
            self._changed()

    def _changed(self) -> None:
        super()._changed()
        self._listeners = tuple(
            (observer.on_next, observer, getattr(observer, "key", None))
            for observer in self._observers
        )
        self._for_offers = tuple(
            listener
            for listener in self._listeners
            if not getattr(listener[1], "only_given", False)
        )
        self._keys_for_offers = {key for _, _, key in self._for_offers}

    def watch(self, key: str, on_next: Callable[[Any], None], only_given: bool = False) -> Any:
        """Subscribe a function to the events that have a key. The same as ``where(key).subscribe``,
        but without a function call for each other event.

        Args:
            key: The key.
            on_next: Called with each event that has the key.
            only_given: Whether to leave out the events that voirkit itself pushes with ``offer``.

        Returns:
            A subscription with ``dispose()``.
        """
        where = place(sys._getframe(1))
        return self._connect(
            FastSubscriber(on_next, _nothing, where, key=key, only_given=only_given)
        )

    def has_any(self, keys: Iterable[str]) -> bool:
        """True if the program has given anything with one of these keys."""
        return not self._counts.keys().isdisjoint(keys)

    def has_listener(self, key: str) -> bool:
        """True if an event with only this key, pushed by ``offer``, would reach a subscriber."""
        return key in self._keys_for_offers or None in self._keys_for_offers

    @property
    def counts(self) -> Counter[str]:
        """The number of times that the program has given each key."""
        return Counter(self._counts)

    def _enter(self) -> None:
        self._handler = self._receive
        _everywhere.handlers += (self._handler,)
        giving.give.context = _everywhere
        Giver.__init__.__kwdefaults__["context"] = _everywhere  # for givers created from now on

    def _exit(self) -> None:
        _everywhere.handlers = tuple(
            handler for handler in _everywhere.handlers if handler is not self._handler
        )
        if not _everywhere.handlers:
            giving.give.context = global_context
            Giver.__init__.__kwdefaults__["context"] = global_context

    def _receive(self, data: Any) -> None:
        self.events += 1
        counts = self._counts
        for key in data:
            try:
                counts[key] += 1  # in a Counter, this would take twice as long
            except KeyError:
                counts[key] = 1
        self._send(self._listeners, data)

    _push = _receive

    def _send(self, listeners: Sequence[Listener], data: Any) -> None:
        try:
            if threads():
                in_turn(self._deliver_to, listeners, data)
            else:
                self._deliver_to(listeners, data)
        except OnPurpose as carried:
            raise_on_purpose(carried)

    def _deliver_to(self, listeners: Sequence[Listener], data: Any) -> None:
        for on_next, observer, key in listeners:
            if key is not None and key not in data:
                continue
            try:
                on_next(data)
            except CARRIED:
                raise
            except BaseException as exc:  # a subscriber may raise anything
                if streams.is_meant(exc):
                    streams.reraise(exc)
                self._switch_off(observer, exc)

    def offer(self, data: dict[str, Any], yielding: bool = False) -> None:
        """Push an event from voirkit itself. It is not counted as given by the program.

        Args:
            data: The event.
            yielding: Whether to drop the event if the program has given any of its keys itself.
        """
        if not yielding or not self.has_any(data):
            self._send(self._for_offers, data)
