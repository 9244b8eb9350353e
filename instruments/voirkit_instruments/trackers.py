"""The common part of ``--tensorboard``, ``--mlflow`` and ``--wandb``: sends a run's figures (rates,
step time, shares of phases, loss, use of the machine) to an experiment tracker during the run, and
its results at the end.

Another process (``background``) reads the run directory once a second as ``voirkit watch`` does,
computes figures from it, and calls the tracker's library. So in the program's process voirkit never
imports the library, computes no figures, waits for no request, and adds no work to a step. The
figures of a killed program are written too. A thread in the program wakes once a second and sends
what only the program knows: the last loss, and the program's own run of the tracker. With several
ranks, rank 0 does all this for all ranks.

A tracker is a class of two methods behind a flag; see ``voirkit_instruments/tensorboard_writer``.
``--otlp`` is a tracker too.
"""

from __future__ import annotations

import json
import os
import sys
import time

from voirkit.errors import CommandLineError, reason
from voirkit_instruments.background import PeriodicThread, RunReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from voirkit.live import Picture
    from voirkit.live.run import LiveRun
    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer

PREFIX = "voirkit/"  # begins every figure's name, even in a tracker's run that voirkit itself began
EVERY_S = 1.0
_MOST_LOSSES = 64  # of a longer loss curve, 64 to 127 losses are written after the run
COMPLETES_S = 60.0  # longest wait at the end of a run: a tracker's server may not answer


# functions that run in the program's process


def check_installed(package: str, flag: str) -> None:
    """Refuse a flag whose library is not installed, without importing it.

    Raises:
        CommandLineError: The library is not installed.
    """
    from importlib.util import find_spec

    first, *below = package.split(".")
    spec = find_spec(first)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    # The current folder may contain a folder of the same name without Python files, which the
    # library created for its data.
    if not any(os.path.isfile(os.path.join(folder, *below, "__init__.py")) for folder in folders):
        raise CommandLineError(
            f"it needs {package}, which is not installed.",
            where=flag,
            next=f"Install it with: pip install 'voirkit[{flag.lstrip('-')}]'",
        )


class Link(PeriodicThread):
    """Thread in the program that sends the program's state to the writer process, and handles the
    writer's messages.

    Args:
        state: Returns the state to send, which is written as JSON.
        receive: Called with each message from the writer process.
    """

    def __init__(
        self,
        name: str,
        reader: RunReader,
        state: Callable[[], dict[str, Any]],
        receive: Callable[[Any], None],
        warn: Callable[[str], None],
    ) -> None:
        super().__init__(name, EVERY_S, warn, "its figures are no longer as the program knows them")
        self._reader, self._state, self._receive = reader, state, receive

    def act(self) -> None:
        """Handle new messages of the writer process, and send it the current state."""
        if not self._reader.has_ended:
            for message in self._reader.receive():
                self._receive(message)
        if not self._reader.has_ended:
            self._reader.send(self._state())


