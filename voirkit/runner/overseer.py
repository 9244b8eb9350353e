"""The Overseer: what an instrument sees as ``ov``, and what leads a run through its phases.

The program comes first: what goes wrong in an instrument is reported once and switched off; it
never reaches the program.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence

import voirkit
from voirkit import plugins
from voirkit.errors import VoirkitError, tell
from voirkit.imports import when_imported
from voirkit.options import GROUPS, VOIRFILE, ExtendedArgumentParser, configuration, size
from voirkit.phases import GivenOverseer, Phase, StopProgram
from voirkit.runner import recording
from voirkit.runner.record import Outcome, RunRecord
from voirkit.runner.script import Program, current_folder, module, script, shorten
from voirkit.runner.voirfiles import as_error, describe_exception, describe_instrument, text_of
from voirkit.runs import summary
from voirkit.runs.manifest import rank_and_world_size
from voirkit.trust import FLAG, VARIABLE, trusted_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from typing import Any

    from voirkit.phases import Instrument
    from voirkit.probes import Probe
    from voirkit.runs.conditions import Condition


class LogStream:
    """``ov.log``: call it with a dictionary to log it; use it as any giving stream to read what is
    logged.

    The sinks (files, descriptors) get what is logged before the streams' subscribers, so that a
    subscriber that fails loses nothing. giving is imported when somebody uses it as a stream.
    """

    def __init__(self) -> None:
        self._sinks: list[Callable[[Any], None]] = []
        self._stream: Any = None

    def __call__(self, data: dict[str, Any]) -> None:
        for sink in self._sinks:
            sink(data)
        if self._stream is not None:
            self._stream._push(data)

    def to(self, sink: Callable[[Any], None]) -> None:
        """Send all that is logged from now on to a function as well."""
        self._sinks.append(sink)

    def end(self) -> None:
        """End the stream; what is logged later still reaches the sinks."""
        if self._stream is not None:
            self._stream._end()

    @property
    def stream(self) -> Any:
        """The log as a giving stream."""
        if self._stream is None:
            from voirkit.streams import Stream

            self._stream = Stream(label="the log")
        return self._stream

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.stream, name)

    def __rshift__(self, subscriber: Any) -> Any:
        return self.stream >> subscriber

    def __getitem__(self, keys: Any) -> Any:
        return self.stream[keys]

    def __or__(self, other: Any) -> Any:
        return self.stream | other


class Overseer(GivenOverseer):
    """Leads a run through ``init, parse_args, load_script, run_script, finalize``, and is what its
    instruments work with.

    Args:
        instruments: Functions or generators of the overseer.
        logfile: A file descriptor to send the log to, line by line, or None.
        record: Whether to make a run directory.
        begun_ns: When the run began (``time.perf_counter_ns``), if that was before this is made.
        program: What is run, if it is neither a file nor a module; the arguments name it all the
            same.

    Attributes:
        phases: The phases; ``yield ov.phases.run_script`` waits for the end of one.
        argparser: Where instruments add their options, after ``yield ov.phases.init``.
        options: The parsed options, after ``parse_args``.
        given: A giving stream of all that is given.
        log: A callable stream of what should leave the process.
        probes: The probes that were made with ``probe``.
        script: What is run, as the user typed it, after ``parse_args``.
        record: What is kept of the run.
        outcome: How it ended.
        summary: What becomes ``summary.json``; instruments add to it.
        voirfiles: ``{"path", "sha256"}`` of each voirfile whose instruments take part.
    """

    def __init__(
        self,
        instruments: Iterable[Instrument] = (),
        logfile: int | None = None,
        record: bool = False,
        begun_ns: int | None = None,
        program: Program | None = None,
    ) -> None:
        self._current: Instrument | None = None
        self._is_recorded = record
        self._precedences: dict[int, int] = {}  # of instruments that are not a voirfile's, by id
        self.argparser = ExtendedArgumentParser()
        _own_options(self.argparser)
        super().__init__(
            ["init", "parse_args", "load_script", "run_script", "finalize"], args=(self,)
        )
        self.log = LogStream()
        self.options: Namespace
        self.probes: list[Probe] = []
        self.voirfiles: list[dict[str, str]] = []
        self.script: str | None = None
        self.summary: dict[str, Any] = summary.empty(voirkit.__version__)
        self.warnings: list[str] = []
        self.program: Program | None = None
        self._other_program = program
        self.outcome = Outcome()
        self.record = RunRecord(
            self, logfile, record, time.perf_counter_ns() if begun_ns is None else begun_ns
        )
        self.is_quiet = False
        self._required: list[Condition] = []  # what the summary must fulfil
        self._pid = os.getpid()
        self._when_given: list[Callable[[Any], None]] = []
        self._when_complete: list[Callable[[dict[str, Any]], None]] = []
        self._faults: list[VoirkitError] = []  # found before the script started
        self.require(*instruments)

    def adopt(self, instruments: Iterable[Instrument], precedence: int) -> None:
        """Take in instruments whose options give way to those of a higher precedence
        (``voirkit.options``: BUILT_IN, PLUGIN, VOIRFILE)."""
        for instrument in instruments:
            self._precedences[id(instrument)] = precedence
            self.require(instrument)

    def _require(self, instrument: Instrument) -> Any:
        if self._current is not None:  # what an instrument requires is of its kind
            self._precedences.setdefault(
                id(instrument), self._precedences.get(id(self._current), VOIRFILE)
            )
        return super()._require(instrument)

    # what instruments call

    def probe(self, *selectors: str, **options: Any) -> Probe:
        """A probe on variables of the program's functions: a giving stream of what they are set to.

        It is checked before the script starts, and active from the end of ``load_script`` to the
        end of ``run_script``.

        Args:
            selectors: Such as ``"//train_epoch > loss"``.
            options: ``raw``, ``probe_type``, ``env`` and ``overridable``, as in
                ``voirkit.probing``.

        Raises:
            SelectorError: A selector cannot be read.
        """
        from voirkit.probes import Probe, Scope

        frame = sys._getframe(1)
        options.setdefault("env", Scope(frame))
        probe = Probe(
            *selectors, where=f"{shorten(frame.f_code.co_filename)}:{frame.f_lineno}", **options
        )
        self.probes.append(probe)
        if self.program is not None:
            probe.check(self.program)

        def instrument_probe(ov: Overseer) -> Any:
            yield ov.phases.load_script(priority=0)
            if not ov.phases.run_script.done:
                probe.activate()

        self.require(instrument_probe)
        return probe

    def give(self, **data: Any) -> None:
        """Give values into ``given``, from any thread; they have arrived when the call returns, in
        the order of the calls."""
        given = self.given
        import giving

        if given is not None:
            giving.give.produce(data)

    def offer(self, data: dict[str, Any], yielding: bool = False) -> None:
        """Give what voirkit has measured or seen itself: to those who listen in this run, without
        counting it as given.

        Args:
            data: What to give.
            yielding: Whether nothing is given where the script or a voirfile gives one of the keys
                itself.
        """
        given = self._given
        if given is not None and not self._given_closed:
            given.offer(data, yielding)

    def is_given(self, *keys: str) -> bool:
        """Whether the script or a voirfile has given anything with one of these keys."""
        return self._given is not None and bool(self._given.has_any(keys))

    def has_listener(self, key: str) -> bool:
        """Whether anybody would hear of what is offered with this key alone."""
        return self._given is not None and bool(self._given.has_listener(key))

    @property
    def may_be_listened_to(self) -> bool:
        """True if ``given`` has a subscriber or may get one: an instrument from outside voirkit can
        subscribe later."""
        return self._given is not None or any(
            not str(getattr(handler, "__module__", "")).startswith("voirkit")
            for handler in self.handlers
        )

    def say(self, text: str) -> None:
        """Say something to the user, on stderr; nothing with ``--quiet``."""
        if not self.is_quiet:
            tell(text)

    def warn(self, text: str) -> None:
        """Warn the user, on stderr (also with ``--quiet``) and in the summary; once."""
        if text not in self.warnings:
            self.warnings.append(text)
            tell(text)

    def when_complete(self, callback: Callable[[dict[str, Any]], None]) -> None:
        """Call back with the summary when the record of the run is complete: steps and verdict are
        in it. It may not be changed any more.

        Also of a run that failed, and of one without a run directory, whose summary has what the
        run itself knows.
        """
        self._when_complete.append(callback)

    def fail(self, reason: str) -> None:
        """Have the run end with exit code 3, unless the script itself fails."""
        self.outcome.failures.append(reason)

    def section(self, title: str, *blocks: Any, note: str = "") -> None:
        """Have every report of this run show a section; for voirfiles, whose instruments are not
        there when a run is read. Of several ranks, that of rank 0 is shown.

        Args:
            title: Its heading.
            blocks: From top to bottom: ``Table``, ``Bars``, ``Series``, ``Figures`` and the others
                of ``voirkit.report.sections``; a string is a line of text. What must be read of the
                run's records (``OnPage`` with a function) cannot be among them.
            note: What it shows, and what of it can be trusted.

        Raises:
            TypeError: Something is not a block.
        """
        documents = [summary.block_as_json(block) for block in blocks]
        self.summary.setdefault("sections", []).append(
            {"title": str(title), "note": str(note), "blocks": documents}
        )

    # a run

    @property
    # a property, so that the parser knows who adds an option
    def current(self) -> Instrument | None:
        """The instrument that runs right now."""
        return self._current

    @current.setter
    def current(self, instrument: Instrument | None) -> None:
        self._current = instrument
        self.argparser.definer = None if instrument is None else describe_instrument(instrument)
        self.argparser.precedence = self._precedences.get(id(instrument), VOIRFILE)

    @property
    def exit_code(self) -> int:
        """The exit code of the run."""
        return self.outcome.exit_code

    @property
    def run_dir(self) -> str | None:
        """Absolute path of the run directory, from ``load_script`` on, or None."""
        return self.record.path

    @property
    def given_stream(self) -> Any:
        """``given`` if anything has used it, else None."""
        return self._given

    def is_the_programs(self, exc: BaseException) -> bool:
        """Whether an exception came out of the program itself."""
        return self.program is not None and self.program.own_part(exc.__traceback__) is not None

    def run_phase(self, phase: Phase) -> Any:
        """Around the body of a phase; it is logged when it starts."""
        self.log({"$event": "phase", "$data": {"name": phase.name}})
        return super().run_phase(phase)

    def _read_conditions(self) -> None:
        """Read the conditions of ``--require``."""
        from voirkit.runs import conditions

        parts = None if self.voirfiles else set(self.summary)
        self._required = [conditions.read(text, parts) for text in self.options.require]
        for condition in self._required:
            part = condition.path[0]
            if part not in self.summary:
                self.say(
                    f"note: --require {condition.text!r} holds only if a voirfile adds"
                    f" {part!r} to the summary."
                )

    def _run(self, argv: Sequence[str]) -> None:
        script, _ = self.argparser.guess_script(argv)
        with self.run_phase(self.phases.init):
            configs = self.argparser.early_values(argv, "--config")
            trusted = self.argparser.early_values(argv, FLAG)
            settings = configuration.collect(
                script, current_folder(), configs, search=self._is_recorded, trusted=trusted
            )
            self.argparser.apply(settings)
        self._refuse()
        with self.run_phase(self.phases.parse_args):
            self.options = self._parse(argv)
            # one rank speaks for all
            self.is_quiet = bool(self.options.quiet) or rank_and_world_size()[0] > 0
            if self.options.require:
                self._read_conditions()
            self.script = (
                self.options.SCRIPT if self.options.MODULE is None else self.options.MODULE
            )
            self._report_displaced()
        self._refuse()
        with self.run_phase(self.phases.load_script):
            options = self.options
            self.program = self._other_program or self._find(options)
            self.program.enter()
            if self._is_recorded:
                plugins.install_aliases()
            try:
                self.program.compile()
                for probe in self.probes:
                    probe.check(self.program)
            except SyntaxError:
                self.record.make_directory(argv)  # the script's own failure: a run that is recorded
                raise
            self.record.make_directory(argv)
            self.program.load()
        self._refuse()
        self._report_voirfiles()
        with self.run_phase(self.phases.run_script) as set_value:
            try:
                set_value(self.program.run())
            finally:
                self.record.end_script()
                self._deactivate()
                if os.getpid() != self._pid:
                    # a forked child came to the end of the script: the run, and its instruments,
                    # are its parent's
                    self._abandon()
        self.outcome.end_normally()

    @staticmethod
    def _find(options: Namespace) -> Program:
        return (
            script(options.SCRIPT, options.ARGV)
            if options.MODULE is None
            else module(options.MODULE, options.ARGV)
        )

    def _parse(self, argv: Sequence[str]) -> Namespace:
        try:
            return self.argparser.parse_command(list(argv))
        except SystemExit:  # --help, --version: what instruments do after they have added their options is for a run
            self._abandon()
            raise

    def _report_displaced(self) -> None:
        by: dict[str, list[str]] = {}
        for option, who in self.argparser.displaced.items():
            by.setdefault(who, []).append(option)
        for who, options in by.items():
            self.say(
                f"note: {', '.join(options)} {'is' if len(options) == 1 else 'are'} of {who} here,"
                " not voirkit's own."
            )

    def _report_voirfiles(self) -> None:
        if self.voirfiles:
            overridden = [", ".join(probe.selectors) for probe in self.probes if probe.overrides]
            changes = (
                f"; the values of {', '.join(overridden)} are overridden" if overridden else ""
            )
            self.say(
                "with"
                f" {', '.join(os.path.relpath(one['path'], current_folder()) for one in self.voirfiles)}{changes}"
            )

    def _abandon(self) -> None:
        """Resume no instrument any more."""
        for waiting in self._plan.values():
            waiting.clear()

    def _prepare(self) -> None:
        voirkit.set_current_overseer(self)
        # The script may give without any instrument that listens: what is given is counted all the
        # same.
        when_imported("voirkit.streams", self._report_of_streams)
        when_imported("voirkit.streams.reactive", self._notice_streams)
        when_imported("giving", _load_streams)
        self.record.open_log()
        super()._prepare()
        self._refuse()

    # probes

    def _deactivate(self) -> None:
        if os.getpid() == self._pid:
            run_all([probe.switch_off for probe in reversed(self.probes)], self.warn)

    # given

    def when_given(self, callback: Callable[[Any], None]) -> None:
        """Call back with the stream of given values as soon as anything uses it: at once, later, or
        never.

        For an instrument that is always on, and must not load giving for a script that gives
        nothing.
        """
        self._when_given.append(callback)
        if self._given is not None:
            callback(self._given)

    def _make_given(self) -> Any:
        from voirkit import streams

        given = streams.Given()
        if self._given_closed:
            return given  # asked for after the run: it hears nothing
        given.watch("$event", self.log)
        return given

    def _report_of_streams(self, streams: Any) -> None:
        # Patches need this module, and no stream: giving and reactivex, 170 ms of CPU and 7,000
        # live objects, stay away.
        if not self._given_closed:
            streams.report = self.warn

    def _notice_streams(self, _: object) -> None:
        if not self._given_closed:
            _ = self.given  # made when it is first asked for

    def _end_streams(self) -> None:
        super()._end_streams()
        streams: Any = sys.modules.get("voirkit.streams")
        if streams is not None:
            streams.report = streams.to_stderr

    # when something fails

    def _on_instrument_error(self, exc: BaseException) -> None:
        instrument = self.current
        self.log(
            {
                "$event": "overseer_error",
                "$data": {"type": type(exc).__name__, "message": text_of(exc)},
            }
        )
        error = as_error(exc, instrument)
        not_begun = self.phases.load_script.pending or (
            isinstance(exc, VoirkitError) and self.phases.run_script.pending
        )
        if not_begun and self.status == "running":
            self._faults.append(error)  # the script has not started: the user had better know now
        else:
            self.warn(f"{error}\n  It is switched off; the program goes on.")

    def _refuse(self) -> None:
        """End the run, before the script starts, with the first thing that was found wrong."""
        if self._faults:
            raise self._faults[0]

    def _on_stop(self, value: object = None) -> None:
        # Those who wait for finalize are resumed by it as ever: it comes after a stop as well.
        waiting, self._plan[self.phases.finalize] = self._plan[self.phases.finalize], []
        super()._on_stop(value)
        self._plan[self.phases.finalize] = waiting
        self.outcome.end_normally()

    def _on_error(self, exc: BaseException) -> None:
        try:
            self.outcome.end_by(exc)
            self.outcome.is_refused = isinstance(exc, VoirkitError) and not self.is_the_programs(
                exc
            )
            self.log(
                {"$event": "error", "$data": {"type": type(exc).__name__, "message": text_of(exc)}}
            )
        except BaseException as later:
            # a signal handler of the program's: this is what python ends with
            self.outcome.end_by(later)
            raise

    def _finish(self) -> None:
        if os.getpid() != self._pid:
            return  # a child that the script forked came this far; the run is its parent's
        self.record.end_script()  # it may have failed where it only defines
        try:
            self.status = "ended"
            ends = (
                [self._close, self._end_streams]
                if self.outcome.is_refused
                else [self._finalize, self._close]
            )
            run_all([*ends, recording.end, plugins.remove_aliases, self.log.end], self.warn)
        except BaseException as exc:  # raised again
            self.outcome.end_by(exc)
            raise
        finally:
            self.record.end()
            self._call_when_complete()
            if self.program is not None:
                self.program.release()
            voirkit.set_current_overseer(None)

    def _call_when_complete(self) -> None:
        callbacks, self._when_complete = self._when_complete, []
        for callback in callbacks:
            try:
                callback(self.summary)
            except Exception as exc:  # an instrument's: the program has ended as it has
                self.warn(
                    "what was to be done when the record is complete has failed"
                    f" ({describe_exception(exc)})."
                )

    def _finalize(self) -> None:
        with self.run_phase(self.phases.finalize):
            ends = [probe.end for probe in self.probes]
            run_all([self._deactivate, *ends, self._end_streams, self.record.end_trace], self.warn)

    def _step(self, generator: Any, phase: Phase, throw: bool) -> Any:
        try:
            return super()._step(generator, phase, throw)
        except StopProgram:
            if self.phases.finalize.pending:
                raise
            return None  # there is nothing left to stop

    def check_requirements(self) -> None:
        """Hold the conditions of ``--require`` against the summary; of several ranks the first
        does, which has that of all."""
        if rank_and_world_size()[0] == 0:
            failures = [condition.failure(self.summary) for condition in self._required]
            self.outcome.failures += [failure for failure in failures if failure is not None]


def run_all(steps: Iterable[Callable[[], object]], warn: Callable[[str], None]) -> None:
    """Take all steps, whatever one of them raises."""
    first: BaseException | None = None
    for step in steps:
        try:
            step()
        except BaseException as exc:  # the first is raised when all are done
            if first is not None:
                warn(f"at the end of the run there was also {describe_exception(exc)}")
            first = first or exc
    if first is not None:
        raise first


def _load_streams(_: object) -> None:
    __import__("voirkit.streams.reactive")


def _own_options(parser: ExtendedArgumentParser) -> None:
    parser.epilog = (
        "An optional [VALUE] is attached with '=': --monitor=0.5. voirkit's options stand before"
        " SCRIPT."
    )
    add = parser.add_argument
    add(
        "--version",
        action="version",
        version=f"voirkit {voirkit.__version__}",
        help="print voirkit's version and exit",
    )
    add(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="read options from a TOML, YAML or JSON file (repeatable)",
    )
    trust = (
        "take voirfiles and configuration files in DIR and below, whoever owns them; also"
        f" {VARIABLE} (repeatable)"
    )
    add(FLAG, action="append", default=[], metavar="DIR", type=trusted_folder, help=trust)
    add(
        "--follow",
        action="store_true",
        help=(
            "SCRIPT is a shell script: run each python that it starts under voirkit, torchrun's too"
        ),
    )
    for title in GROUPS:
        parser.group(title)
    require = (
        'exit with code 3 if the run misses a target: "train_rate>=500", "memory<2GB", any figure'
        " of summary.json (repeatable)"
    )
    parser.group("CI").add_argument(
        "--require", action="append", default=[], metavar="CONDITION", help=require
    )
    add = parser.group("output").add_argument
    add(
        "--run-dir",
        metavar="DIR",
        help="directory to record the run in (default: voirkit-runs/<time>-<script>)",
    )
    add("--force", action="store_true", help="replace the run in --run-dir")
    limit = (
        "disk space for the trace, such as 500MB; events beyond it are only counted (default: 4GB)"
    )
    add(
        "--compact",
        action="store_true",
        help=(
            "compact the trace when the run ends, not when it is first read: it takes less space"
            " then"
        ),
    )
    add("--trace-limit", type=size, default=recording.LIMIT, metavar="SIZE", help=limit)
    add(
        "--html",
        action="store_true",
        help="also write the report as one HTML page, report.html in the run directory",
    )
    add("--quiet", action="store_true", help="print errors and warnings only")
