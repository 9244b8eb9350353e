"""Finds voirfiles and plug-ins, loads them, collects their instruments, and says what went wrong in
one in words for its author.

Loading must leave the program as it is: nothing is written, and ``sys.path`` is put back.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import CodeType, ModuleType

from voirkit.errors import InstrumentError, VoirfileError, VoirkitError, misspelt
from voirkit.instrument import Instrument as Declared
from voirkit.instrument import name_of, place_of, resolve
from voirkit.phases import NotAPhase
from voirkit.plugins import GROUP, entry_points, flat
from voirkit.runner.script import shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from inspect import Signature
    from typing import Any, TypeAlias

    from voirkit.plugins import Packages

    Instrument: TypeAlias = Callable[..., Any]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOTS = (".git", "pyproject.toml")  # what the folder of a project has


def find(folder: str, cwd: str) -> list[str]:
    """The voirfiles of a script: beside it, then from the current folder up to its project's;
    nearest first, each once. The project's folder is the nearest that has one of ``ROOTS``; where
    none has, only the current folder is looked at."""
    folders = [folder, *_up_to_root(os.path.abspath(cwd))]
    paths = dict.fromkeys(os.path.realpath(os.path.join(f, "voirfile.py")) for f in folders)
    return [path for path in paths if os.path.exists(path)]


def _up_to_root(cwd: str) -> list[str]:
    folders = [cwd]
    while not any(os.path.exists(os.path.join(folders[-1], name)) for name in ROOTS):
        parent = os.path.dirname(folders[-1])
        if parent == folders[-1]:
            return [cwd]
        folders.append(parent)
    return folders


def identity(path: str) -> dict[str, str]:
    """``{"path", "sha256"}`` of a voirfile, for the record of a run; without a hash where it cannot
    be read any more."""
    from hashlib import sha256

    try:
        with open(path, "rb") as file:
            return {"path": path, "sha256": sha256(file.read()).hexdigest()}
    except OSError:
        return {"path": path}


def load(path: str, index: int) -> list[Instrument]:
    """Run a voirfile and return its instruments.

    They are what its names that begin with ``instrument_`` hold or, if it has ``__instruments__``,
    what that holds: instruments in lists and dictionaries, nested as one likes.

    Args:
        index: Its place among the voirfiles; the module is called ``__voir__``, ``__voir1__``, ...

    Raises:
        VoirfileError: It cannot be read or run.
        InstrumentError: What it holds is not an instrument.
    """
    name = f"__voir{index or ''}__"
    code = _compile(path)
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    folder = os.path.dirname(path)
    is_added = folder not in sys.path  # a voirfile may import what lies beside it
    if is_added:
        sys.path.append(folder)
    try:
        exec(code, module.__dict__)
    except VoirkitError:
        raise
    except Exception as exc:  # a voirfile is any code
        fault = f"the voirfile cannot be loaded: {describe_exception(exc)}."
        raise VoirfileError(fault, where=_line(path, exc), next=misspelt(exc)) from None
    except SystemExit as exc:
        raise VoirfileError(
            f"the voirfile ends python (SystemExit: {exc}).",
            where=_line(path, exc),
            next="Take that call out.",
        ) from None
    finally:
        if is_added and folder in sys.path:
            sys.path.remove(folder)
    return [check(value, label, path) for label, value in _labelled_instruments(module)]


def _labelled_instruments(module: ModuleType) -> list[tuple[str, Any]]:
    """The instruments of a voirfile, each with its name in error messages."""
    names = module.__dict__
    if "__instruments__" in names:
        return list(flat("__instruments__", names["__instruments__"]))
    instruments: list[tuple[str, Any]] = []
    for name, value in list(names.items()):
        if name.startswith("instrument_"):
            instruments += flat(name, value)
    return instruments


def _compile(path: str) -> CodeType:
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as exc:
        raise VoirfileError(f"the voirfile cannot be read: {exc.strerror}.", where=path) from None
    try:
        return compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as exc:
        line = f"{exc.text.strip()}" if exc.text else ""
        raise VoirfileError(
            f"the voirfile does not compile: {exc.msg}.", where=f"{path}:{exc.lineno}", next=line
        ) from None
    except ValueError as exc:  # null bytes, before python 3.12
        raise VoirfileError(f"the voirfile does not compile: {exc}.", where=path) from None


def _line(path: str, exc: BaseException) -> str:
    """Where in the file it failed: the innermost of its lines."""
    place, tb = path, exc.__traceback__
    while tb is not None:
        if tb.tb_frame.f_code.co_filename == path:
            place = f"{path}:{tb.tb_lineno}"
        tb = tb.tb_next
    return place


# instruments


def check(value: Any, label: str, path: str) -> Instrument:
    """The value, if it can be called with an overseer."""
    if isinstance(value, Declared):
        return value
    if not callable(value):
        raise InstrumentError(
            f"{label} is no instrument but {type(value).__name__}.",
            where=path,
            next="Write: def instrument_x(ov): ...",
        )
    wrong = _wrong_signature(value)
    if wrong:
        raise InstrumentError(
            f"{name_of(value)} {wrong}; an instrument takes one, the overseer.",
            where=place_of(value) or path,
            next=f"Write: def {name_of(value)}(ov): ...",
        )
    return value  # type: ignore[no-any-return]


def _wrong_signature(value: Any) -> str:
    """The reason why a callable cannot be called with one argument; empty if it can."""
    code = getattr(value, "__code__", None)
    if code is not None and code.co_flags & 0x280:  # CO_COROUTINE | CO_ASYNC_GENERATOR
        return "is async, and an instrument is not"
    if code is not None and code.co_argcount == 1 and not code.co_kwonlyargcount:
        return ""  # the usual case, without importing inspect (12 ms)
    import inspect

    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(None)
    except TypeError:
        required = _required_parameters(signature)
        if not required:
            return "takes no argument"
        return f"takes {len(required)} arguments ({', '.join(required)})"
    return ""


def _required_parameters(signature: Signature) -> list[str]:
    names = []
    for p in signature.parameters.values():
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            names.append(p.name)
    return names


# plug-ins


def plugins(
    warn: Callable[[str], None], packages: Packages | None = None
) -> dict[str, list[Instrument]]:
    """The instruments of installed packages, by distribution: the entry points of group
    ``voirkit.instruments``. One that cannot be imported is told through ``warn`` and left out."""
    instruments: dict[str, list[Instrument]] = {}
    for distribution, name, reference in entry_points(GROUP, packages):
        try:
            checked = [check(v, label, reference) for label, v in flat(name, resolve(reference))]
        except Exception as exc:  # a package is any code
            warn(
                f"plug-in {name!r} of {distribution} cannot be loaded ({type(exc).__name__}:"
                f" {exc}). The run goes on without it."
            )
        else:
            instruments.setdefault(distribution, []).extend(checked)
    return instruments


# what goes wrong in them


def describe_instrument(instrument: Any) -> str:
    """An instrument's name, and where it is defined."""
    place = place_of(instrument)
    return f"{name_of(instrument)} ({shorten(place)})" if place else name_of(instrument)


