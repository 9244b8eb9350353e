"""Probes beyond the process that made them: at a fork or spawn, and with the events that come back
from children.

A process that has no children, or no probes, pays for none of this: the modules are loaded when the
first child is about to be made. A probe that cannot be made in a spawned process is reported
once, and seen in the other processes.
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
    """The part of a probe that has to do with other processes.

    Attributes:
        events: The number of events that came from children.
        dropped: The number of events that the children that have ended had to drop.
        raised: The exception that a subscriber raised on purpose for an event of another process;
            the first, since it ends the program.
        is_missed: Nobody listened when a process was started, so that it has no taps.
        is_over: The probe has been switched off, so that its subscribers' exceptions are late.
        is_forgiven: Nothing is to be raised at the end, since the program has come there by an
            exception.
    """

    def __init__(self) -> None:
        self.key = 0  # its number in this process
        self.events = 0
        self.dropped = 0
        # in a forked child: the function that takes its events, instead of its subscribers
        self.emit: Callable[[Any], None] | None = None
        # the subscribers that replace values; they do so in forked children too
        self.overriding: list[Any] = []
        self.raised: BaseException | None = None
        # the same, if it is to be raised when the probe ends
        self.late: BaseException | None = None
        self.is_missed = False
        self.is_over = False
        self.is_forgiven = False
        # a name in a selector's condition whose meaning only this process, and its forks, know;
        # empty without any
        self.local_name = ""


_numbers = count(1)
# this process's own, that have not ended
_probes: weakref.WeakValueDictionary[int, Probe] = weakref.WeakValueDictionary()


class _Children:
    """The children of this process, as far as probes have to do with them."""

    __slots__ = ("exchange",)

    def __init__(self) -> None:
        self.exchange: Exchange | None = None  # takes their events


_children = _Children()
relays: list[Relay] = []  # the probes of the processes that this one descends from


# in the process that made the probes


def add_probe(probe: Probe, scope: Mapping[str, Any]) -> None:
    """A probe has been switched on: the processes that multiprocessing starts from now on get it
    too."""
    if not are_there():
        # their functions are not there yet when torch is imported
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
    """A probe's stream is about to end: hand it the events that children have sent."""
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
        # a signal handler of the program may have raised, torch's when a worker has been killed
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
    """The probe takes no more from children."""
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
    """Have the exception that a subscriber raised on purpose for an event of a child, or raises
    from now on, come out when the probe ends."""
    relayed = probe._relayed
    relayed.is_over = True
    if relayed.raised is not None and streams.cancel_pending(relayed.raised):
        relayed.late = relayed.raised


def dropped(probe: Probe) -> int:
    """The number of events of a probe's children that have been lost."""
    relayed = probe._relayed
    n_dropped = relayed.dropped
    exchange = _children.exchange
    if exchange is not None and _probes.get(relayed.key) is probe:
        n_dropped += exchange.dropped(relayed.key)
    return n_dropped


def end_after_children(function: Callable[[], None]) -> bool:
    """True if a function that was called at the end of python will be called again, when
    multiprocessing has waited for its children. That is so if multiprocessing was imported before
    the function was registered, so that its turn comes later."""
    if not _probes or _children.exchange is None:
        return False
    return children.after_children(function)


def _receive(pid: int, key: int, data: Any) -> None:
    """Something has come from a child."""
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
    except streams.CARRIED as exc:  # it is meant for the program, not for the thread that reads
        if probe._relayed.raised is None:
            probe._relayed.raised = exc
            if probe._relayed.is_over:
                probe._relayed.late = exc
            else:
                streams.raise_soon(exc)


def _captures(probe: Probe, data: dict[str, Any], wrap: Any, worker: int | None) -> dict[str, Any]:
    """A raw event."""
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
    """The exchange that takes the events of children; None if it cannot be had."""
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
    """The probes of this process that are on."""
    return list(_probes.values())


def are_there() -> bool:
    """True if any probe is on here, this process's own or one of those it descends from."""
    return bool(_probes or relays)


def slots() -> int:
    """The highest number of a probe, and one."""
    return max(_probes.keys(), default=0) + 1


# at a fork


def _before_fork() -> None:
    try:
        if _probes:
            exchange = opened()
            if exchange is not None:
                exchange.before_fork()
    except Exception as exc:  # the program's fork must go on, whatever the system refuses
        streams.report(f"the events of child processes cannot be had ({streams.describe(exc)}).")


def _after_fork_in_parent() -> None:
    for probe in own_probes():
        notice(probe)
    if _children.exchange is not None:
        _children.exchange.after_fork()


def notice(probe: Probe) -> None:
    """A process has been started: if nobody listens to the probe now, it has no taps there, whoever
    listens later."""
    engine: Any = probe._engine
    probe._relayed.is_missed |= engine is not None and not engine._is_heard


def _after_fork_in_child() -> None:
    weave.lock = threading.RLock()  # another thread may have held it
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
    """Have a probe's events go to the parent, not to the copies of the parent's subscribers."""
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
    """Takes events that cannot be sent."""


at_fork(
    "probes", before=_before_fork, in_parent=_after_fork_in_parent, in_child=_after_fork_in_child
)


_MAKE_PROBES = "voirkit.probes.processes:make_probes"

# in the process that starts another


def offered() -> list[tuple[Any, ...]] | None:
    """For each process to send to: its address, its token, the number of slots, and the probes;
    None without any."""
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
    """The values from which a spawned process makes an equal probe; None, and that is reported
    once, if it cannot have it."""
    engine: Any = probe._engine
    if engine is None or probe._ended:
        return None
    if not engine._is_heard and probe._relayed.emit is None:
        return None
    functions = [function for parsed in probe._parsed for function in parsed.functions]
    if any(function.is_top for function in functions):
        # the script is run here; a process that is spawned imports it to have what it defines
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
    """Raises VoirkitError: a spawned process cannot have the probe."""
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
    """Module and path by which another process finds a function."""
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


# in the process that was started


def make_probes(offers: list[tuple[Any, ...]]) -> None:
    """Make the probes of the processes that this one descends from."""
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
            except Exception as exc:  # modules of the program may do anything there
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
