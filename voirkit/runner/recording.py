"""Where the spans of this process go, and when: a run that voirkit leads, a folder that the user
names, or nowhere.

The recorder is loaded by what records, not from here: a run that records nothing pays nothing.
Whatever fails, the program goes on.

The imports of the program's main thread are timed here, the outermost ones, also those inside of
functions; and those of other threads, as far as the main thread waits for them.  Python takes a
lock around each import that finds nothing in ``sys.modules``.  That lock's manager is what is
timed: its frames are in no traceback, and imports inside of an import go on as ever.  Where it is
not there, nothing is timed.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from _thread import get_ident, get_native_id  # threading is imported where the program imports it
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
LIMIT = 4 * 10**9  # bytes of segments, --trace-limit
_RECEIVER = "voirkit.runner.recording:accept"


class _Destination:
    """The place that this process records to, now and after its run.

    A plan has a folder, rank, host, limit and world_size.
    """

    __slots__ = ("compacts_late", "ended_plan", "late", "plan", "report", "run", "run_pid")

    def __init__(self) -> None:
        self.plan: dict[str, Any] | None = None
        self.report: Callable[[str], None] = tell
        self.ended_plan: dict[str, Any] | None = None  # of the run that has ended
        # that plan while what comes after its run is recorded, and by which process
        self.late: tuple[dict[str, Any], int] | None = None
        self.compacts_late = False
        self.run: Any = None  # this process's part in a run without the runner
        self.run_pid = 0


_destination = _Destination()


def prepare(
    folder: str,
    rank: int,
    host: str | None = None,
    limit: int = LIMIT,
    report: Callable[[str], None] = tell,
    world_size: int = 1,
) -> None:
    """From now on what records in this process, and in those it starts, does so in a run directory.

    Args:
        limit: How many bytes of segments may be written; what comes then is counted.
        report: Called with what goes wrong.
        world_size: Of the group that the rank is of; 1 without one.
    """
    end_late()
    atexit.unregister(end_late)
    atexit.register(end_late)  # before the program registers anything, so that it is called last
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
    """This process is one of several ranks, which it may learn late; those that it starts from now
    on belong to the same rank."""
    plan = _destination.plan
    if plan is None or world_size < 2 or (rank, world_size) == (plan["rank"], plan["world_size"]):
        return  # what launched it has said so already
    _destination.plan = {**plan, "rank": rank, "world_size": world_size}
    recorder = sys.modules.get(RECORDER)
    if recorder is not None:
        recorder.join_group(rank, world_size)


def is_prepared() -> bool:
    """Whether what is recorded goes anywhere."""
    return _destination.plan is not None


def end() -> Any:
    """Recording ends here. Returns what came to be recorded (``events``, ``dropped`` by name,
    ``seconds`` that it took), or None if nothing has used the recorder."""
    inherit.unwatch(_RECEIVER)
    plan = _destination.plan
    _destination.plan = None
    _destination.ended_plan = plan or _destination.ended_plan
    recorder = sys.modules.get(RECORDER)
    return recorder.end() if recorder is not None and plan is not None else None


def go_on(compacts: bool) -> None:
    """Record what comes after the run as well: callbacks of ``atexit``, threads that outlive the
    main one. It goes into files of its own, compacted when python ends if asked for; what the run
    came to does not count it."""
    _destination.compacts_late = compacts
    plan = _destination.ended_plan
    recorder = sys.modules.get(RECORDER)
    if recorder is not None and plan is not None and _destination.plan is None:
        _destination.late = plan, os.getpid()
        # callbacks that were registered before it are called after it
        recorder.begin(**plan, tell=_destination.report, ends_with_python=False)


def end_late() -> None:
    """End what ``go_on`` has begun."""
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
        except Exception as exc:  # the program is importing something: this must not come out there
            _destination.report(f"no trace is recorded ({type(exc).__name__}: {exc}).")


# processes that multiprocessing spawns


def offer_for_children() -> dict[str, Any] | None:
    """What they need to record into the same run."""
    plan = _destination.plan
    if plan is None:
        return None
    recorder = sys.modules.get(RECORDER)
    return {"plan": plan, "begun": None if recorder is None else recorder.inherited()}


def accept(offer: dict[str, Any]) -> None:
    """In such a process: record where its parent does, as soon as anything records, and time
    imports, those of its main module first."""
    if _destination.plan is not None:
        return  # it was told by $VOIRKIT_RUN_DIR already
    plan = offer["plan"]
    rank, world_size = rank_and_world_size()
    if world_size > 1:  # a launcher has started it
        plan = {**plan, "rank": rank, "world_size": world_size}
    _destination.plan = plan
    begun = offer["begun"] if world_size < 2 else None
    when_imported(
        RECORDER, _start_recorder if begun is None else lambda recorder: recorder.adopt(begun)
    )
    time_imports()


# without the runner


def begin_from_environment() -> None:
    """Begin, if nothing has, in the folder that ``$VOIRKIT_RUN_DIR`` names; called by what
    annotates, before it records."""
    folder = os.environ.get(VARIABLE)
    if folder and _destination.plan is None:
        begin_standalone(os.path.abspath(folder), f"{VARIABLE}={folder}")


def begin_standalone(folder: str, where: str) -> bool:
    """Begin to record in a run directory that no runner has made; whether that went well.  It ends
    with the process at the latest. ``folder``: absolute path; ``where``: what named it, for
    messages."""
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
    # the program may have registered callbacks already, which are called after it
    atexit.unregister(end_late)
    atexit.unregister(_end_with_python)
    atexit.register(_end_with_python)
    return True


def _end_with_python() -> None:
    if _destination.run is not None:
        end_standalone()
        go_on(compacts=False)  # into segments, which whoever opens the run compacts


def end_standalone() -> None:
    """End what ``begin_standalone`` has begun in this process."""
    run = _destination.run
    if run is not None and os.getpid() == _destination.run_pid:
        _destination.run = None
        run.end(end())


# imports of the program's main thread, and those that it waits for

# what is shorter is not kept: an import that fails, in a loop, takes 50 us each time
LEAST_IMPORT_NS = 1_000_000
_MOST_IMPORTS = 4096  # that are kept until they are recorded

PATCH_POINTS = (
    PatchPoint("importlib._bootstrap", "_get_module_lock", "python 3.10 to 3.15", ("name",)),
)
_get_module_lock: Any = getattr(_bootstrap, "_get_module_lock", None)
# imports that are not in the trace yet: module, begin and end on the clock of time.perf_counter_ns
_kept: list[tuple[str, int, int]] = []
_importing: set[int] = set()  # the other threads that are in an import


class _ImportTimes:
    """The timing of imports in this process."""

    __slots__ = ("is_on", "recorder", "thread", "thread_pid", "total_ns", "waited_until_ns")

    def __init__(self) -> None:
        self.is_on = False
        self.thread = 0  # the thread whose imports are timed
        # The process whose first thread that is. In a fork of another thread, and where the timed
        # thread may end, its clock must not be asked for.
        self.thread_pid = 0
        self.total_ns = 0
        self.waited_until_ns = 0  # when the last import ended that the main thread waited for
        self.recorder: Any = None  # writes them into the trace

    def begin(self) -> None:
        """Time the imports of this thread from now on."""
        self.thread = get_ident()
        self.thread_pid = os.getpid() if get_native_id() == os.getpid() else 0
        self.total_ns = 0
        self.waited_until_ns = 0
        self.recorder = None
        self.is_on = True


_times = _ImportTimes()
# Where a thread is that waits for another one.
_WAITS = (
    "threading",
    "queue",
    "concurrent.futures._base",
    "concurrent.futures.thread",
    "asyncio.base_events",
    "selectors",
)


# called where such an import begins, and where it ends
_import_edges: list[Callable[[], object]] = []


def report_imports(begins: Callable[[], object], ends: Callable[[], object]) -> None:
    """Have something called where an import that is timed begins, and where it ends; not for those
    inside of another, and voirkit's own. It may not raise.
    """
    _import_edges[:] = begins, ends


class _TimedLock:
    """The lock that python holds as it imports a module; nothing of voirkit is on the stack while
    it does."""

    def __init__(self, module: str, lock: Any) -> None:
        self._module = module
        self._lock = lock
        self._begun_ns = 0

    def acquire(self) -> bool:
        _bootstrap._get_module_lock = _get_module_lock  # type: ignore[attr-defined]  # of the imports inside of this one
        self._begun_ns = perf_counter_ns()
        if _import_edges and not self._module.startswith("voirkit"):
            _import_edges[0]()
        try:
            return bool(self._lock.acquire())
        except BaseException:  # two threads wait for each other's import: this one goes on without the lock, and does not release it
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
    """The same of an import on another thread than the main one, which may wait for it."""

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
    """Time the imports of this thread from now on."""
    if _get_module_lock is None:
        return
    _kept.clear()
    _importing.clear()
    _times.begin()
    _time_next_import()


def end_imports() -> int:
    """Time no more; the nanoseconds in imports, recorded or not."""
    _times.is_on = False
    _times.recorder = None
    if getattr(_bootstrap, "_get_module_lock", None) is _get_timed_lock:
        _bootstrap._get_module_lock = _get_module_lock  # type: ignore[attr-defined]
    return _times.total_ns


def record_imports() -> None:
    """Put what was timed so far, and what will be, into the trace; called by what is about to
    record there. A trace is not begun for it."""
    recorder = sys.modules.get(RECORDER)
    if not _times.is_on or recorder is None or not recorder.is_recording():
        return
    _times.recorder = recorder
    while _kept:  # other threads may put more behind
        _write_import(recorder, *_kept.pop(0))


def _import_ended(module: str, begun_ns: int) -> None:
    if not _times.is_on:
        return
    _time_next_import()
    ended_ns = perf_counter_ns()
    # what the main thread waits for later begins after this
    _times.waited_until_ns = ended_ns
    if ended_ns - begun_ns < LEAST_IMPORT_NS or module.startswith("voirkit"):
        return  # what a script imports for its annotations is not work of its own
    _times.total_ns += ended_ns - begun_ns
    recorder = _times.recorder
    if recorder is not None and recorder.is_recording():
        _write_import(recorder, module, begun_ns, ended_ns)
    elif len(_kept) < _MOST_IMPORTS:
        _kept.append((module, begun_ns, ended_ns))


def _main_cpu_ns() -> int:
    """What the main thread has used of a processor."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return 0
    return time.clock_gettime_ns(time.pthread_getcpuclockid(_times.thread))


def _import_ended_elsewhere(module: str, begun_ns: int, main_cpu_ns: int) -> None:
    """Another thread has imported a module: if the main thread waits in a lock, a queue or for a
    thread, it was for this, as long as it did nothing itself. The main thread writes it down when
    it records its own."""
    ended_ns = perf_counter_ns()
    if (
        not _times.is_on
        or os.getpid() != _times.thread_pid
        or ended_ns - begun_ns < LEAST_IMPORT_NS
        or module.startswith("voirkit")
    ):
        return
    if _bootstrap._get_module_lock is not _get_timed_lock:  # type: ignore[attr-defined]
        return  # the main thread is in an import of its own, which counts this time
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
