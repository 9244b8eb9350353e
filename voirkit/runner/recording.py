"""The current destination of this process's spans: a run of voirkit, a folder that the user names,
or nothing.

The recorder module is imported by the code that records, not from here, so that a run that records
nothing has no overhead. If anything fails, the program continues.

This module also times imports: the outermost imports of the program's main thread, including those
inside functions, and imports of other threads for which the main thread waits. Python takes a lock
around each import of a module that is not in ``sys.modules``; the timing wraps this lock. So it
adds no frames to tracebacks and does not change nested imports. If Python has no such lock, nothing
is timed.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from _thread import get_ident, get_native_id  # importing threading is left to the program
from importlib import _bootstrap
from time import perf_counter_ns

from voirkit.errors import VoirkitError, tell
from voirkit.imports import PatchPoint, as_importlib, when_imported
from voirkit.processes import inherit
from voirkit.runs.manifest import rank_and_world_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

VARIABLE = "VOIRKIT_RUN_DIR"
RECORDER = "voirkit.trace.recorder"
LIMIT = 4 * 10**9  # default of --trace-limit: maximum total size of the trace's files in bytes
_RECEIVER = "voirkit.runner.recording:accept"


class _Destination:
    """The destination of this process's records, during and after its run.

    A plan is a dictionary with folder, rank, host, limit and world_size.
    """

    __slots__ = ("compacts_late", "ended_plan", "late", "plan", "report", "run", "run_pid")

    def __init__(self) -> None:
        self.plan: dict[str, Any] | None = None
        self.report: Callable[[str], None] = tell
        self.ended_plan: dict[str, Any] | None = None  # plan of a run that has ended
        # while this process records after its run: the plan of that run, and this process's id
        self.late: tuple[dict[str, Any], int] | None = None
        self.compacts_late = False  # whether records after the run are compacted at exit
        self.run: Any = None  # the ``StandaloneRun`` of this process, if it has no runner
        self.run_pid = 0  # the process that began ``run``


_destination = _Destination()


def prepare(
    folder: str,
    rank: int,
    host: str | None = None,
    limit: int = LIMIT,
    report: Callable[[str], None] = tell,
    world_size: int = 1,
) -> None:
    """Make this process, and those that it starts, record into a run directory from now on.

    Args:
        folder: The run directory.
        limit: The maximum total size in bytes of the trace's files, of all processes; records
            beyond it are only counted.
        report: Called with a message if something fails.
        world_size: The number of ranks; 1 without a process group.
    """
    end_late()
    atexit.unregister(end_late)
    atexit.register(end_late)  # before the program's callbacks, so that it is called after them
    _destination.plan = {
        "folder": folder,
        "rank": rank,
        "host": host,
        "limit": limit,
        "world_size": world_size,
    }
    _destination.report = report
    inherit.watch(_RECEIVER, offer_for_children, before_main=True)
    when_imported(RECORDER, _start_recorder)


def join_group(rank: int, world_size: int) -> None:
    """Set the rank of this process, which may become known only during the run. Processes that it
    starts from now on belong to the same rank."""
    plan = _destination.plan
    if plan is None or world_size < 2 or (rank, world_size) == (plan["rank"], plan["world_size"]):
        return  # not recording, no group, or known from the launcher's environment
    _destination.plan = {**plan, "rank": rank, "world_size": world_size}
    recorder = sys.modules.get(RECORDER)
    if recorder is not None:
        recorder.join_group(rank, world_size)


def is_prepared() -> bool:
    """True if there is a destination for records."""
    return _destination.plan is not None


def end() -> Any:
    """End the recording. Returns its totals: ``events``, ``dropped`` by name, and the ``seconds``
    that recording took; None if nothing has used the recorder."""
    inherit.unwatch(_RECEIVER)
    plan = _destination.plan
    _destination.plan = None
    _destination.ended_plan = plan or _destination.ended_plan
    recorder = sys.modules.get(RECORDER)
    return recorder.end() if recorder is not None and plan is not None else None


def go_on(compacts: bool) -> None:
    """Go on recording after the run: ``atexit`` callbacks, and threads that outlive the main one.

    These records go into separate files and are not part of the run's totals. ``compacts``: whether
    to compact the files when Python exits.
    """
    _destination.compacts_late = compacts
    plan = _destination.ended_plan
    recorder = sys.modules.get(RECORDER)
    if recorder is not None and plan is not None and _destination.plan is None:
        _destination.late = plan, os.getpid()
        # The recorder must not end itself at exit: ``atexit`` callbacks that were registered before
        # the recorder's are called after it.
        recorder.begin(**plan, tell=_destination.report, ends_with_python=False)


def end_late() -> None:
    """End the recording that ``go_on`` began."""
    if _destination.late is None:
        return
    plan, pid = _destination.late
    _destination.late = None
    totals = sys.modules[RECORDER].end()
    if totals.events and os.getpid() == pid and _destination.compacts_late:
        from voirkit.runner import completion

        completion.compact(plan["folder"], plan["rank"])


def _start_recorder(recorder: ModuleType) -> None:
    plan = _destination.plan
    if plan is not None and not recorder.is_recording():
        try:
            recorder.begin(**plan, tell=_destination.report)
        except Exception as exc:  # the program is just importing a module and must not see this
            _destination.report(f"no trace is recorded ({type(exc).__name__}: {exc}).")


# processes that multiprocessing spawns


def offer_for_children() -> dict[str, Any] | None:
    """Return the data by which spawned processes record into the same run; None if this process has
    no destination."""
    plan = _destination.plan
    if plan is None:
        return None
    recorder = sys.modules.get(RECORDER)
    return {"plan": plan, "begun": None if recorder is None else recorder.inherited()}


def accept(offer: dict[str, Any]) -> None:
    """Make this spawned process record into its parent's run as soon as anything records. Also
    start to time its imports, before its main module is loaded, so that its imports count too."""
    if _destination.plan is not None:
        return  # $VOIRKIT_RUN_DIR has set the destination already
    plan = offer["plan"]
    rank, world_size = rank_and_world_size()
    if world_size > 1:  # this process was started by a launcher
        plan = {**plan, "rank": rank, "world_size": world_size}
    _destination.plan = plan
    begun = offer["begun"] if world_size < 2 else None
    when_imported(
        RECORDER, _start_recorder if begun is None else lambda recorder: recorder.adopt(begun)
    )
    time_imports()


# recording without the runner, in a script that the command ``voirkit`` does not run


def begin_from_environment() -> None:
    """Begin to record into the folder ``$VOIRKIT_RUN_DIR``, if it is set and no recording has
    begun. The annotation APIs call this before they record."""
    folder = os.environ.get(VARIABLE)
    if folder and _destination.plan is None:
        begin_standalone(os.path.abspath(folder), f"{VARIABLE}={folder}")


def begin_standalone(folder: str, where: str) -> bool:
    """Begin to record into a run directory without a runner. Returns True if that succeeded.
    Recording ends when the process does, at the latest.

    Args:
        folder: The absolute path of the run directory.
        where: The option or variable that named the folder, for messages.
    """
    from voirkit.runs.record import join

    try:
        run = join(folder, where)
    except VoirkitError as exc:
        tell(f"{exc}\n  This run is not recorded.")
        return False
    _destination.run = run
    _destination.run_pid = os.getpid()
    prepare(folder, run.rank, run.host, world_size=run.world_size)
    __import__(RECORDER)
    # At exit, ``_end_with_python`` ends the run and goes on recording, because callbacks that the
    # program has registered before are called after it.
    atexit.unregister(end_late)
    atexit.unregister(_end_with_python)
    atexit.register(_end_with_python)
    return True


def _end_with_python() -> None:
    if _destination.run is not None:
        end_standalone()
        go_on(compacts=False)  # the segments are compacted when the run is opened


def end_standalone() -> None:
    """End the recording that ``begin_standalone`` began in this process."""
    run = _destination.run
    if run is not None and os.getpid() == _destination.run_pid:
        _destination.run = None
        run.end(end())


# imports of the program's main thread, and imports of other threads that it waits for

# Shorter imports are not recorded: a program may try in a loop to import a module that is missing,
# at 50 us each time.
LEAST_IMPORT_NS = 1_000_000
_MOST_IMPORTS = 4096  # maximum number of imports in ``_kept``

PATCH_POINTS = (
    PatchPoint("importlib._bootstrap", "_get_module_lock", "python 3.10 to 3.15", ("name",)),
)
_get_module_lock: Any = getattr(_bootstrap, "_get_module_lock", None)
# imports that are not in the trace yet: (module, start, end), times of time.perf_counter_ns
_kept: list[tuple[str, int, int]] = []
_importing: set[int] = set()  # ids of the other threads that are inside an import


class _ImportTimes:
    """The timing of imports in this process."""

    __slots__ = ("is_on", "recorder", "thread", "thread_pid", "total_ns", "waited_until_ns")

    def __init__(self) -> None:
        self.is_on = False
        self.thread = 0  # the thread whose imports are timed
        # The id of the process whose main thread is the timed thread; 0 if that is another thread.
        # Unless it is this process's id, the thread's CPU clock must not be read: a thread other
        # than the main one may have ended, and a forked child may not have the thread.
        self.thread_pid = 0
        self.total_ns = 0  # total time of the imports
        # end of the last import that the main thread did itself or waited for
        self.waited_until_ns = 0
        # the recorder module that writes imports into the trace; None before ``record_imports``
        self.recorder: Any = None

    def begin(self) -> None:
        """Time the imports of this thread from now on."""
        self.thread = get_ident()
        self.thread_pid = os.getpid() if get_native_id() == os.getpid() else 0
        self.total_ns = 0
        self.waited_until_ns = 0
        self.recorder = None
        self.is_on = True


_times = _ImportTimes()
# Modules whose code a thread executes while it waits for another thread.
_WAITS = (
    "threading",
    "queue",
    "concurrent.futures._base",
    "concurrent.futures.thread",
    "asyncio.base_events",
    "selectors",
)


# the functions to call when a timed import begins and when it ends
_import_edges: list[Callable[[], object]] = []


def report_imports(begins: Callable[[], object], ends: Callable[[], object]) -> None:
    """Set the functions to call when a timed import begins and when it ends. They are not called
    for nested imports or imports of voirkit, and must not raise."""
    _import_edges[:] = begins, ends


class _TimedLock:
    """A wrapper of the lock that Python holds while it imports a module. No frame of voirkit is on
    the stack while the module is executed."""

    def __init__(self, module: str, lock: Any) -> None:
        self._module = module
        self._lock = lock
        self._begun_ns = 0

    def acquire(self) -> bool:
        # Restore Python's function until this import ends, so that nested imports use plain locks
        # and are not timed.
        _bootstrap._get_module_lock = _get_module_lock  # type: ignore[attr-defined]
        self._begun_ns = perf_counter_ns()
        if _import_edges and not self._module.startswith("voirkit"):
            _import_edges[0]()
        try:
            return bool(self._lock.acquire())
        except BaseException:
            # A deadlock between the imports of two threads: Python continues this import without
            # the lock, and never calls ``release``.
            self._report_end()
            _time_next_import()
            raise

    def release(self) -> None:
        self._lock.release()
        self._report_end()
        _import_ended(self._module, self._begun_ns)

    def _report_end(self) -> None:
        if _import_edges and not self._module.startswith("voirkit"):
            _import_edges[1]()


class _TimedElsewhere(_TimedLock):
    """A wrapper of the lock for an import on a thread other than the main one, which may wait for
    that import."""

    def acquire(self) -> bool:
        _importing.add(get_ident())
        self._main_cpu_ns = _main_cpu_ns()
        self._begun_ns = perf_counter_ns()
        try:
            return bool(self._lock.acquire())
        except BaseException:
            _importing.discard(get_ident())
            raise

    def release(self) -> None:
        self._lock.release()
        _importing.discard(get_ident())
        _import_ended_elsewhere(self._module, self._begun_ns, self._main_cpu_ns)


def _get_timed_lock(name: str) -> Any:
    lock = _get_module_lock(name)
    thread = get_ident()
    if thread == _times.thread:
        return _TimedLock(name, lock)
    return (
        _TimedElsewhere(name, lock)
        if thread not in _importing and os.getpid() == _times.thread_pid
        else lock
    )


for _function in (
    _TimedLock.acquire,
    _TimedLock.release,
    _TimedElsewhere.acquire,
    _TimedElsewhere.release,
    _get_timed_lock,
):
    _function.__code__ = as_importlib(_function.__code__)


def _time_next_import() -> None:
    if _times.is_on:
        _bootstrap._get_module_lock = _get_timed_lock  # type: ignore[attr-defined]


def time_imports() -> None:
    """Start to time the imports of this thread."""
    if _get_module_lock is None:
        return
    _kept.clear()
    _importing.clear()
    _times.begin()
    _time_next_import()


def end_imports() -> int:
    """Stop timing imports. Returns the total time of imports in nanoseconds, recorded or not."""
    _times.is_on = False
    _times.recorder = None
    if getattr(_bootstrap, "_get_module_lock", None) is _get_timed_lock:
        _bootstrap._get_module_lock = _get_module_lock  # type: ignore[attr-defined]
    return _times.total_ns


def record_imports() -> None:
    """Write all imports timed so far, and later ones, into the trace, if it has begun. Code that is
    about to record calls this."""
    recorder = sys.modules.get(RECORDER)
    if not _times.is_on or recorder is None or not recorder.is_recording():
        return
    _times.recorder = recorder
    while _kept:  # other threads may append meanwhile
        _write_import(recorder, *_kept.pop(0))


def _import_ended(module: str, begun_ns: int) -> None:
    if not _times.is_on:
        return
    _time_next_import()
    ended_ns = perf_counter_ns()
    # a later wait of the main thread for another thread's import begins here at the earliest
    _times.waited_until_ns = ended_ns
    if ended_ns - begun_ns < LEAST_IMPORT_NS or module.startswith("voirkit"):
        return  # too short, or a module of voirkit, which a script imports for annotations
    _times.total_ns += ended_ns - begun_ns
    recorder = _times.recorder
    if recorder is not None and recorder.is_recording():
        _write_import(recorder, module, begun_ns, ended_ns)
    elif len(_kept) < _MOST_IMPORTS:
        _kept.append((module, begun_ns, ended_ns))


def _main_cpu_ns() -> int:
    """Return the CPU time of the main thread in nanoseconds; 0 if the system does not provide
    it."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return 0
    return time.clock_gettime_ns(time.pthread_getcpuclockid(_times.thread))


