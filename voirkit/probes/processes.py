"""Probes in child processes: passing them on at a fork or spawn, and receiving their events.

A process without children or without probes has no overhead: the modules are loaded when the first
child is about to be started. If a probe cannot be made in a spawned process, this is reported once;
the probe works in the other processes.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from types import FunctionType
from typing import Any

from voirkit import streams
from voirkit.errors import SelectorError, VoirkitError
from voirkit.fork import at_fork
from voirkit.probes import weave
from voirkit.processes import children, inherit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.probes.children import Item, Relay
    from voirkit.probes.exchange import Exchange
    from voirkit.probes.stream import Probe


class Relayed:
    """The state of a probe that concerns other processes.

    Attributes:
        events: Number of events received from children.
        dropped: Number of events dropped by children that have ended.
        raised: The first exception that a subscriber raised on purpose for an event of another
            process; it ends the program.
        is_missed: True if nobody listened to the probe when a process was started: that process has
            no taps.
        is_over: True once the probe was switched off: an exception of a subscriber is then raised
            when the probe ends.
        is_forgiven: True if nothing is raised when the probe ends, since an exception of the
            program has ended it.
    """

    def __init__(self) -> None:
        self.key = 0  # number of the probe in this process
        self.events = 0
        self.dropped = 0
        # in a forked child: the function that gets the events, in place of the subscribers
        self.emit: Callable[[Any], None] | None = None
        # the subscribers that replace values, which they do in forked children too
        self.overriding: list[Any] = []
        self.raised: BaseException | None = None
        # the exception in ``raised``, if it is to be raised when the probe ends
        self.late: BaseException | None = None
        self.is_missed = False
        self.is_over = False
        self.is_forgiven = False
        # a name in a selector's condition that only this process and its forks can resolve; empty
        # if there is no such name
        self.local_name = ""


_numbers = count(1)
# the probes of this process that have not ended, by number
_probes: weakref.WeakValueDictionary[int, Probe] = weakref.WeakValueDictionary()


class _Children:
    """State that probes keep about the children of this process."""

    __slots__ = ("exchange",)

    def __init__(self) -> None:
        self.exchange: Exchange | None = None  # receives the children's events


_children = _Children()
relays: list[Relay] = []  # the probes of this process's ancestors


# Functions for the process that has made the probes


def add_probe(probe: Probe, scope: Mapping[str, Any]) -> None:
    """Pass a probe that has been switched on to all processes that multiprocessing starts from now
    on."""
    if not are_there():
        # Not for subprocesses: they join the run when they import torch, and have not defined the
        # probed functions by then.
        inherit.watch(_MAKE_PROBES, offered, subprocesses=False)
    from voirkit.probes.selector import tools

    relayed = probe._relayed
    dotted_names = [name for parsed in probe._parsed for name in (*parsed.names, *parsed.tags)]
    for dotted_name in dotted_names:
        name = dotted_name.partition(".")[0]
        if name in scope and scope[name] is not getattr(tools, name, None):
            relayed.local_name = name
            break
    relayed.key = next(_numbers)
    _probes[relayed.key] = probe


def end_probe(probe: Probe) -> None:
    """Deliver the events that children have sent to a probe whose stream is about to end."""
    relayed = probe._relayed
    exchange = _children.exchange
    if _probes.get(relayed.key) is not probe:
        return
    raise_at_end(probe)
    if exchange is not None:
        exchange.suspend()
    try:
        if exchange is not None:
            exchange.drain()
    finally:
        # The probe is released even if a signal handler has raised an exception meanwhile, as
        # torch's handler does for a killed worker.
        _release(probe, exchange)
    late = relayed.late
    relayed.late = None
    relayed.raised = None
    if late is None or relayed.is_forgiven:
        return
    if isinstance(late, streams.OnPurpose):
        streams.raise_on_purpose(late)
    raise late


def _release(probe: Probe, exchange: Exchange | None) -> None:
    """Stop receiving events of children for the probe."""
    relayed = probe._relayed
    del _probes[relayed.key]
    if not are_there():
        inherit.unwatch(_MAKE_PROBES)
    if exchange is not None:
        relayed.dropped += exchange.dropped(relayed.key) + exchange.forget(relayed.key)
        exchange.end_probe(relayed.key)
        exchange.resume()
        if _probes:
            exchange.start_reading()
        else:
            _children.exchange = None
            exchange.close()
    if relayed.dropped:
        streams.report(
            f"{probe.label}: {relayed.dropped} events of child processes were lost; they came"
            " faster than they could be taken.\n  They are counted as dropped."
        )


def raise_at_end(probe: Probe) -> None:
    """Delay the exception that a subscriber raises on purpose for an event of a child.

    If it was raised already, or is raised from now on, it leaves the probe when the probe ends.
    """
    relayed = probe._relayed
    relayed.is_over = True
    if relayed.raised is not None and streams.cancel_pending(relayed.raised):
        relayed.late = relayed.raised


def dropped(probe: Probe) -> int:
    """Return the number of a probe's events that children have lost."""
    relayed = probe._relayed
    n_dropped = relayed.dropped
    exchange = _children.exchange
    if exchange is not None and _probes.get(relayed.key) is probe:
        n_dropped += exchange.dropped(relayed.key)
    return n_dropped


