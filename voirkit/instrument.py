"""Instruments: their options, recording, parts of the summary and reports, and exports.

A package offers an ``Instrument`` as an entry point of the group ``voirkit.instruments``; nothing
else has to know about it. A generator ``instrument_*(ov)`` of a voirfile is an instrument that only
records. The functions below put such a generator behind a flag, or give it options or settings.
Every run imports this module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from functools import partial, wraps

from voirkit.errors import InstrumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeAlias, overload

    Recording: TypeAlias = Callable[..., Any]
    Decorator: TypeAlias = Callable[[Recording], Recording]
    Phases: TypeAlias = Generator[Any, Any, Any]
    Class: TypeAlias = type[Any]


class Option:
    """An option of an instrument on the command line.

    Args:
        flag: The option with its dashes, such as ``--loader``.
        help: Its text in ``voirkit --help``; an option without a text is not listed.
        type: Function that converts the word after the option to its value. It raises ValueError,
            whose text says what would be right. Without ``type`` and ``metavar`` the option takes
            no word.
        metavar: Name of the word in ``--help``.
        default: Value if the option is not given; it does not switch the instrument on.
        const: Value if the option is given without a word; None if a word is required.
        repeatable: True if the option may be given several times; its value is then a list.
        is_script: For an option whose word is optional: called with the next word and the words
            after it, returns True if the next word is already SCRIPT.
        answers: Values of the option that voirkit answers without a run, like ``--help``.
        prints: Name of a function ``(parser, options)`` that prints the answer to the option;
            nothing is run then. The options after it are read before.
    """

    def __init__(
        self,
        flag: str,
        help: str | None = None,
        *,
        type: Callable[[str], Any] | None = None,
        metavar: str | None = None,
        default: Any = None,
        const: Any = None,
        repeatable: bool = False,
        is_script: Callable[[str, Sequence[str]], bool] | None = None,
        answers: Sequence[str] = (),
        prints: str = "",
    ) -> None:
        self.flag, self.default = flag, default
        settings: dict[str, Any] = {"dest": flag, "help": "==SUPPRESS==" if help is None else help}
        # A default that looks like a given value is not passed to argparse, so that a given option
        # can be told from its default.
        settings["default"] = None if _is_given(default) else default
        if prints:
            settings["action"] = prints
        elif type is None and metavar is None:
            settings.update(action="store_true", default=False)
        else:
            settings.update(
                {
                    key: value
                    for key, value in {"type": type, "metavar": metavar, "const": const}.items()
                    if value is not None
                }
            )
            settings.update(
                {"nargs": "?"} if const is not None else {"action": "append"} if repeatable else {}
            )
        self._settings = settings
        # attributes of the argparse action that voirkit.options.argv reads
        self._attributes = {"is_script": is_script, "asks_for_help": answers}

    @property
    def name(self) -> str:
        """Name of the option in Python: ``loader_ops`` for ``--loader-ops``."""
        return self.flag.lstrip("-").replace("-", "_")

    def add(self, parser: Any, group: str = "instruments") -> None:
        """Add the option to the command line, in a group of ``--help``."""
        settings = dict(self._settings)
        if ":" in str(settings.get("action")):
            settings["action"] = _printing(settings["action"])
            del settings["default"]
        action = parser.group(group).add_argument(self.flag, **settings)
        for name, value in self._attributes.items():
            if value:
                setattr(action, name, value)


def _is_given(value: Any) -> bool:
    """True if the value of an option shows that the option was given; 0 does."""
    return not (value is None or value is False or value == [])


def _printing(reference: str) -> type:
    """Return the argparse action of an option that calls the named function to print something,
    after which nothing is run."""
    from argparse import _VersionAction  # as with --version, no SCRIPT is needed

    class Printing(_VersionAction):
        reads_on = True  # the options after it may affect what is printed

        def __call__(self, parser: Any, namespace: Any, *_: object) -> None:
            resolve(reference)(parser, namespace)

    return Printing


# types of option values: each function below either reads a value, or returns a reader, a function
# that reads a value. The text of the ValueError that a reader raises says what would be right.

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATIONS = "a number with ms, s, m or h (250ms, 30s, 5m, 1.5h), or seconds without a unit"


def whole_number(
    what: str, advice: str = "", least: int = 0, most: int | None = None
) -> Callable[[str], int]:
    """Return a reader of whole numbers from ``least`` to ``most``:
    ``whole_number("no number of steps", " of at least 1", 1)``."""

    def read(text: str) -> int:
        is_number = text.isascii() and text.isdigit()
        if not is_number or int(text) < least or (most is not None and int(text) > most):
            raise ValueError(f"{text!r} is {what}; give a whole number{advice}.")
        return int(text)

    return read


def one_of(*words: str) -> Callable[[str], str]:
    """Return a reader that accepts only these words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}.")
        return text

    return read


