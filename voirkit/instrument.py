"""Helpers for writing instruments: behind a flag, with an option, with options from a dataclass, with settings in code.

Each returns an instrument (or what makes one) under the name of the user's function. Every run loads this module, since
the instruments that are installed use it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from functools import partial, wraps

from voirkit.errors import InstrumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeAlias, overload

    Instrument: TypeAlias = Callable[..., Any]
    Decorator: TypeAlias = Callable[[Instrument], Instrument]
    Phases: TypeAlias = Generator[Any, Any, Any]
    Class: TypeAlias = type[Any]

if TYPE_CHECKING:  # mypy wants the overloads in a block of their own, right before the function

    @overload
    def gated(flag: str, instrument: str | None = None, help: None = None) -> Decorator: ...
    @overload
    def gated(flag: str, instrument: None = None, help: str | None = None) -> Decorator: ...
    @overload
    def gated(flag: str, instrument: str, help: str) -> Instrument: ...
    @overload
    def gated(flag: str, instrument: Instrument, help: str | None = None) -> Instrument: ...


def gated(flag: str, instrument: Any = None, help: str | None = None) -> Any:
    """Put an instrument behind a flag: it runs only if the flag is on the command line.

    ``gated("--dash", instrument, "Show it live.")`` returns an instrument; ``@gated("--dash", "Show it live.")``
    decorates one.

    Args:
        flag: The flag, with its dashes. Its value stands in the options under the same name, dashes and all:
            ``getattr(ov.options, "--dash")``.
        instrument: The instrument, a generator or a plain function; or the help, if this decorates.  With a help after it a string is
            ``"package.module:function"``, which is imported when the flag is on, so that a run without it does not pay for it.
        help: What ``voirkit --help`` says of the flag.

    Returns:
        An instrument, with the one behind the flag (or what names it) as its attribute ``instrument``.

    Raises:
        InstrumentError: The flag has no dashes, or the instrument can not be called.
    """
    place = _check_option(flag, "gated")
    if isinstance(instrument, str) and help is None:
        instrument, help = None, instrument
    if instrument is None:
        return partial(gated, flag, help=help)
    if not isinstance(instrument, str):
        _check_callable(instrument, f'gated("{flag}")', place)
    elif not all(name.isidentifier() for name in instrument.replace(":", ".", 1).split(".")) or ":" not in instrument:
        hint = f"Write: gated({flag!r}, 'package.module:function', {help!r})"
        raise InstrumentError(f"gated({flag!r}) needs an instrument or the name of one, not {instrument!r}.", where=place, next=hint)

    def phases(ov: Any) -> Phases:
        yield ov.phases.init
        ov.argparser.add_argument(flag, action="store_true", dest=flag, help=help)
        yield ov.phases.parse_args
        if ov.argparser.value(ov.options, flag):
            ov.require(named(instrument) if isinstance(instrument, str) else instrument)

    return _instrument(phases, instrument, f'gated("{flag}")', place)


if TYPE_CHECKING:

    @overload
    def parametrized(option: str, instrument: None = None, type: Any = None, help: str | None = None, default: Any = None) -> Decorator: ...
    @overload
    def parametrized(option: str, instrument: Class, type: str | None = None, help: Any = None, default: Any = None) -> Decorator: ...
    @overload
    def parametrized(option: str, instrument: Instrument, type: str, help: Any = None) -> Decorator: ...
    @overload
    def parametrized(option: str, instrument: Instrument, type: Any = None, help: str | None = None, default: Any = None) -> Instrument: ...


def parametrized(option: str, instrument: Any = None, type: Any = None, help: Any = None, default: Any = None) -> Any:
    """Give an instrument an option, whose value it finds in ``ov.options``.

    ``parametrized("--every", instrument, type=int)`` returns an instrument; ``@parametrized("--every", type=int)``
    decorates one, and so does ``@parametrized("--every", int, "Steps between two.", 10)``.

    Args:
        option: The option, with its dashes.
        instrument: The instrument, a generator or a plain function.
        type: What turns the word on the command line into a value; ``str`` if left out.
        help: What ``voirkit --help`` says of the option.
        default: The value without the option.

    Returns:
        An instrument, with the one that was given as its attribute ``instrument``.

    Raises:
        InstrumentError: The option has no dashes, or the instrument can not be called.
    """
    place = _check_option(option, "parametrized")
    if isinstance(type, str):  # by place: (option, type, help, default)
        instrument, type, help, default = None, instrument, type, default if help is None else help
    elif isinstance(instrument, _class):
        instrument, type = None, instrument
    if instrument is None:
        return partial(parametrized, option, type=type, help=help, default=default)
    _check_callable(instrument, f'parametrized("{option}")', place)

    def phases(ov: Any) -> Phases:
        yield ov.phases.init
        ov.argparser.add_argument(option, type=type, help=help, default=default)
        yield ov.phases.parse_args
        ov.require(instrument)

    return _instrument(phases, instrument, f'parametrized("{option}")', place)


def configurable(fn: Instrument) -> Instrument:
    """Give an instrument options for the fields of a dataclass.

    The dataclass is the annotation of the instrument's second parameter, and that parameter's name is where the options
    stand: ``def instrument_x(ov, training: Training)`` finds them in ``training``, others in ``ov.options.training``.

    Raises:
        InstrumentError: There is no second parameter, or its annotation is no dataclass.
    """
    code = getattr(fn, "__code__", None)
    if code is None:
        raise InstrumentError(f"configurable needs a function, not {fn!r}.", where=_caller())
    place, name = f"{code.co_filename}:{code.co_firstlineno}", code.co_name
    if code.co_argcount != 2:
        hint = f"Write: def {name}(ov, options: SomeDataclass): ..."
        raise InstrumentError(f"{name} needs two parameters, the overseer and its options.", where=place, next=hint)
    dest = code.co_varnames[1]

    @wraps(fn)
    def run(ov: Any) -> Phases:
        model = _annotation(fn, dest, place)
        yield ov.phases.init
        ov.argparser.add_from_model(dest, model)
        yield ov.phases.parse_args
        yield from _phases_of(fn(ov, getattr(ov.options, dest)))

    if dest not in _annotations(fn):
        _annotation(fn, dest, place)
    return run


def instrument_definition(fn: Instrument) -> Callable[..., Instrument]:
    """Make a function that makes instruments: its arguments are the function's, after the overseer.

    With ``@instrument_definition`` on ``def wait(ov, seconds)``, ``ov.require(wait(seconds=5))`` runs it with 5.
    """
    name = getattr(fn, "__name__", "the instrument")

    @wraps(fn)
    def define(*args: Any, **kwargs: Any) -> Instrument:
        if args and hasattr(args[0], "phases") and hasattr(args[0], "require"):
            hint = f"Call it with its arguments, without the overseer: ov.require({name}(...))"
            raise InstrumentError(f"{name} defines instruments, and is none itself.", where=_place(fn), next=hint)

        @wraps(fn)
        def instrument(ov: Any) -> Phases:
            yield from _phases_of(fn(ov, *args, **kwargs))

        return instrument

    return define


def named(reference: str) -> Instrument:
    """The instrument that ``"module:function"`` names."""
    module, _, name = reference.partition(":")
    found: Instrument = getattr(__import__(module, fromlist=[name]), name)
    return found


_class = type  # `parametrized` has an argument of that name


def _phases_of(made: Any) -> Phases:
    """The phases that an instrument waits for: none if it is a plain function."""
    if isinstance(made, Generator):
        return (yield from made)
    return None


def _annotations(fn: Instrument) -> Mapping[str, Any]:
    """What the parameters of a function are annotated with; since python 3.14 a name among it need not be there."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        return get_annotations(fn, format=Format.FORWARDREF)
    return getattr(fn, "__annotations__", {})


