"""`--dash`: a live view of the run, below the script's output in a terminal; on any other standard
error, one line per second.

The view never touches the script's streams, and the modules that draw it are imported only if the
flag is on. Steps, rates and progress are read from the trace, as by any other reader, so a step
costs no more than without the view.
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
MOST = 1 << 10  # most records that are read at a time: about 150 steps


class OwnSteps:
    """The steps that this process has recorded. With several ranks, the steps of all ranks: a
    single rank would count waiting for another rank as its own work."""

    def __init__(self, ov: Overseer) -> None:
        self._ov = ov
        self._rank, self._ranks = rank_and_world_size()
        self._steps: Any = None
        self._workers: Any = None
        self._picture: Picture | None = None
        self._next_s = 0.0
        # The reader of the trace is loaded in the thread that imports torch, because an import in
        # another thread could coincide with a fork.
        when_imported(RECORDER, self._load)

    def _load(self, _: object) -> None:
        if self._ov.run_dir is None:
            return
        from voirkit.live import Workers
        from voirkit.live.steps import LiveSteps

        self._workers = Workers(os.getpid())
        self._steps = LiveSteps(self._ov.run_dir, MOST, os.getpid() if self._ranks == 1 else None)

    def picture(self) -> Picture | None:
        """Return the present state of the steps, at most a second old; None while nothing is known
        of steps, progress or devices."""
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

    Time by phase, rates, the epoch's progress, loader workers and the bottleneck need no probe:
    they come from the records of the steps instrument.

    Keys that begin with ``$`` or ``#`` are left out. ``progress=(i, n)``, or ``progress=i,
    total=n`` with an optional ``descr``, is shown as a bar. ``task`` groups the rows; ``units``
    follows the numbers of the same event. A tensor with one element is shown as a number (read from
    an accelerator at most once per redraw, without waiting for it); any other object as its type
    and shape.

    In a terminal the view takes the lowest rows, and the script's output scrolls above it as usual;
    ``input()`` and pdb work. At the end the last values stay below the output. The key q closes the
    view, and the run continues; a script that waits for input receives what is typed. A script that
    draws on the whole screen (curses) and the view disturb each other. With several ranks only rank
    0 shows a view.

    Used by ``--dash``, or by ``ov.require(dash)`` in a voirfile.
    """
    yield ov.phases.parse_args
    if os.environ.get("RANK", "0") != "0":
        return
    from voirkit_instruments.dash.show import view_for

    board, steps = Board(), OwnSteps(ov)
    ov.given.subscribe(board.update)
    # The view starts last of all instruments in this phase, so that the warnings of the others
    # appear on a terminal without the view.
    yield ov.phases.load_script(priority=-1000)
    view = view_for(board, ov.script or "voirkit", ov.warn, steps.picture)
    view.start()
    try:
        # At the end of the script the view ends first of all instruments, so that the messages of
        # the others come after the view.
        yield ov.phases.run_script(priority=1000, throw=False)
        if ov.phases.run_script.exception is None:
            flush()
    finally:
        view.stop()
    # The last values are printed after all other instruments have ended, so that they include the
    # values that are given while the streams end.
    yield ov.phases.finalize(priority=-1000, throw=False)
    view.finish()


def flush() -> None:
    """Flush the script's output, so that it appears above the last view. (After an exception,
    Python itself has not flushed it yet.)"""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            # the stream is missing, gone or closed: Python reports this when it exits, as always
            continue


def record(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase | PhaseWithPriority]:
    return dash(ov)


PLAIN = frozenset({float, int, bool, str, type(None)})
CONTEXT = frozenset({"task", "units"})
PROGRESS = frozenset({"progress", "total", "descr"})
# keys of monitors, which are left out because their values are already drawn from the trace
MONITORED = frozenset({"cpudata", "iodata", "netdata", "gpudata"})
# Content of pinned memory until the device has written a number into it; no loss has this value.
UNREAD = -2.718281828459045e301


class Row(NamedTuple):
    """One row of the view. ``is_number`` is True for numbers such as losses and rates, False for
    text such as the type of a model; ``given`` is how often the value was given."""

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
    """Type and shape of a value as text, kept in place of the value so that it can be freed."""

    def __init__(self, text: str) -> None:
        self.text = text