def read_by(reference: str) -> Callable[[str], Any]:
    """Return a reader that is imported when the flag is given: ``"package.module:function"``."""
    return lambda text: resolve(reference)(text)


def duration(text: str) -> float:
    """Return the seconds that a duration stands for: ``30s``, ``5m``, ``1.5h``, ``250ms``, or plain
    seconds."""
    number = text.strip()
    factor = 1.0
    for unit, worth in UNITS.items():  # "ms" stands before "s" and "m"
        if number.endswith(unit):
            number, factor = number[: -len(unit)].rstrip(), worth
            break
    digits = number.replace(".", "", 1)
    # float() would also take "inf", "1e9" and "1_000"
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{text!r} is no duration; give {_DURATIONS}.")
    value = float(number) * factor
    if value <= 0:
        raise ValueError(f"{text!r} is not longer than nothing; give {_DURATIONS}.")
    return value


class Instrument:
    """An instrument: what it records while the program runs, and what the summary, reports and
    exports make of these records.

    Functions are named as ``"package.module:name"`` and imported only when they are needed, so that
    a run without them does not pay for them.

    Args:
        name: Its name for users.
        options: Its options on the command line. Without options it always records.
        record: ``(ov, options) -> generator``, an instrument like a voirfile's; ``options`` maps
            names of options (``loader_ops``) to values. It runs if an option is given (a default
            does not count), or if there are no options.
        always: True if it runs whatever options are given; its options then switch parts of it off.
        in_children: True if it also records training processes that the program itself starts.
            Otherwise each report of a run with such processes says that they are not recorded.
        parts: Its keys of ``summary.json``, each with the type of its value. The value is null if
            nothing was recorded.
        schema: The package whose file ``summary.schema.json`` describes its keys: a JSON Schema
            with ``properties``, which may use ``#/$defs/`` of voirkit's own
            (``voirkit/runs/summary.schema.json``).
        summarise: ``(runs, ranks, summary) -> Mapping | None``: computes the values of its keys
            from the run directories of all ranks. None keeps the values that the run itself wrote.
        summarised_from: Kinds of records, and folders of the run directory with a slash at the end
            (``"flame/"``). ``summarise`` is imported and called only for a run that has one of
            them; if empty, it is called for each run.
        sections: ``(part, summary) -> Iterable[Section]``: its sections of every report
            (``voirkit.report.sections``), if its part is not null; ``part`` is the value of the
            first of its keys.
        difference: ``(first, second, names) -> (document, lines)``: the first difference in what
            two opened runs do, for ``voirkit compare`` with an option of the instrument's name; the
            document has ``equal``.
        findings: ``(summary) -> Iterable[Finding]``: the findings of its rules
            (``voirkit.findings``), from the whole summary.
        of_rank: ``(runs, rank) -> value``: the value of the first of its keys, from the records of
            one rank alone, for the verdict about that rank.
        evidence: Functions that return its evidence for verdicts, by kind of evidence (``line``,
            ``operator`` ...), see ``voirkit.analysis.verdict.evidence``.
        live_part: ``(ranks, phases, clocks) -> value | None``: the value of the first of its keys
            while a run of several ranks is in progress, for the verdict of ``voirkit watch``.
            ``ranks`` have the last steps and collectives (``voirkit.analysis.document.Rank``);
            ``phases`` are the records of these steps (``voirkit.analysis.phases.Records``);
            ``clocks`` has for each host the nanoseconds to add to its clock for the wall clock.
        live: ``(run directory) -> lines``: warnings that ``voirkit watch`` shows while a run is in
            progress, if one of ``folders`` exists.
        leads: True if it answers the user's question (a finding, an experiment); its sections then
            come before the steps in reports.
        folders: The folders that it writes in a run directory.
        exports: Formats of ``voirkit export`` for its records: name to (module, purpose).
        commands: Its subcommands: word to module, which has a ``main(words) -> exit code``.
        event_names: Labels in timelines, by ``category.name``, for those of its records whose own
            names say little.
        group: Group of its options in ``--help``: one of ``voirkit.options.GROUPS``, or a title of
            its own.
        priority: Priority of its recording among the instruments that start when the options are
            known. A higher priority starts earlier; the steps instrument has 0.
    """

    def __init__(
        self,
        name: str,
        *,
        options: Sequence[Option] = (),
        record: str = "",
        parts: Mapping[str, type] | None = None,
        schema: str = "",
        summarise: str = "",
        summarised_from: Sequence[str] = (),
        sections: str = "",
        live: str = "",
        live_part: str = "",
        difference: str = "",
        of_rank: str = "",
        evidence: Mapping[str, str] | None = None,
        findings: str = "",
        leads: bool = False,
        folders: Sequence[str] = (),
        exports: Mapping[str, tuple[str, str]] | None = None,
        commands: Mapping[str, str] | None = None,
        event_names: Mapping[str, str] | None = None,
        group: str = "instruments",
        priority: int = 0,
        always: bool = False,
        in_children: bool = True,
    ) -> None:
        self.name = self.__name__ = name
        self.options, self.record, self.group, self.priority = options, record, group, priority
        self.always, self.in_children = always or not options, in_children
        self.parts, self.schema, self.summarise, self.sections = (
            dict(parts or {}),
            schema,
            summarise,
            sections,
        )
        self.summarised_from, self.leads, self.live = summarised_from, leads, live
        self.difference, self.findings = difference, findings
        self.of_rank, self.live_part, self.evidence = of_rank, live_part, dict(evidence or {})
        self.folders, self.exports, self.commands = (
            folders,
            dict(exports or {}),
            dict(commands or {}),
        )
        self.event_names = dict(event_names or {})

    def __call__(self, ov: Any) -> Phases:
        """Take part in a run: add the options, and start recording if the options request it."""
        yield ov.phases.init
        for key in self.parts:
            ov.summary.setdefault(key, None)
        for option in self.options:
            option.add(ov.argparser, self.group)
        yield ov.phases.parse_args(priority=self.priority)
        given = {option: ov.argparser.value(ov.options, option.flag) for option in self.options}
        is_on = any(map(_is_given, given.values()))
        values = {
            option.name: option.default if value is None else value
            for option, value in given.items()
        }
        for option in self.options:
            if given[option] is None and option.flag not in ov.argparser.displaced:
                setattr(ov.options, option.flag, option.default)
        if self.record and (is_on or self.always):
            record = resolve(self.record)

            def recording(ov: Any) -> Any:
                return record(ov, values)

            recording.__name__ = self.name
            ov.require(recording)


