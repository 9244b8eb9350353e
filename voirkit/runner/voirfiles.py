"""Finds and loads voirfiles and plug-ins, and collects their instruments.

Errors in a voirfile or plug-in are reported in words that help its author. Loading must not change
the program: no file is written, and ``sys.path`` is restored.
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
ROOTS = (".git", "pyproject.toml")  # the entries that mark the root folder of a project


def find(folder: str, cwd: str) -> list[str]:
    """Return the paths of the voirfiles for a script, nearest first, without duplicates.

    Searches ``folder``, which holds the script, then each folder from ``cwd`` up to the root of the
    project. The root is the nearest folder that contains one of ``ROOTS``. Without a root, only
    ``folder`` and ``cwd`` are searched.
    """
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
    """Return ``{"path", "sha256"}`` of a voirfile, for the record of a run. The hash is missing if
    the file can no longer be read."""
    from hashlib import sha256

    try:
        with open(path, "rb") as file:
            return {"path": path, "sha256": sha256(file.read()).hexdigest()}
    except OSError:
        return {"path": path}


def load(path: str, index: int) -> list[Instrument]:
    """Run a voirfile and return its instruments.

    If the voirfile defines ``__instruments__``, the instruments are taken from there alone.
    Otherwise they are the values of all global names that begin with ``instrument_``. Each value
    may be one instrument, or lists and dictionaries of instruments, nested to any depth.

    Args:
        index: The position of the file among the voirfiles, from 0. It names the module:
            ``__voir__``, ``__voir1__``, ...

    Raises:
        VoirfileError: The voirfile cannot be read or executed.
        InstrumentError: One of the values is not an instrument.
    """
    name = f"__voir{index or ''}__"
    code = _compile(path)
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    folder = os.path.dirname(path)
    is_added = folder not in sys.path  # a voirfile may import modules from its own folder
    if is_added:
        sys.path.append(folder)
    try:
        exec(code, module.__dict__)
    except VoirkitError:
        raise
    except Exception as exc:  # a voirfile is user code, which can raise anything
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
    """Return (label, value) of each instrument in a voirfile. The label names the instrument in
    error messages."""
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
    except ValueError as exc:  # before Python 3.12, null bytes raise this instead of SyntaxError
        raise VoirfileError(f"the voirfile does not compile: {exc}.", where=path) from None


def _line(path: str, exc: BaseException) -> str:
    """Return ``path:line`` of the innermost traceback entry that lies in the voirfile at ``path``;
    the path alone if there is no such entry."""
    place, tb = path, exc.__traceback__
    while tb is not None:
        if tb.tb_frame.f_code.co_filename == path:
            place = f"{path}:{tb.tb_lineno}"
        tb = tb.tb_next
    return place


# checks of instruments


def check(value: Any, label: str, path: str) -> Instrument:
    """Return the value if it is an instrument: declared as one, or callable with an overseer.

    Raises:
        InstrumentError: The value is not an instrument.
    """
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
    """Return why a callable cannot serve as an instrument: it is async, or does not accept exactly
    one argument. Empty if it can."""
    code = getattr(value, "__code__", None)
    if code is not None and code.co_flags & 0x280:  # inspect.CO_COROUTINE | CO_ASYNC_GENERATOR
        return "is async, and an instrument is not"
    if code is not None and code.co_argcount == 1 and not code.co_kwonlyargcount:
        return ""  # the usual case; returning here avoids importing inspect (12 ms)
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


# instruments of installed plug-ins


def plugins(
    warn: Callable[[str], None], packages: Packages | None = None
) -> dict[str, list[Instrument]]:
    """Return a dict from distribution name to the instruments of each installed package.

    They are the entry points of the group ``voirkit.instruments``. An entry point that cannot be
    loaded is reported through ``warn`` and skipped.
    """
    instruments: dict[str, list[Instrument]] = {}
    for distribution, name, reference in entry_points(GROUP, packages):
        try:
            checked = [check(v, label, reference) for label, v in flat(name, resolve(reference))]
        except Exception as exc:  # importing a package runs its code, which can raise anything
            warn(
                f"plug-in {name!r} of {distribution} cannot be loaded ({type(exc).__name__}:"
                f" {exc}). The run goes on without it."
            )
        else:
            instruments.setdefault(distribution, []).extend(checked)
    return instruments


# errors in voirfiles and plug-ins


def describe_instrument(instrument: Any) -> str:
    """Return an instrument's name and, if known, the place where it is defined."""
    place = place_of(instrument)
    return f"{name_of(instrument)} ({shorten(place)})" if place else name_of(instrument)


def text_of(exc: BaseException) -> str:
    """Return the message of an exception; empty if its ``__str__`` raises."""
    try:
        return str(exc)
    except Exception:  # the exception's own __str__ can raise anything
        return ""


def describe_exception(exc: BaseException) -> str:
    """Return an exception's type and message, such as ``ValueError: bad shape``."""
    return f"{type(exc).__name__}: {text_of(exc)}".rstrip(": ")


def as_error(exc: BaseException, instrument: Any) -> VoirkitError:
    """Return an error that names the instrument that raised an exception, and the place in its
    code. A ``VoirkitError`` is returned unchanged."""
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
