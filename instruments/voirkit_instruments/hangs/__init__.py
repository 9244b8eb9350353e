"""``--hang`` (on by default): reports what each rank does when steps no longer end, and which rank
has died."""

from __future__ import annotations

import sys

from voirkit.errors import CommandLineError
from voirkit.imports import when_imported
from voirkit.instrument import Instrument, Option, duration
from voirkit.processes import inherit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.processes.children import ChildProcess
    from voirkit.runner.overseer import Overseer
    from voirkit_instruments.hangs.record import Watcher

FOLDER = "hangs"  # subfolder of a run directory
# Name of a file in that folder that exists while the run hangs. The first process that notices the
# hang makes the file, and only this process warns the user.
OPEN = "open"
LEAST_S = 60.0


def limit(text: str) -> float:
    """Return the number of seconds without a step that counts as a hang; 0 switches detection
    off."""
    return 0.0 if text.strip() in ("0", "0s") else duration(text)


INSTRUMENT = Instrument(
    "hangs",
    group="see a run",
    options=(
        Option(
            "--hang",
            "report a run as hung after SECONDS without a step, or 20 times the median step if"
            f" longer, with all stacks of each rank (default: {LEAST_S:.0f}; 0: never)",
            type=limit,
            metavar="SECONDS",
        ),
    ),
    record="voirkit_instruments.hangs:watch_run",
    always=True,
    parts={"hangs": dict},
    schema=__name__,
    summarise="voirkit_instruments.hangs.analyse:summarise",
    summarised_from=(f"{FOLDER}/",),
    findings="voirkit_instruments.hangs.rules:findings",
    sections="voirkit_instruments.hangs.analyse:sections",
    live="voirkit_instruments.hangs.analyse:live_lines",
    evidence={"hang": "voirkit_instruments.hangs.analyse:evidence"},
    leads=True,
    folders=(FOLDER,),
    priority=-1,  # after the steps instrument
)


class Watch:
    """Hang detection in this process. It begins when the process imports torch.

    Args:
        least_s: The least number of seconds without a step that counts as a hang.
        ov: The overseer, or its stand-in in a process that the program has started.
        is_child: True if the program has started this process.
    """

    def __init__(self, least_s: float, ov: Overseer | ChildProcess, is_child: bool = False) -> None:
        self.least_s = least_s
        self._ov = ov
        self._is_child = is_child
        self._watcher: Watcher | None = None
        self._is_over = False
        when_imported("torch", self._start)
        inherit.watch(_START_IN_CHILD, self._offer)

    def _start(self, torch: object) -> None:
        if self._is_over:
            return
        try:
            from voirkit_instruments.hangs.record import Watcher

            warn = self._ov.warn
            report = getattr(self._ov, "say", warn)
            self._watcher = Watcher(self.least_s, warn, report, self._is_child)
            self._watcher.start()
        except Exception as exc:  # this runs in the program's import of torch, and must not raise
            self._ov.warn(f"--hang: the run is not watched ({type(exc).__name__}: {exc}).")

    def _offer(self) -> dict[str, Any] | None:
        """Return the settings for a process that is started from here; None for a data loader
        worker, which is not watched."""
        from voirkit_instruments.identity import is_starting_worker

        return None if is_starting_worker() else {"least_s": self.least_s}

    def end(self, exc: BaseException | None) -> None:
        """Stop watching, as the program has ended; ``exc`` is the exception that ended it, or
        None."""
        self._is_over = True
        if self._watcher is not None:
            self._watcher.stop(ending(exc))


_START_IN_CHILD = "voirkit_instruments.hangs:begin_in_child"


def watch_run(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase | PhaseWithPriority]:
    """Watch the program while it runs."""
    least_s = options["hang"]
    if ov.argparser.value(ov.options, "--no-steps"):
        if least_s:
            raise CommandLineError(
                "steps tell whether a run hangs, and --no-steps does not record them.",
                where="--hang",
            )
        return
    if least_s == 0:
        return
    yield ov.phases.load_script(priority=-50)
    if ov.run_dir is None:
        return
    watch = Watch(LEAST_S if least_s is None else least_s, ov)
    yield ov.phases.run_script(throw=False)
    inherit.unwatch(_START_IN_CHILD)
    watch.end(ov.phases.run_script.exception)


def ending(exc: BaseException | None) -> dict[str, Any]:
    """Return how a program ended: ``how``, ``exit_code`` and ``error``. ``exc`` is the exception
    that ended it, or None."""
    if exc is None:
        return {"how": "normal", "exit_code": 0, "error": None}
    if isinstance(exc, SystemExit):
        code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
        return {"how": "exit", "exit_code": code, "error": None}
    if isinstance(exc, KeyboardInterrupt):
        return {"how": "signal", "exit_code": 130, "error": None}
    error = f"{type(exc).__name__}: {exc}"
    return {"how": "exception", "exit_code": 1, "error": error[:500]}


# Processes that multiprocessing starts


def begin_in_child(offer: dict[str, Any]) -> None:
    """Watch a process that multiprocessing has started. Called in that process."""
    from voirkit.processes.children import this_process

    if not inherit.is_watched(_START_IN_CHILD):
        watch = Watch(offer["least_s"], this_process(), is_child=True)
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.Finalize(None, lambda: watch.end(sys.exc_info()[1]), exitpriority=-1000)
