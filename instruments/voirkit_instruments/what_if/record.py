"""``--what-if NAME[=ARG]``: what a change would win, measured on the script itself, which nobody
edits.

The script is run plainly once, which shows the most that the change could win; then in rounds: once
plainly and once with each value of the change (``workers=2,4``; most have one), the order turned
from round to round. The plain run makes a pair with each of the others. Each run is a process of
its own (``--what-if-setting``, which nobody else should use), quiet, one after the other. What the
script writes it writes each time. The run directory is that of the first plain run, whose summary
gets the key ``what_if``.

A run makes the change, counts the optimizer's steps (``--stop``), times the script's work, and
keeps what is compared afterwards: losses, the files that torch.save wrote. All of it is in the
run's summary under ``what_if_run``. Plain runs do the same but for the change.

The time of the work begins where the script first asks a loader for batches, or first goes
backward: what is imported and set up before that takes seconds, differs by as much from run to run,
and is none of what a change could touch. It ends when the script has, all that the change has put
off is done, and the GPU has nothing left to do.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median
from types import ModuleType
from typing import Any

from voirkit.errors import CommandLineError
from voirkit.imports import when_imported
from voirkit.instrument import instrument_definition
from voirkit.intercept import ThreadState
from voirkit.report import duration
from voirkit.runs import directory
from voirkit.runs import thresholds as limits
from voirkit.runs.directory import SUMMARY, read_json, write_json
from voirkit.runs.summary import SCHEMA
from voirkit_instruments.resources import threads_waited_s
from voirkit_instruments.values import is_readable
from voirkit_instruments.what_if.analyse_results import Results
from voirkit_instruments.what_if.record_changes import PLAIN, make_change, values_of
from voirkit_instruments.what_if.show import HEAD, ceiling, name_of, row, sentences, value_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.runner.overseer import Overseer
    from voirkit_instruments.steps.events import FunctionPatches


MOST_LOSSES = 10_000  # that are kept


@instrument_definition
def what_if_child(
    ov: Overseer, name: str, argument: str | None, steps: int | None
) -> Iterator[PhaseWithPriority]:
    """Run with a change, or without.

    Args:
        name: The change's, or ``PLAIN``.
        argument: The text behind ``=``.
        steps: How many steps of optimizers are made: what comes up to the next still is a part of
            the run.
    """
    from voirkit_instruments.early_stop.record import Stopper
    from voirkit_instruments.steps.events import FunctionPatches
    from voirkit_instruments.what_if.record_changes import make_change

    _end_with_the_driver()
    observer, stopper = RunObserver(), Stopper(ov)
    patches = FunctionPatches(lambda _: None)  # what cannot be watched is not among the facts
    change = None if name == PLAIN else make_change(name, argument)
    hooks: list[Any] = []
    left = -1 if steps is None else steps

    def before_step(*_: object) -> None:
        nonlocal left
        if left == 0:
            observer.facts["stopped"] = True
            stopper.now()
        left -= 1
        observer.facts["steps"] += 1

    observer.watch(patches)
    when_imported(
        "torch.optim.optimizer",
        lambda module: hooks.append(module.register_optimizer_step_pre_hook(before_step)),
    )
    if change is not None:
        change.install(patches)
    yield ov.phases.load_script(priority=-1000)
    observer.began_ns = time.perf_counter_ns()
    try:
        yield ov.phases.run_script(priority=1000)
    finally:
        stopper.end()
        facts = observer.facts
        try:
            if change is not None:
                change.end()
        except BaseException as exc:  # of any change; the run has ended
            facts["failed"] = f"{type(exc).__name__}: {exc}"
            ov.warn(f"--what-if {name}: {facts['failed']}")
        observer.wait_for_devices()
        end_ns = time.perf_counter_ns()
        facts["waited_s"] = observer.waited_s()
        facts["work_s"] = (end_ns - (observer.works_ns or observer.began_ns)) / 1e9
        facts["set_up_s"] = (
            (observer.works_ns - observer.began_ns) / 1e9 if observer.works_ns else 0.0
        )
        if change is not None:
            facts["facts"] = change.facts()
        observer.end()
        patches.remove()
        for hook in hooks:
            hook.remove()
        ov.summary["what_if_run"] = {"change": name, "argument": argument, **facts}


def _end_with_the_driver() -> None:
    """A driver that is killed leaves no run behind: this one gets SIGTERM then. Processes that it
    forks do not."""
    import ctypes

    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))  # PR_SET_PDEATHSIG


class RunObserver:
    """What a run did that is compared with another.

    Attributes:
        facts: What ``what_if_run`` of the summary holds.
        began_ns: When the script began.
        works_ns: When it first asked for batches or went backward; 0 if it did neither.
    """

    began_ns = works_ns = 0
    _waited_before_s: float | None = None  # how long threads had waited for processors by then

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {
            "steps": 0,
            "stopped": False,
            "saves": 0,
            "saving_s": 0.0,
            "cuda": False,
            "threads": None,
        }
        self._losses: list[Any] = []
        # path -> device and number of the file, as far as it is there
        self._files: dict[str, tuple[int, int] | None] = {}
        self._torch: ModuleType | None = None
        self._n = 0

    def watch(self, patches: FunctionPatches) -> None:
        """Begin as soon as torch is there."""
        from voirkit.probes.around import Around
        from voirkit_instruments.steps.events import COMPILING

        saving, facts = ThreadState(), self.facts

        def begin_work() -> int:
            if not self.works_ns:
                self._waited_before_s = threads_waited_s()
                self.works_ns = time.perf_counter_ns()
            return 1

        def enter_backward(tensors: Any) -> int:
            begin_work()
            with suppress(Exception):  # not what torch takes either: it says what is wrong
                self._note_losses(tensors)
            return 1

        def enter_save(f: Any) -> int:
            saving.inside = 1
            return time.perf_counter_ns()

        def leave_save(begin_ns: int, was: int, f: Any) -> None:
            saving.inside = was
            if begin_ns:
                facts["saves"] += 1
                facts["saving_s"] += (time.perf_counter_ns() - begin_ns) / 1e9
                self._note_file(f)

        def leave(*_: object) -> None:
            pass

        def on_torch(torch: ModuleType) -> None:
            self._torch = torch
            walk = Around(ThreadState(), 0, enter_backward, leave, ("tensors",), plain=COMPILING)
            patches.around_now(torch.autograd, "backward", walk)
            patches.around_now(
                torch.serialization,
                "save",
                Around(saving, 0, enter_save, leave_save, ("f",), plain=COMPILING),
            )
            iterate = Around(ThreadState(), 0, begin_work, leave, plain=COMPILING)
            patches.around_path("torch.utils.data.dataloader", "DataLoader.__iter__", iterate)

        patches.when_imported("torch", on_torch)

    def _note_losses(self, tensors: Any) -> None:
        for tensor in (tensors,) if hasattr(tensors, "detach") else tensors:
            self._n += 1
            if len(self._losses) < MOST_LOSSES:
                if not is_readable(sys.modules["torch"], tensor):
                    continue
                value = tensor.detach()
                value = value if value.numel() == 1 else value.float().mean()
                # Reading it from a device would wait for it; the copy is made there.
                self._losses.append(value.item() if value.device.type == "cpu" else value.clone())

    def _note_file(self, file: Any) -> None:
        with suppress(OSError, ValueError, TypeError):  # an object of the program's own
            name = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
            if isinstance(name, str | os.PathLike):
                path = os.path.abspath(os.fspath(name))
                self._files[path] = _identity(path)

    def waited_s(self) -> float | None:
        """How long threads have waited for processors since the work began; None where that is not
        known."""
        now_s = threads_waited_s()
        return (
            None
            if now_s is None or self._waited_before_s is None
            else max(now_s - self._waited_before_s, 0.0)
        )

    def wait_for_devices(self) -> None:
        """What has been started on GPUs is a part of the run's work."""
        if self._torch is not None and self._torch.cuda.is_initialized():
            with suppress(Exception):  # the program's own failure, which it has met
                self._torch.cuda.synchronize()

    def end(self) -> None:
        """Put losses and files into ``facts``."""
        if self._torch is not None:
            self.facts.update(
                cuda=bool(self._torch.cuda.is_available()), threads=self._torch.get_num_threads()
            )
        losses: list[float | None] = []
        for loss in self._losses:
            try:
                losses.append(float(loss))
            except Exception:  # complex, or of a device that is gone
                losses.append(None)
        self.facts["losses"] = {"n": self._n, "kept": losses}
        self.facts["files"] = [
            {"path": path, "file": _identity(path) or was} for path, was in self._files.items()
        ]


