"""What is kept of a run: how it ended, its log from the first line on, its directory once there is
a script to run, and its summary."""

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
    """How the run of a program ended. ``ended``: ``normal``, ``exit``, ``exception`` or ``signal``;
    ``script_exit_code``: the script's own, as the shell sees it."""

    def __init__(self) -> None:
        self.ended, self.script_exit_code = "exception", 1  # until it has ended
        self.is_refused = False  # whether something wrong was found before the script started
        self.failures: list[str] = []  # checks that failed

    @property
    def exit_code(self) -> int:
        """The script's own, or 3 if that is 0 and a check failed."""
        return (
            EXIT_CHECK_FAILED
            if self.failures and self.script_exit_code == 0
            else self.script_exit_code
        )

    def end_normally(self) -> None:
        """The program ended, or was stopped by an instrument."""
        self.ended, self.script_exit_code = "normal", 0

    def end_by(self, exc: BaseException) -> None:
        """An exception ended the program."""
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
    """The record of the run that an overseer leads.

    Args:
        logfile: A file descriptor to send the log to, line by line, or None.
        has_directory: Whether to make a run directory.
        begun_ns: When the run began (``time.perf_counter_ns``).
    """

    def __init__(
        self, ov: Overseer, logfile: int | None, has_directory: bool, begun_ns: int
    ) -> None:
        self._ov, self._logfile, self._begun_ns = ov, logfile, begun_ns
        self._pid = os.getpid()
        self.path: str | None = None  # absolute path of the run directory, or None
        self.table = ""  # the summary of a run that recorded something, as text
        self._files: Record | None = None
        # log lines from before the run directory is made
        self._early: list[str] | None = [] if has_directory else None
        self._descriptor: DataDescriptor | None = None
        self._script_ended_ns: int | None = None
        self._imports_ns = 0
        self._duration_s = 0.0
        self._has_trace = False
        self._records_of_others: dict[str, int] = {}  # by segment, at the run's end

    def open_log(self) -> None:
        """Have what is logged written from now on."""
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
        """Make the run directory, and have spans recorded into it."""
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
        """Note that the script has ended, the first time."""
        if self._script_ended_ns is None:
            self._script_ended_ns = time.perf_counter_ns()
        if self._files is not None:
            self._files.script_ended(self._script_ended_ns)

    def end_trace(self) -> None:
        """Nothing is recorded from here on."""
        recorder = sys.modules.get(recording.RECORDER)
        if recorder is not None:
            # the recorder is loaded with torch: a program that does nothing with it has a report
            # too
            recording.record_imports()
        self._imports_ns = recording.end_imports()
        if self._files is not None:
            self._files.manifest["moments"]["imports_ns"] = self._imports_ns
        totals = recording.end()
        if totals is not None and self._files is not None:
            self._duration_s = self._files.duration_s  # what follows is not part of the run
            summary.add_trace(self._ov.summary, totals, self._duration_s)
            self._has_trace = True

    def end(self) -> None:
        """Write the summary, and have what comes after the run recorded as well."""
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
                files.end(ov.outcome.ended, ov.exit_code, ov.summary)  # read by what completes it
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
        """Whether there are records, maybe of processes that the script has started, or sections of
        rank 0 to be drawn."""
        return completion.has_records(files.path) or bool(
            self._ov.summary.get("sections") and not files.manifest["rank"]
        )

    def _complete(self, files: Record) -> None:
        """Have steps and verdict put into the summary."""
        ov, rank = self._ov, files.manifest["rank"]
        if files.is_whole:  # else nothing can be written there, of which the user has been warned
            before = os.times()
            draw = None if ov.is_quiet else (*_terminal(), shorten(files.path))
            if self._can_be_completed(files):
                completed, self.table = completion.finish(
                    files.path, rank, ov.warn, draw, bool(ov.options.compact)
                )
                ov.summary = completed or ov.summary
            after = os.times()
            # Of all children: the only one that ends meanwhile.
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
        """Python has waited for the processes that the script had left behind: what they have done
        since is part of the run. Workers that only waited for work, those of joblib for example,
        change nothing."""
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
        """Put the run's own facts into the summary; what completes the record knows more."""
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
        """How often each key was given, but for voirkit's own."""
        stream = self._ov.given_stream
        if stream is None:
            return {}
        return {key: n for key, n in stream.counts.items() if not str(key).startswith("$")}

    def _dropped_by_probe(self) -> dict[str, int]:
        return {", ".join(p.selectors): p.dropped for p in self._ov.probes if p.dropped}


def _training(of_run: Mapping[str, Any]) -> tuple[int, int]:
    """How many batches a run has trained with and evaluated, in all of its processes."""
    steps = of_run["steps"] or {}
    evaluation = of_run["evaluation"] or {}
    return steps.get("n", 0), evaluation.get("n", 0)


def _terminal() -> tuple[int, bool]:
    """How wide the terminal is that shows what is said on stderr, and whether it is one."""
    try:
        return min(os.get_terminal_size(2).columns, 120), True
    except OSError:
        return 100, False
