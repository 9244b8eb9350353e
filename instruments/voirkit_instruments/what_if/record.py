"""``--what-if NAME[=ARG]``: measures how much time a change would save, by running the unedited
script with and without it.

The first run is plain, that is, without the change. It shows the most that the change could win.
Then come rounds: one plain run, and one run with each value of the change (``workers=2,4``; most
changes have one value). The order is reversed in every second round. The plain run of a round forms
a pair with each other run of the round. Each run is a quiet process of its own, one after the other
(``--what-if-setting``, an internal option). What the script writes it writes in each run. The run
directory is that of the first plain run, whose summary gets the key ``what_if``.

A run makes the change, counts the optimizer's steps (``--stop``), and times the script's work. It
keeps the results that are compared afterwards: losses, and the files that torch.save wrote. All of
it is in the run's summary under ``what_if_run``. Plain runs do the same without the change.

The work begins when the script first asks a loader for batches, or first calls ``backward``.
Imports and set-up before that take seconds, vary by as much from run to run, and cannot be affected
by a change. The work ends when the script has ended, all work that the change has deferred is done,
and the GPU is idle.
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


MOST_LOSSES = 10_000  # largest number of losses that are kept of a run


@instrument_definition
def what_if_child(
    ov: Overseer, name: str, argument: str | None, steps: int | None
) -> Iterator[PhaseWithPriority]:
    """Instrument of one run of the script, with a change or without.

    Args:
        name: The name of the change, or ``PLAIN``.
        argument: The text after ``=``; None if there is none.
        steps: The number of optimizer steps after which the run is stopped, just before the next
            step; None: no limit.
    """
    from voirkit_instruments.early_stop.record import Stopper
    from voirkit_instruments.steps.events import FunctionPatches
    from voirkit_instruments.what_if.record_changes import make_change

    _end_with_the_driver()
    observer, stopper = RunObserver(), Stopper(ov)
    patches = FunctionPatches(lambda _: None)  # functions that cannot be patched are not reported
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
        except BaseException as exc:  # any error of the change is reported: the script has ended
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
    """Have the kernel send SIGTERM to this run when its driver is killed, so that no run is left
    behind. Processes that this run forks do not get the signal."""
    import ctypes

    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))  # 1 is PR_SET_PDEATHSIG


class RunObserver:
    """Records the facts of one run that are compared with other runs.

    Attributes:
        facts: The content of ``what_if_run`` in the summary.
        began_ns: Time at which the script began.
        works_ns: Time at which the script first asked for batches or called ``backward``; 0 if it
            did neither.
    """

    began_ns = works_ns = 0
    # seconds that threads had waited for processors before ``works_ns``
    _waited_before_s: float | None = None

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
        # path of each saved file -> (device, inode); None if the file did not exist
        self._files: dict[str, tuple[int, int] | None] = {}
        self._torch: ModuleType | None = None
        self._n = 0

    def watch(self, patches: FunctionPatches) -> None:
        """Patch torch's functions as soon as torch is imported."""
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
            with suppress(Exception):  # invalid arguments: torch raises its own error for them
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
                # Reading a loss from a device would wait for the device, so a clone is kept there.
                self._losses.append(value.item() if value.device.type == "cpu" else value.clone())

    def _note_file(self, file: Any) -> None:
        # a file-like object of the program may have a ``name`` that is no valid path
        with suppress(OSError, ValueError, TypeError):
            name = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
            if isinstance(name, str | os.PathLike):
                path = os.path.abspath(os.fspath(name))
                self._files[path] = _identity(path)

    def waited_s(self) -> float | None:
        """Return the seconds that threads have waited for processors since the work began; None if
        not known."""
        now_s = threads_waited_s()
        return (
            None
            if now_s is None or self._waited_before_s is None
            else max(now_s - self._waited_before_s, 0.0)
        )

    def wait_for_devices(self) -> None:
        """Wait for the GPUs: the work queued on them is a part of the run."""
        if self._torch is not None and self._torch.cuda.is_initialized():
            with suppress(Exception):  # errors of the program's own kernels appear here
                self._torch.cuda.synchronize()

    def end(self) -> None:
        """Put the losses and saved files into ``facts``."""
        if self._torch is not None:
            self.facts.update(
                cuda=bool(self._torch.cuda.is_available()), threads=self._torch.get_num_threads()
            )
        losses: list[float | None] = []
        for loss in self._losses:
            try:
                losses.append(float(loss))
            except Exception:  # the loss is complex, or on a device that is gone
                losses.append(None)
        self.facts["losses"] = {"n": self._n, "kept": losses}
        self.facts["files"] = [
            {"path": path, "file": _identity(path) or was} for path, was in self._files.items()
        ]