def end_after_children(function: Callable[[], None]) -> bool:
    """True if a function called at the exit of Python will be called again later.

    The second call comes after multiprocessing has waited for its children. It is needed if
    multiprocessing was imported before the function was registered: its exit function runs later.
    """
    if not _probes or _children.exchange is None:
        return False
    return children.after_children(function)


def _receive(pid: int, key: int, data: Any) -> None:
    """Handle data from a child: an event for a probe, or the text of an error."""
    probe = _probes.get(key)
    if probe is None:
        return
    if isinstance(data, str):
        probe._complain(VoirkitError(data))
        return
    event = _captures(probe, *data) if isinstance(data, tuple) else data
    event["$pid"] = pid
    probe._relayed.events += 1
    try:
        probe._hand_on(event)
    except streams.CARRIED as exc:  # must reach the program, not the thread that reads events
        if probe._relayed.raised is None:
            probe._relayed.raised = exc
            if probe._relayed.is_over:
                probe._relayed.late = exc
            else:
                streams.raise_soon(exc)


def _captures(probe: Probe, data: dict[str, Any], wrap: Any, worker: int | None) -> dict[str, Any]:
    """Return a raw event, rebuilt from the data that a child has sent."""
    from voirkit.probes.taps import Capture

    engine: Any = probe._engine
    nodes = [node for rule in engine.rules for node in rule.nodes]
    sources = {element.alias: element.source for node in nodes for element in node.elements}
    event: dict[str, Any] = {
        alias: Capture(sources.get(alias), alias, list(names), list(values))
        for alias, (names, values) in data.items()
    }
    if wrap is not None:
        event["$wrap"] = wrap
    if worker is not None:
        event["$worker"] = worker
    return event


def _child_closed(dropped_of: Callable[[int], int]) -> None:
    for key, probe in list(_probes.items()):
        probe._relayed.dropped += dropped_of(key)


def opened() -> Exchange | None:
    """Return the exchange that receives the events of children; None if it cannot be opened, or no
    probe is on."""
    exchange = _children.exchange
    if exchange is not None and not exchange.is_open:
        exchange.close()
        exchange = _children.exchange = None
    if exchange is None and _probes:
        from voirkit.probes.exchange import Exchange

        try:
            exchange = _children.exchange = Exchange(_receive, _child_closed)
        except OSError as exc:
            streams.report(
                f"the events of child processes cannot be had ({streams.describe(exc)})."
            )
    return exchange


def own_probes() -> list[Probe]:
    """Return the probes of this process that are on."""
    return list(_probes.values())


def are_there() -> bool:
    """True if any probe is on in this process, its own or that of an ancestor."""
    return bool(_probes or relays)