def lazy_names(package: str, **homes: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of an instrument's package, from which voirfiles import names. A
    module of the package is imported only when one of its names is.

    Args:
        package: ``__name__`` of the package.
        homes: The module of each name, without the package.
    """

    def getattr_of_package(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return resolve(f"{package}.{homes[name]}:{name}")

    return getattr_of_package


def resolve(reference: str) -> Any:
    """Return the object that ``"package.module:name"`` names."""
    module, _, path = reference.partition(":")
    value: Any = __import__(module, fromlist=["_"])
    for part in filter(None, path.split(".")):
        value = getattr(value, part)
    return value


if TYPE_CHECKING:  # mypy wants the overloads in a block of their own, right before the function

    @overload
    def gated(flag: str, instrument: str | None = None, help: None = None) -> Decorator: ...
    @overload
    def gated(flag: str, instrument: None = None, help: str | None = None) -> Decorator: ...
    @overload
    def gated(flag: str, instrument: str, help: str) -> Recording: ...
    @overload
    def gated(flag: str, instrument: Recording, help: str | None = None) -> Recording: ...


def gated(flag: str, instrument: Any = None, help: str | None = None) -> Any:
    """Put an instrument behind a flag: it runs only if the flag is on the command line.

    ``gated("--dash", instrument, "Show it live.")`` returns an instrument; ``@gated("--dash", "Show
    it live.")`` decorates one.

    Args:
        flag: The flag, with its dashes. Its value is in the options under the same name, including
            the dashes: ``getattr(ov.options, "--dash")``.
        instrument: The instrument, a generator function or a plain function. It may also be named
            as ``"package.module:function"`` if ``help`` is given; then it is imported only if the
            flag is on. A string without ``help`` is the help text of a decorator.
        help: Text of ``voirkit --help`` about the flag.

    Returns:
        An instrument. Its attribute ``instrument`` is the one behind the flag, or the name of that
        one.

    Raises:
        InstrumentError: The flag has no dashes, or the instrument cannot be called.
    """
    place = _check_option(flag, "gated")
    if isinstance(instrument, str) and help is None:
        instrument, help = None, instrument
    if instrument is None:
        return partial(gated, flag, help=help)
    if not isinstance(instrument, str):
        _check_callable(instrument, f'gated("{flag}")', place)
    elif not _is_reference(instrument):
        hint = f"Write: gated({flag!r}, 'package.module:function', {help!r})"
        raise InstrumentError(
            f"gated({flag!r}) needs an instrument or the name of one, not {instrument!r}.",
            where=place,
            next=hint,
        )

    def phases(ov: Any) -> Phases:
        yield ov.phases.init
        ov.argparser.add_argument(flag, action="store_true", dest=flag, help=help)
        yield ov.phases.parse_args
        if ov.argparser.value(ov.options, flag):
            ov.require(resolve(instrument) if isinstance(instrument, str) else instrument)

    return _instrument(phases, instrument, f'gated("{flag}")', place)


if TYPE_CHECKING:

    @overload
    def parametrized(
        option: str,
        instrument: None = None,
        type: Any = None,
        help: str | None = None,
        default: Any = None,
    ) -> Decorator: ...
    @overload
    def parametrized(
        option: str,
        instrument: Class,
        type: str | None = None,
        help: Any = None,
        default: Any = None,
    ) -> Decorator: ...
    @overload
    def parametrized(
        option: str, instrument: Recording, type: str, help: Any = None
    ) -> Decorator: ...
    @overload
    def parametrized(
        option: str,
        instrument: Recording,
        type: Any = None,
        help: str | None = None,
        default: Any = None,
    ) -> Recording: ...


def parametrized(
    option: str, instrument: Any = None, type: Any = None, help: Any = None, default: Any = None
) -> Any:
    """Give an instrument an option, whose value it finds in ``ov.options``.

    ``parametrized("--every", instrument, type=int)`` returns an instrument;
    ``@parametrized("--every", type=int)`` decorates one, and so does ``@parametrized("--every",
    int, "Steps between two.", 10)``.

    Args:
        option: The option, with its dashes.
        instrument: The instrument, a generator function or a plain function.
        type: Function that converts the word on the command line to a value; ``str`` if left out.
        help: Text of ``voirkit --help`` about the option.
        default: Value if the option is not given.

    Returns:
        An instrument. Its attribute ``instrument`` is the one that was passed.

    Raises:
        InstrumentError: The option has no dashes, or the instrument cannot be called.
    """
    place = _check_option(option, "parametrized")
    if isinstance(type, str):  # called with (option, type, help, default) by position
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


def configurable(fn: Recording) -> Recording:
    """Give an instrument an option for each field of a dataclass.

    The dataclass is the annotation of the instrument's second parameter. For ``def instrument_x(ov,
    training: Training)`` the options are passed as ``training``; other instruments find them in
    ``ov.options.training``.

    Raises:
        InstrumentError: There is no second parameter, or its annotation is not a dataclass.
    """
    code = getattr(fn, "__code__", None)
    if code is None:
        raise InstrumentError(f"configurable needs a function, not {fn!r}.", where=_caller())
    place, name = f"{code.co_filename}:{code.co_firstlineno}", code.co_name
    if code.co_argcount != 2:
        hint = f"Write: def {name}(ov, options: SomeDataclass): ..."
        raise InstrumentError(
            f"{name} needs two parameters, the overseer and its options.", where=place, next=hint
        )
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


def instrument_definition(fn: Recording) -> Callable[..., Recording]:
    """Turn an instrument with further parameters into a function that takes their values and
    returns an instrument.

    With ``@instrument_definition`` on ``def wait(ov, seconds)``, ``ov.require(wait(seconds=5))``
    runs ``wait`` with 5 seconds.
    """
    name = getattr(fn, "__name__", "the instrument")

    @wraps(fn)
    def define(*args: Any, **kwargs: Any) -> Recording:
        if args and hasattr(args[0], "phases") and hasattr(args[0], "require"):
            hint = f"Call it with its arguments, without the overseer: ov.require({name}(...))"
            raise InstrumentError(
                f"{name} defines instruments, and is none itself.", where=place_of(fn), next=hint
            )

        @wraps(fn)
        def instrument(ov: Any) -> Phases:
            yield from _phases_of(fn(ov, *args, **kwargs))

        return instrument

    return define


class _Started(dict[str, str]):
    """The instruments that a run has started. Maps the flag of an instrument to the call that
    started it, as text."""


def once(flag: str) -> Decorator:
    """Return a decorator that lets an instrument start only once in a run. Starting it again only
    warns, and names the call that runs.

    Two copies of an instrument would record the same events twice, record each other, or write into
    the same file. Write this decorator below ``instrument_definition``.

    Args:
        flag: The name of the instrument for the user.
    """

    def decorate(instrument: Recording) -> Recording:
        @wraps(instrument)
        def start(ov: Any, *args: Any, **kwargs: Any) -> Any:
            started, call = ov.shared(_Started), _as_called(instrument.__name__, args, kwargs)
            if flag in started:
                ov.warn(
                    f"{flag}: it is started twice, by the flag and a voirfile, or by voirfiles.\n"
                    f"  {started[flag]} is what runs; {call} does nothing."
                )
                return None
            started[flag] = call
            return instrument(ov, *args, **kwargs)

        return start

    return decorate


def started(ov: Any, flag: str) -> bool:
    """True if an instrument has been started in a run, by its flag or a voirfile."""
    return flag in ov.shared(_Started)


def _as_called(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    from reprlib import repr as short

    return f"{name}({', '.join([*map(short, args), *(f'{key}={short(value)}' for key, value in kwargs.items())])})"


_class = type  # `parametrized` has an argument named `type`


def _phases_of(result: Any) -> Phases:
    """Yield the phases that an instrument waits for: none if it is a plain function."""
    if isinstance(result, Generator):
        return (yield from result)
    return None


def _annotations(fn: Recording) -> Mapping[str, Any]:
    """Return the annotations of a function's parameters. Since Python 3.14 they may contain names
    that are not defined."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        return get_annotations(fn, format=Format.FORWARDREF)
    return getattr(fn, "__annotations__", {})


def _is_reference(text: str) -> bool:
    """True if a text has the form ``package.module:function``."""
    names = text.replace(":", ".", 1).split(".")
    return ":" in text and all(name.isidentifier() for name in names)


def _annotation(fn: Recording, parameter: str, place: str) -> Any:
    """Return the dataclass with which a parameter is annotated."""
    annotation = _annotations(fn).get(parameter)
    annotation = getattr(annotation, "__forward_arg__", annotation)
    # The annotation is text if the module has `from __future__ import annotations`, or if it uses a
    # name that is not defined.
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, getattr(fn, "__globals__", {}))
        except Exception as exc:  # an annotation may be any expression
            fault = f"the annotation of {parameter}, {annotation}, cannot be resolved: {exc}."
            hint = "Define or import the dataclass at the top of the file."
            raise InstrumentError(fault, where=place, next=hint) from None
    if not hasattr(annotation, "__dataclass_fields__"):
        label = getattr(annotation, "__name__", annotation)
        fault = f"is annotated with {label}, which is no dataclass"
        if annotation is None:
            fault = "has no annotation"
        name = getattr(fn, "__name__", "the instrument")
        hint = f"Write: def {name}(ov, {parameter}: SomeDataclass): ..."
        raise InstrumentError(
            f"the parameter {parameter} of {name} {fault}.", where=place, next=hint
        )
    return annotation


