"""``--what-if NAME[=ARG]``: what a change would win, measured on the script itself, which nobody edits.

The script is run plainly once, which shows the most that the change could win; then in pairs, plain and changed, the order turned from pair
to pair; each run in a process of its own (``record.what_if_child``), quiet, one after the other. What the script writes it writes each
time. The run directory is that of the first plain run, whose summary gets the key ``what_if``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median

from voirkit.errors import CommandLineError
from voirkit.instrument import instrument_definition
from voirkit.report.figure import duration
from voirkit.runs import directory
from voirkit.runs.directory import SUMMARY, read_json, write_json
from voirkit.runs.summary import SCHEMA
from voirkit_instruments.child_run import program_words, started_with
from voirkit_instruments.what_if.analyse_results import Results
from voirkit_instruments.what_if.analyse_statistics import NONE, judge_pairs
from voirkit_instruments.what_if.record_changes import PLAIN, make_change
from voirkit_instruments.what_if.show import HEAD, ceiling, name_of, row, sentences

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer

_SMALL = 0.01
_GRACE_S = 5.0  # for a run that is ended early
_LONGEST_ERROR = 20_000


@dataclass
class RunResult:
    """How a run ended, and what it did.

    Attributes:
        code: Its exit code, as the shell sees it.
        out: The file that holds what it printed on stdout.
        err: The end of what it printed on stderr.
        summary: Its summary; empty if there is none.
    """

    code: int
    out: str
    err: str
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> Mapping[str, Any]:
        """What ``what_if_child`` has noted of it."""
        facts: Mapping[str, Any] = self.summary.get("what_if_run") or {}
        return facts

    @property
    def work_s(self) -> float:
        """Seconds of its work."""
        return float(self.facts["work_s"])

    @property
    def step_s(self) -> float | None:
        """Seconds of its median training step; None if none was seen."""
        time = (self.summary.get("steps") or {}).get("time_s")
        return float(time["median"]) if time else None

    @property
    def why_not(self) -> str:
        """Why its time cannot be compared; empty if it can."""
        if "failed" in self.facts:
            return str(self.facts["failed"])
        if self.code:
            return f"it ended with exit code {self.code}"
        return "" if self.facts.get("work_s") else "it ended without a record of its work (os._exit?)"


class RunFailed(Exception):
    """A run of the script failed: its exit code, and what it printed."""

    def __init__(self, result: RunResult, which: str) -> None:
        super().__init__(f"The {which} run failed: {result.why_not}.")
        self.code, self.err = result.code or 1, result.err


class NothingToChange(Exception):
    """The change has found nothing in the script that it could change; why."""


class Terminated(BaseException):
    """SIGTERM."""


@instrument_definition
def what_if(ov: Overseer, name: str, argument: str | None, pairs: int, steps: int | None) -> Iterator[Phase]:
    """Measure, and end without running the script here."""
    from voirkit.runner.script import module, script

    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
        raise CommandLineError("it runs one process.", where="--what-if", next="Leave out torchrun, or run one rank.")
    if ov.argparser.value(ov.options, "--stop-after") is not None:
        what = "runs that are cut after the same time all take that time."
        raise CommandLineError(
            what, where="--stop-after with --what-if", next="Bound their work: --stop N ends each after N optimizer steps."
        )
    options = ov.options
    if options.require:
        ov.warn("--require is of one run, and is not looked at with --what-if, which makes many.")
    program = script(options.SCRIPT, ()) if options.MODULE is None else module(options.MODULE, ())  # raises if there is none
    run_dir = directory.make(options.run_dir, program.name, options.force)
    folder = tempfile.mkdtemp(prefix="voirkit-what-if-")
    code = 0
    try:
        with _sigterm_raises():
            runner = ScriptRunner(folder, program_words(options), steps)
            code = Experiment(runner, name, argument, folder, run_dir).measure(pairs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.html:
        _write_page(ov, run_dir)
    if code:
        ov.abort(SystemExit(code))
    ov.stop()
    yield ov.phases.parse_args


def _write_page(ov: Overseer, run_dir: str) -> None:
    """The page of the first plain run, with what has been measured."""
    from voirkit.runner import completion

    if not os.path.exists(os.path.join(run_dir, SUMMARY)):  # nothing was measured, which has been reported
        return
    why = completion.page(run_dir)
    if why:
        ov.warn(f"--html: {why.removeprefix('voirkit: ')}")
    else:
        print(f"see it as a page: {os.path.join(run_dir, 'report.html').removeprefix(os.getcwd() + os.sep)}", flush=True)


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """SIGTERM ends the run that goes on, and then the driver."""

    def on_sigterm(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class ScriptRunner:
    """Runs the script once, plain or with a change, in a process of its own that ends with the driver.

    Args:
        folder: A folder for what is needed meanwhile; nothing else may write there.
        script: The script or ``-m MODULE``, and its arguments.
        steps: After how many steps of optimizers each run ends; None: when the script does.
    """

    def __init__(self, folder: str, script: Sequence[str], steps: int | None) -> None:
        self._folder, self._script = folder, list(script)
        self._stop = [] if steps is None else ["--stop", str(steps)]
        self._n = 0

    def run(self, setting: str = PLAIN, run_dir: str | None = None) -> RunResult:
        """Run it once.

        Args:
            setting: ``NAME[=ARG]`` of the change.
            run_dir: The run directory, an empty folder; if left out nothing stays of it but what is returned.

        Raises:
            BaseException: The driver was interrupted; the run has been ended.
        """
        self._n += 1
        kept = run_dir or os.path.join(self._folder, f"run-{self._n}")
        out, err = (os.path.join(self._folder, f"{name}-{self._n}") for name in ("out", "err"))
        words = ["--what-if-setting", setting, *self._stop, *self._script]
        with open(out, "wb") as out_file, open(err, "wb") as err_file:
            process = subprocess.Popen(**started_with(kept, words), stdout=out_file, stderr=err_file)
        try:
            code = process.wait()
        except BaseException:
            _terminate(process)
            raise
        with open(err, "rb") as file:
            file.seek(max(os.path.getsize(err) - _LONGEST_ERROR, 0))
            error = file.read().decode(errors="replace")
        os.unlink(err)
        result = RunResult(128 - code if code < 0 else code, out, error, read_json(os.path.join(kept, SUMMARY), SCHEMA) or {})
        if run_dir is None:
            shutil.rmtree(kept, ignore_errors=True)
        return result


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """End a run that knows of the interruption already, or not: a terminal signals all, ``kill`` only the driver."""
    for signal_it, grace_s in ((process.poll, 2.0), (process.terminate, _GRACE_S), (process.kill, None)):
        with suppress(BaseException):  # interrupted once more: it is ended all the same
            signal_it()
            process.wait(grace_s)
            return


class Experiment:
    """The runs of one change, and what they show.

    Args:
        runner: Runs the script.
        name: The change's.
        argument: Its argument.
        folder: For copies of what the script saves.
        run_dir: The run directory.

    Attributes:
        outcome: ``what_if`` of the summary.
    """

    def __init__(self, runner: ScriptRunner, name: str, argument: str | None, folder: str, run_dir: str) -> None:
        self._runner, self._run_dir = runner, run_dir
        self._change = make_change(name, argument)
        self._setting = name if argument is None else f"{name}={argument}"
        self._results = Results(folder, self._change.exact)
        self._steps: list[tuple[float | None, float | None]] = []
        self._summary: dict[str, Any] = {}
        self._shares: list[float | None] = []
        self.outcome: dict[str, Any] = {
            "name": name, "argument": argument, "ceiling": None, "pairs": [], "median": None, "low": None, "high": None, "spread": None,
            "verdict": None, "because": "", "step": None, "facts": None, "equal": None,
        }  # fmt: skip

    def measure(self, pairs: int) -> int:
        """Run, and report the outcome; returns the exit code."""
        code, outcome = 0, self.outcome
        try:
            self._run_first(pairs)
            if outcome["ceiling"]["share"] != 0:
                self._run_pairs(pairs)
        except RunFailed as exc:
            code, outcome["because"], outcome["verdict"] = exc.code, str(exc), None
            print(exc.err, end="", file=sys.stderr, flush=True)
        except NothingToChange as exc:
            outcome.update(verdict=NONE, because=f"there is nothing to change: {exc}")
        except (KeyboardInterrupt, Terminated) as exc:
            code = 130 if isinstance(exc, KeyboardInterrupt) else 143
            outcome["because"] = f"Interrupted after {len(outcome['pairs'])} of {pairs} pairs."
        if outcome["ceiling"] is None:
            print(outcome["because"])
            return code
        for line in sentences(outcome):
            print(line, flush=True)
        if self._summary:
            write_json(os.path.join(self._run_dir, SUMMARY), {**self._summary, "what_if": outcome})
            print(f"run directory: {self._run_dir.removeprefix(os.getcwd() + os.sep)}")
        return code

    def _run_first(self, pairs: int) -> None:
        """The first plain run: the ceiling, and what the others are compared with."""
        plain = self._run_plain(self._run_dir)
        self._results.add_first(plain)
        self._summary = {key: value for key, value in plain.summary.items() if key != "what_if_run"}
        print(f"what if {name_of(self.outcome)}\n  {ceiling(self.outcome)}")
        share = self.outcome["ceiling"]["share"]
        if share == 0:
            because = f"there is nothing to change, and nothing was run for it: {self.outcome['ceiling']['because']}"
            self.outcome.update(verdict=NONE, because=because)
            return
        if share is not None and share < _SMALL:
            print("  That is less than runs differ by, as a rule: Ctrl-C, if that is not worth the time.")
        whole_s = plain.work_s + plain.facts["set_up_s"]
        print(f"  {2 * pairs} more runs of {duration(whole_s)} and python's start each. Ctrl-C ends with what is known by then.")
        print(HEAD, flush=True)

    def _run_pairs(self, pairs: int) -> None:
        for n in range(1, pairs + 1):
            results = {changed: self._run_one(changed) for changed in ((False, True) if n % 2 else (True, False))}
            plain, changed = results[False], results[True]
            pair = {"plain_s": plain.work_s, "changed_s": changed.work_s, "ratio": changed.work_s / plain.work_s}
            self.outcome["pairs"].append(pair)
            self._steps.append((plain.step_s, changed.step_s))
            shares = [share for share in self._shares if share is not None]
            times = [(pair["plain_s"], pair["changed_s"]) for pair in self.outcome["pairs"]]
            self.outcome.update(judge_pairs(times, max(shares, default=None))._asdict(), step=_compare_steps(self._steps))
            print(row(n, pair), flush=True)

    def _run_one(self, changed: bool) -> RunResult:
        result = self._run_changed() if changed else self._run_plain()
        self._results.add(result, changed)
        self.outcome["equal"] = self._results.compared()
        return result

    def _run_plain(self, run_dir: str | None = None) -> RunResult:
        result = self._runner.run(run_dir=run_dir)
        if result.why_not:
            raise RunFailed(result, "plain")
        most = self._change.ceiling(result.summary)
        self._shares.append(most.share)
        if self.outcome["ceiling"] is None:
            self.outcome["ceiling"] = most._asdict()
        return result

    def _run_changed(self) -> RunResult:
        result = self._runner.run(self._setting)
        if result.why_not:
            raise RunFailed(result, "changed")
        self.outcome["facts"] = facts = result.facts.get("facts") or {}
        if not facts.get("touched"):
            raise NothingToChange(facts.get("because") or "it found nothing to change.")
        return result


def _compare_steps(pairs: Sequence[tuple[float | None, float | None]]) -> dict[str, float] | None:
    """The median steps of plain and of changed runs, and their ratio; None if some run had none."""
    timed = [(plain, changed) for plain, changed in pairs if plain and changed]
    if len(timed) < len(pairs) or not timed:
        return None
    plain_s, changed_s = (median(pair[which] for pair in timed) for which in (0, 1))
    return {"plain_s": plain_s, "changed_s": changed_s, "ratio": changed_s / plain_s}