def slots() -> int:
    """Return the highest number of a probe, plus one."""
    return max(_probes.keys(), default=0) + 1


# Fork hooks


def _before_fork() -> None:
    try:
        if _probes:
            exchange = opened()
            if exchange is not None:
                exchange.before_fork()
    except Exception as exc:  # the program's fork must work, whatever fails here
        streams.report(f"the events of child processes cannot be had ({streams.describe(exc)}).")


def _after_fork_in_parent() -> None:
    for probe in own_probes():
        notice(probe)
    if _children.exchange is not None:
        _children.exchange.after_fork()


def notice(probe: Probe) -> None:
    """Record that a process has been started.

    If nobody listens to the probe now, that process has no taps, even if somebody listens later.
    """
    engine: Any = probe._engine
    probe._relayed.is_missed |= engine is not None and not engine._is_heard


def _after_fork_in_child() -> None:
    weave.lock = threading.RLock()  # another thread may have held the lock at the fork
    if relays:
        for relay in relays:
            relay.uplink.close()
    if not _probes:
        return
    from voirkit.probes.children import Relay

    probes = list(_probes.items())
    exchange = _children.exchange
    uplink = exchange.uplink(slots()) if exchange is not None else None
    _children.exchange = None
    _probes.clear()
    if exchange is not None:
        exchange.release()
    for key, probe in probes:
        send: Callable[[Any], None] = _nowhere
        if uplink is not None:
            relay = Relay(uplink, key, bool(probe._kind["raw"]))
            relay.probe = probe
            relays.append(relay)
            send = relay.emit
        _divert(probe, send)


def _divert(probe: Probe, send: Callable[[Any], None]) -> None:
    """Send a probe's events to the parent, and not to the copies of the parent's subscribers.

    The subscribers that replace values still get them.
    """
    relayed, engine = probe._relayed, probe._engine
    overriding = [
        observer
        for observer in probe._observers
        if any(observer is other for other in relayed.overriding)
    ]
    probe._observers[:] = overriding
    streams.Stream._changed(probe)

    def emit(event: Any) -> None:
        probe._deliver(event)
        send(event)

    relayed.emit = emit if overriding else send
    if engine is not None:
        engine.divert(relayed.emit)


def _nowhere(event: Any) -> None:
    """Discard an event that cannot be sent."""


at_fork(
    "probes", before=_before_fork, in_parent=_after_fork_in_parent, in_child=_after_fork_in_child
)


_MAKE_PROBES = "voirkit.probes.processes:make_probes"

# Functions for a process that starts another one by spawn


def offered() -> list[tuple[Any, ...]] | None:
    """Return the data from which a process that is started makes its probes; None if there is none.

    It has one entry for each process to which the new process sends events: the address, the token,
    the number of slots, and the probes.
    """
    offers: list[tuple[Any, ...]] = []
    probes = own_probes()
    exchange = opened() if probes else None
    if exchange is not None:
        exchange.start_reading()
        uplink = exchange.uplink(slots())
        for probe in probes:
            notice(probe)
        items = [crossing(probe, probe._relayed.key) for probe in probes]
        possible = [item for item in items if item is not None]
        offers.append((uplink.address, uplink.token, uplink.slots, possible))
    for relay in relays:
        if relay.probe is None:
            item = relay.item
        else:
            item = crossing(relay.probe, relay.key, relay.complain)
        if item is not None:
            uplink = relay.uplink
            offers.append((uplink.address, uplink.token, uplink.slots, [item]))
    return offers or None


def crossing(probe: Probe, key: int, complain: Any = None) -> Item | None:
    """Return the values from which a spawned process makes an equal probe.

    Return None if the spawned process is to have no such probe. An error is reported once.
    """
    engine: Any = probe._engine
    if engine is None or probe._ended:
        return None
    if not engine._is_heard and probe._relayed.emit is None:
        return None
    functions = [function for parsed in probe._parsed for function in parsed.functions]
    if any(function.is_top for function in functions):
        # the script runs in this process; a spawned process only imports it for its definitions
        return None
    try:
        watched = engine.watched
        selectors = []
        for parsed in probe._parsed:
            references = [_reference(function, watched) for function in parsed.functions]
            selectors.append((parsed.selector, parsed.where, references))
        _check_may_be_spawned(probe._relayed)
    except VoirkitError as exc:
        if complain is None:
            probe._complain(VoirkitError(str(exc)))
        else:
            complain(str(exc))
        return None
    return key, selectors, probe._kind