def track(
    ov: Overseer,
    name: str,
    *words: str,
    package: str = "",
    state: Callable[[], dict[str, Any]] = dict,
    receive_message: Callable[[Any], None] | None = None,
) -> Iterator[Phase]:
    """Write to a tracker while the script runs and at its end.

    Args:
        name: The name of the tracker's flag. The class ``Writer`` is in
            ``voirkit_instruments.NAME_writer.write``.
        words: Arguments for ``Writer``.
        package: The tracker's library; by default it has the name of the flag.
        state: Called each second; returns the program's state that is sent along with the loss.
        receive_message: Called in the program's process with each message that ``Writer`` itself
            sends, in another thread until the script ends.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    check_installed(package or name, f"--{name}")
    yield ov.phases.load_script
    if ov.run_dir is None:
        return
    from voirkit_instruments.steps.record import LossesOfRun

    losses = ov.shared(LossesOfRun)
    failures: list[str] = []
    start_s = 0.0

    def receive(message: Any) -> None:
        nonlocal start_s
        if "failed" in message:
            failures.append(message["failed"])
        elif "begun" in message:
            start_s = reader.cpu_s()
        elif receive_message is not None:
            receive_message(message)

    reader = RunReader(
        "voirkit_instruments.trackers",
        f"voirkit_instruments.{name}_writer.write:Writer",
        ov.run_dir,
        *words,
    )
    if reader.first_line() != "following":
        raise CommandLineError(
            f"its process cannot be started ({reader.failure()}).", where=f"--{name}"
        )
    link = Link(name, reader, lambda: {"loss": losses.latest(), **state()}, receive, ov.warn)
    link.start()

    def complete(summary: Mapping[str, Any]) -> None:
        for message in reader.end(COMPLETES_S):
            receive(message)
        if failures:
            ov.warn(f"{name}: not all was written ({failures[0]}).")
        elif not reader.has_ended:
            ov.warn(
                f"{name}: it has not taken the last figures in {COMPLETES_S:.0f} s; they are still"
                " being written."
            )

    ov.when_complete(complete)
    try:
        yield ov.phases.run_script
    finally:
        link.stop()
        recorder = sys.modules.get("voirkit.trace.recorder")
        if recorder is not None:
            recorder.timed(0, int(link.cost_s * 1e9), "instruments")
            used_s = reader.cpu_s()
            # 0: the writer has not written its first figures yet, so all its time is start-up
            start_s = start_s or used_s
            recorder.timed(0, int(start_s * 1e9), "start")
            recorder.timed(0, int((used_s - start_s) * 1e9), "processes")


# classes and functions that run in the writer process


class Tracker:
    """A destination of figures. A subclass is called ``Writer`` and writes them with the tracker's
    library.

    Args:
        run_dir: The run directory.
        words: The arguments of the tracker's flag.
        send: Sends a message to ``receive_message`` in the program's process.

    Attributes:
        every_s: Seconds between two reads of the run directory.
        is_state: True if figures are also written when no step has ended since the last ones.
        picture: The run at this moment, from which the figures are computed.
        program: The last message of the program's process; empty before the first message.
    """

    every_s = EVERY_S
    is_state = False

    def __init__(self, run_dir: str, words: Sequence[str], send: Callable[[Any], None]) -> None:
        self.run_dir, self.words, self.send = run_dir, words, send
        self.program: dict[str, Any] = {}
        self.picture: Picture

    def write(self, step: int, figures: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Write the figures after a step. ``texts`` has only strings that have changed since the
        last call."""
        raise NotImplementedError

    def end(self, step: int, report: str) -> None:
        """End the tracker's run: all its figures have been written. ``report`` is Markdown, empty
        for a run that was killed."""
        raise NotImplementedError


def figures_of(
    picture: Picture, program: Mapping[str, Any] | None = None, pid: int | None = None
) -> dict[str, float]:
    """Return a dict from name to each figure of a run at one moment.

    Args:
        program: The last message of the program's process.
        pid: The program's process, whose resident memory is read; None: memory is left out.
    """
    figures: dict[str, float] = {PREFIX + rate.name: rate.value for rate in picture.rates}
    if picture.steps:
        figures.update(_step_figures(picture.steps))
    loss = (program or {}).get("loss")
    if loss is None:
        logged = {number.name: number.value for number in picture.numbers}
        loss = logged.get("loss")
    if loss is not None:
        figures[f"{PREFIX}loss"] = loss
    for device in picture.devices:
        name = device.name.replace(" ", "_").replace(".", "/")
        figures[f"{PREFIX}machine/{name}"] = device.value
    if pid is not None:
        memory_bytes = _memory_bytes(pid)
        if memory_bytes:
            figures[f"{PREFIX}memory_bytes"] = memory_bytes
    return figures


