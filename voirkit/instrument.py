"""What an instrument is: its options, what it records, its part of the summary and of every report,
its exports.

A package offers an ``Instrument`` under the entry point group ``voirkit.instruments``; nothing else
has to know of it. A generator ``instrument_*(ov)`` of a voirfile is an instrument that records, and
no more; the helpers below put one behind a flag, or give it options or settings. Every run loads
this module.
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
    """An option of an instrument.

    Args:
        flag: Such as ``--loader``.
        help: What ``voirkit --help`` says of it; an option without is not listed.
        type: Reads the word behind it, and raises ValueError with what would be right. An option
            without a type or ``metavar`` has no word.
        metavar: What stands for the word in ``--help``.
        default: The value of an option that is not given; it does not switch the instrument on.
        const: The value of an option that is given without a word; None where it needs one.
        repeatable: Whether it may be given several times: its value is a list.
        is_script: Tells, of an option with an optional word, whether a word (and those behind it)
            is SCRIPT already.
        answers: Words behind it that are answered without a run, as ``--help`` is.
        prints: ``(parser, options)``, for an option that is answered without a run; those behind it
            are read before.
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
        # A default that looks like a given value is not argparse's: what was given is to be known.
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
        # see voirkit.options.argv
        self._attributes = {"is_script": is_script, "asks_for_help": answers}

    @property
    def name(self) -> str:
        """``loader_ops`` for ``--loader-ops``."""
        return self.flag.lstrip("-").replace("-", "_")

    def add(self, parser: Any, group: str = "instruments") -> None:
        """Add it to the command line, in that group of ``--help``."""
        settings = dict(self._settings)
        if ":" in str(settings.get("action")):
            settings["action"] = _printing(settings["action"])
            del settings["default"]
        action = parser.group(group).add_argument(self.flag, **settings)
        for name, value in self._attributes.items():
            if value:
                setattr(action, name, value)


def _is_given(value: Any) -> bool:
    """Whether a value of an option says that it was given; 0 does."""
    return not (value is None or value is False or value == [])


def _printing(reference: str) -> type:
    """The action of an option that prints something, after which nothing is run."""
    from argparse import _VersionAction  # as with --version, no SCRIPT is needed

    class Printing(_VersionAction):
        reads_on = True  # what follows it may be part of the question

        def __call__(self, parser: Any, namespace: Any, *_: object) -> None:
            resolve(reference)(parser, namespace)

    return Printing


# what the values of options have to be: each function here reads one, or returns what reads one;
# ValueError says what would be right

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATIONS = "a number with ms, s, m or h (250ms, 30s, 5m, 1.5h), or seconds without a unit"


def whole_number(
    what: str, advice: str = "", least: int = 0, most: int | None = None
) -> Callable[[str], int]:
    """A whole number, from ``least`` to ``most``: ``whole_number("no number of steps", " of at
    least 1", 1)``."""

    def read(text: str) -> int:
        is_number = text.isascii() and text.isdigit()
        if not is_number or int(text) < least or (most is not None and int(text) > most):
            raise ValueError(f"{text!r} is {what}; give a whole number{advice}.")
        return int(text)

    return read