def _check_may_be_spawned(relayed: Relayed) -> None:
    """Raise VoirkitError if a spawned process cannot have the probe."""
    if relayed.overriding:
        raise VoirkitError(
            "it replaces values, which cannot be done in processes that are spawned: nothing is"
            " replaced nor seen there.",
            next="It can in processes that are forked: multiprocessing.set_start_method('fork').",
        )
    if relayed.local_name:
        raise VoirkitError(
            f"it cannot be seen in processes that are spawned: what '{relayed.local_name}' in its"
            " condition means is unknown there.",
            next="Write the value itself, or fork: multiprocessing.set_start_method('fork').",
        )


def _reference(function: Any, watched: Mapping[Any, FunctionType]) -> tuple[str, tuple[str, ...]]:
    """Return the module and path by which another process finds a function."""
    from voirkit.probes.live_functions import NotDefinedYet, find_absolute
    from voirkit.probes.selector import ParsedFunction

    if function.module is not None:
        return function.module, function.path
    live = watched.get(function)
    if live is not None:
        module = "" if live.__module__ in ("__main__", "__mp_main__") else live.__module__
        path = tuple(part for part in live.__qualname__.split(".") if part != "<locals>")
        try:
            target = find_absolute(ParsedFunction("", module, path, (), "", ""))
            if any(live is other for other in target.functions):
                return module, path
        except (NotDefinedYet, AttributeError, TypeError):
            pass
    raise SelectorError(
        f"'{function.reference}' cannot be seen in processes that are spawned: it is not found"
        " there under a name.",
        next="Name a function of a module or of the script, such as //train or /module/function.",
    )


# Functions for the process that was started


def make_probes(offers: list[tuple[Any, ...]]) -> None:
    """Make the probes of this process's ancestors in this process."""
    from voirkit.probes.children import Relay, Uplink

    uplinks: dict[Any, Uplink] = {}
    for address, token, slots, items in offers:
        uplink = uplinks.setdefault(address, Uplink(address, token, slots))
        for item in items:
            key, selectors, kind = item
            relay = Relay(uplink, key, bool(kind["raw"]), item)
            try:
                relay.engine = _engine_for(selectors, kind, relay)
            except VoirkitError as exc:
                relay.complain(f"it cannot be seen in a process that was spawned.\n  {exc}")
            except Exception as exc:  # the import of the program's modules may raise anything
                error = f"{type(exc).__name__}: {exc}"
                relay.complain(f"it cannot be seen in a process that was spawned ({error}).")
            else:
                relays.append(relay)


def _engine_for(selectors: Any, kind: Mapping[str, Any], relay: Any) -> Any:
    from voirkit.probes.engine import Engine
    from voirkit.probes.selector import parse

    parsed = []
    for selector, where, functions in selectors:
        as_written = parse(selector, where)
        absolute = tuple(
            replace(function, module=module, path=tuple(path))
            for function, (module, path) in zip(as_written.functions, functions, strict=True)
        )
        focus = absolute[as_written.functions.index(as_written.focus)]
        parsed.append(replace(as_written, functions=absolute, focus=focus))

    def complain(exc: BaseException) -> None:
        if streams.is_meant(exc):
            streams.reraise(exc)
        if isinstance(exc, VoirkitError):
            relay.complain(str(exc))
        else:
            relay.complain(f"{type(exc).__name__}: {exc}")

    engine = Engine(parsed, {}, complain, complain, may_wait=True, **kind)
    engine.listen(relay.emit)
    engine.start()
    return engine
