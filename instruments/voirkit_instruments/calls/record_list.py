"""``--calls-list``: prints what ``--calls`` would record, and what it can not and why, and ends; the script is not run."""

from __future__ import annotations

import sys
from collections import defaultdict
from importlib import import_module
from types import BuiltinFunctionType, MethodDescriptorType

from voirkit.errors import CommandLineError, say_as_it_is

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from voirkit_instruments.calls.record_walk import Found


def print_list(parser: Any, options: Any) -> NoReturn:
    """Print what ``--calls`` would record with these options, and end: 0, by SystemExit. The modules are imported here."""
    from voirkit.runner.script import folder_of

    given, folder = getattr(options, "--calls", None), folder_of(parser.guess_script(sys.argv[1:])[0])
    from voirkit.probes.call_hooks import CallHooks
    from voirkit_instruments.calls.record_modules import check, names
    from voirkit_instruments.calls.record_tracing import NOT_BUILT, engine
    from voirkit_instruments.calls.record_walk import found

    asked = names(given)
    check(asked, folder)
    in_c = engine()
    if in_c is None:
        say_as_it_is(f"{NOT_BUILT}\n")
        raise SystemExit(0)
    sys.path.insert(0, folder)
    functions: dict[int, Found] = {}
    for name in asked:
        _import(name)
        for one in found(name):
            functions.setdefault(id(one.function), one)
    entry = CallHooks(in_c.hooks())
    listed = list(functions.values())
    entry.add({number: one.function for number, one in enumerate(listed)})
    skipped = dict(entry.skipped)
    entry.remove()
    lines: dict[str, list[str]] = defaultdict(list)
    for number, one in enumerate(listed):
        in_c = " (C)" if type(one.function) in (BuiltinFunctionType, MethodDescriptorType) else ""
        why = f"   not recorded: {skipped[number]}" if number in skipped else ""
        lines[one.category].append(f"  {one.name}{in_c}{why}")
    for category in sorted(lines):
        print(category, *sorted(lines[category]), sep="\n")
    say_as_it_is(f"{len(listed) - len(skipped)} functions would be recorded, {len(skipped)} can not be.\n")
    raise SystemExit(0)


def _import(name: str) -> None:
    """Import the modules that a name stands for, as far as there are any."""
    parts = name.split(".")
    for n in range(len(parts)):
        module = ".".join(parts[: n + 1])
        try:
            import_module(module)
        except ModuleNotFoundError as exc:
            if exc.name == module:
                return  # a class or function
            raise CommandLineError(f"it can not be imported: {exc}.", where=f"--calls {name}") from exc
        except Exception as exc:
            raise CommandLineError(f"it can not be imported: {type(exc).__name__}: {exc}.", where=f"--calls {name}") from exc