def _identity(path: str) -> tuple[int, int] | None:
    """Return the device and inode number of a file, which are the same for all its paths; None if
    the file does not exist."""
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
# values of a change count as equally quick up to this ratio of their times: single runs are no more
# exact
_AS_QUICK = 1.03
_GRACE_S = 5.0  # seconds that a run has to end after SIGTERM
_LONGEST_ERROR = 20_000


@dataclass
class RunResult:
    """The exit code, the output and the summary of a run that has ended."""

    code: int  # the exit code that a shell reports
    out: str  # path of the file with the run's stdout
    err: str  # the end of the run's stderr
    summary: Mapping[str, Any] = field(default_factory=dict)  # empty if the run wrote no summary

    @property
    def facts(self) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = self.summary.get("what_if_run") or {}
        return facts

    @property
    def work_s(self) -> float:
        """Seconds of the run's work."""
        return float(self.facts["work_s"])

    @property
    def once_s(self) -> float:
        """One-time cost of the change in the run, in seconds."""
        return float((self.facts.get("facts") or {}).get("once_s") or 0.0)

    @property
    def held_up(self) -> float:
        """Largest share of the run's work that may have been lost to other programs: the run's
        threads waited for processors that other programs used. 0 if it is too small to matter."""
        others_share = (self.summary.get("processors") or {}).get("others_share") or 0.0
        share = min((self.facts.get("waited_s") or 0.0) / self.work_s, 1.0)
        return share if others_share >= limits.OTHER_PROGRAMS and share >= limits.WAITED else 0.0

    @property
    def step_s(self) -> float | None:
        """Seconds of the run's median training step; None if no step was seen."""
        time = (self.summary.get("steps") or {}).get("time_s")
        return float(time["median"]) if time else None

    @property
    def rate(self) -> float | None:
        """Items per second of the run's training steps; None if unknown."""
        rate = (self.summary.get("rates") or {}).get("train_rate")
        return rate["value"] if rate else None

    @property
    def wait(self) -> float | None:
        """Share of step time spent waiting for batches; None if no step was seen."""
        phases = (self.summary.get("steps") or {}).get("phases")
        return phases["wait"]["share"] if phases else None

    @property
    def why_not(self) -> str:
        """Reason why the time of the run cannot be compared; empty if it can."""
        if "failed" in self.facts:
            return str(self.facts["failed"])
        if self.code:
            return f"it ended with exit code {self.code}"
        return (
            "" if self.facts.get("work_s") else "it ended without a record of its work (os._exit?)"
        )


class RunFailed(Exception):
    """A run of the script failed; has its exit code and the end of its stderr."""

    def __init__(self, result: RunResult, which: str) -> None:
        super().__init__(f"The {which} run failed: {result.why_not}.")
        self.code, self.err = result.code or 1, result.err


class Terminated(BaseException):
    """SIGTERM was received."""


