"""The Overseer: what an instrument sees as ``ov``, and what leads a run through its phases.

The program comes first: what goes wrong in an instrument is told once and switched off; it never reaches the program.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence

from voirkit import __version__, alias, helpers
from voirkit.errors import EXIT_CHECK_FAILED, VoirkitError, say_as_it_is, tell
from voirkit.imports import when_imported
from voirkit.logstream import LogStream
from voirkit.options import configuration
from voirkit.options.parser import GROUPS, VOIRFILE, ExtendedArgumentParser
from voirkit.options.sizes import size
from voirkit.phases import GivenOverseer, Phase, StopProgram
from voirkit.processes import children
from voirkit.runner import completion, import_times, recording
from voirkit.runner.outcome import as_error, described, do_all, how_it_ended, shown, text_of
from voirkit.runner.script import Program, current_folder, module, script
from voirkit.runs import summary
from voirkit.runs.ranks import rank_and_world_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from typing import Any

    from voirkit.phases import Instrument
    from voirkit.probes import Probe
    from voirkit.runs.conditions import Condition
    from voirkit.runs.record import Record


class Overseer(GivenOverseer):
    """Leads a run through ``init, parse_args, load_script, run_script, finalize``, and is what its instruments work with.

    Args:
        instruments: Functions or generators of the overseer.
        logfile: A file descriptor to send the log to, line by line, or None.
        record: Whether to make a run directory.
        begun_ns: When the run began (``time.perf_counter_ns``), if that was before this is made.

    Attributes:
        phases: The phases; ``yield ov.phases.run_script`` waits for the end of one.
        argparser: Where instruments add their options, after ``yield ov.phases.init``.
        options: The parsed options, after ``parse_args``.
        given: A giving stream of all that is given.
        log: A callable stream of what should leave the process.
        probes: The probes that were made with ``probe``.
        script: What is run, as the user typed it, after ``parse_args``.
        run_dir: Absolute path of the run directory, from ``load_script`` on, or None.
        summary: What becomes ``summary.json``; instruments add to it.
        voirfiles: ``{"path", "sha256"}`` of each voirfile whose instruments take part.
    """

    def __init__(
        self, instruments: Iterable[Instrument] = (), logfile: int | None = None, record: bool = False, begun_ns: int | None = None
    ) -> None:
        self._current: Instrument | None = None
        self._precedences: dict[int, int] = {}  # of instruments that are not a voirfile's, by id
        self.argparser = ExtendedArgumentParser()
        _own_options(self.argparser)
        super().__init__(["init", "parse_args", "load_script", "run_script", "finalize"], args=(self,))
        self.log = LogStream()
        self.options: Namespace
        self.probes: list[Probe] = []
        self.voirfiles: list[dict[str, str]] = []
        self.script: str | None = None
        self.run_dir: str | None = None
        self.summary: dict[str, Any] = summary.empty(__version__)
        self._warnings: list[str] = []
        self.program: Program | None = None
        self.failures: list[str] = []
        self._required: list[Condition] = []  # what the summary must fulfil
        self.table = ""  # the summary of a run that trained, as text
        self._logfile = logfile
        self._recording = record
        self._record: Record | None = None
        self._early: list[str] | None = []  # log lines from before the run directory is made
        self._quiet = False
        self._pid = os.getpid()
        self._ended, self._exit_code = "exception", 1  # until it has come to its end
        self._refused = False  # before the script started
        self._begun_ns = time.perf_counter_ns() if begun_ns is None else begun_ns
        self._script_ended_ns: int | None = None
        self._imports_ns = 0
        self._duration_s = 0.0
        self._traced = False
        self._when_given: list[Callable[[Any], None]] = []
        self._wrong: list[VoirkitError] = []  # found before the script started
        self.require(*instruments)

    def adopt(self, instruments: Iterable[Instrument], precedence: int) -> None:
        """Take in instruments whose options give way to those of a higher precedence (``voirkit.options``: BUILT_IN, PLUGIN, VOIRFILE)."""
        for instrument in instruments:
            self._precedences[id(instrument)] = precedence
            self.require(instrument)

    def _require(self, instrument: Instrument) -> Any:
        if self._current is not None:  # what an instrument requires is of its kind
            self._precedences.setdefault(id(instrument), self._precedences.get(id(self._current), VOIRFILE))
        return super()._require(instrument)

    # what instruments call

    def probe(self, *selectors: str, **options: Any) -> Probe:
        """A probe on variables of the program's functions: a giving stream of what they are set to.

        It is checked before the script starts, and active from the end of ``load_script`` to the end of ``run_script``.

        Args:
            selectors: Such as ``"//train_epoch > loss"``.
            options: ``raw``, ``probe_type``, ``env`` and ``overridable``, as in ``voirkit.probing``.

        Raises:
            SelectorError: A selector can not be read.
        """
        from voirkit.probes import Probe, Scope

        frame = sys._getframe(1)
        options.setdefault("env", Scope(frame))
        probe = Probe(*selectors, where=f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}", **options)
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
        """Give values into ``given``, from any thread; they have arrived when the call returns, in the order of the calls."""
        given = self.given
        import giving

        if given is not None:
            giving.give.produce(data)

    def offer(self, data: dict[str, Any], yielding: bool = False) -> None:
        """Give what voirkit has measured or seen itself: to those who listen in this run, without counting it as given.

        Args:
            data: What to give.
            yielding: Whether nothing is given where the script or a voirfile gives one of the keys itself.
        """
        given = self._given
        if given is not None and not self._given_closed:
            given.offer(data, yielding)

    @property
    def may_be_listened_to(self) -> bool:
        """Whether somebody may subscribe to ``given``, or has: an instrument that is not voirkit's own may do so later."""
        return self._given is not None or any(
            not str(getattr(handler, "__module__", "")).startswith("voirkit") for handler in self.handlers
        )

    def say(self, text: str) -> None:
        """Say something to the user, on stderr; nothing with ``--quiet``."""
        if not self._quiet:
            tell(text)

    def warn(self, text: str) -> None:
        """Tell the user that something is not as it should be, on stderr (also with ``--quiet``) and in the summary; once."""
        if text in self._warnings:
            return
        self._warnings.append(text)
        tell(text)

    def fail(self, reason: str) -> None:
        """Have the run end with exit code 3, unless the script itself fails."""
        self.failures.append(reason)

    # a run

    @property
    def current(self) -> Instrument | None:  # a property, so that the parser knows who adds an option
        """The instrument that runs right now."""
        return self._current

    @current.setter
    def current(self, instrument: Instrument | None) -> None:
        self._current = instrument
        self.argparser.definer = None if instrument is None else described(instrument)
        self.argparser.precedence = self._precedences.get(id(instrument), VOIRFILE)

    @property
    def exit_code(self) -> int:
        """The exit code of the run: the script's own, or 3 if that is 0 and a check failed."""
        return EXIT_CHECK_FAILED if self.failures and self._exit_code == 0 else self._exit_code

    def is_the_programs(self, exc: BaseException) -> bool:
        """Whether an exception came out of the program itself."""
        tb = exc.__traceback__
        while tb is not None and not (self.program is not None and self.program.is_own_frame(tb.tb_frame)):
            tb = tb.tb_next
        return tb is not None

    def run_phase(self, phase: Phase) -> Any:
        """Around the body of a phase; it is logged when it starts."""
        self.log({"$event": "phase", "$data": {"name": phase.name}})
        return super().run_phase(phase)

    def _run(self, argv: Sequence[str]) -> None:
        typed = self.argparser.guess_script(argv)[0]
        with self.run_phase(self.phases.init):
            self._configure(argv, typed)
        self._refuse()
        with self.run_phase(self.phases.parse_args):
            self.options = self._parse(argv)
            self._quiet = bool(self.options.quiet) or rank_and_world_size()[0] > 0  # one rank speaks for all
            if self.options.require:
                from voirkit.runs import conditions

                known = set(self.summary)
                self._required = [conditions.read(text, known) for text in self.options.require]
            self.script = self.options.SCRIPT if self.options.MODULE is None else self.options.MODULE
            self._tell_displaced()
        self._refuse()
        with self.run_phase(self.phases.load_script):
            self.program = self._find(self.options)
            self.program.enter()
            if self._recording:
                alias.install()
            try:
                self.program.compile()
                for probe in self.probes:
                    probe.check(self.program)
            except SyntaxError:
                self._begin_record(argv)  # the script's own failure: a run that is recorded
                raise
            self._begin_record(argv)
            self.program.load()
        self._refuse()
        self._tell_voirfiles()
        with self.run_phase(self.phases.run_script) as set_value:
            try:
                set_value(self.program.run())
            finally:
                self._script_ended_ns = time.perf_counter_ns()
                self._deactivate()
                if os.getpid() != self._pid:
                    self._abandon()  # a forked child came to the end of the script: the run, and its instruments, are its parent's
        self._ended, self._exit_code = "normal", 0

    def _parse(self, argv: Sequence[str]) -> Namespace:
        try:
            return self.argparser.parse_command(list(argv))
        except SystemExit:  # --help, --version: what instruments do after they have added their options is for a run
            self._abandon()
            raise

    def _tell_displaced(self) -> None:
        by: dict[str, list[str]] = {}
        for option, who in self.argparser.displaced.items():
            by.setdefault(who, []).append(option)
        for who, options in by.items():
            self.say(f"note: {', '.join(options)} {'is' if len(options) == 1 else 'are'} of {who} here, not voirkit's own.")

    def _tell_voirfiles(self) -> None:
        if self.voirfiles:
            overridden = [", ".join(probe.selectors) for probe in self.probes if probe.overrides]
            changes = f"; the values of {', '.join(overridden)} are overridden" if overridden else ""
            self.say(f"with {', '.join(os.path.relpath(one['path'], current_folder()) for one in self.voirfiles)}{changes}")

    def _configure(self, argv: Sequence[str], typed: str | None) -> None:
        chosen = self.argparser.early_values(argv, "--config")
        settings = configuration.collect(typed, current_folder(), chosen, search=self._recording)
        self.argparser.apply(settings)

    def _find(self, options: Namespace) -> Program:
        if options.MODULE is not None:
            return module(options.MODULE, options.ARGV)
        return script(options.SCRIPT, options.ARGV)

    def _abandon(self) -> None:
        """Resume no instrument any more."""
        for waiting in self._plan.values():
            waiting.clear()

    def _prepare(self) -> None:
        helpers.set_current_overseer(self)
        # The script may give without any instrument that listens: what is given is counted all the same.
        when_imported("voirkit.streams", self._report_of_streams)
        when_imported("voirkit.streams.reactive", self._notice_streams)
        when_imported("giving", _load_streams)
        self._open_log()
        super()._prepare()
        self._refuse()

    # probes

    def _deactivate(self) -> None:
        if os.getpid() == self._pid:
            do_all([probe.switch_off for probe in reversed(self.probes)], self.warn)

    # the log

    def _open_log(self) -> None:
        from voirkit.runs.lines import DataDescriptor, to_json

        descriptor = DataDescriptor(self._logfile) if self._logfile is not None else None
        self._descriptor = descriptor

        def sink(data: Any) -> None:
            line = to_json(data)
            if descriptor is not None:
                descriptor.write(line)
            if self._record is not None:
                self._record.log(line)
            elif self._early is not None:
                self._early.append(line)

        self.log.to(sink)

    def _begin_record(self, argv: Sequence[str]) -> None:
        if not self._recording:
            self._early = None
            return
        from voirkit.errors import RunDirectoryError
        from voirkit.runs import directory, manifest
        from voirkit.runs.record import Record

        assert self.program is not None
        command = [self.program.name, *self.options.ARGV]
        own = list(argv[: len(argv) - len(command)])
        try:
            path = directory.make(self.options.run_dir, self.program.name, self.options.force)
        except RunDirectoryError as exc:
            if self.options.run_dir is not None:
                raise
            self.warn(f"{exc}\n  This run is not recorded; --run-dir DIR records it elsewhere.")
            self._early = None
            return
        begun = {**manifest.begin(__version__, command, own, current_folder(), self._begun_ns), "voirfiles": self.voirfiles}
        self._record = Record(path, self.warn, begun)
        self.run_dir = path
        self.summary.update(command=command, world_size=begun["world_size"])
        recording.prepare(path, begun["rank"], begun["host"], self.options.trace_limit, self.warn, begun["world_size"])
        for line in self._early or ():
            self._record.log(line)
        self._early = None
        import_times.begin()

    # given

    def when_given(self, callback: Callable[[Any], None]) -> None:
        """Call back with the stream of given values as soon as anything uses it: at once, later, or never.

        For an instrument that is always on, and must not load giving for a script that gives nothing.
        """
        self._when_given.append(callback)
        if self._given is not None:
            callback(self._given)

    def _make_given(self) -> Any:
        from voirkit import streams

        given = streams.Given()
        if self._given_closed:
            return given  # asked for after the run: it hears nothing
        given.where("$event").subscribe(self.log)
        return given

    def _report_of_streams(self, streams: Any) -> None:
        # Patches need this module, and no stream: giving and reactivex, 170 ms of CPU and 7,000 live objects, stay away.
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
        self.log({"$event": "overseer_error", "$data": {"type": type(exc).__name__, "message": text_of(exc)}})
        error = as_error(exc, instrument)
        not_begun = self.phases.load_script.pending or (isinstance(exc, VoirkitError) and self.phases.run_script.pending)
        if not_begun and self.status == "running":
            self._wrong.append(error)  # the script has not started: the user had better know now
        else:
            self.warn(f"{error}\n  It is switched off; the program goes on.")

    def _refuse(self) -> None:
        """End the run, before the script starts, with the first thing that was found wrong."""
        if self._wrong:
            raise self._wrong[0]

    def _on_stop(self, value: object = None) -> None:
        # Those who wait for finalize are resumed by it as ever: it comes after a stop as well.
        waiting, self._plan[self.phases.finalize] = self._plan[self.phases.finalize], []
        super()._on_stop(value)
        self._plan[self.phases.finalize] = waiting
        self._ended, self._exit_code = "normal", 0

    def _on_error(self, exc: BaseException) -> None:
        try:
            self._ended, self._exit_code = how_it_ended(exc)
            self._refused = isinstance(exc, VoirkitError) and not self.is_the_programs(exc)
            self.log({"$event": "error", "$data": {"type": type(exc).__name__, "message": text_of(exc)}})
        except BaseException as later:  # a signal handler of the program's: this is what python ends with
            self._ended, self._exit_code = how_it_ended(later)
            raise

    def _finish(self) -> None:
        if os.getpid() != self._pid:
            return  # a child that the script forked came this far; the run is its parent's
        if self._script_ended_ns is None:
            self._script_ended_ns = time.perf_counter_ns()  # it failed where it only defines
        if self._record is not None:
            self._record.script_ended(self._script_ended_ns)
        try:
            self.status = "ended"
            ends = [self._close, self._end_streams] if self._refused else [self._finalize, self._close]
            do_all([*ends, self._hand_back, self.log.end], self.warn)
        except BaseException as exc:
            self._ended, self._exit_code = how_it_ended(exc)
            raise
        finally:
            self._end_record()
            import_times.end()
            if self._traced:
                recording.go_on()
            if self.program is not None:
                self.program.release()
            if getattr(self, "_descriptor", None) is not None:
                self._descriptor.close()  # type: ignore[union-attr]  # just tested
            helpers.set_current_overseer(None)

    def _finalize(self) -> None:
        with self.run_phase(self.phases.finalize):
            ends = [probe.end for probe in self.probes]
            do_all([self._deactivate, *ends, self._end_streams, self._end_trace], self.warn)

    def _hand_back(self) -> None:
        recording.end()
        alias.remove()

    def _end_trace(self) -> None:
        """Nothing is recorded from here on."""
        recorder = sys.modules.get(recording.RECORDER)
        if recorder is not None and recorder.has_recorded():
            import_times.record()
        self._imports_ns = import_times.end()
        totals = recording.end()
        if totals is None or self._record is None:
            return
        self._duration_s = self._record.duration_s  # what follows is no part of the run
        summary.add_trace(self.summary, totals, self._duration_s)
        self._traced = True

    def _step(self, generator: Any, phase: Phase, throw: bool) -> Any:
        try:
            return super()._step(generator, phase, throw)
        except StopProgram:
            if self.phases.finalize.pending:
                raise
            return None  # there is nothing left to stop

    def _end_record(self, late: bool = False) -> None:
        if self._record is None:
            return
        try:
            self._summarise()
            if self._traced or completion.are_there(self._record.path):  # by processes that the script has started
                self._record.end(self._ended, self.exit_code, self.summary)  # read by what completes it
                self._complete(self._record)
            if not late and children.has_running_children():
                self.say("processes that the script has started still run: what they do is reported when they have ended.")
                children.after_children(self._complete_late)
            if not late:
                self._check()
            self._record.end(self._ended, self.exit_code, {**self.summary, "warnings": self._warnings, "exit_code": self.exit_code})
        except Exception as exc:  # an instrument may have put anything into the summary
            self.warn(f"the summary cannot be written ({type(exc).__name__}: {text_of(exc)}).")

    def _complete(self, record: Record) -> None:
        """Have steps and verdict put into the summary, and what was recorded become what can be read fast."""
        draw = None if self._quiet else (*_columns(), record.path.removeprefix(current_folder() + os.sep))
        rank = record.manifest["rank"]
        if record.is_whole:  # else nothing can be written there, which has been told
            before = os.times()
            completed, self.table = completion.finish(record.path, rank, self.warn, draw)
            after = os.times()
            self.summary = completed or self.summary
            # Of all children: the only one that ends meanwhile.
            used = after.children_user + after.children_system - before.children_user - before.children_system
            cost = self.summary["overhead"]
            cost["completing_s"] = round(used, 3)
            cost.setdefault("parts", {})["completing"] = {"seconds": cost["completing_s"]}
        self._warnings += [text for text in self.summary["warnings"] if text not in self._warnings]
        dropped = self.summary["dropped"]
        for name, n in completion.dropped_by_others(record.path, rank).items():
            dropped[name] = dropped.get(name, 0) + n
        for line in completion.lost(dropped):
            self.warn(line)

    def _complete_late(self) -> None:
        """Python has waited for the processes that the script had left behind: they are part of the run."""
        if self._record is None or os.getpid() != self._pid:
            return
        recording.end_late()
        self._record.script_ended(time.perf_counter_ns())
        self._duration_s = self._record.duration_s
        self._end_record(late=True)
        say_as_it_is(self.table)

    def _wall(self) -> dict[str, Any] | None:
        """The account of the wall time as far as it is known without steps; whatever completes the record knows more."""
        if self._record is None:
            return None
        from voirkit.runs.wall import Moments, without_steps

        return without_steps(Moments(self._record.manifest), self._duration_s, {"import": self._imports_ns * 1e-9})

    def _check(self) -> None:
        """Hold the conditions of ``--require`` against the summary; of several ranks the first does, which has that of all."""
        if rank_and_world_size()[0] > 0:
            return
        self.failures += [failure for condition in self._required if (failure := condition.failure(self.summary)) is not None]

    def _summarise(self) -> None:
        if self.summary.get("loss"):
            from voirkit.runs.alerts import alerts

            self.summary["alerts"] = alerts(self.summary)
        given = self._given
        if self._record is not None and not self._duration_s:
            self._duration_s = self._record.duration_s
        self.summary["wall"] = self._wall()
        for key, value in summary.empty(__version__).items():
            self.summary.setdefault(key, value)
        self.summary.update(
            warnings=self._warnings,
            exit_code=self.exit_code,
            script_exit_code=self._exit_code,
            ended=self._ended,
            duration_s=self._duration_s or None,
            given={} if given is None else {k: n for k, n in given.counts.items() if not str(k).startswith("$")},
            probes=[
                {"selector": ", ".join(p.selectors), "where": p.site or p.made_at, "events": p.events, "overrides": p.overrides}
                for p in self.probes
            ],
            dropped={**self.summary["dropped"], **{", ".join(p.selectors): p.dropped for p in self.probes if p.dropped}},
        )  # fmt: skip