def one_of(*words: str) -> Callable[[str], str]:
    """One of some words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}.")
        return text

    return read


def read_by(reference: str) -> Callable[[str], Any]:
    """What a function reads that is imported when the flag is given:
    ``"package.module:function"``."""
    return lambda text: resolve(reference)(text)


def duration(text: str) -> float:
    """The seconds that a duration stands for: ``30s``, ``5m``, ``1.5h``, ``250ms``, or plain
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
    """An instrument: what it records while the program runs, and what it makes of that in the
    summary, in reports and in exports.

    What is named ``"package.module:name"`` is imported when it is needed, so that a run that does
    not ask for it does not pay for it.

    Args:
        name: What users call it.
        options: On the command line. Without any it always records.
        record: ``(ov, options) -> generator``, an instrument like a voirfile's; ``options`` maps
            names of options (``loader_ops``) to values. It runs if an option is given (a default is
            not), or if there are none.
        always: Whether it runs whatever options are given, which then switch parts of it off.
        in_children: Whether it also records processes that the program starts itself and that
            train. Of one that does not, each report of a run with such processes says so.
        parts: Its keys of ``summary.json``, with the type of their value; null where nothing was
            recorded.
        schema: The package whose file ``summary.schema.json`` describes its keys: a JSON Schema
            with ``properties``, which may use ``#/$defs/`` of voirkit's own
            (``voirkit/runs/summary.schema.json``).
        summarise: ``(runs, ranks, summary) -> Mapping | None``: values of its keys, computed from
            the run directories of all ranks. None keeps what the run itself wrote.
        summarised_from: Kinds of records, and folders of the run directory with a slash behind
            (``"flame/"``). ``summarise`` is loaded and called only for a run that has one of them;
            without any it is for each run.
        sections: ``(part, summary) -> Iterable[Section]``: what every report shows of it
            (``voirkit.report.sections``), where its part is not null; ``part`` is the first of its
            keys.
        difference: ``(first, second, names) -> (document, lines)``: where two opened runs begin to
            do different things, for ``voirkit compare`` with an option of the instrument's name;
            the document has ``equal``.
        findings: ``(summary) -> Iterable[Finding]``: what its rules find to be wrong
            (``voirkit.findings``), from its parts of the summary and the rest of it.
        of_rank: ``(runs, rank) -> value``: the first of its keys from the records of one rank
            alone, for what a verdict says of that rank.
        evidence: What a verdict can say of its part: kinds (``line``, ``operator`` ...) to
            functions, see ``voirkit.analysis.verdict.evidence``.
        live_part: ``(ranks, phases, clocks) -> value | None``: the first of its keys while a run of
            several ranks goes on, for the verdict of ``voirkit watch``: from the last steps and
            collectives of its ranks (``voirkit.analysis.document.Rank``), the phases these are from
            (``voirkit.analysis.phases.Records``), and by host what makes its clock the wall clock.
        live: ``(run directory) -> lines``: what ``voirkit watch`` warns of while the run goes on,
            where one of ``folders`` is there.
        leads: Whether it answers what was asked (a finding, an experiment), and so comes before the
            steps in reports.
        folders: What it writes in a run directory.
        exports: Formats of ``voirkit export`` that its records make: name to (module, what it is
            for).
        commands: Subcommands: word to module, which has a ``main(words) -> exit code``.
        event_names: What timelines call its records whose own names say little, by
            ``category.name``.
        group: Of its options in ``--help``: one of ``voirkit.options.GROUPS``, or a title of its
            own.
        priority: Of its recording among those that start when the options are known; higher is
            earlier, the steps instrument has 0.
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
        """Take part in a run: add the options, and record if it is requested."""
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
    """The ``__getattr__`` of an instrument's package: names that voirfiles import from it, each
    from a module that is imported then.

    Args:
        package: Its ``__name__``.
        homes: Module of each name.
    """

    def getattr_of_package(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return resolve(f"{package}.{homes[name]}:{name}")

    return getattr_of_package


def resolve(reference: str) -> Any:
    """What ``"package.module:name"`` names."""
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
        flag: The flag, with its dashes. Its value stands in the options under the same name, dashes
            and all: ``getattr(ov.options, "--dash")``.
        instrument: The instrument, a generator or a plain function; or the help, if this decorates.
            With a help after it a string is ``"package.module:function"``, which is imported when
            the flag is on, so that a run without it does not pay for it.
        help: What ``voirkit --help`` says of the flag.

    Returns:
        An instrument, with the one behind the flag (or what names it) as its attribute
        ``instrument``.

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
        instrument: The instrument, a generator or a plain function.
        type: What turns the word on the command line into a value; ``str`` if left out.
        help: What ``voirkit --help`` says of the option.
        default: The value without the option.

    Returns:
        An instrument, with the one that was given as its attribute ``instrument``.

    Raises:
        InstrumentError: The option has no dashes, or the instrument cannot be called.
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


def configurable(fn: Recording) -> Recording:
    """Give an instrument options for the fields of a dataclass.

    The dataclass is the annotation of the instrument's second parameter, and that parameter's name
    is where the options stand: ``def instrument_x(ov, training: Training)`` finds them in
    ``training``, others in ``ov.options.training``.

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
    """Make a function that makes instruments: its arguments are the function's, after the overseer.

    With ``@instrument_definition`` on ``def wait(ov, seconds)``, ``ov.require(wait(seconds=5))``
    runs it with 5.
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
    """The instruments that a run has started: the flag, and how it was requested."""


def once(flag: str) -> Decorator:
    """Have an instrument run once in a run: whoever starts it again is told which one runs, and
    nothing else happens.

    Two that record the same would record it twice, or each the other, or into one file. It stands
    below ``instrument_definition``.

    Args:
        flag: What the instrument is known by to the user.
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
    """Whether an instrument has been started in a run, by its flag or a voirfile."""
    return flag in ov.shared(_Started)


def _as_called(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    from reprlib import repr as short

    return f"{name}({', '.join([*map(short, args), *(f'{key}={short(value)}' for key, value in kwargs.items())])})"


_class = type  # `parametrized` has an argument of that name


def _phases_of(result: Any) -> Phases:
    """The phases that an instrument waits for: none if it is a plain function."""
    if isinstance(result, Generator):
        return (yield from result)
    return None


def _annotations(fn: Recording) -> Mapping[str, Any]:
    """What the parameters of a function are annotated with; since python 3.14 a name among it need
    not be there."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        return get_annotations(fn, format=Format.FORWARDREF)
    return getattr(fn, "__annotations__", {})


def _is_reference(text: str) -> bool:
    """True if a text has the form ``package.module:function``."""
    names = text.replace(":", ".", 1).split(".")
    return ":" in text and all(name.isidentifier() for name in names)


def _annotation(fn: Recording, parameter: str, place: str) -> Any:
    """The dataclass that a parameter is annotated with."""
    annotation = _annotations(fn).get(parameter)
    annotation = getattr(annotation, "__forward_arg__", annotation)
    # with `from __future__ import annotations`, or a name that is not there
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, getattr(fn, "__globals__", {}))
        except Exception as exc:  # any expression may stand there
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
    """An instrument that goes through phases, under the name of the one behind it."""

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
    """Where the helper was called, if the option can be one."""
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
    """What to call an instrument in words to the user."""
    return getattr(instrument, "__name__", None) or type(instrument).__name__


def place_of(instrument: Any) -> str:
    """``file:line`` where an instrument is defined, or nothing."""
    while hasattr(instrument, "__wrapped__"):
        instrument = instrument.__wrapped__
    code = getattr(instrument, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def _caller() -> str:
    """The file and line from which this module was called."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
