"""The engine behind a probe: finds the functions, has taps put into them, and sends the events on.

What comes in: selectors, as parsed, a scope, and somebody who listens. Nothing is left behind by an engine that could
not be switched on, nor by one that was switched off.
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
from voirkit.probes.instrumenter import NEVER_ASSIGNED, REPLACEABLE
from voirkit.probes.live_functions import NotDefinedYet, RedefinitionWatch, is_named_at
from voirkit.probes.selector import ABSENT, Element, Node, Parsed, ParsedFunction, Rule, check, identity_check
from voirkit.probes.selector.catalogue import catalogue
from voirkit.probes.source import CHANGED, NoSource, sets
from voirkit.probes.tap_emitter import Unobservable
from voirkit.probes.taps import LocalListener, Memory, MemoryListener, NeedsMemory, may_need_memory
from voirkit.streams import MEANT, in_turn, is_from_handler, threads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FunctionType


UNSEEN = (
    "is loaded, but by no import that voirkit sees (spec_from_file_location, or an import hook before that of voirkit), and not watched. "
    "Make the probe after that."
)
FROZEN = (
    "after gc.freeze() functions that a function has made cannot be found: those made before are not watched, "
    "and those that are watched keep their taps, which do nothing any more, when the probe ends."
)
AnyListener = LocalListener | MemoryListener


class Off(Exception):
    """Raised to a tap that nobody wants: in a frame that was running when the probe left, or among many others."""


def off(event: Any) -> None:
    raise Off


class Outlet:
    """What the taps of one probe share.

    Attributes:
        emit: A cell with the function that takes an event.
        failed: A cell with the function that takes what it raised, and says whether that is for the program.
        count: A cell with the number of events.
        begin, end: Cells with what takes the begin and the end of a pair, if the begin needs no event; else with None.
    """

    def __init__(self, failed: Callable[[BaseException], None], complain: Callable[[Exception], None]) -> None:
        self.emit, self.count = CellType(off), CellType(0)
        self.failed, self.begin, self.end = CellType(self._failed), CellType(None), CellType(None)
        self._told, self.complain = failed, complain
        self.drop: Callable[[Any], None] | None = None  # what then takes that a begin will have no end, or None
        self._slot = threading.local()

    def _failed(self, exc: BaseException) -> bool:
        # At the recursion limit it is the program that is at fault, and will see so itself.
        if isinstance(exc, Off | RecursionError):
            return False
        if is_from_handler(exc):
            return True
        try:
            self._told(exc)
        except RecursionError:
            pass  # the next event that fails, with more room, tells it
        return False

    def open(self, emit: Callable[[Any], None], pair: Any) -> None:
        """Send events to a function."""
        self.emit.cell_contents = emit
        self.begin.cell_contents, self.end.cell_contents, self.drop = pair or (None, None, None)

    def close(self) -> None:
        """No more events, whatever still runs."""
        self.open(off, None)

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
        except BaseException as exc:
            if self.failed.cell_contents(exc):
                raise

    def dropped(self, key: Any) -> None:
        """A pair that may have begun will have no end."""
        if self.drop is None:
            return
        try:
            in_turn(self.drop, key)
        except MEANT:
            raise
        except BaseException as exc:
            if self.failed.cell_contents(exc):
                raise

    def fire_replacing(self, event: Any, value: Any) -> Any:
        """Send an event whose subscribers may replace the value; returns the value, or what replaces it."""
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
        """Whether values pass their checks; one that raises is reported, and counts as not passed, as when nobody wants to know."""
        if self.emit.cell_contents is off:
            return False
        try:
            return all(check(value) for check, value in zip(checks, values, strict=True))
        except Exception as exc:
            if is_from_handler(exc):
                raise
            if not isinstance(exc, RecursionError):
                self.complain(exc)
            return False


class Engine:
    """Watches the functions that selectors name.

    Args:
        scope: What the plain names in them stand for.
        failed: Called with what the function that takes events raised.
        complain: Called with what a condition raised, and what goes wrong when a module is imported.
        raw: Whether an event holds captures instead of values.
        probe_type: ``"immediate"``, ``"total"`` or None: by the selector.
        overridable: Whether ``set_value`` may replace what the variable is set to.
        may_wait: Whether the script's functions may be defined later; they are known to stand in its source.

    Raises:
        SelectorError: A name in a condition means nothing.
    """

    def __init__(
        self, parsed: Sequence[Parsed], scope: Mapping[str, Any], failed: Callable[[BaseException], None],
        complain: Callable[[Exception], None], *, raw: bool, probe_type: str | None, overridable: bool, may_wait: bool,
    ) -> None:  # fmt: skip
        total = None if probe_type is None else probe_type == "total"
        self.rules = [Rule(p, scope, raw=raw, total=total, overridable=overridable) for p in parsed]
        self.outlet = Outlet(failed, complain)
        self.missing: set[str] = set()
        self._complain, self._may_wait, self._scope = complain, may_wait, scope
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
        """How many events there were, since somebody listens."""
        return int(self.outlet.count.cell_contents)

    def set_value(self, value: Any) -> None:
        """Replace what the focus variable is set to; only while an event is sent, and if the probe is overridable."""
        self.outlet.replace(value)

    # on and off

    def on(self) -> None:
        """Start watching. What is not defined yet is watched as soon as it is. Raises SelectorError: a function cannot be watched, or has
        no such variable."""
        with weave.lock:
            ready: list[weave.Prepared] = []
            for rule in self.rules:
                ready += self._ready(rule)
            try:
                for prepared in ready:
                    self._attach(prepared)
            except NoSource as exc:
                self.off()
                raise self.rules[0].parsed.focus.wrong(f"the function {exc}") from None
            for request in self._requests:
                live_functions.add_request(request)
        self._scope = {}  # the objects in it are the program's, to live and die

    def _ready(self, rule: Rule) -> list[weave.Prepared]:
        """All that is to be attached for a rule, tried."""
        before = len(self._listeners), len(self._memories), len(self._requests)
        try:
            return [t for node in rule.nodes for t in self._ready_node(node, LocalListener(node, self.outlet))]
        except NeedsMemory:
            del self._listeners[before[0] :], self._memories[before[1] :], self._requests[before[2] :]
        memory = Memory(rule, self.outlet)
        self._memories.append(memory)
        return [t for node in rule.nodes for t in self._ready_node(node, MemoryListener(memory, node))]

    def _ready_node(self, node: Node, listener: AnyListener) -> list[weave.Prepared]:
        function = node.function
        self._listeners.append(listener)
        listener.is_awake = self._is_heard
        if function.module is not None:
            request = live_functions.ModuleRequest(
                function.module or "__main__", function.path, listener, lambda: self._defined(node, listener), self._complainer(function)
            )
            self._requests.append(request)
            if function.is_top:
                self._ready_top(node)
                return []
            try:
                found = live_functions.find_absolute(function)
            except NotDefinedYet:
                if (function.module or "__main__") in sys.modules and not (self._may_wait and not function.module):
                    raise self._wrong(node, None) from None
                if function.module:
                    self._check_source(node)
                if isinstance(listener, LocalListener) and may_need_memory(node):
                    raise NeedsMemory from None
                self.missing.add(function.reference)
                return []
            except AttributeError:
                raise self._wrong(node, None) from None
        else:
            try:
                found = live_functions.find_in_scope(function, self._scope)
            except Exception:  # a property of the user's object may raise anything
                raise self._wrong(node, None) from None
            if found.is_bound:
                self._bound.add(node)
                self._bind(node, found)
                listener.names = [*listener.names, *(e.name for e in node.elements if e.name)]
        return [self._prepared(node, listener, found)]

    def _ready_top(self, node: Node) -> None:
        """The top level of a module gets its taps when the module is compiled: it cannot have run yet."""
        function = node.function
        if node.rule.total or may_need_memory(node):
            raise function.wrong("at the top level only variables and one loop can be captured together.")
        if not (self._may_wait and not function.module):
            if (function.module or "__main__") in sys.modules:
                raise function.wrong(f"'{function.module or '__main__'}' has run already.", "Make the probe before it is imported.")
            self._check_source(node)
        self.missing.add(function.reference)

    def _prepared(self, node: Node, listener: AnyListener, named: live_functions.Target) -> weave.Prepared:
        """Weave, without putting it in place. Of functions that wrap each other it is the innermost that has all the variables; the
        outermost, if any variable will do."""
        problem: Exception | None = None
        target: FunctionType | None = None
        candidates = named.functions if all(e.name for e in node.elements) else named.functions[::-1]
        for function in [named.host] if named.host is not None else candidates:
            listener.hit.clear()
            try:
                prepared = weave.prepare(function, named.path, listener)
            except (NoSource, Unobservable) as exc:
                problem, target = problem or exc, target or function
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
            if not kinds or (node.rule.overridable and element.focus and not kinds & REPLACEABLE):
                return element
        return None

    def _report_never_set(self, node: Node, listener: AnyListener, function: FunctionType) -> None:
        """A variable that is only declared (``x: int``) is there, so that it may be named; but nothing will come."""
        for element, kinds in listener.hit.items():
            if kinds <= NEVER_ASSIGNED:
                self._complain(node.function.wrong(f"{_label(function)} never sets '{element.name}'."))

    def _bind(self, node: Node, target: live_functions.Target) -> None:
        """Only calls of this very object's method count, and the event has the object. Raises SelectorError: the method's first variable
        does not tell what it was called on."""
        if not target.functions:
            return
        code = weave.original(target.functions[0])
        name = code.co_varnames[0] if code.co_argcount else ""
        if not name or sets(code, name):
            how = f"gives '{name}' another value" if name else "takes its object in '*" + (code.co_varnames or ("",))[0] + "'"
            kind = target.owner if isinstance(target.owner, type) else type(target.owner)
            method = node.function.path[-1] if hasattr(kind, node.function.path[-1]) else code.co_name
            raise node.function.wrong(
                f"{_label(target.functions[0])} {how}, so that its calls on this object cannot be told from others.",
                f"Write the class instead, to see those on any object: {kind.__name__}.{method}.",
            )
        if all(e.name != name or e.check is None for e in node.elements):
            node.elements.append(Element(name, name if target.is_shown else f"/{name}", 0, None, identity_check(target.owner), None))

    def _attach(self, prepared: weave.Prepared) -> None:
        self._attached.append((weave.attach(prepared), prepared.listener))
        if prepared.path:
            self._hosts.append(prepared)
            self._attach_inner(prepared)
        else:
            self._follow(prepared.patch.function(), prepared.listener)

    def _attach_inner(self, host: weave.Prepared) -> None:
        """Functions that were already made inside the host."""
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

    def off(self) -> None:
        """Stop watching."""
        with weave.lock:
            self._look_again()
            self.outlet.close()
            for memory in self._memories:
                memory.end()
            for request in self._requests:
                live_functions.remove_request(request)
            for reference, listener in self._attached:
                weave.detach(reference(), listener)
            for host in self._hosts:
                self._report_frozen(host.listener)
            if self._hosts or any(request.made for request in self._requests):
                weave.restore_functions(self._listeners)
            self._attached.clear()
            self._requests.clear()
            self._hosts.clear()

    def listen(self, emit: Callable[[Any], None] | None, pair: Any = None) -> None:
        """Send events to a function; None: nobody listens. ``pair`` is as in ``streams.Direct``."""
        self.outlet.open(emit if emit is not None else off, pair)
        heard = emit is not None
        if heard != self._is_heard:
            self._is_heard = heard
            for listener in self._listeners:
                listener.is_awake = heard
            with weave.lock:
                try:
                    weave.refresh(reference() for reference, _ in self._attached)
                except NoSource as exc:  # with the taps of others
                    self._complain(self.rules[0].parsed.focus.wrong(f"the function {exc}"))
                for host in self._hosts if heard else ():  # what they made while nobody listened has no taps
                    self._attach_inner(host)

    def divert(self, emit: Callable[[Any], None]) -> None:
        """In a forked child: send events to another function, if anybody listened; weaves nothing, since another thread may have been."""
        if self._is_heard:
            self.outlet.open(emit, None)

    @property
    def watched(self) -> dict[ParsedFunction, FunctionType]:
        """The live function, of several the last, that each function in the selectors stands for."""
        found = ((listener.node.function, reference()) for reference, listener in self._attached)
        return {function: live for function, live in found if live is not None}

    # defined later

    def _complainer(self, function: ParsedFunction) -> Callable[[Exception], None]:
        """Says what goes wrong with a function that is defined later."""

        def complain(exc: Exception) -> None:
            self._complain(function.wrong(f"{function.reference} {exc}") if isinstance(exc, (Unobservable, NoSource)) else exc)

        return complain

    def _defined(self, node: Node, listener: AnyListener) -> None:
        """A module with a function in it has been imported, perhaps again."""
        if node.function.is_top:
            self.missing.discard(node.function.reference)
            if not any(request.made for request in self._requests if request.listener is listener):
                self._complain(node.function.wrong(f"the top level of {node.function.module} {CHANGED}"))
            return
        with weave.lock:
            try:
                found = live_functions.find_absolute(node.function, is_done=True)
                self.missing.discard(node.function.reference)
                for function in found.functions:
                    if weave.adopt(function, listener):
                        self._attached.append((ref(function), listener))
                        self._follow(function, listener)
                        return
                self._attach(self._prepared(node, listener, found))
            except (NotDefinedYet, AttributeError, NeedsMemory, NoSource, Unobservable):
                self._complain(node.function.wrong(f"'{node.function.reference}' is not there, now that its module has run."))
            except Exception as exc:  # this stands in the middle of an import
                if is_from_handler(exc) or isinstance(exc, RecursionError):
                    raise
                self._complain(exc)

    # defined anew

    def _follow(self, function: FunctionType | None, listener: AnyListener) -> None:
        """Stay on a function if its name is given to another definition."""
        node = listener.node
        if function is None or node in self._bound or any(other is listener for _, other in self._followers):
            return
        module = function.__globals__.get("__name__") if node.function.module is None else node.function.module or "__main__"
        if isinstance(module, str) and is_named_at(module, node.function.path, function):
            follower = RedefinitionWatch(module, node.function.path, function, lambda new: self._renew(new, listener))
            self._followers.append((follower, listener))

    def _renew(self, function: FunctionType, listener: AnyListener) -> None:
        """A watched function has been defined anew."""
        if not weave.lock.acquire(blocking=False):  # in the middle of anything: this may be called when an object goes
            self._complain(self._not_watched(function, listener, "another thread is about to change probes."))
            return
        try:
            self._attached = [(reference, other) for reference, other in self._attached if reference() is not None]
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
            self._complain(self._not_watched(function, listener, f"it {exc}" if str(exc) else ""))
        except Exception as exc:
            self._complain(exc.with_traceback(None))  # which would keep the function
        finally:
            weave.lock.release()

    def _not_watched(self, function: FunctionType, listener: AnyListener, why: str = "") -> SelectorError:
        why = f": {why}" if why else "."
        return listener.node.function.wrong(f"{_label(function)} was defined while the probe was on, and is not watched{why}")

    def _look_again(self) -> None:
        """The last time to see that what was watched is not what ran."""
        for request in self._requests:
            function = request.listener.node.function
            if request.module in sys.modules and not request.made and function.reference in self.missing:
                self._complain(function.wrong(f"{request.module} {UNSEEN}"))
        found = [(follower.redefined(), listener) for follower, listener in self._followers]
        followed = {id(listener) for _, listener in self._followers}
        late = [request for request in self._requests if request.made and id(request.listener) not in followed]
        found += [(live_functions.function_at(request.module, request.path), request.listener) for request in late]
        for function, listener in found:
            if function is not None and not weave.has_taps(function, listener):
                self._complain(self._not_watched(function, listener))
        for follower, _ in self._followers:
            follower.is_on = False
        self._followers.clear()

    def _check_source(self, node: Node) -> None:
        """What is not defined must at least stand in a source, and have the variables."""
        parsed, function = node.rule.parsed, node.function
        alone = Parsed(parsed.selector, parsed.where, (function,), function, (), (), None)
        file = getattr(sys.modules["__main__"], "__file__", None)
        script = None
        if not function.module and file is not None and os.path.isfile(file):
            with open(file, "rb") as source:
                script = catalogue(source.read(), file)
        check.check_all(alone, script, check.display_path(file or ""), None)

    # errors

    def _wrong(self, node: Node, target: FunctionType | None, problem: Exception | None = None) -> SelectorError:
        """Why a function cannot be watched: first in the words of the catalogue, which knows the near names."""
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
        listener_free = [e.name or f"${e.alias}" for e in node.elements]
        if node.rule.overridable:
            return function.wrong(f"{label} does not set what is to be replaced: {', '.join(listener_free)}.")
        return function.wrong(f"{label} has nothing to see of: {', '.join(listener_free)}.")


def _label(function: FunctionType) -> str:
    code = function.__code__
    return f"{function.__qualname__} ({check.display_path(code.co_filename)}:{code.co_firstlineno})"