def _columns() -> tuple[int, bool]:
    """How wide the terminal is that shows what is said on stderr, and whether it is one."""
    try:
        return min(os.get_terminal_size(2).columns, 120), True
    except OSError:
        return 100, False


def _load_streams(_: object) -> None:
    __import__("voirkit.streams.reactive")


def _own_options(parser: ExtendedArgumentParser) -> None:
    parser.epilog = "An optional [VALUE] is attached with '=': --monitor=0.5. voirkit's options stand before SCRIPT."
    add = parser.add_argument
    add("--version", action="version", version=f"voirkit {__version__}", help="print voirkit's version and exit")
    add("--config", action="append", default=[], metavar="FILE", help="read options from a TOML, YAML or JSON file (repeatable)")
    add("--follow", action="store_true", help="SCRIPT is a shell script: run each python that it starts under voirkit, torchrun's too")
    for title in GROUPS:
        parser.group(title)
    require = 'exit with code 3 if the run misses a target: "train_rate>=500", "memory<2GB", any figure of summary.json (repeatable)'
    parser.group("CI").add_argument("--require", action="append", default=[], metavar="CONDITION", help=require)
    add = parser.group("output").add_argument
    add("--run-dir", metavar="DIR", help="directory to record the run in (default: voirkit-runs/<time>-<script>)")
    add("--force", action="store_true", help="replace the run in --run-dir")
    limit = "disk space for the trace, such as 500MB; events beyond it are only counted (default: 4GB)"
    add("--trace-limit", type=size, default=recording.LIMIT, metavar="SIZE", help=limit)
    add("--html", action="store_true", help="also write the report as one HTML page, report.html in the run directory")
    add("--quiet", action="store_true", help="print errors and warnings only")