@instrument_definition
def what_if(
    ov: Overseer, name: str, argument: str | None, pairs: int, steps: int | None
) -> Iterator[Phase]:
    """Instrument of the driver: measure the change, and end without running the script in this
    process."""
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
    # raises an error if the script or module does not exist
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
    """Write the HTML page of the first plain run, which includes the measurement."""
    from voirkit.runner import completion

    # without a summary nothing was measured, which has already been reported
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
    """Context manager in which SIGTERM raises ``Terminated``, which ends the current run and then
    the driver."""

    def on_sigterm(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def program_words(options: Namespace) -> list[str]:
    """Return the script or module of a command line, and its arguments, as words."""
    program = ["-m", options.MODULE] if options.SCRIPT is None else [options.SCRIPT]
    return [*program, *options.ARGV]


# environment variables of this process that the runs do not inherit
_NOT_INHERITED = ("VOIRKIT_RUN_DIR", "DATA_FD")


def started_with(run_dir: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the keyword arguments with which ``subprocess.Popen`` starts a run.

    The run is under voirkit, quiet, and without the user's voirfile; the caller redirects its
    output.

    Args:
        run_dir: The run directory of the new run.
        words: Options of voirkit, then the script with its arguments.
    """
    environment = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    return {
        "args": [sys.executable, "-m", "voirkit", "--quiet", "--run-dir", run_dir, *words],
        "env": {**environment, "VOIRFILE": ""},
        "stdin": subprocess.DEVNULL,
    }


class ScriptRunner:
    """Runs the script, plain or with a change, each time in a process of its own that ends with
    the driver.

    Args:
        folder: A folder for temporary files; nothing else may write there.
        script: The script or ``-m MODULE``, and its arguments.
        steps: Number of optimizer steps after which each run ends; None: it ends with the script.
    """

    def __init__(self, folder: str, script: Sequence[str], steps: int | None) -> None:
        self._folder, self._script = folder, list(script)
        self._stop = [] if steps is None else ["--stop", str(steps)]
        self._n = 0

    def run(self, setting: str = PLAIN, run_dir: str | None = None) -> RunResult:
        """Run the script once.

        Args:
            setting: ``NAME[=ARG]`` of the change.
            run_dir: The run directory, an empty folder; if left out, only the result is kept.

        Raises:
            BaseException: The driver was interrupted (Ctrl-C, a signal); the run has been ended.
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
        except BaseException:  # Ctrl-C or a signal; it is raised again
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
    """End a run after the driver was interrupted. The run may have received the signal too: a
    terminal signals all its processes, ``kill`` only the driver."""
    for signal_it, grace_s in (
        (process.poll, 2.0),
        (process.terminate, _GRACE_S),
        (process.kill, None),
    ):
        with suppress(BaseException):  # another interruption: the run is ended all the same
            signal_it()
            process.wait(grace_s)
            return


class Trial:
    """One value of a change: its pairs of runs and their result.

    Attributes:
        setting: ``NAME[=VALUE]``.
        exact: See ``Change``.
        outcome: ``what_if`` of the summary, for this value.
        code: The exit code of the run that failed; 0 if none failed.
        has_ended: True if no more runs are made with this value.
    """

    def __init__(self, name: str, value: str | None) -> None:
        self._change = make_change(name, value)
        self.exact = self._change.exact
        self.setting = name if value is None else f"{name}={value}"
        self.code = 0
        self.has_ended = False
        # from each plain run, the largest share of its time that the change could save
        self._shares: list[float] = []
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
        """End the trial without a verdict."""
        self.has_ended = True
        self.outcome.update(verdict=None, because=because)

    def change_nothing(self, because: str, more: str = "") -> None:
        # imported late, since it imports numpy, which the script's runs do not need
        from voirkit.analysis.significance import NONE

        self.has_ended = True
        self.outcome.update(verdict=NONE, because=f"there is nothing to change{more}: {because}")

    def add_plain(self, plain: RunResult) -> None:
        """Add the ceiling that a plain run shows; the first one is reported."""
        most = self._change.ceiling(plain.summary)
        if most.share is not None:
            self._shares.append(most.share)
        if self.outcome["ceiling"] is None:
            self.outcome["ceiling"] = most._asdict()

    def accept(self, changed: RunResult) -> bool:
        """True if a run with the change can be compared; otherwise the trial ends."""
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
        """Add a pair of runs, and judge all pairs so far. Returns the times of this pair."""
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
        """Return the row of this value in ``what_if.values``."""
        keys = ("argument", "median", "low", "high", "verdict", "because")
        times_s = [pair["changed_s"] for pair in self.outcome["pairs"]]
        rates = _rates([changed for _, changed in self._pairs])
        return {**{key: self.outcome[key] for key in keys}, "times_s": times_s, **rates}


class Experiment:
    """The runs of one change with each of its values, and their result.

    Args:
        runner: Runs the script.
        name: The name of the change.
        argument: The values of the change, separated by commas; None if it takes none.
        folder: A folder for copies of the files that runs save.
        run_dir: The run directory of the first plain run.
    """

    def __init__(
        self, runner: ScriptRunner, name: str, argument: str | None, folder: str, run_dir: str
    ) -> None:
        self._runner, self._run_dir = runner, run_dir
        self._title = name_of({"name": name, "argument": argument})
        self._trials = [Trial(name, value) for value in values_of(argument)]
        self._results = Results(folder, self._trials[0].exact)
        self._plain: list[RunResult] = []  # the plain run of each round
        self._summary: dict[str, Any] = {}

    @property
    def outcome(self) -> dict[str, Any]:
        """``what_if`` of the summary: the outcome of the best value of the change, and the
        measurements of all its values."""
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
        """Run the script plainly for the ceiling and for the results that other runs are compared
        with."""
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
        """Return the summary, with the change added to its findings if the change wins."""
        from voirkit_instruments.what_if.rules import findings

        measured = [finding.document() for finding in findings(summary)]
        return {**summary, "findings": [*(summary.get("findings") or ()), *measured]}

    def _run_round(self, n: int) -> None:
        """Run the script once plainly and once with each value; each value gets a pair."""
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
    """Return the trial of the best value: the first whose runs take at most 3 % longer than those
    of the quickest value. If any values win, only these are considered."""
    measured = [trial for trial in trials if trial.outcome["pairs"] and not trial.code]
    wins = [trial for trial in measured if trial.outcome["verdict"] == "win"]
    candidates = wins or measured or trials[:1]
    quickest = min(trial.outcome["median"] or 0.0 for trial in candidates)
    return next(
        trial for trial in candidates if (trial.outcome["median"] or 0.0) <= quickest * _AS_QUICK
    )


def _rates(results: Sequence[RunResult]) -> dict[str, float | None]:
    """Return the medians, over runs, of items per second (``rate``) and of the share of step time
    spent waiting for batches (``wait``)."""
    rates = [result.rate for result in results if result.rate is not None]
    waits = [result.wait for result in results if result.wait is not None]
    return {
        "rate": median(rates) if rates else None,
        "wait": median(waits) if waits else None,
    }


def _contention(held_up: Sequence[tuple[float, float]]) -> dict[str, float] | None:
    """Summarise how much runs waited for processors that other programs used; None if no run did.

    Returns ``runs``, the number of runs that waited; ``of``, the number of all runs; and ``most``,
    the largest share of a run's work that was spent waiting.
    """
    shares = [share for pair in held_up for share in pair]
    n = sum(share > 0 for share in shares)
    return {"runs": n, "of": len(shares), "most": max(shares)} if n else None


def _compare_steps(pairs: Sequence[tuple[float | None, float | None]]) -> dict[str, float] | None:
    """Return the median step times of plain and of changed runs, and their ratio; None if a run had
    no steps."""
    timed = [(plain, changed) for plain, changed in pairs if plain and changed]
    if len(timed) < len(pairs) or not timed:
        return None
    plain_s, changed_s = (median(pair[index] for pair in timed) for index in (0, 1))
    return {"plain_s": plain_s, "changed_s": changed_s, "ratio": changed_s / plain_s}