def text_of(exc: BaseException) -> str:
    """The message of an exception, if it has one."""
    try:
        return str(exc)
    except Exception:  # an exception's own code
        return ""


def describe_exception(exc: BaseException) -> str:
    """``ValueError: what it says``."""
    return f"{type(exc).__name__}: {text_of(exc)}".rstrip(": ")


def as_error(exc: BaseException, instrument: Any) -> VoirkitError:
    """What an instrument raised, as an error that names it and the place."""
    if isinstance(exc, VoirkitError):
        return exc
    name, place = name_of(instrument), place_of(instrument)
    if isinstance(exc, NotAPhase):
        hint = "Write: yield ov.phases.init, parse_args, load_script, run_script or finalize"
        fault = f"instrument {name} yielded {type(exc.args[0]).__name__}, which is not a phase."
        return InstrumentError(fault, where=shorten(place), next=hint)
    tb, raised_at = exc.__traceback__, place
    while tb is not None:
        file = tb.tb_frame.f_code.co_filename
        if not file.startswith(_PACKAGE):
            raised_at = f"{file}:{tb.tb_lineno}"
            if place and file == place.rpartition(":")[0]:
                place = raised_at
        tb = tb.tb_next
    hints = [misspelt(exc), f"It was raised at {raised_at}." if raised_at != place else ""]
    return InstrumentError(
        f"instrument {name} raised {describe_exception(exc)}.",
        where=shorten(place),
        next="\n".join(filter(None, hints)),
    )
