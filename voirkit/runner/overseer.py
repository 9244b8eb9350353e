"""The Overseer: the object that executes the phases of a run, and that instruments use as ``ov``.

The program has priority: an instrument that fails is reported once and switched off, and its
exception never reaches the program.
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
    """The log of a run, ``ov.log``: a function that logs a dictionary, and a giving stream of all
    that is logged.

    The sinks (files, descriptors) get each entry before the stream's subscribers, so that no entry
    is lost if a subscriber fails. giving is imported when the log is first used as a stream.
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
        """Also call a function with all that is logged from now on."""
        self._sinks.append(sink)

    def end(self) -> None:
        """End the stream. Later entries still reach the sinks."""
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
    """The controller of a run: it executes the phases ``init, parse_args, load_script, run_script,
    finalize``, and is the interface for instruments.

    Args:
        instruments: Functions or generators that take the overseer.
        logfile: A file descriptor to which the log is written line by line, or None.
        record: Whether to make a run directory.
        begun_ns: The start of the run (``time.perf_counter_ns``); by default now.
        program: The program to run, if it is neither a file nor a module. The command line must
            name it in any case.

    Attributes:
        phases: The phases; ``yield ov.phases.run_script`` waits for the end of a phase.
        argparser: The parser to which instruments add their options, after ``yield
            ov.phases.init``.
        options: The parsed options, after ``parse_args``.
        given: A giving stream of all given values.
        log: A callable stream of entries that should leave the process.
        probes: The probes that were made with ``probe``.
        script: The script or module as the user typed it, after ``parse_args``.
        record: The record of the run.
        outcome: How the program ended.
        summary: The content of ``summary.json``, to which instruments add.
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
        # option precedence of each instrument that does not come from a voirfile, by id()
        self._precedences: dict[int, int] = {}
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
        self._required: list[Condition] = []  # conditions that the summary must fulfil
        self._pid = os.getpid()
        self._when_given: list[Callable[[Any], None]] = []
        self._when_complete: list[Callable[[dict[str, Any]], None]] = []
        self._faults: list[VoirkitError] = []  # errors found before the script started
        self.require(*instruments)

    def adopt(self, instruments: Iterable[Instrument], precedence: int) -> None:
        """Add instruments whose options have this precedence (``voirkit.options``: BUILT_IN,
        PLUGIN, VOIRFILE). Of options with the same name, that of the highest precedence wins."""
        for instrument in instruments:
            self._precedences[id(instrument)] = precedence
            self.require(instrument)

    def _require(self, instrument: Instrument) -> Any:
        if self._current is not None:
            # an instrument passes its precedence on to the instruments that it requires
            self._precedences.setdefault(
                id(instrument), self._precedences.get(id(self._current), VOIRFILE)
            )
        return super()._require(instrument)

    # methods for instruments

    def probe(self, *selectors: str, **options: Any) -> Probe:
        """Make a probe: a giving stream of the values that variables of the program are set to.

        The probe is checked before the script starts. It is active from the end of ``load_script``
        to the end of ``run_script``.

        Args:
            selectors: Selectors such as ``"//train_epoch > loss"``.
            options: ``raw``, ``probe_type``, ``env`` and ``overridable``, as in
                ``voirkit.probing``.

        Raises:
            SelectorError: A selector cannot be parsed.
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
        """Give values to the stream ``given``, from any thread. Calls are delivered in their order,
        and the values have been delivered when the call returns."""
        given = self.given
        import giving

        if given is not None:
            giving.give.produce(data)

    def offer(self, data: dict[str, Any], yielding: bool = False) -> None:
        """Send values that voirkit itself has measured to the subscribers of ``given``, without
        counting them as given.

        Args:
            data: The values, by key.
            yielding: If true, send nothing if the script or a voirfile gives one of the keys
                itself.
        """
        given = self._given
        if given is not None and not self._given_closed:
            given.offer(data, yielding)

    def is_given(self, *keys: str) -> bool:
        """True if the script or a voirfile has given anything with one of these keys."""
        return self._given is not None and bool(self._given.has_any(keys))

    def has_listener(self, key: str) -> bool:
        """True if a call of ``offer`` with only this key would reach a subscriber."""
        return self._given is not None and bool(self._given.has_listener(key))

    @property
    def may_be_listened_to(self) -> bool:
        """True if the stream ``given`` has been used, or if an instrument from outside voirkit
        takes part, which can subscribe to it at any time."""
        return self._given is not None or any(
            not str(getattr(handler, "__module__", "")).startswith("voirkit")
            for handler in self.handlers
        )

    def say(self, text: str) -> None:
        """Print a message to the user on stderr, unless ``--quiet`` is set."""
        if not self.is_quiet:
            tell(text)

    def warn(self, text: str) -> None:
        """Warn the user on stderr (even with ``--quiet``) and in the summary. The same text is
        shown only once."""
        if text not in self.warnings:
            self.warnings.append(text)
            tell(text)

    def when_complete(self, callback: Callable[[dict[str, Any]], None]) -> None:
        """Register a function to call with the summary when the record of the run is complete.

        The summary then contains steps and verdict and must not be changed any more. The function
        is also called if the run failed, and for a run without a run directory, whose summary has
        only what this process knows.
        """
        self._when_complete.append(callback)

    def fail(self, reason: str) -> None:
        """Make the run end with exit code 3, unless the script itself fails."""
        self.outcome.failures.append(reason)

    def section(self, title: str, *blocks: Any, note: str = "") -> None:
        """Add a section to all reports of this run.

        This is for voirfiles, whose instruments are not loaded when a run is read. Of several
        ranks, only the sections of rank 0 are shown.

        Args:
            title: The heading.
            blocks: The content from top to bottom: blocks of ``voirkit.report.sections`` such as
                ``Table``, ``Bars``, ``Series`` and ``Figures``, or strings, which are lines of
                text. Blocks that read the run's records (``OnPage`` with a function) are not
                allowed.
            note: What the section shows, and how far it can be trusted.

        Raises:
            TypeError: A value is not a block.
        """
        documents = [summary.block_as_json(block) for block in blocks]
        self.summary.setdefault("sections", []).append(
            {"title": str(title), "note": str(note), "blocks": documents}
        )

    # state and phases of a run

    @property
    # a property: its setter tells the parser which instrument adds options from now on
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
        """The absolute path of the run directory, from ``load_script`` on; None before, or if the
        run is not recorded."""
        return self.record.path

    @property
    def given_stream(self) -> Any:
        """The stream ``given`` if anything has used it, otherwise None."""
        return self._given

    def is_the_programs(self, exc: BaseException) -> bool:
        """True if an exception came out of the program: its traceback contains the program's module
        level or requested function."""
        return self.program is not None and self.program.own_part(exc.__traceback__) is not None

    def run_phase(self, phase: Phase) -> Any:
        """Return a context manager for the body of a phase; the start of the phase is logged."""
        self.log({"$event": "phase", "$data": {"name": phase.name}})
        return super().run_phase(phase)

    def _read_conditions(self) -> None:
        """Parse the conditions of ``--require``."""
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
            # of several ranks only rank 0 prints messages; warnings come from every rank
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
                # the run is recorded nevertheless, since the syntax error is the script's own
                self.record.make_directory(argv)
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
                    # This is a child that the script has forked, at the end of the script. The run
                    # and its instruments belong to the parent.
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
        except SystemExit:
            # --help or --version: voirkit ends without a run, so no instrument may be resumed
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
        """Drop all waiting instruments, so that none is resumed."""
        for waiting in self._plan.values():
            waiting.clear()

    def _prepare(self) -> None:
        voirkit.set_current_overseer(self)
        # Create the stream ``given`` when the script imports giving: values that the script gives
        # are counted even if no instrument subscribes.
        when_imported("voirkit.streams", self._report_of_streams)
        when_imported("voirkit.streams.reactive", self._notice_streams)
        when_imported("giving", _load_streams)
        self.record.open_log()
        super()._prepare()
        self._refuse()

    # end of the probes

    def _deactivate(self) -> None:
        if os.getpid() == self._pid:
            run_all([probe.switch_off for probe in reversed(self.probes)], self.warn)

    # the stream ``given``

    def when_given(self, callback: Callable[[Any], None]) -> None:
        """Register a function to call with the stream ``given`` as soon as anything uses it: now,
        later, or never.

        This is for instruments that are always on, and must not import giving for a script that
        gives nothing.
        """
        self._when_given.append(callback)
        if self._given is not None:
            callback(self._given)

    def _make_given(self) -> Any:
        from voirkit import streams

        given = streams.Given()
        if self._given_closed:
            return given  # first used after the run: it receives no values
        given.watch("$event", self.log)
        return given

    def _report_of_streams(self, streams: Any) -> None:
        # Create no stream here: patches import voirkit.streams but need no stream, and importing
        # giving and reactivex would take 170 ms of CPU time and 7,000 live objects.
        if not self._given_closed:
            streams.report = self.warn

    def _notice_streams(self, _: object) -> None:
        if not self._given_closed:
            _ = self.given  # the property creates the stream

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
            self._faults.append(error)  # the script has not started: ``_refuse`` ends the run
        else:
            self.warn(f"{error}\n  It is switched off; the program goes on.")

    def _refuse(self) -> None:
        """Raise the first error that was found before the script starts, which ends the run."""
        if self._faults:
            raise self._faults[0]

    def _on_stop(self, value: object = None) -> None:
        # Hide the instruments that wait for finalize from super(), which would throw StopProgram
        # into them: finalize is executed after a stop as well.
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
            # raised by a signal handler of the program: Python ends with the handler's exception
            self.outcome.end_by(later)
            raise

    def _finish(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child of the script; the run belongs to its parent
        self.record.end_script()  # not called yet if the script failed in ``load_script``
        try:
            self.status = "ended"
            ends = (
                [self._close, self._end_streams]
                if self.outcome.is_refused
                else [self._finalize, self._close]
            )
            run_all([*ends, recording.end, plugins.remove_aliases, self.log.end], self.warn)
        except BaseException as exc:  # re-raised
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
            except Exception as exc:  # an instrument's error, which does not change the outcome
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
            return None  # the program has ended already: there is nothing to stop

    def check_requirements(self) -> None:
        """Check the conditions of ``--require`` against the summary. Of several ranks only rank 0
        does this, since its summary covers all ranks."""
        if rank_and_world_size()[0] == 0:
            failures = [condition.failure(self.summary) for condition in self._required]
            self.outcome.failures += [failure for failure in failures if failure is not None]


def run_all(steps: Iterable[Callable[[], object]], warn: Callable[[str], None]) -> None:
    """Call all functions, even if some raise. At the end the first exception is raised; the others
    are reported as warnings."""
    first: BaseException | None = None
    for step in steps:
        try:
            step()
        except BaseException as exc:  # the first is re-raised below
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
