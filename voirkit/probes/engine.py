"""The engine of a probe: it finds the functions, has taps (calls that make events) inserted into
them, and forwards the events.

Its input is parsed selectors, a scope, and a function that receives the events. An engine that
could not be switched on, or that was switched off, leaves nothing behind.
"""

from __future__ import annotations

import os
import sys
import threading
from types import CellType
from typing import Any
from weakref import ref

from voirkit.errors import SelectorError
from voirkit.probes import live_functions, weave
from voirkit.probes.instrumenter import NEVER_ASSIGNED
from voirkit.probes.live_functions import NotDefinedYet, RedefinitionWatch, is_named_at
from voirkit.probes.selector import (
    ABSENT,
    Element,
    Node,
    Parsed,
    ParsedFunction,
    Rule,
    check,
    identity_check,
)
from voirkit.probes.selector.catalogue import catalogue
from voirkit.probes.source import CHANGED, NoSource, sets
from voirkit.probes.tap_emitter import REPLACEABLE, Unobservable
from voirkit.probes.taps import LocalListener, Memory, MemoryListener, NeedsMemory, may_need_memory
from voirkit.streams import MEANT, in_turn, is_from_handler, threads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FunctionType


UNSEEN = (
    "is loaded, but by no import that voirkit sees (spec_from_file_location, or an import hook"
    " before that of voirkit), and not watched. Make the probe after that."
)
FROZEN = (
    "after gc.freeze() functions that a function has made cannot be found: those made before are"
    " not watched, and those that are watched keep their taps, which do nothing any more, when the"
    " probe ends."
)
AnyListener = LocalListener | MemoryListener


class Unwanted(Exception):
    """Raised in a tap whose events nobody receives: in a frame that was running when the probe
    ended, or in a function that keeps a few unused taps among many others."""


def refuse(event: Any) -> None:
    raise Unwanted


class Outlet:
    """The cells and functions that the taps of one probe share.

    Attributes:
        emit: A cell with the function that receives an event.
        failed: A cell with the function that receives an exception of ``emit``, and returns True if
            the program must get the exception.
        count: A cell with the number of events.
        begin, end: Cells with the functions that receive the begin and the end of a pair, if the
            begin needs no event; otherwise cells with None.
    """

    def __init__(
        self, failed: Callable[[BaseException], None], complain: Callable[[Exception], None]
    ) -> None:
        self.emit = CellType(refuse)
        self.count = CellType(0)
        self.failed = CellType(self._failed)
        self.begin = CellType(None)
        self.end = CellType(None)
        self._report_failure = failed
        self.complain = complain
        # called if the begin of a pair will have no end; may be None
        self.drop: Callable[[Any], None] | None = None
        self._slot = threading.local()

    def _failed(self, exc: BaseException) -> bool:
        # A RecursionError here means that the program is at the recursion limit. It is not
        # reported, since the program will get a RecursionError of its own.
        if isinstance(exc, Unwanted | RecursionError):
            return False
        if is_from_handler(exc):
            return True
        try:
            self._report_failure(exc)
        except RecursionError:
            pass  # the next failure, with more stack left, will be reported
        return False

    def open(self, emit: Callable[[Any], None], pair: Any) -> None:
        """Send events to the function ``emit`` from now on. ``pair``: functions for the begin, the
        end and a missing end of a pair; or None."""
        self.emit.cell_contents = emit
        on_begin, on_end, on_drop = pair or (None, None, None)
        self.begin.cell_contents = on_begin
        self.end.cell_contents = on_end
        self.drop = on_drop

    def close(self) -> None:
        """Send no more events, whatever taps still run."""
        self.open(refuse, None)

    def fire(self, event: Any) -> None:
        """Send an event."""
        try:
            if threads():
                in_turn(self.emit.cell_contents, event)
            else:
                self.emit.cell_contents(event)
            self.count.cell_contents += 1
        except MEANT:
            raise
        except BaseException as exc:  # a subscriber may raise anything; the program must not see it
            if self.failed.cell_contents(exc):
                raise

    def dropped(self, key: Any) -> None:
        """Report that a pair may have begun and will have no end."""
        if self.drop is None:
            return
        try:
            in_turn(self.drop, key)
        except MEANT:
            raise
        except BaseException as exc:  # a subscriber may raise anything; the program must not see it
            if self.failed.cell_contents(exc):
                raise

    def fire_replacing(self, event: Any, value: Any) -> Any:
        """Send an event whose subscribers may replace the value; returns the value or its
        replacement."""
        slot = self._slot
        before = getattr(slot, "value", ABSENT)
        slot.value = ABSENT
        try:
            self.fire(event)
            return value if slot.value is ABSENT else slot.value
        finally:
            slot.value = before

    def replace(self, value: Any) -> None:
        """Replace the value; called by a subscriber, while the event is being sent."""
        self._slot.value = value

    def passes(self, checks: Any, values: Any) -> bool:
        """True if all values pass their checks. A check that raises is reported, and counts as not
        passed. False if nobody listens."""
        if self.emit.cell_contents is refuse:
            return False
        try:
            return all(check(value) for check, value in zip(checks, values, strict=True))
        except Exception as exc:  # a check that the user wrote may raise anything
            if is_from_handler(exc):
                raise
            if not isinstance(exc, RecursionError):
                self.complain(exc)
            return False


