"""Probes in processes that multiprocessing starts anew (spawn, forkserver): what is handed to them, and how they begin there.

A probe that can not be made there is told once, and seen in the other processes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from voirkit import inherit, streams
from voirkit.errors import SelectorError, VoirkitError
from voirkit.probes import processes
from voirkit.probes.plain import EXACT

if TYPE_CHECKING:
    from voirkit.probes.children import Item
    from voirkit.probes.stream import Probe

_BEGIN = "voirkit.probes.spawn:begin"

# in the process that starts another


def watch() -> None:
    """From now on the processes that multiprocessing starts get the probes with them."""
    inherit.watch(_BEGIN, offered, subprocesses=False)  # their functions are not there yet when torch is imported


def unwatch() -> None:
    """No more, if no probe is on."""
    if not processes.are_there():
        inherit.unwatch(_BEGIN)


def offered() -> list[tuple[Any, ...]] | None:
    """For each process to send to: its address, its token, the number of slots, and the probes; None without any."""
    ways = []
    own = processes.own()
    exchange = processes.opened() if own else None
    if exchange is not None:
        exchange.go()
        uplink = exchange.uplink(processes.slots())
        for probe in own:
            processes.notice(probe)
        items = [crossing(probe, probe._relayed.key) for probe in own]
        ways.append((uplink.address, uplink.token, uplink.slots, [item for item in items if item is not None]))
    for relay in processes.relays:
        item = relay.item if relay.probe is None else crossing(relay.probe, relay.key, relay.complain)
        if item is not None:
            ways.append((relay.uplink.address, relay.uplink.token, relay.uplink.slots, [item]))
    return ways or None


def crossing(probe: Probe, key: int, complain: Any = None) -> Item | None:
    """What a spawned process needs to make an equal probe; None, and it is told once, if it can not have it."""
    engine: Any = probe._engine
    if engine is None or not (engine._is_heard or probe._relayed.emit is not None) or probe._ended:
        return None
    if any(function.is_top for parsed in probe._parsed for function in parsed.functions):
        return None  # the script is run here; a process that is spawned imports it to have what it defines
    try:
        watched = engine.watched
        selectors = [
            (parsed.selector, parsed.where, [_reference(function, watched) for function in parsed.functions]) for parsed in probe._parsed
        ]
        names = {name: _named(name, value) for name, value in probe._relayed.names.items()}
        if probe._relayed.overriding:
            raise VoirkitError(
                "it replaces values, which cannot be done in processes that are spawned: nothing is replaced nor seen there.",
                next="It can in processes that are forked: multiprocessing.set_start_method('fork').",
            )
    except VoirkitError as exc:
        tell = complain if complain is not None else lambda text: probe._complain(VoirkitError(text))
        tell(str(exc))
        return None
    return key, selectors, names, probe._kind


def _reference(function: Any, watched: Mapping[Any, FunctionType]) -> tuple[str, tuple[str, ...]]:
    """Module and path by which another process finds a function."""
    from voirkit.probes import find
    from voirkit.probes.grammar import ParsedFunction
    from voirkit.probes.scope import NotDefinedYet

    if function.module is not None:
        return function.module, function.path
    live = watched.get(function)
    if live is not None:
        module = "" if live.__module__ in ("__main__", "__mp_main__") else live.__module__
        path = tuple(part for part in live.__qualname__.split(".") if part != "<locals>")
        try:
            found = find.absolute(ParsedFunction("", module, path, (), "", ""))
            if any(live is other for other in found.functions):
                return module, path
        except (NotDefinedYet, AttributeError, TypeError):
            pass
    raise SelectorError(
        f"'{function.reference}' cannot be seen in processes that are spawned: it is not found there under a name.",
        next="Name a function of a module or of the script, such as //train or /module/function.",
    )


def _named(name: str, value: Any) -> tuple[Any, ...]:
    """How another process finds what a name in a condition stands for."""
    from voirkit.probes import language

    if type(value) in EXACT:
        return "value", value
    if isinstance(value, ModuleType):
        return "module", value.__name__
    if language.is_tag(value):
        return "tag", str(value.name)
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(path, str):
        found: Any = sys.modules.get(module)
        for part in path.split("."):
            found = getattr(found, part, None)
        if found is value and value is not None:
            return "named", module, path
    raise VoirkitError(f"it cannot be seen in processes that are spawned: '{name}', in its condition, is not found there under a name.")


# in the process that was started


def begin(ways: list[tuple[Any, ...]]) -> None:
    """Make the probes of the processes that this one descends from."""
    from voirkit.probes.children import Relay, Uplink

    uplinks: dict[Any, Uplink] = {}
    for address, token, slots, items in ways:
        uplink = uplinks.setdefault(address, Uplink(address, token, slots))
        for item in items:
            key, selectors, names, kind = item
            relay = Relay(uplink, key, bool(kind["raw"]), item)
            try:
                relay.engine = _engine(selectors, names, kind, relay)
            except VoirkitError as exc:
                relay.complain(f"it cannot be seen in a process that was spawned.\n  {exc}")
            except Exception as exc:
                relay.complain(f"it cannot be seen in a process that was spawned ({type(exc).__name__}: {exc}).")
            else:
                processes.relays.append(relay)


def _engine(selectors: Any, names: Mapping[str, tuple[Any, ...]], kind: Mapping[str, Any], relay: Any) -> Any:
    from voirkit.probes.engine import Engine
    from voirkit.probes.grammar import parse

    parsed = []
    for selector, where, functions in selectors:
        plain = parse(selector, where)
        absolute = tuple(replace(f, module=m, path=tuple(p)) for f, (m, p) in zip(plain.functions, functions, strict=True))
        focus = absolute[plain.functions.index(plain.focus)]
        parsed.append(replace(plain, functions=absolute, focus=focus))
    scope = {name: _found(*found) for name, found in names.items()}

    def complain(exc: BaseException) -> None:
        if streams.is_meant(exc):
            streams.again(exc)
        relay.complain(str(exc) if isinstance(exc, VoirkitError) else f"{type(exc).__name__}: {exc}")

    engine = Engine(parsed, scope, complain, complain, may_wait=True, **kind)
    engine.listen(relay.emit)
    engine.on()
    return engine


def _found(how: str, *what: Any) -> Any:
    from importlib import import_module

    from voirkit.probes import language

    if how == "value":
        return what[0]
    if how == "tag":
        return getattr(language.tag, what[0])
    module = sys.modules.get(what[0]) or import_module(what[0])
    found: Any = module
    for part in what[1].split(".") if how == "named" else ():
        found = getattr(found, part)
    return found


__all__ = ["begin", "offered", "unwatch", "watch"]
