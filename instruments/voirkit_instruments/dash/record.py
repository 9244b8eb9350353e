"""`--dash`: a live view of the run, below the script's output in a terminal, or as a line a second
on any other standard error.

Never touches the script's streams, and imports what draws only when the flag is on. Steps, rates
and progress are read from the trace like any other reader does it, so that nothing is added to what
a step costs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from voirkit.imports import when_imported
from voirkit.live import Picture
from voirkit.live.frame import Bar, printable
from voirkit.runner.recording import RECORDER
from voirkit.runs.manifest import rank_and_world_size
from voirkit_instruments.values import may_be_read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.runner.overseer import Overseer


EVERY_S = 1.0
MOST = 1 << 10  # records that are read at a time: about 150 steps


class OwnSteps:
    """What this process has recorded of its steps; of several ranks what all have: one alone takes
    waiting for another for its own work."""

    def __init__(self, ov: Overseer) -> None:
        self._ov = ov
        self._rank, self._ranks = rank_and_world_size()
        self._steps: Any = None
        self._workers: Any = None
        self._picture: Picture | None = None
        self._next_s = 0.0
        # What reads the trace is loaded by the thread that imports torch: one that imports beside
        # it could meet a fork.
        when_imported(RECORDER, self._load)

    def _load(self, _: object) -> None:
        if self._ov.run_dir is None:
            return
        from voirkit.live import Workers
        from voirkit.live.steps import LiveSteps

        self._workers = Workers(os.getpid())
        self._steps = LiveSteps(self._ov.run_dir, MOST, os.getpid() if self._ranks == 1 else None)

    def picture(self) -> Picture | None:
        """The steps as they are now, or were a second ago at most; None as long as there are
        none."""
        if self._steps is None or time.monotonic() < self._next_s:
            return self._picture
        self._next_s = time.monotonic() + EVERY_S
        if self._steps.update(os.cpu_count()):
            self._picture = self._make_picture()
        return self._picture

    def _make_picture(self) -> Picture | None:
        from voirkit.live import Picture
        from voirkit.live.steps import devices

        picture = Picture()
        self._steps.fill(picture)
        picture.devices = list(devices(self._steps.window.counters, self._rank))
        if picture.workers:
            picture.worker_shares = self._workers.sample()
        return picture if picture.steps is not None or picture.progress or picture.devices else None


def dash(ov: Overseer) -> Iterator[Phase | PhaseWithPriority]:
    """Show what the last steps spend their time on, and the last value, units and count of every
    given key, while the script runs.

    Time by phase, rates, the epoch's progress, loader workers and what the run is bound by are
    there without any probe: they are from what the steps instrument records.

    Keys that begin with ``$`` or ``#`` are left out. ``progress=(i, n)``, or ``progress=i,
    total=n`` with an optional ``descr``, is a bar. ``task`` groups the rows, ``units`` follows the
    numbers of the same event. Of tensors with one element the number is shown (read from an
    accelerator at most once a redraw, without waiting for it), of all else the type and shape.

    In a terminal the view takes its lowest rows and the script's output goes on above it, as it
    would without; ``input()`` and pdb work. The last values stay below the output. The key q ends
    the view, and the run goes on; a script that waits for input gets what is typed. A script that
    draws on the whole screen (curses) disturbs the view and is disturbed by it. With several ranks
    only rank 0 shows a view.

    For ``ov.require(dash)`` in a voirfile, or ``--dash``.
    """
    yield ov.phases.parse_args
    if os.environ.get("RANK", "0") != "0":
        return
    from voirkit_instruments.dash.show import view_for

    board, steps = Board(), OwnSteps(ov)
    ov.given.subscribe(board.update)
    # Last of those that wait for the load, so that what they find wrong is printed on a terminal as
    # it was.
    yield ov.phases.load_script(priority=-1000)
    view = view_for(board, ov.script or "voirkit", ov.warn, steps.picture)
    view.start()
    try:
        # First of those that wait for the end of the script: what they print comes after the view.
        yield ov.phases.run_script(priority=1000, throw=False)
        if ov.phases.run_script.exception is None:
            flush()
    finally:
        view.stop()
    # Last of all: what is given at the end of the streams is among the values that stay.
    yield ov.phases.finalize(priority=-1000, throw=False)
    view.finish()


def flush() -> None:
    """Flush what the script has printed, so that it appears above the last view. (After an
    exception Python has not flushed it yet.)"""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            # none, gone or closed: python will say so at its end, as always
            continue


def record(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase | PhaseWithPriority]:
    return dash(ov)


PLAIN = frozenset({float, int, bool, str, type(None)})
CONTEXT = frozenset({"task", "units"})
PROGRESS = frozenset({"progress", "total", "descr"})
# their figures are drawn from the trace
MONITORED = frozenset({"cpudata", "iodata", "netdata", "gpudata"})
# What a pinned host number holds until the device has written it: no loss is this number.
UNREAD = -2.718281828459045e301


class Row(NamedTuple):
    """One line of the view; ``is_number`` tells losses and rates from the types of models and
    batches, ``given`` how often it came."""

    task: str
    key: str
    text: str
    is_number: bool
    given: int


class Cell:
    """The last value of one key of one task."""

    def __init__(self) -> None:
        self.value: object = None
        self.units = ""
        self.count = 0
        self.described_for = -1


class Described:
    """A value of which only type and shape are kept, so that the value itself can be freed."""

    def __init__(self, text: str) -> None:
        self.text = text


class DeviceNumber:
    """The last one-element tensor of a key that lives on an accelerator.

    The thread that gives the value queues its copy to pinned memory, on its own stream; whoever
    draws only looks at that memory. So nothing ever waits, values of side streams are in order, and
    no other thread calls CUDA (which would break a graph capture).
    """

    def __init__(self) -> None:
        self.latest: Any = None
        self.fresh = False
        self.host: Any = None
        self.refused = False
        self.shown: float | int | bool | None = None

    def copy(self, torch: Any) -> None:
        """Queue the copy of the latest value; call it from the thread that gives."""
        kind, self.fresh = self.latest.device.type, False
        with torch.inference_mode(False), torch.no_grad():
            if kind in ("cuda", "xpu"):
                if kind == "cuda" and torch.cuda.is_current_stream_capturing():
                    self.fresh = True  # the copy would become part of the program's graph
                    return
                if self.host is None:
                    self.host = torch.full(
                        (), UNREAD, dtype=torch.float64, device="cpu", pin_memory=True
                    )
                self.host.copy_(self.latest.reshape(()), non_blocking=True)
            else:  # no asynchronous way: the caller sees to it that this is done once a redraw
                self.host = torch.tensor(float(self.latest), dtype=torch.float64, device="cpu")

    def landed(self) -> bool:
        """Whether the copy that was queued last has arrived, if it is the first into its memory."""
        return self.host is None or self.host.item() != UNREAD

    def number(self) -> float | int | bool | None:
        """The last number that arrived; None before the first."""
        if self.host is not None and (number := self.host.item()) != UNREAD:
            dtype = str(self.latest.dtype)
            self.shown = (
                bool(number) if dtype == "torch.bool" else int(number) if "int" in dtype else number
            )
        return self.shown


class Board:
    """Keeps what is to be shown; ``update`` is the subscriber, ``rows`` and ``bars`` are for the
    thread that draws. One thread at a time may be in ``update`` (the given stream sees to that);
    reading at the same time from another thread is safe."""

    def __init__(self) -> None:
        self.events = 0
        self._rows: dict[str, dict[str, Cell]] = {}
        self._bars: dict[tuple[str, str], tuple[float, float]] = {}
        self._device: list[DeviceNumber] = []
        self._frame = 0  # how often the table was read
        self._copied_for = -1
        self._tensor: Any = None  # torch.Tensor, once a tensor was given

    def update(self, event: Mapping[str, object]) -> None:
        self.events += 1
        task = event.get("task", "")
        if type(task) is not str:
            task = str(task) if type(task) in (int, bool) else ""
        cells = self._rows.get(task)
        if cells is None:
            cells = self._rows[task] = {}
        has_bar = "progress" in event and self._progress(task, event)
        for key, value in event.items():
            cell = cells.get(key)
            if cell is None:
                if key[:1] in ("$", "#") or key in CONTEXT or (has_bar and key in PROGRESS):
                    continue
                cell = cells[key] = Cell()
            cell.count += 1
            kind = type(value)
            if kind in PLAIN:
                cell.value = value
            elif kind is self._tensor and value.numel() == 1:  # type: ignore[attr-defined]  # it is a torch.Tensor
                self._keep_number(cell, value)
            elif cell.described_for != self._frame:
                # once a redraw: a description is seldom another
                cell.described_for = self._frame
                self._describe(cell, value)
        if "units" in event:
            self._units(cells, event)
        if self._device and self._copied_for != self._frame:
            self._copy()

    def rows(self) -> list[Row]:
        """All keys, those without a task first, and numbers first within a task; also asks for a
        new copy of what is on an accelerator."""
        self._frame += 1
        rows: list[Row] = []
        # in one go: the thread that gives may add to it at any moment
        tasks = list(self._rows.items())
        for task, cells in sorted(tasks, key=lambda item: item[0] != ""):
            of_task = []
            hidden = {*MONITORED, "time"} if not MONITORED.isdisjoint(cells) else ()
            for key, cell in list(cells.items()):
                if key in hidden:
                    continue
                text, is_number = text_of(cell.value)
                if is_number and cell.units:
                    text = f"{text} {cell.units}"
                of_task.append(Row(task, key, text, is_number, cell.count))
            rows += sorted(of_task, key=lambda row: not row.is_number)
        return rows

    def bars(self) -> list[Bar]:
        """All progress that was given, in order of first appearance."""
        return [Bar(*key, *progress) for key, progress in list(self._bars.items())]

    def settle(self, limit_s: float = 2.0) -> None:
        """Fetch the very last numbers from accelerators; gives up after the limit, for a device
        that hangs must not hold up the end."""
        torch: Any = sys.modules.get("torch")
        late = [number for number in self._device if number.fresh]
        for number in late:
            number.number()
            number.host = None  # new memory: an older copy on its way cannot be taken for this one
        self._copy()
        deadline = time.monotonic() + limit_s
        while torch is not None and not all(number.landed() for number in late):
            if time.monotonic() >= deadline:
                break
            time.sleep(0.002)

    def _progress(self, task: str, event: Mapping[str, object]) -> bool:
        """Take ``progress=(i, n)`` or ``progress=i, total=n`` with an optional ``descr``; False if
        it is neither."""
        value, label = event["progress"], event.get("descr", "")
        total = event.get("total")
        if isinstance(value, (tuple, list)) and len(value) == 2:
            value, total = value
        if not isinstance(value, (int, float)) or not isinstance(total, (int, float)):
            return False
        self._bars[task, label if type(label) is str else ""] = (value, total)
        return True

    def _units(self, cells: dict[str, Cell], event: Mapping[str, object]) -> None:
        units = event["units"]
        for key in event:
            if key in cells and type(units) is str:
                cells[key].units = units

    def _describe(self, cell: Cell, value: object) -> None:
        """Keep of a value that is not a plain one what there is to show."""
        try:
            # not there while torch is being imported
            tensor = getattr(sys.modules.get("torch"), "Tensor", ())
            if isinstance(value, tensor):
                # A subclass (DTensor, FakeTensor) may communicate or refuse when it is read: only
                # its type and shape are shown.
                if type(value) is tensor:
                    self._tensor = tensor
                    if value.numel() == 1:
                        cell.described_for = -1
                        return self._keep_number(cell, value)
                cell.value = Described(shaped(type(value).__name__, value))
                return None
            numpy = sys.modules.get("numpy")
            if isinstance(value, (getattr(numpy, "generic", ()), getattr(numpy, "ndarray", ()))):
                array: Any = value
                cell.value = array.item() if array.size == 1 else Described(shaped("array", array))
                cell.described_for = -1
                return None
        except Exception:
            # a value of a kind that cannot be asked; it is the program's, so nothing
            # may come of it
            cell.value = Described(type(value).__name__)
            return None
        size = f" of {len(value)}" if type(value) in (list, tuple, dict, set) else ""  # type: ignore[arg-type]  # these have a length
        cell.value = Described(type(value).__name__ + size)
        return None

    def _keep_number(self, cell: Cell, tensor: Any) -> None:
        if tensor.requires_grad:
            tensor = tensor.detach()
        if tensor.is_cpu:
            cell.value = tensor
            return
        number = cell.value
        if not isinstance(number, DeviceNumber):
            cell.value = number = DeviceNumber()
            self._device.append(number)
        number.latest, number.fresh = tensor, True

    def _copy(self) -> None:
        self._copied_for = self._frame
        for number in [number for number in self._device if number.fresh]:
            try:
                if may_be_read(number.latest):
                    number.copy(sys.modules["torch"])
                else:
                    number.refused = True
            except Exception:  # a failed device is reported by the program's own next call
                number.host, number.refused = None, True


def shaped(name: str, value: Any) -> str:
    """``Tensor 32x3x224x224 float32``, and the device if it is not the CPU."""
    size = "x".join(str(int(n)) for n in value.shape) or "scalar"
    device = str(getattr(value, "device", "cpu"))
    return " ".join(
        [name, size, str(value.dtype).replace("torch.", "")] + ([] if device == "cpu" else [device])
    )


def text_of(value: object) -> tuple[str, bool]:
    """How a kept value is shown, and whether it is a number."""
    if isinstance(value, DeviceNumber):
        if value.refused:
            return shaped("Tensor", value.latest), False
        number = value.number()
        return ("...", True) if number is None else text_of(number)
    if isinstance(value, Described):
        return value.text, False
    if isinstance(value, str):
        return printable(value), False
    if value is None or isinstance(value, bool):
        return str(value), False
    if not isinstance(value, (int, float)):
        if not may_be_read(value):
            return type(value).__name__, False
        try:
            value = value.item()  # type: ignore[attr-defined]  # a one-element CPU tensor
        except Exception:  # e.g. a meta tensor, or one of a vmap that is over
            return type(value).__name__, False
        return text_of(value) if type(value) in PLAIN else (str(value), True)
    if not isinstance(value, float):
        return str(value), True
    return f"{value:.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}", True
