"""``--what-if NAME[=ARG]``: what a change would win, measured on the script itself, which nobody edits.

The script is run plainly once, which tells the most that the change could win; then in pairs, plain and changed, the order turned from pair
to pair; each run in a process of its own (``what_if_child``), quiet, one after the other. What the script writes it writes each time. The
run directory is that of the first plain run, whose summary gets the key ``what_if``.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from contextlib import contextmanager

from voirkit.errors import CommandLineError
from voirkit.instrument import instrument_definition
from voirkit_instruments.child_run import program_words
from voirkit_instruments.what_if.analyse_statistics import NONE, judged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from voirkit.overseer import Overseer
    from voirkit.phases import Phase
    from voirkit_instruments.what_if.analyse_equal import Results
    from voirkit_instruments.what_if.record_changes import Change
    from voirkit_instruments.what_if.record_runs import Ran, Runs

_SMALL = 0.01


class Failed(Exception):
    """A run of the script failed: its exit code, and what it said."""

    def __init__(self, ran: Ran, which: str) -> None:
        super().__init__(f"The {which} run failed: {ran.why_not}.")
        self.code, self.err = ran.code or 1, ran.err


class NothingToChange(Exception):
    """The change has found nothing in the script that it could change; why."""


class Terminated(BaseException):
    """SIGTERM."""


@instrument_definition
def what_if(ov: Overseer, name: str, argument: str | None, pairs: int, steps: int | None) -> Iterator[Phase]:
    """Measure, and end without running the script here."""
    from voirkit.runs import directory
    from voirkit.script import module, script

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
    place = directory.make(options.run_dir, program.name, options.force)
    folder = tempfile.mkdtemp(prefix="voirkit-what-if-")
    code = 0
    try:
        from voirkit_instruments.what_if.record_runs import Runs

        with _ended_in_order():
            runs = Runs(folder, program_words(options), steps)
            code = Experiment(runs, name, argument, folder, place).measure(pairs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.html:
        _page(ov, place)
    if code:
        ov.abort(SystemExit(code))
    ov.stop()
    yield ov.phases.parse_args


def _page(ov: Overseer, place: str) -> None:
    """The page of the first plain run, with what has been measured."""
    from voirkit import completion
    from voirkit.runs.directory import SUMMARY

    if not os.path.exists(os.path.join(place, SUMMARY)):  # it has come to nothing, which has been told
        return
    why = completion.page(place)
    if why:
        ov.warn(f"--html: {why.removeprefix('voirkit: ')}")
    else:
        print(f"see it as a page: {os.path.join(place, 'report.html').removeprefix(os.getcwd() + os.sep)}", flush=True)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM ends the run that goes on, and then the driver."""

    def end(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Experiment:
    """The runs of one change, and what is known of them.

    Args:
        runs: Runs the script.
        name: The change's.
        argument: Its argument.
        folder: For copies of what the script saves.
        place: The run directory.
    """

    def __init__(self, runs: Runs, name: str, argument: str | None, folder: str, place: str) -> None:
        from voirkit_instruments.what_if.analyse_equal import Results
        from voirkit_instruments.what_if.record_changes import made

        self._runs, self._place = runs, place
        self._change: Change = made(name, argument)
        self._setting = name if argument is None else f"{name}={argument}"
        self._results: Results = Results(folder, self._change.exact)
        self._steps: list[tuple[float | None, float | None]] = []
        self._summary: dict[str, Any] = {}
        self._shares: list[float | None] = []
        self.found: dict[str, Any] = {
            "name": name, "argument": argument, "ceiling": None, "pairs": [], "median": None, "low": None, "high": None, "spread": None,
            "verdict": None, "because": "", "step": None, "facts": None, "equal": None,
        }  # fmt: skip

    def measure(self, pairs: int) -> int:
        """Run, and tell what comes of it; returns the exit code."""
        from voirkit_instruments.what_if.show import sentences

        code = 0
        try:
            self._begin(pairs)
            if self.found["ceiling"]["share"] != 0:
                self._pairs(pairs)
        except Failed as exc:
            code, self.found["because"], self.found["verdict"] = exc.code, str(exc), None
            print(exc.err, end="", file=sys.stderr, flush=True)
        except NothingToChange as exc:
            self.found.update(verdict=NONE, because=f"there is nothing to change: {exc}")
        except (KeyboardInterrupt, Terminated) as exc:
            code = 130 if isinstance(exc, KeyboardInterrupt) else 143
            self.found["because"] = f"Interrupted after {len(self.found['pairs'])} of {pairs} pairs."
        if self.found["ceiling"] is None:
            print(self.found["because"])
            return code
        for line in sentences(self.found):
            print(line, flush=True)
        self._write()
        return code

    def _begin(self, pairs: int) -> None:
        """The first plain run: the ceiling, and what the others are compared with."""
        from voirkit.report.figure import duration
        from voirkit_instruments.what_if.show import HEAD, ceiling, name_of

        plain = self._plain(place=self._place)
        self._results.first(plain)
        self._summary = {key: value for key, value in plain.summary.items() if key != "what_if_run"}
        print(f"what if {name_of(self.found)}\n  {ceiling(self.found)}")
        share = self.found["ceiling"]["share"]
        if share == 0:
            because = f"there is nothing to change, and nothing was run for it: {self.found['ceiling']['because']}"
            self.found.update(verdict=NONE, because=because)
            return
        if share is not None and share < _SMALL:
            print("  That is less than runs differ by, as a rule: Ctrl-C, if that is not worth the time.")
        whole_s = plain.work_s + plain.told["set_up_s"]
        print(f"  {2 * pairs} more runs of {duration(whole_s)} and python's start each. Ctrl-C ends with what is known by then.")
        print(HEAD, flush=True)

    def _pairs(self, pairs: int) -> None:
        from voirkit_instruments.what_if.show import row

        for at in range(pairs):
            if at % 2 == 0:
                plain = self._added(self._plain(), False)
                changed = self._added(self._changed(), True)
            else:
                changed = self._added(self._changed(), True)
                plain = self._added(self._plain(), False)
            pair = {"plain_s": plain.work_s, "changed_s": changed.work_s, "ratio": changed.work_s / plain.work_s}
            self.found["pairs"].append(pair)
            self._steps.append((plain.step_s, changed.step_s))
            self._judge()
            print(row(at + 1, pair), flush=True)

    def _plain(self, place: str | None = None) -> Ran:
        ran = self._runs.run(place=place)
        if ran.why_not:
            raise Failed(ran, "plain")
        ceiling = self._change.ceiling(ran.summary)
        self._shares.append(ceiling.share)
        if self.found["ceiling"] is None:
            self.found["ceiling"] = ceiling._asdict()
        return ran

    def _changed(self) -> Ran:
        ran = self._runs.run(self._setting)
        if ran.why_not:
            raise Failed(ran, "changed")
        self.found["facts"] = facts = ran.told.get("facts") or {}
        if not facts.get("touched"):
            raise NothingToChange(facts.get("because") or "it found nothing to change.")
        return ran

    def _added(self, ran: Ran, changed: bool) -> Ran:
        self._results.add(ran, changed)
        self.found["equal"] = self._results.told()
        return ran

    def _judge(self) -> None:
        """What the pairs tell up to now."""
        known = [share for share in self._shares if share is not None]
        told = judged([(pair["plain_s"], pair["changed_s"]) for pair in self.found["pairs"]], max(known) if known else None)
        self.found.update(told._asdict())
        self.found["step"] = _step(self._steps)

    def _write(self) -> None:
        """Put it into the summary of the first plain run."""
        from voirkit.runs.directory import SUMMARY, write_json

        if self._summary:
            write_json(os.path.join(self._place, SUMMARY), {**self._summary, "what_if": self.found})
            here = os.getcwd() + os.sep
            print(f"run directory: {self._place.removeprefix(here)}")


def _step(pairs: Sequence[tuple[float | None, float | None]]) -> dict[str, float] | None:
    """The median steps of plain and of changed runs, and their ratio; None if some run had none."""
    from statistics import median

    known = [(plain, changed) for plain, changed in pairs if plain and changed]
    if len(known) < len(pairs) or not known:
        return None
    plain_s, changed_s = (median(one[at] for one in known) for at in (0, 1))
    return {"plain_s": plain_s, "changed_s": changed_s, "ratio": changed_s / plain_s}


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    """Record what the options ask for."""
    asked, setting, pairs = options["what_if"], options["what_if_setting"], options["pairs"]
    steps = ov.argparser.value(ov.options, "--stop")
    if setting is not None:
        from voirkit_instruments.what_if.record_child import what_if_child

        name, equals, argument = setting.partition("=")
        return what_if_child(name, argument if equals else None, steps)(ov)
    if not asked:
        raise CommandLineError("--pairs is about --what-if, which is not asked for.", next=f"voirkit --what-if NAME --pairs {pairs} SCRIPT")
    if len(asked) > 1:
        raise CommandLineError("one change at a time can be held against the script as it is.", where="--what-if, given twice")
    return what_if(*asked[0], pairs or 5, steps)(ov)