class DeviceNumber:
    """The last one-element tensor on an accelerator that was given for a key.

    The thread that gives the value queues a copy to pinned memory, on its own stream. The drawing
    thread only reads that memory. So nothing ever waits, values of side streams are in order, and
    no other thread calls CUDA, which would break a graph capture.
    """

    def __init__(self) -> None:
        self.latest: Any = None
        self.fresh = False
        self.host: Any = None
        self.refused = False
        self.shown: float | int | bool | None = None

    def copy(self, torch: Any) -> None:
        """Queue a copy of the latest value; must be called from the thread that gives the value."""
        kind, self.fresh = self.latest.device.type, False
        with torch.inference_mode(False), torch.no_grad():
            if kind in ("cuda", "xpu"):
                if kind == "cuda" and torch.cuda.is_current_stream_capturing():
                    # copy later: now the copy would become part of the program's CUDA graph
                    self.fresh = True
                    return
                if self.host is None:
                    self.host = torch.full(
                        (), UNREAD, dtype=torch.float64, device="cpu", pin_memory=True
                    )
                self.host.copy_(self.latest.reshape(()), non_blocking=True)
            # other devices have no asynchronous copy: the caller must copy at most once per redraw
            else:
                self.host = torch.tensor(float(self.latest), dtype=torch.float64, device="cpu")

    def landed(self) -> bool:
        """False if the first copy into the host memory is still under way. Later copies into the
        same memory are not waited for."""
        return self.host is None or self.host.item() != UNREAD

    def number(self) -> float | int | bool | None:
        """Return the last number that arrived; None before the first."""
        if self.host is not None and (number := self.host.item()) != UNREAD:
            dtype = str(self.latest.dtype)
            self.shown = (
                bool(number) if dtype == "torch.bool" else int(number) if "int" in dtype else number
            )
        return self.shown


class Board:
    """The values to show. ``update`` is the subscriber; ``rows`` and ``bars`` are for the drawing
    thread.

    Only one thread at a time may be in ``update``, which the given stream ensures. Another thread
    may safely read at the same time.
    """

    def __init__(self) -> None:
        self.events = 0
        self._rows: dict[str, dict[str, Cell]] = {}
        self._bars: dict[tuple[str, str], tuple[float, float]] = {}
        self._device: list[DeviceNumber] = []
        self._frame = 0  # how often ``rows`` was called
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
                # describe at most once per redraw, because a description rarely changes
                cell.described_for = self._frame
                self._describe(cell, value)
        if "units" in event:
            self._units(cells, event)
        if self._device and self._copied_for != self._frame:
            self._copy()

    def rows(self) -> list[Row]:
        """Return the rows of all keys: keys without a task first, and numbers first within a task.
        Also requests new copies of the numbers on an accelerator."""
        self._frame += 1
        rows: list[Row] = []
        # iterate over a copy, because the thread that gives values may add a task at any moment
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
        """Return all progress that was given, in order of first appearance."""
        return [Bar(*key, *progress) for key, progress in list(self._bars.items())]

    def settle(self, limit_s: float = 2.0) -> None:
        """Fetch the very last numbers from accelerators. Gives up after ``limit_s``, because a
        device that hangs must not delay the end."""
        torch: Any = sys.modules.get("torch")
        late = [number for number in self._device if number.fresh]
        for number in late:
            number.number()
            # copy into new memory: an older copy that is still under way must not be taken for the
            # new one
            number.host = None
        self._copy()
        deadline = time.monotonic() + limit_s
        while torch is not None and not all(number.landed() for number in late):
            if time.monotonic() >= deadline:
                break
            time.sleep(0.002)

    def _progress(self, task: str, event: Mapping[str, object]) -> bool:
        """Store progress given as ``progress=(i, n)``, or as ``progress=i, total=n`` with an
        optional ``descr``; False if it is neither."""
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
        """Store the text that is shown for a value whose type is not in ``PLAIN``."""
        try:
            # torch has no attribute ``Tensor`` yet while it is being imported
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
            # a value of the program that cannot be inspected: the error must not reach the program
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
    """Return type, shape and dtype as text, and the device if it is not the CPU: ``Tensor
    32x3x224x224 float32``."""
    size = "x".join(str(int(n)) for n in value.shape) or "scalar"
    device = str(getattr(value, "device", "cpu"))
    return " ".join(
        [name, size, str(value.dtype).replace("torch.", "")] + ([] if device == "cpu" else [device])
    )


def text_of(value: object) -> tuple[str, bool]:
    """Return the text that shows a kept value, and True if it is a number."""
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
        except Exception:  # e.g. a meta tensor, or a tensor of a vmap that has ended
            return type(value).__name__, False
        return text_of(value) if type(value) in PLAIN else (str(value), True)
    if not isinstance(value, float):
        return str(value), True
    return f"{value:.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}", True
