"""The record of a run: its outcome, its log from the first line on, its run directory (made when
the script is known), and its summary."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from voirkit import __version__
from voirkit.errors import (
    EXIT_CHECK_FAILED,
    PartFailures,
    RunDirectoryError,
    VoirkitError,
    say_as_it_is,
)
from voirkit.processes import children
from voirkit.runner import completion, recording
from voirkit.runner.script import current_folder, shorten
from voirkit.runner.voirfiles import text_of
from voirkit.runs import summary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from voirkit.runner.overseer import Overseer
    from voirkit.runs.record import DataDescriptor, Record


class Outcome:
    """The outcome of a program's run.

    Attributes:
        ended: ``normal``, ``exit``, ``exception`` or ``signal``.
        script_exit_code: The script's own exit code, as the shell sees it.
        is_refused: True if voirkit ended the run because of an error that is not the program's.
        failures: Messages about checks that failed.
    """

    def __init__(self) -> None:
        self.ended, self.script_exit_code = "exception", 1  # until the program has ended
        self.is_refused = False
        self.failures: list[str] = []

    @property
    def exit_code(self) -> int:
        """The exit code of the run: the script's, or 3 if the script's is 0 and a check failed."""
        return (
            EXIT_CHECK_FAILED
            if self.failures and self.script_exit_code == 0
            else self.script_exit_code
        )

    def end_normally(self) -> None:
        """Record that the program ended normally, or that an instrument stopped it."""
        self.ended, self.script_exit_code = "normal", 0

    def end_by(self, exc: BaseException) -> None:
        """Record that an exception ended the program."""
        if isinstance(exc, SystemExit):
            code = exc.code
            self.ended, self.script_exit_code = (
                "exit",
                0 if code is None else code & 0xFF if isinstance(code, int) else 1,
            )
        elif isinstance(exc, KeyboardInterrupt):
            self.ended, self.script_exit_code = "signal", 130  # 128 + SIGINT
        else:
            self.ended, self.script_exit_code = (
                "exception",
                exc.exit_code if isinstance(exc, VoirkitError) else 1,
            )


class RunRecord:
    """The record of an overseer's run.

    Args:
        logfile: A file descriptor to which the log is written line by line, or None.
        has_directory: Whether to make a run directory.
        begun_ns: The start of the run (``time.perf_counter_ns``).
    """

    def __init__(
        self, ov: Overseer, logfile: int | None, has_directory: bool, begun_ns: int
    ) -> None:
        self._ov, self._logfile, self._begun_ns = ov, logfile, begun_ns
        self._pid = os.getpid()
        self.path: str | None = None  # absolute path of the run directory, or None
        self.table = ""  # the report for the terminal; empty if nothing was recorded
        self._files: Record | None = None
        # log lines to write when the run directory is made; None afterwards, or without a directory
        self._early: list[str] | None = [] if has_directory else None
        self._descriptor: DataDescriptor | None = None
        self._script_ended_ns: int | None = None
        self._imports_ns = 0
        self._duration_s = 0.0
        self._has_trace = False
        # number of records of other processes, by segment, at the end of the run
        self._records_of_others: dict[str, int] = {}

    def open_log(self) -> None:
        """Write all entries of the log from now on to the log's file descriptor and the run
        directory."""
        from voirkit.runs.record import DataDescriptor, to_json

        descriptor = self._descriptor = (
            DataDescriptor(self._logfile) if self._logfile is not None else None
        )

        def sink(data: Any) -> None:
            line = to_json(data)
            if descriptor is not None:
                descriptor.write(line)
            if self._files is not None:
                self._files.log(line)
            elif self._early is not None:
                self._early.append(line)

        self._ov.log.to(sink)

    def make_directory(self, argv: Sequence[str]) -> None:
        """Make the run directory, and start to record spans and imports into it."""
        early, self._early = self._early, None
        if early is None:
            return
        from voirkit.runs import directory, manifest
        from voirkit.runs.record import Record

        ov = self._ov
        assert ov.program is not None
        options, command = ov.options, [ov.program.name, *ov.options.ARGV]
        try:
            path = directory.create(options.run_dir, ov.program.name, options.force)
        except RunDirectoryError as exc:
            if options.run_dir is not None:
                raise
            ov.warn(f"{exc}\n  This run is not recorded; --run-dir DIR records it elsewhere.")
            return
        own_words = list(argv[: len(argv) - len(command)])
        start = {
            **manifest.create(__version__, command, own_words, current_folder(), self._begun_ns),
            "voirfiles": ov.voirfiles,
        }
        if ov.program.source_names:
            start["source_names"] = dict(ov.program.source_names)
        if earlier := manifest.attempts(directory.read_manifest(path)):
            start["attempts"] = earlier
            if start["rank"] == 0:
                directory.remove_summary(path)
        self.path, self._files = path, Record(path, ov.warn, start)
        ov.summary.update(command=command, world_size=start["world_size"])
        recording.prepare(
            path, start["rank"], start["host"], options.trace_limit, ov.warn, start["world_size"]
        )
        for line in early:
            self._files.log(line)
        recording.time_imports()

    def end_script(self) -> None:
        """Note the time at which the script has ended; later calls do not change it."""
        if self._script_ended_ns is None:
            self._script_ended_ns = time.perf_counter_ns()
        if self._files is not None:
            self._files.script_ended(self._script_ended_ns)

    def end_trace(self) -> None:
        """End the recording of spans and imports, and add its totals to the summary."""
        recorder = sys.modules.get(recording.RECORDER)
        if recorder is not None:
            # The recorder is imported when the program imports torch. Write the imports to it, so
            # that a program that only imports torch has a report too.
            recording.record_imports()
        self._imports_ns = recording.end_imports()
        if self._files is not None:
            self._files.manifest["moments"]["imports_ns"] = self._imports_ns
        totals = recording.end()
        if totals is not None and self._files is not None:
            self._duration_s = self._files.duration_s  # now: what follows is not part of the run
            summary.add_trace(self._ov.summary, totals, self._duration_s)
            self._has_trace = True

    def end(self) -> None:
        """Write the summary, and go on recording what happens after the run."""
        self._write()
        recording.end_imports()
        if self._has_trace:
            recording.go_on(bool(self._ov.options.compact))
        if self._descriptor is not None:
            self._descriptor.close()

    def _write(self, late: bool = False) -> None:
        ov, files = self._ov, self._files
        if files is None:
            return
        try:
            self._summarise(files)
            if self._has_trace or self._can_be_completed(files):
                # the process that ``_complete`` starts reads the files that this writes
                files.end(ov.outcome.ended, ov.exit_code, ov.summary)
                self._complete(files)
            if not late and ov.summary.get("unrecorded_processes") and not _training(ov.summary)[0]:
                verdict = summary.no_steps(ov.summary["unrecorded_processes"])
                ov.warn(f"{verdict['because']}\n  {verdict['next']}")
            if (
                not late
                and children.has_running_children()
                and children.after_children(self._complete_late)
            ):
                self._records_of_others = completion.records_of_others(files.path)
                ov.say(
                    "processes that the script has started still run: if they train on, a second"
                    " report follows when they have ended."
                )
            if not late:
                ov.check_requirements()
            files.end(
                ov.outcome.ended,
                ov.exit_code,
                {**ov.summary, "warnings": ov.warnings, "exit_code": ov.exit_code},
            )
        except Exception as exc:  # an instrument may have put anything into the summary
            ov.warn(f"the summary cannot be written ({type(exc).__name__}: {text_of(exc)}).")

    def _can_be_completed(self, files: Record) -> bool:
        """True if there are records, possibly of child processes, or if this is rank 0 and has
        sections to draw."""
        return completion.has_records(files.path) or bool(
            self._ov.summary.get("sections") and not files.manifest["rank"]
        )

    def _complete(self, files: Record) -> None:
        """Have another process add steps and verdict to the summary."""
        ov, rank = self._ov, files.manifest["rank"]
        if files.is_whole:  # False after a failed write, of which the user has been warned
            before = os.times()
            draw = None if ov.is_quiet else (*_terminal(), shorten(files.path))
            if self._can_be_completed(files):
                completed, self.table = completion.finish(
                    files.path, rank, ov.warn, draw, bool(ov.options.compact)
                )
                ov.summary = completed or ov.summary
            after = os.times()
            # ``children_*`` is the CPU time of all child processes that have ended. Since
            # ``before``, only the completing process has.
            usage = (
                after.children_user
                + after.children_system
                - before.children_user
                - before.children_system
            )
            cost = ov.summary["overhead"]
            cost["completing_s"] = round(usage, 3)
            cost.setdefault("parts", {})["completing"] = {"seconds": cost["completing_s"]}
        ov.warnings += [text for text in ov.summary["warnings"] if text not in ov.warnings]
        for line in completion.describe_dropped(ov.summary["dropped"]):
            ov.warn(line)

    def _complete_late(self) -> None:
        """Complete the record again, after Python has waited for processes that the script left
        running.

        What these have recorded since is part of the run. If they have recorded nothing, such as
        idle workers of joblib, nothing changes.
        """
        if self._files is None or os.getpid() != self._pid:
            return
        if completion.records_of_others(self._files.path) == self._records_of_others:
            return
        trained = _training(self._ov.summary)
        recording.end_late()
        self._files.script_ended(time.perf_counter_ns())
        self._duration_s = self._files.duration_s
        self._write(late=True)
        if _training(self._ov.summary) != trained:
            say_as_it_is(self.table)

    def _summarise(self, files: Record) -> None:
        """Add the facts that this process knows to the summary; ``_complete`` adds the others."""
        ov = self._ov
        if ov.summary.get("loss"):
            from voirkit.findings import alerts_of, findings_of

            findings = findings_of(ov.summary, PartFailures())
            documents = [finding.document() for finding in findings]
            ov.summary.update(findings=documents, alerts=alerts_of(findings))
        self._duration_s = self._duration_s or files.duration_s
        for key, value in summary.empty(__version__).items():
            ov.summary.setdefault(key, value)
        if "unrecorded_processes" in ov.summary and ov.summary["steps"] is None:
            ov.summary["verdict"] = summary.no_steps(ov.summary["unrecorded_processes"])
        moments = summary.Moments(files.manifest)
        imports_s = {"import": self._imports_ns * 1e-9}
        ov.summary.update(
            wall=summary.without_steps(moments, self._duration_s, imports_s),
            warnings=ov.warnings,
            exit_code=ov.exit_code,
            script_exit_code=ov.outcome.script_exit_code,
            ended=ov.outcome.ended,
            duration_s=self._duration_s or None,
            given=self._given_counts(),
            probes=[
                {
                    "selector": ", ".join(p.selectors),
                    "where": p.site or p.made_at,
                    "events": p.events,
                    "overrides": p.overrides,
                }
                for p in ov.probes
            ],
            dropped={**ov.summary["dropped"], **self._dropped_by_probe()},
        )

    def _given_counts(self) -> dict[Any, int]:
        """Return the number of times that each key was given, without voirkit's own keys."""
        stream = self._ov.given_stream
        if stream is None:
            return {}
        return {key: n for key, n in stream.counts.items() if not str(key).startswith("$")}

    def _dropped_by_probe(self) -> dict[str, int]:
        return {", ".join(p.selectors): p.dropped for p in self._ov.probes if p.dropped}


def _training(of_run: Mapping[str, Any]) -> tuple[int, int]:
    """Return the numbers of training steps and of evaluation batches in all processes of a run."""
    steps = of_run["steps"] or {}
    evaluation = of_run["evaluation"] or {}
    return steps.get("n", 0), evaluation.get("n", 0)


def _terminal() -> tuple[int, bool]:
    """Return the width of the terminal on stderr, at most 120 columns, and True. If stderr is not a
    terminal, return 100 and False."""
    try:
        return min(os.get_terminal_size(2).columns, 120), True
    except OSError:
        return 100, False