def _identity(path: str) -> tuple[int, int] | None:
    """What a file is under all its names; None if it is not there."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    changes, setting, pairs = options["what_if"], options["what_if_setting"], options["pairs"]
    steps = ov.argparser.value(ov.options, "--stop")
    if setting is not None:
        name, equals, argument = setting.partition("=")
        return what_if_child(name, argument if equals else None, steps)(ov)
    if not changes:
        raise CommandLineError(
            "--pairs is about --what-if, which is not asked for.",
            next=f"voirkit --what-if NAME --pairs {pairs} SCRIPT",
        )
    if len(changes) > 1:
        raise CommandLineError(
            "one change at a time can be held against the script as it is.",
            where="--what-if, given twice",
        )

    return what_if(*changes[0], pairs or 5, steps)(ov)


_SMALL = 0.01
_AS_QUICK = 1.03  # as the quickest: single runs are no more exact
_GRACE_S = 5.0  # for a run that is ended early
_LONGEST_ERROR = 20_000


@dataclass
class RunResult:
    """How a run ended, and what it did."""

    code: int  # as the shell sees it
    out: str  # the file that holds what it printed on stdout
    err: str  # the end of what it printed on stderr
    summary: Mapping[str, Any] = field(default_factory=dict)  # empty if there is none

    @property
    def facts(self) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = self.summary.get("what_if_run") or {}
        return facts

    @property
    def work_s(self) -> float:
        """Seconds of its work."""
        return float(self.facts["work_s"])

    @property
    def once_s(self) -> float:
        """Seconds that the change itself took, once in the run."""
        return float((self.facts.get("facts") or {}).get("once_s") or 0.0)

    @property
    def held_up(self) -> float:
        """Which share of its work is at most due to other programs: for which its threads waited
        for processors that those had."""
        others_share = (self.summary.get("processors") or {}).get("others_share") or 0.0
        share = min((self.facts.get("waited_s") or 0.0) / self.work_s, 1.0)
        return share if others_share >= limits.OTHER_PROGRAMS and share >= limits.WAITED else 0.0

    @property
    def step_s(self) -> float | None:
        """Seconds of its median training step; None if none was seen."""
        time = (self.summary.get("steps") or {}).get("time_s")
        return float(time["median"]) if time else None

    @property
    def rate(self) -> float | None:
        """Items per second of its steps; None if that is not known."""
        rate = (self.summary.get("rates") or {}).get("train_rate")
        return rate["value"] if rate else None

    @property
    def wait(self) -> float | None:
        """Share of its steps spent waiting for batches; None if none was seen."""
        phases = (self.summary.get("steps") or {}).get("phases")
        return phases["wait"]["share"] if phases else None

    @property
    def why_not(self) -> str:
        """Why its time cannot be compared; empty if it can."""
        if "failed" in self.facts:
            return str(self.facts["failed"])
        if self.code:
            return f"it ended with exit code {self.code}"
        return (
            "" if self.facts.get("work_s") else "it ended without a record of its work (os._exit?)"
        )


class RunFailed(Exception):
    """A run of the script failed: its exit code, and what it printed."""

    def __init__(self, result: RunResult, which: str) -> None:
        super().__init__(f"The {which} run failed: {result.why_not}.")
        self.code, self.err = result.code or 1, result.err


class Terminated(BaseException):
    """SIGTERM."""


@instrument_definition
def what_if(
    ov: Overseer, name: str, argument: str | None, pairs: int, steps: int | None
) -> Iterator[Phase]:
    """Measure, and end without running the script here."""
    from voirkit.runner.script import module, script

    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
        raise CommandLineError(
            "it runs one process.", where="--what-if", next="Leave out torchrun, or run one rank."
        )
    if ov.argparser.value(ov.options, "--stop-after") is not None:
        reason = "runs that are cut after the same time all take that time."
        raise CommandLineError(
            reason,
            where="--stop-after with --what-if",
            next="Bound their work: --stop N ends each after N optimizer steps.",
        )
    options = ov.options
    if options.require:
        ov.warn("--require is of one run, and is not looked at with --what-if, which makes many.")
    # raises if there is none
    program = script(options.SCRIPT, ()) if options.MODULE is None else module(options.MODULE, ())
    run_dir = directory.create(options.run_dir, program.name, options.force)
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

    # nothing was measured, which has been reported
    if not os.path.exists(os.path.join(run_dir, SUMMARY)):
        return
    why = completion.page(run_dir)
    if why:
        ov.warn(f"--html: {why.removeprefix('voirkit: ')}")
    else:
        print(
            "see it as a page:"
            f" {os.path.join(run_dir, 'report.html').removeprefix(os.getcwd() + os.sep)}",
            flush=True,
        )


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


def program_words(options: Namespace) -> list[str]:
    """The script or module of a command line, and its arguments."""
    program = ["-m", options.MODULE] if options.SCRIPT is None else [options.SCRIPT]
    return [*program, *options.ARGV]


# of the run that starts another
_NOT_INHERITED = ("VOIRKIT_RUN_DIR", "DATA_FD")


def started_with(run_dir: str, words: Sequence[str]) -> dict[str, Any]:
    """What ``subprocess`` starts a run with: options, and the script with its arguments. It runs
    under voirkit, quiet, without the user's voirfile; where it prints is the caller's."""
    environment = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    return {
        "args": [sys.executable, "-m", "voirkit", "--quiet", "--run-dir", run_dir, *words],
        "env": {**environment, "VOIRFILE": ""},
        "stdin": subprocess.DEVNULL,
    }


class ScriptRunner:
    """Runs the script once, plain or with a change, in a process of its own that ends with the
    driver.

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
            run_dir: The run directory, an empty folder; if left out nothing stays of it but what is
                returned.

        Raises:
            BaseException: The driver was interrupted; the run has been ended.
        """
        self._n += 1
        folder = run_dir or os.path.join(self._folder, f"run-{self._n}")
        out, err = (os.path.join(self._folder, f"{name}-{self._n}") for name in ("out", "err"))
        words = ["--what-if-setting", setting, *self._stop, *self._script]
        with open(out, "wb") as out_file, open(err, "wb") as err_file:
            process = subprocess.Popen(
                **started_with(folder, words), stdout=out_file, stderr=err_file
            )
        try:
            code = process.wait()
        except BaseException:  # Ctrl-C or a signal, raised again
            _terminate(process)
            raise
        with open(err, "rb") as file:
            file.seek(max(os.path.getsize(err) - _LONGEST_ERROR, 0))
            error = file.read().decode(errors="replace")
        os.unlink(err)
        result = RunResult(
            128 - code if code < 0 else code,
            out,
            error,
            read_json(os.path.join(folder, SUMMARY), SCHEMA) or {},
        )
        if run_dir is None:
            shutil.rmtree(folder, ignore_errors=True)
        return result


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """End a run that knows of the interruption already, or not: a terminal signals all, ``kill``
    only the driver."""
    for signal_it, grace_s in (
        (process.poll, 2.0),
        (process.terminate, _GRACE_S),
        (process.kill, None),
    ):
        with suppress(BaseException):  # interrupted once more: it is ended all the same
            signal_it()
            process.wait(grace_s)
            return


class Trial:
    """A change with one value: its pairs of runs, and what they show.

    Attributes:
        setting: ``NAME[=VALUE]``.
        exact: See ``Change``.
        outcome: ``what_if`` of the summary.
        code: The exit code of its run that failed; 0 if none did.
        has_ended: True if it is run no more.
    """

    def __init__(self, name: str, value: str | None) -> None:
        self._change = make_change(name, value)
        self.exact = self._change.exact
        self.setting = name if value is None else f"{name}={value}"
        self.code = 0
        self.has_ended = False
        self._shares: list[float] = []  # of each plain run, what could be won at most
        self._pairs: list[tuple[RunResult, RunResult]] = []
        self.outcome: dict[str, Any] = {
            "name": name,
            "argument": value,
            "ceiling": None,
            "pairs": [],
            "median": None,
            "low": None,
            "high": None,
            "spread": None,
            "verdict": None,
            "because": "",
            "step": None,
            "once_s": None,
            "contention": None,
            "facts": None,
            "equal": None,
            "values": None,
        }

    def end(self, because: str) -> None:
        """Nothing is concluded."""
        self.has_ended = True
        self.outcome.update(verdict=None, because=because)

    def change_nothing(self, because: str, more: str = "") -> None:
        # and numpy, which the runs themselves do not load
        from voirkit.analysis.significance import NONE

        self.has_ended = True
        self.outcome.update(verdict=NONE, because=f"there is nothing to change{more}: {because}")

    def add_plain(self, plain: RunResult) -> None:
        """Work out the ceiling, from each plain run."""
        most = self._change.ceiling(plain.summary)
        if most.share is not None:
            self._shares.append(most.share)
        if self.outcome["ceiling"] is None:
            self.outcome["ceiling"] = most._asdict()

    def accept(self, changed: RunResult) -> bool:
        """True if a run with the change can be compared; otherwise no more are made."""
        if changed.why_not:
            failed = RunFailed(changed, "changed")
            self.code = failed.code
            self.end(str(failed))
            print(failed.err, end="", file=sys.stderr, flush=True)
            return False
        self.outcome["facts"] = facts = changed.facts.get("facts") or {}
        if not facts.get("touched"):
            self.change_nothing(facts.get("because") or "it found nothing to change.")
            return False
        return True

    def add_pair(self, plain: RunResult, changed: RunResult) -> dict[str, float]:
        """Judge the pairs so far; returns the times of this one."""
        from voirkit.analysis.significance import judge_pairs

        self._pairs.append((plain, changed))
        changed_s = max(changed.work_s - changed.once_s, 1e-9)
        pair = {
            "plain_s": plain.work_s,
            "changed_s": changed_s,
            "ratio": changed_s / plain.work_s,
        }
        self.outcome["pairs"].append(pair)
        times = [(each["plain_s"], each["changed_s"]) for each in self.outcome["pairs"]]
        held_up = [(first.held_up, second.held_up) for first, second in self._pairs]
        judgement = judge_pairs(times, max(self._shares, default=None), held_up)
        self.outcome.update(
            judgement._asdict(),
            step=_compare_steps([(first.step_s, second.step_s) for first, second in self._pairs]),
            once_s=median(second.once_s for _, second in self._pairs),
            contention=_contention(held_up),
        )
        return pair

    def value(self) -> dict[str, Any]:
        """Its row of ``what_if.values``."""
        keys = ("argument", "median", "low", "high", "verdict", "because")
        times_s = [pair["changed_s"] for pair in self.outcome["pairs"]]
        rates = _rates([changed for _, changed in self._pairs])
        return {**{key: self.outcome[key] for key in keys}, "times_s": times_s, **rates}


class Experiment:
    """The runs of one change, with each of its values, and what they show: ``outcome`` is
    ``what_if`` of the summary; ``folder`` is for copies of what they save."""

    def __init__(
        self, runner: ScriptRunner, name: str, argument: str | None, folder: str, run_dir: str
    ) -> None:
        self._runner, self._run_dir = runner, run_dir
        self._title = name_of({"name": name, "argument": argument})
        self._trials = [Trial(name, value) for value in values_of(argument)]
        self._results = Results(folder, self._trials[0].exact)
        self._plain: list[RunResult] = []  # of each round
        self._summary: dict[str, Any] = {}

    @property
    def outcome(self) -> dict[str, Any]:
        """That of the best value, with the figures of all."""
        best = best_trial(self._trials).outcome
        if len(self._trials) == 1:
            return best
        plain = {
            **dict.fromkeys(("argument", "median", "low", "high", "verdict")),
            "because": "",
            "times_s": [result.work_s for result in self._plain],
            **_rates(self._plain),
        }
        return {**best, "values": [plain, *(trial.value() for trial in self._trials)]}

    def measure(self, rounds: int) -> int:
        code = 0
        try:
            self._run_first(rounds)
            for n in range(1, rounds + 1):
                self._run_round(n)
        except RunFailed as exc:
            code = exc.code
            for trial in self._active():
                trial.end(str(exc))
            print(exc.err, end="", file=sys.stderr, flush=True)
        except (KeyboardInterrupt, Terminated) as exc:
            code = 130 if isinstance(exc, KeyboardInterrupt) else 143
            for trial in self._active():
                n_pairs = len(trial.outcome["pairs"])
                trial.outcome["because"] = f"Interrupted after {n_pairs} of {rounds} pairs."
        outcome = self.outcome
        if outcome["ceiling"] is None:
            print(outcome["because"])
            return code
        for line in (*value_lines(outcome), *sentences(outcome)):
            print(line, flush=True)
        if self._summary:
            write_json(
                os.path.join(self._run_dir, SUMMARY),
                self._with_finding({**self._summary, "what_if": outcome}),
            )
            print(f"run directory: {self._run_dir.removeprefix(os.getcwd() + os.sep)}")
        return code or min(trial.code for trial in self._trials)

    def _active(self) -> list[Trial]:
        return [trial for trial in self._trials if not trial.has_ended]

    def _run_first(self, rounds: int) -> None:
        """The first plain run: the ceiling, and what the others are compared with."""
        plain = self._run_plain(self._run_dir)
        self._results.add_first(plain)
        self._summary = {key: value for key, value in plain.summary.items() if key != "what_if_run"}
        ceilings = dict.fromkeys(ceiling(trial.outcome) for trial in self._trials)
        print("\n  ".join([f"what if {self._title}", *ceilings]))
        for trial in self._trials:
            most = trial.outcome["ceiling"]
            if most["share"] == 0:
                trial.change_nothing(most["because"], ", and nothing was run for it")
        active = self._active()
        if not active:
            return
        shares = [trial.outcome["ceiling"]["share"] for trial in active]
        if all(share is not None and share < _SMALL for share in shares):
            print(
                "  That is less than runs differ by, as a rule: Ctrl-C, if that is not worth the"
                " time."
            )
        whole_s = plain.work_s + plain.facts["set_up_s"]
        print(
            f"  {(1 + len(active)) * rounds} more runs of {duration(whole_s)} and python's start"
            " each. Ctrl-C ends with what is known by then."
        )
        print(HEAD, flush=True)

    @staticmethod
    def _with_finding(summary: dict[str, Any]) -> dict[str, Any]:
        """The summary of the first plain run, with the change among its findings if it wins."""
        from voirkit_instruments.what_if.rules import findings

        measured = [finding.document() for finding in findings(summary)]
        return {**summary, "findings": [*(summary.get("findings") or ()), *measured]}

    def _run_round(self, n: int) -> None:
        """Run the script plainly and with each value: a pair for each."""
        order: list[Trial | None] = [None, *self._active()]
        if n % 2 == 0:
            order.reverse()
        changed: dict[Trial, RunResult] = {}
        plain = None
        for trial in order:
            if not self._active():
                return
            if trial is None:
                plain = self._run_plain()
                self._add(plain)
            else:
                result = self._runner.run(trial.setting)
                if trial.accept(result):
                    changed[trial] = result
                    self._add(result, trial.setting)
        assert plain is not None
        self._plain.append(plain)
        for trial, result in changed.items():
            value = f"   {trial.setting}" if len(self._trials) > 1 else ""
            print(row(n, trial.add_pair(plain, result)) + value, flush=True)

    def _add(self, result: RunResult, setting: str = "") -> None:
        self._results.add(result, setting)
        for trial in self._trials:
            trial.outcome["equal"] = self._results.compared(trial.setting)

    def _run_plain(self, run_dir: str | None = None) -> RunResult:
        result = self._runner.run(run_dir=run_dir)
        if result.why_not:
            raise RunFailed(result, "plain")
        for trial in self._trials:
            trial.add_plain(result)
        return result


def best_trial(trials: Sequence[Trial]) -> Trial:
    """The value to choose: of those that win, or else of all measured ones, the first with which
    runs take at most 3 % longer than with the quickest."""
    measured = [trial for trial in trials if trial.outcome["pairs"] and not trial.code]
    wins = [trial for trial in measured if trial.outcome["verdict"] == "win"]
    candidates = wins or measured or trials[:1]
    quickest = min(trial.outcome["median"] or 0.0 for trial in candidates)
    return next(
        trial for trial in candidates if (trial.outcome["median"] or 0.0) <= quickest * _AS_QUICK
    )


def _rates(results: Sequence[RunResult]) -> dict[str, float | None]:
    """The medians of items per second, and of the share of a step that is the wait for batches."""
    rates = [result.rate for result in results if result.rate is not None]
    waits = [result.wait for result in results if result.wait is not None]
    return {
        "rate": median(rates) if rates else None,
        "wait": median(waits) if waits else None,
    }


def _contention(held_up: Sequence[tuple[float, float]]) -> dict[str, float] | None:
    """In how many runs, of how many, other programs had processors that these waited for, and for
    how much of the work at most; None if in none."""
    shares = [share for pair in held_up for share in pair]
    n = sum(share > 0 for share in shares)
    return {"runs": n, "of": len(shares), "most": max(shares)} if n else None


def _compare_steps(pairs: Sequence[tuple[float | None, float | None]]) -> dict[str, float] | None:
    """The median steps of plain and of changed runs, and their ratio; None if some run had none."""
    timed = [(plain, changed) for plain, changed in pairs if plain and changed]
    if len(timed) < len(pairs) or not timed:
        return None
    plain_s, changed_s = (median(pair[index] for pair in timed) for index in (0, 1))
    return {"plain_s": plain_s, "changed_s": changed_s, "ratio": changed_s / plain_s}