class Engine:
    """Watches the functions that selectors name.

    Args:
        parsed: The parsed selectors.
        scope: The values of the plain names in the selectors.
        failed: Called with an exception of the function that receives the events.
        complain: Called with an exception of a condition, and with errors when a module is
            imported.
        raw: True if an event holds captures instead of values.
        probe_type: ``"immediate"``, ``"total"``, or None to decide by the selector.
        overridable: True if ``set_value`` may replace the value that the variable is set to.
        may_wait: True if functions of the script may be defined later; its source is known to
            define them.

    Raises:
        SelectorError: A name in a condition is not defined.
    """

    def __init__(
        self,
        parsed: Sequence[Parsed],
        scope: Mapping[str, Any],
        failed: Callable[[BaseException], None],
        complain: Callable[[Exception], None],
        *,
        raw: bool,
        probe_type: str | None,
        overridable: bool,
        may_wait: bool,
    ) -> None:
        total = None if probe_type is None else probe_type == "total"
        self.rules = [Rule(p, scope, raw=raw, total=total, overridable=overridable) for p in parsed]
        self.outlet = Outlet(failed, complain)
        self.missing: set[str] = set()
        self._complain = complain
        self._may_wait = may_wait
        self._scope = scope
        self._attached: list[tuple[ref[FunctionType], AnyListener]] = []
        self._hosts: list[weave.Prepared] = []
        self._bound: set[Node] = set()
        self._followers: list[tuple[RedefinitionWatch, AnyListener]] = []
        self._listeners: list[AnyListener] = []
        self._memories: list[Memory] = []
        self._requests: list[live_functions.ModuleRequest] = []
        self._is_heard = False

    @property
    def events(self) -> int:
        """The number of events that listeners have received."""
        return int(self.outlet.count.cell_contents)

    def set_value(self, value: Any) -> None:
        """Replace the value that the focus variable is set to. Works only while an event is being
        sent, and if the probe is overridable."""
        self.outlet.replace(value)

    # Starting and stopping

    def start(self) -> None:
        """Start watching. Functions that are not defined yet are watched as soon as they are
        defined. Raises SelectorError: a function cannot be watched, or lacks a variable."""
        with weave.lock:
            ready: list[weave.Prepared] = []
            for rule in self.rules:
                ready += self._ready(rule)
            try:
                for prepared in ready:
                    self._attach(prepared)
            except NoSource as exc:
                self.stop()
                raise self.rules[0].parsed.focus.wrong(f"the function {exc}") from None
            for request in self._requests:
                live_functions.add_request(request)
        self._scope = {}  # the scope held objects of the program, which must not be kept alive

    def _ready(self, rule: Rule) -> list[weave.Prepared]:
        """Return all prepared taps that are to be attached for a rule."""
        listener_count = len(self._listeners)
        request_count = len(self._requests)
        ready: list[weave.Prepared] = []
        try:
            for node in rule.nodes:
                ready += self._ready_node(node, LocalListener(node, self.outlet))
        except NeedsMemory:
            del self._listeners[listener_count:]
            del self._requests[request_count:]
        else:
            return ready
        memory = Memory(rule, self.outlet)
        self._memories.append(memory)
        ready = []
        for node in rule.nodes:
            ready += self._ready_node(node, MemoryListener(memory, node))
        return ready

    def _ready_node(self, node: Node, listener: AnyListener) -> list[weave.Prepared]:
        function = node.function
        self._listeners.append(listener)
        listener.is_awake = self._is_heard
        if function.module is None:
            target = self._target_in_scope(node, listener)
            return [self._prepared(node, listener, target)]
        request = live_functions.ModuleRequest(
            function.module or "__main__",
            function.path,
            listener,
            lambda: self._defined(node, listener),
            self._complainer(function),
        )
        self._requests.append(request)
        if function.is_top:
            self._ready_top(node)
            return []
        try:
            target = live_functions.find_absolute(function)
        except NotDefinedYet:
            self._check_may_wait(node, listener)
            self.missing.add(function.reference)
            return []
        except AttributeError:
            raise self._wrong(node, None) from None
        return [self._prepared(node, listener, target)]

    def _target_in_scope(self, node: Node, listener: AnyListener) -> live_functions.Target:
        try:
            target = live_functions.find_in_scope(node.function, self._scope)
        except Exception:  # a property of the user's object may raise anything
            raise self._wrong(node, None) from None
        if target.is_bound:
            self._bound.add(node)
            self._bind(node, target)
            names = [element.name for element in node.elements if element.name]
            listener.names = [*listener.names, *names]
        return target

    def _check_may_wait(self, node: Node, listener: AnyListener) -> None:
        """Check that a function that is not defined yet may be defined later, and can be watched
        then. Raises SelectorError: it cannot; NeedsMemory: a ``LocalListener`` may not suffice."""
        function = node.function
        is_waited_for = self._may_wait and not function.module
        if (function.module or "__main__") in sys.modules and not is_waited_for:
            raise self._wrong(node, None) from None
        if function.module:
            self._check_source(node)
        if isinstance(listener, LocalListener) and may_need_memory(node):
            raise NeedsMemory from None

    def _ready_top(self, node: Node) -> None:
        """Check that the top level of a module can be watched. It gets its taps when the module is
        compiled, so the module must not have run yet. Raises SelectorError: it cannot be
        watched."""
        function = node.function
        if node.rule.total or may_need_memory(node):
            raise function.wrong(
                "at the top level only variables and one loop can be captured together."
            )
        if not (self._may_wait and not function.module):
            module = function.module or "__main__"
            if module in sys.modules:
                raise function.wrong(
                    f"'{module}' has run already.", "Make the probe before it is imported."
                )
            self._check_source(node)
        self.missing.add(function.reference)

    def _prepared(
        self, node: Node, listener: AnyListener, named: live_functions.Target
    ) -> weave.Prepared:
        """Return a function's code with taps, without putting it in place. Of functions that wrap
        each other, the innermost one that has all variables is chosen; the outermost one, if the
        selector has an element without a name."""
        problem: Exception | None = None
        target: FunctionType | None = None
        if named.host is not None:
            candidates = [named.host]
        elif all(element.name for element in node.elements):
            candidates = list(named.functions)
        else:
            candidates = list(named.functions[::-1])
        for function in candidates:
            listener.hit.clear()
            try:
                prepared = weave.prepare(function, named.path, listener)
            except (NoSource, Unobservable) as exc:
                problem = problem or exc
                target = target or function
                continue
            lacking = self._lacking(node, listener)
            if lacking is None:
                self._report_never_set(node, listener, function)
                return prepared
            target = target or function
        raise self._wrong(node, target, problem)

    def _lacking(self, node: Node, listener: AnyListener) -> Element | None:
        for element in node.elements:
            kinds = listener.hit.get(element)
            if not kinds:
                return element
            if node.rule.overridable and element.focus and not kinds & REPLACEABLE:
                return element
        return None

    def _report_never_set(self, node: Node, listener: AnyListener, function: FunctionType) -> None:
        """Report variables that are only declared (``x: int``): a selector may name them, but there
        will be no event."""
        for element, kinds in listener.hit.items():
            if kinds <= NEVER_ASSIGNED:
                message = f"{_label(function)} never sets '{element.name}'."
                self._complain(node.function.wrong(message))

    def _bind(self, node: Node, target: live_functions.Target) -> None:
        """Restrict events to calls of a method on one object, and put the object into the event.
        Raises SelectorError: the method's first variable does not show on which object it was
        called."""
        if not target.functions:
            return
        code = weave.original(target.functions[0])
        name = code.co_varnames[0] if code.co_argcount else ""
        if not name or sets(code, name):
            raise self._hides_its_object(node.function, target, name)
        if any(element.name == name and element.check is not None for element in node.elements):
            return
        alias = name if target.is_shown else f"/{name}"
        node.elements.append(Element(name, alias, 0, None, identity_check(target.owner), None))

    def _hides_its_object(
        self, function: ParsedFunction, target: live_functions.Target, name: str
    ) -> SelectorError:
        code = weave.original(target.functions[0])
        if name:
            how = f"gives '{name}' another value"
        else:
            how = "takes its object in '*" + (code.co_varnames or ("",))[0] + "'"
        kind = target.owner if isinstance(target.owner, type) else type(target.owner)
        method = function.path[-1] if hasattr(kind, function.path[-1]) else code.co_name
        return function.wrong(
            f"{_label(target.functions[0])} {how}, so that its calls on this object cannot be told"
            " from others.",
            f"Write the class instead, to see those on any object: {kind.__name__}.{method}.",
        )

    def _attach(self, prepared: weave.Prepared) -> None:
        self._attached.append((weave.attach(prepared), prepared.listener))
        if prepared.path:
            self._hosts.append(prepared)
            self._attach_inner(prepared)
        else:
            self._follow(prepared.patch.function(), prepared.listener)

    def _attach_inner(self, host: weave.Prepared) -> None:
        """Put taps into the functions that calls of the host function have already made."""
        self._report_frozen(host.listener)
        for function in list(weave.functions_made_at(host)):
            try:
                inner = weave.prepare(function, (), host.listener)
            except (NoSource, Unobservable):
                continue
            self._attached.append((weave.attach(inner), host.listener))

    def _report_frozen(self, listener: AnyListener) -> None:
        if weave.is_frozen():
            self._complain(listener.node.function.wrong(FROZEN))

    def stop(self) -> None:
        """Stop watching."""
        with weave.lock:
            self._report_missed()
            self.outlet.close()
            for memory in self._memories:
                memory.end()
            for request in self._requests:
                live_functions.remove_request(request)
            for reference, listener in self._attached:
                weave.detach(reference(), listener)
            for host in self._hosts:
                self._report_frozen(host.listener)
            if self._hosts or any(request.is_woven for request in self._requests):
                weave.restore_functions(self._listeners)
            self._attached.clear()
            self._requests.clear()
            self._hosts.clear()

    def listen(self, emit: Callable[[Any], None] | None, pair: Any = None) -> None:
        """Send events to the function ``emit``; with None nobody listens. ``pair`` is as in
        ``streams.FastSubscriber``."""
        self.outlet.open(emit if emit is not None else refuse, pair)
        is_heard = emit is not None
        if is_heard != self._is_heard:
            self._is_heard = is_heard
            for listener in self._listeners:
                listener.is_awake = is_heard
            with weave.lock:
                try:
                    weave.refresh(reference() for reference, _ in self._attached)
                except NoSource as exc:  # the taps of all probes together cannot be compiled
                    self._complain(self.rules[0].parsed.focus.wrong(f"the function {exc}"))
                # Hosts are functions whose calls create a watched function. The functions that they
                # have created while nobody listened get their taps now.
                for host in self._hosts if is_heard else ():
                    self._attach_inner(host)

    def divert(self, emit: Callable[[Any], None]) -> None:
        """Send events to another function, in a forked child, if anybody listened. No code is
        changed, since another thread may have been changing code at the fork."""
        if self._is_heard:
            self.outlet.open(emit, None)

    @property
    def watched(self) -> dict[ParsedFunction, FunctionType]:
        """The live function for each function in the selectors; the last one if there are
        several."""
        watched = {}
        for reference, listener in self._attached:
            live = reference()
            if live is not None:
                watched[listener.node.function] = live
        return watched

    # Functions that are defined after the engine has started

    def _complainer(self, function: ParsedFunction) -> Callable[[Exception], None]:
        """Return a function that reports an error about a function that is defined later."""

        def complain(exc: Exception) -> None:
            if isinstance(exc, (Unobservable, NoSource)):
                exc = function.wrong(f"{function.reference} {exc}")
            self._complain(exc)

        return complain

    def _defined(self, node: Node, listener: AnyListener) -> None:
        """Watch a function that its module has just defined. Called each time the module has been
        executed, when it is imported or reloaded. The top level of a module cannot get taps any
        more at this time: an error is reported if it has none."""
        if node.function.is_top:
            self.missing.discard(node.function.reference)
            requests = [request for request in self._requests if request.listener is listener]
            if not any(request.is_woven for request in requests):
                message = f"the top level of {node.function.module} {CHANGED}"
                self._complain(node.function.wrong(message))
            return
        with weave.lock:
            try:
                target = live_functions.find_absolute(node.function, is_done=True)
                self.missing.discard(node.function.reference)
                for function in target.functions:
                    if weave.adopt(function, listener):
                        self._attached.append((ref(function), listener))
                        self._follow(function, listener)
                        return
                self._attach(self._prepared(node, listener, target))
            except (NotDefinedYet, AttributeError, NeedsMemory, NoSource, Unobservable):
                message = f"'{node.function.reference}' is not there, now that its module has run."
                self._complain(node.function.wrong(message))
            except Exception as exc:  # the program's import, in which this runs, must not fail
                if is_from_handler(exc) or isinstance(exc, RecursionError):
                    raise
                self._complain(exc)

    # Functions that get a new definition

    def _follow(self, function: FunctionType | None, listener: AnyListener) -> None:
        """Keep watching the name of a function, in case the name gets another definition."""
        node = listener.node
        if function is None or node in self._bound:
            return
        if any(other is listener for _, other in self._followers):
            return
        path = node.function.path
        module = node.function.module
        if module is None:
            module = function.__globals__.get("__name__")
        else:
            module = module or "__main__"
        if isinstance(module, str) and is_named_at(module, path, function):
            follower = RedefinitionWatch(
                module, path, function, lambda new: self._renew(new, listener)
            )
            self._followers.append((follower, listener))

    def _renew(self, function: FunctionType, listener: AnyListener) -> None:
        """Attach to the new definition of a watched function."""
        # This may be called whenever an object is freed, in the middle of any code, so it must not
        # wait for the lock.
        if not weave.lock.acquire(blocking=False):
            why = "another thread is about to change probes."
            self._complain(self._not_watched(function, listener, why))
            return
        try:
            self._attached = [
                (reference, other) for reference, other in self._attached if reference() is not None
            ]
            if weave.adopt(function, listener):
                self._attached.append((ref(function), listener))
                return
            listener.hit.clear()
            prepared = weave.prepare(function, (), listener)
            if self._lacking(listener.node, listener) is None:
                self._attach(prepared)
                return
            check.check_function(listener.node.function, function)
            self._complain(self._not_watched(function, listener))
        except (NoSource, Unobservable, NeedsMemory) as exc:
            why = f"it {exc}" if str(exc) else ""
            self._complain(self._not_watched(function, listener, why))
        except Exception as exc:  # the running program must not see an error of voirkit
            self._complain(exc.with_traceback(None))  # a traceback would keep the function alive
        finally:
            weave.lock.release()

    def _not_watched(
        self, function: FunctionType, listener: AnyListener, why: str = ""
    ) -> SelectorError:
        why = f": {why}" if why else "."
        return listener.node.function.wrong(
            f"{_label(function)} was defined while the probe was on, and is not watched{why}"
        )

    def _report_missed(self) -> None:
        """Report, when the probe ends, each function that a selector names but that was not
        watched."""
        for request in self._requests:
            function = request.listener.node.function
            if request.is_woven or function.reference not in self.missing:
                continue
            if request.module in sys.modules:
                self._complain(function.wrong(f"{request.module} {UNSEEN}"))
        for function, listener in self._redefinitions():
            if function is not None and not weave.has_taps(function, listener):
                self._complain(self._not_watched(function, listener))
        for follower, _ in self._followers:
            follower.is_on = False
        self._followers.clear()

    def _redefinitions(self) -> list[tuple[FunctionType | None, AnyListener]]:
        """Return the functions that now have the names of the watched functions, each with its
        listener."""
        functions: list[tuple[FunctionType | None, AnyListener]] = [
            (follower.redefined(), listener) for follower, listener in self._followers
        ]
        followed = {id(listener) for _, listener in self._followers}
        for request in self._requests:
            if request.is_woven and id(request.listener) not in followed:
                function = live_functions.function_at(request.module, request.path)
                functions.append((function, request.listener))
        return functions

    def _check_source(self, node: Node) -> None:
        """Check that a function that is not defined yet is defined in a source, and has the
        selector's variables."""
        parsed = node.rule.parsed
        function = node.function
        only_it = Parsed(parsed.selector, parsed.where, (function,), function, (), (), None)
        file = getattr(sys.modules["__main__"], "__file__", None)
        script = None
        if not function.module and file is not None and os.path.isfile(file):
            with open(file, "rb") as source:
                script = catalogue(source.read(), file)
        check.check_all(only_it, script, check.display_path(file or ""), None)

    # Error messages

    def _wrong(
        self, node: Node, target: FunctionType | None, problem: Exception | None = None
    ) -> SelectorError:
        """Return the error for a function that cannot be watched. The checks of the catalogue come
        first, and may raise an error of their own that suggests similar names."""
        function = node.function
        if function.module is None:
            check.check_in_scope(function, self._scope)
        else:
            self._check_source(node)
            if target is not None:
                check.check_function(function, target)
        if target is None:
            return function.wrong(f"'{function.reference}' is no function that can be probed.")
        label = _label(target)
        if problem is not None:
            return function.wrong(f"{label} {problem}")
        captures = ", ".join(element.name or f"${element.alias}" for element in node.elements)
        if node.rule.overridable:
            return function.wrong(f"{label} does not set what is to be replaced: {captures}.")
        return function.wrong(f"{label} has nothing to see of: {captures}.")


def _label(function: FunctionType) -> str:
    code = function.__code__
    return f"{function.__qualname__} ({check.display_path(code.co_filename)}:{code.co_firstlineno})"