def _instrument(
    phases: Callable[[Any], Phases], behind: Recording | str, helper: str, place: str
) -> Recording:
    """Return an instrument that runs the generator ``phases``, with the name of the instrument
    ``behind`` it."""

    def run(ov: Any) -> Phases:
        if not hasattr(ov, "phases"):
            name = getattr(ov, "__name__", repr(ov))
            hint = "A type, a help and a default are given by name: type=..., help=..., default=..."
            raise InstrumentError(
                f"{helper} got {name} where it needs the overseer.", where=place, next=hint
            )
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
    """Check that an option has a valid name; returns the file and line from which the helper was
    called. Raises InstrumentError: the name is not valid."""
    place = _caller()
    text = option if isinstance(option, str) else ""
    words = text.strip("-").replace("=", " ").split()
    if not text.startswith("-") or len(words) != 1 or "=" in text or " " in text:
        hint = f"Write: {helper}('--{'-'.join(words) or 'flag'}')"
        fault = f"{helper} needs the name of an option, with its dashes, not {option!r}."
        raise InstrumentError(fault, where=place, next=hint)
    return place


def _check_callable(instrument: Any, helper: str, place: str) -> None:
    if not callable(instrument):
        hint = "Write: def instrument_x(ov): ..."
        raise InstrumentError(
            f"{helper} needs an instrument, not {instrument!r}.", where=place, next=hint
        )


def name_of(instrument: Any) -> str:
    """Return the name of an instrument for messages to the user."""
    return getattr(instrument, "__name__", None) or type(instrument).__name__


def place_of(instrument: Any) -> str:
    """Return ``file:line`` where an instrument is defined; empty if unknown."""
    while hasattr(instrument, "__wrapped__"):
        instrument = instrument.__wrapped__
    code = getattr(instrument, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def _caller() -> str:
    """Return ``file:line`` of the code that called a function of this module."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