def _import_ended_elsewhere(module: str, begun_ns: int, main_cpu_ns: int) -> None:
    """Count an import that another thread has just finished, if the main thread waited for it.

    The main thread is assumed to wait for it if it is in code for locks, queues or threads. The
    time counted is that in which the main thread used no CPU. The main thread writes it into the
    trace with its own imports.
    """
    ended_ns = perf_counter_ns()
    if (
        not _times.is_on
        or os.getpid() != _times.thread_pid
        or ended_ns - begun_ns < LEAST_IMPORT_NS
        or module.startswith("voirkit")
    ):
        return
    if _bootstrap._get_module_lock is not _get_timed_lock:  # type: ignore[attr-defined]
        return  # the main thread is itself inside an import, whose time includes this one
    frame = sys._current_frames().get(_times.thread)
    if frame is None or frame.f_globals.get("__name__") not in _WAITS:
        return
    since_ns = max(begun_ns + _main_cpu_ns() - main_cpu_ns, _times.waited_until_ns)
    _times.waited_until_ns = ended_ns
    if ended_ns - since_ns >= LEAST_IMPORT_NS and len(_kept) < _MOST_IMPORTS:
        _times.total_ns += ended_ns - since_ns
        _kept.append((module, since_ns, ended_ns))


def _write_import(recorder: Any, module: str, begun_ns: int, ended_ns: int) -> None:
    name = recorder.name("python", "import", kind="phase")
    recorder.span(name, begun_ns, ended_ns, recorder.arguments({"module": module}))