def _step_figures(steps: Mapping[str, Any]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for phase, row in steps["phases"].items():
        if phase != "wait" or steps.get("wait_known", True):
            figures[f"{PREFIX}share/{phase}"] = row["share"]
    if steps.get("time_s"):
        figures[f"{PREFIX}step_time_s"] = steps["time_s"]["median"]
    return figures


def texts_of(picture: Picture, run_dir: str) -> dict[str, str]:
    """Return a dict from name to the run directory, the verdict of a run, and its reason."""
    texts = {f"{PREFIX}run_directory": run_dir}
    verdict = picture.verdict
    if verdict:
        texts[f"{PREFIX}verdict"] = verdict["kind"]
        sentences = filter(None, (verdict["because"], verdict["next"]))
        texts[f"{PREFIX}because"] = " ".join(sentences)
    return texts


def _memory_bytes(pid: int) -> float:
    import psutil

    try:
        return float(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0.0


class _Program:
    """Reader of the messages of the program's process: lines of JSON from a file descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._partial_line = b""
        self.is_over = False

    def listen(self, seconds: float) -> Iterator[dict[str, Any]]:
        """Yield the messages that arrive within some seconds; stop early when the run is over."""
        from select import select

        deadline_s = time.monotonic() + seconds
        while not self.is_over:
            timeout_s = max(deadline_s - time.monotonic(), 0.0)
            readable, _, _ = select([self._fd], [], [], timeout_s)
            if not readable:
                break
            try:
                data = os.read(self._fd, 1 << 16)
            except ConnectionError:  # the program was killed before it had read all messages
                data = b""
            *lines, self._partial_line = (self._partial_line + data).split(b"\n")
            self.is_over = not data
            for line in lines:
                try:
                    yield json.loads(line)
                except ValueError:
                    # a truncated line: the program does not wait while the buffer is full
                    continue


def follow(tracker: Tracker, program: _Program) -> None:
    """Write a run's figures until it is over, and then its results."""
    from voirkit.live import of_summary
    from voirkit.live.run import LiveRun
    from voirkit.runs.directory import read_summary

    run = LiveRun(tracker.run_dir)
    picture, last_step, last_texts = _follow_steps(tracker, program, run)
    summary = read_summary(tracker.run_dir)
    if summary is None:
        picture = run.update()  # no summary: the program was killed
        report = ""
    else:
        from voirkit.report.markdown import markdown

        last_step_s = picture.last_step_s if picture else {}
        picture = of_summary(summary)
        picture.last_step_s = last_step_s
        report = markdown(summary, tracker.run_dir)
        # losses on a device are read only after the run, so none has been written yet
        if tracker.program.get("loss") is None and not tracker.is_state:
            _write_losses(tracker, summary)
    if picture is not None:
        tracker.picture = picture
        figures = {
            name.replace(PREFIX, f"{PREFIX}run/", 1): value
            for name, value in figures_of(picture).items()
        }
        figures[f"{PREFIX}run/steps"] = picture.n_steps
        figures.update(_only_of_summary(summary or {}))
        texts = {**texts_of(picture, tracker.run_dir), f"{PREFIX}state": picture.state}
        step = max(picture.n_steps, last_step)
        tracker.write(step, figures, _changed(last_texts, texts))
        tracker.end(step, report)


def _follow_steps(
    tracker: Tracker, program: _Program, run: LiveRun
) -> tuple[Picture | None, int, dict[str, str]]:
    """Write a run's figures until the run is over. Returns the last picture, the step that was
    written last (0: none), and the strings that were written last."""
    from voirkit.runs.directory import read_manifest

    picture = None
    step = 0
    texts: dict[str, str] = {}
    # None before the program's first step, then False, and True after the program's next message.
    # Figures are not written before that message: if the program began a tracker's run before its
    # first step, the message includes the run.
    is_informed = None
    pid = (read_manifest(tracker.run_dir) or {}).get("pid")
    while not program.is_over:
        for message in program.listen(tracker.every_s if step else EVERY_S):
            tracker.program = message
            if is_informed is not None:
                is_informed = True
        if program.is_over:
            break
        picture = run.update()
        if picture.is_over:
            break
        tracker.picture = picture
        if picture.n_steps and is_informed is None:
            is_informed = False
            continue
        is_due = picture.n_steps > step or (step and tracker.is_state)
        if is_due and is_informed:
            new_texts = texts_of(picture, tracker.run_dir)
            figures = figures_of(picture, tracker.program, pid)
            tracker.write(picture.n_steps, figures, _changed(texts, new_texts))
            if not step:
                tracker.send({"begun": True})
            step = picture.n_steps
            texts = new_texts
    return picture, step, texts


def _write_losses(tracker: Tracker, summary: Mapping[str, Any]) -> None:
    curve = (summary.get("loss") or {}).get("curve") or []
    stride = max(len(curve) // _MOST_LOSSES, 1)
    for step, loss in curve[::stride]:
        if loss is not None:
            tracker.write(step, {f"{PREFIX}loss": loss}, {})


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in now.items() if before.get(name) != text}


def _only_of_summary(summary: Mapping[str, Any]) -> dict[str, float]:
    figures = {
        "duration_s": summary.get("duration_s"),
        "exit_code": summary.get("exit_code"),
        "overhead_share": (summary.get("overhead") or {}).get("share"),
    }
    return {
        f"{PREFIX}run/{name}": float(value) for name, value in figures.items() if value is not None
    }


def main(words: Sequence[str]) -> int:
    """``WRITER RUN [WORD ...]``: write until the run is over, when standard input ends. Returns the
    exit code."""
    from voirkit.instrument import resolve

    reference, run_dir, *arguments = words
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):  # a library's output would fill a pipe that no process reads
        os.dup2(nowhere, fd)
    print("following", file=answers)

    def send(message: Any) -> None:
        try:
            print(json.dumps(message), file=answers, flush=True)
        except ConnectionError:
            pass  # the program is gone

    try:
        follow(resolve(reference)(run_dir, arguments, send), _Program(0))
    except Exception as exc:  # any error of a library or a server
        send({"failed": reason(exc)})
        return 1
    return 0