def _annotation(fn: Instrument, parameter: str, place: str) -> Any:
    """The dataclass that a parameter is annotated with."""
    found = _annotations(fn).get(parameter)
    found = getattr(found, "__forward_arg__", found)
    if isinstance(found, str):  # with `from __future__ import annotations`, or a name that is not there
        try:
            found = eval(found, getattr(fn, "__globals__", {}))
        except Exception as exc:
            what = f"the annotation of {parameter}, {found}, cannot be resolved: {exc}."
            hint = "Define or import the dataclass at the top of the file."
            raise InstrumentError(what, where=place, next=hint) from None
    if not hasattr(found, "__dataclass_fields__"):
        shown = getattr(found, "__name__", found)
        what = "has no annotation" if found is None else f"is annotated with {shown}, which is no dataclass"
        name = getattr(fn, "__name__", "the instrument")
        hint = f"Write: def {name}(ov, {parameter}: SomeDataclass): ..."
        raise InstrumentError(f"the parameter {parameter} of {name} {what}.", where=place, next=hint)
    return found


def _instrument(phases: Callable[[Any], Phases], behind: Instrument | str, helper: str, place: str) -> Instrument:
    """An instrument that goes through phases, under the name of the one behind it."""

    def run(ov: Any) -> Phases:
        if not hasattr(ov, "phases"):
            name = getattr(ov, "__name__", repr(ov))
            hint = "A type, a help and a default are given by name: type=..., help=..., default=..."
            raise InstrumentError(f"{helper} got {name} where it needs the overseer.", where=place, next=hint)
        return phases(ov)

    if isinstance(behind, str):
        run.__name__ = behind.rpartition(":")[2]
    else:
        run = wraps(behind)(run)
        if not hasattr(behind, "__name__"):
            run.__name__ = helper
    run.instrument = behind  # type: ignore[attr-defined]
    return run


def _check_option(option: Any, helper: str) -> str:
    """Where the helper was called, if the option can be one."""
    place = _caller()
    text = option if isinstance(option, str) else ""
    words = text.strip("-").replace("=", " ").split()
    if not text.startswith("-") or len(words) != 1 or "=" in text or " " in text:
        hint = f"Write: {helper}('--{'-'.join(words) or 'flag'}')"
        what = f"{helper} needs the name of an option, with its dashes, not {option!r}."
        raise InstrumentError(what, where=place, next=hint)
    return place


def _check_callable(instrument: Any, helper: str, place: str) -> None:
    if not callable(instrument):
        hint = "Write: def instrument_x(ov): ..."
        raise InstrumentError(f"{helper} needs an instrument, not {instrument!r}.", where=place, next=hint)


def _place(fn: Any) -> str:
    code = getattr(fn, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def _caller() -> str:
    """The file and line from which this module was called."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
