"""The state of this process's threads, workers and collectives at one moment, from Python, torch
and the kernel."""

from __future__ import annotations

import os
import pickle
import sys
import time

from voirkit.runs.other_processes import children_of
from voirkit.trace.names import text_of
from voirkit_instruments.places import Owner, file_owner, file_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

_BUSY = 0.2  # a child that uses more than this share of a core is computing
_MOST_THREADS = 64
_MOST_FRAMES = 64
_MOST_WORKERS = 64
_MOST_PENDING = 8

# The kernel's view of threads and processes; Linux only

# The numbers of system calls, by machine and name.
_NUMBERS = {
    "x86_64": {
        "read": (0, 17, 19),
        "write": (1, 18, 20),
        "open": (2, 257),
        "poll": (7, 232, 271, 281),
        "select": (23, 270),
        "sleep": (35, 230),
        "connect": (42,),
        "accept": (43,),
        "receive": (45, 47),
        "send": (46,),
        "wait4": (61, 247),
        "fsync": (74,),
        "futex": (202,),
    },
    "aarch64": {
        "read": (63, 65, 67),
        "write": (64, 66, 68),
        "open": (56,),
        "poll": (22, 73),
        "select": (72,),
        "sleep": (101, 115),
        "connect": (203,),
        "accept": (202,),
        "receive": (207, 212),
        "send": (211,),
        "wait4": (95, 260),
        "fsync": (82,),
        "futex": (98,),
    },
}
_CALLS = {
    machine: {number: name for name, numbers in calls.items() for number in numbers}
    for machine, calls in _NUMBERS.items()
}
_FILE_CALLS = ("read", "write", "fsync", "receive")


def system_state(task: str, process: str) -> dict[str, Any]:
    """Return the kernel's view of a thread or process: ``state`` (as in ps), ``call`` (its system
    call), ``file`` (the file of that call) and ``wchan``.

    A value is None if the kernel does not show it. ``task`` is the folder of the thread or process
    in ``/proc``; ``process`` is that of its process.
    """
    stat = file_text(f"{task}/stat").rpartition(")")[2].split()
    words = file_text(f"{task}/syscall").split()
    call = _call_name(words)
    file = None
    if call in _FILE_CALLS:
        try:
            file = os.readlink(f"{process}/fd/{int(words[1], 16)}")
        except (OSError, ValueError):
            pass
    wchan = file_text(f"{task}/wchan").strip()
    return {
        "state": stat[0] if stat else None,
        "call": call,
        "file": file,
        "wchan": wchan if wchan not in ("", "0") else None,
    }


def _call_name(words: list[str]) -> str | None:
    """Return the name of the system call that the words of ``/proc/.../syscall`` (number and
    arguments) describe; None if they describe none."""
    if len(words) < 2 or not words[0].isdigit():
        return None
    names = _CALLS.get(os.uname().machine if hasattr(os, "uname") else "", {})
    return names.get(int(words[0]), f"system call {words[0]}")


def ran_ns(task: str) -> int:
    """Return the CPU time of a thread or process in nanoseconds."""
    words = file_text(f"{task}/schedstat").split()
    return int(words[0]) if words and words[0].isdigit() else 0


def moved_bytes(task: str) -> int:
    """Return the number of bytes that a thread or process has read from and written to files and
    pipes."""
    counts = {}
    for line in file_text(f"{task}/io").splitlines():
        key, separator, value = line.partition(": ")
        if separator:
            counts[key] = value
    return int(counts.get("rchar", 0)) + int(counts.get("wchar", 0))


class Activity:
    """CPU time, and bytes read and written, of each thread and child process between two
    samples."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._sampled_ns = 0
        # by folder in /proc: (CPU time in ns, bytes read and written)
        self._totals: dict[str, tuple[int, int]] = {}
        self.shares: dict[str, float] = {}

    def sample(self, tasks: Iterable[int]) -> bool:
        """Take a sample and update ``shares``: the share of a core that each thread and child used,
        by folder in ``/proc``.

        Returns True if files were read or written, or children computed. ``tasks`` are the native
        ids of Python's threads.
        """
        now_ns = time.perf_counter_ns()
        elapsed_ns = now_ns - self._sampled_ns
        is_busy = False
        totals = {}
        shares = self.shares = {}
        children = [f"/proc/{child}" for child in children_of(self._pid)[:_MOST_WORKERS]]
        threads = [f"/proc/{self._pid}/task/{tid}" for tid in tasks]
        for task in [*threads, *children]:
            processor_ns = ran_ns(task)
            n_bytes = moved_bytes(task)
            totals[task] = processor_ns, n_bytes
            before = self._totals.get(task)
            if before is None or elapsed_ns <= 0:
                continue
            shares[task] = (processor_ns - before[0]) / elapsed_ns
            if n_bytes > before[1]:
                is_busy = True
            if task in children and shares[task] > _BUSY:
                is_busy = True
        self._totals = totals
        self._sampled_ns = now_ns
        return is_busy


# The view of Python and torch


def frames_of(frame: Any) -> list[dict[str, Any]]:
    """Return a stack as a list of frames, outermost first, without voirkit's own frames. Each frame
    has ``function``, ``file``, ``line`` and ``own`` (True for the script's own code)."""
    frames: list[dict[str, Any]] = []
    while frame is not None and len(frames) < _MOST_FRAMES:
        code = frame.f_code
        path = code.co_filename
        owner = file_owner(path)
        if owner is not Owner.VOIRKIT:
            frames.append(
                {
                    "function": text_of(getattr(code, "co_qualname", code.co_name)),
                    "file": text_of(path),
                    "line": frame.f_lineno or 0,
                    "own": owner is Owner.PROGRAM,
                }
            )
        frame = frame.f_back
    while frames and str(frames[-1]["file"]).startswith("<frozen "):
        frames.pop()  # a frame of runpy, which has started the script
    return frames[::-1]


def all_stacks(main: int, without: int) -> list[tuple[int, str, int, Any]]:
    """Return (native id, name, identity, frame) of each Python thread but ``without``, the main
    thread first; of at most ``_MOST_THREADS`` threads."""
    threads = getattr(sys.modules.get("threading"), "_active", {})
    stacks = []
    for ident, frame in sys._current_frames().items():
        if ident == without:
            continue
        if ident == main:
            default_tid, default_name = os.getpid(), "MainThread"
        else:
            default_tid, default_name = 0, f"thread {ident}"
        thread = threads.get(ident)
        tid = getattr(thread, "native_id", None) or default_tid
        name = text_of(getattr(thread, "name", default_name))
        stacks.append((tid, name, ident, frame))
    stacks.sort(key=lambda stack: (stack[2] != main, stack[0]))
    return stacks[:_MOST_THREADS]


def signature(stacks: Iterable[tuple[int, str, int, Any]]) -> int:
    """Return a hash of the functions that all threads are in, regardless of their current lines."""
    codes = []
    for _, _, ident, frame in stacks:
        codes.append(ident)
        while frame is not None:
            codes.append(id(frame.f_code))
            frame = frame.f_back
    return hash(tuple(codes))


def collectives() -> list[dict[str, Any]] | None:
    """Return, for each process group, the last enqueued and completed collective and the pending
    ones, from torch's flight recorder; None if the recorder has nothing.

    Checked with torch 2.15 and gloo; NCCL's recorders are read in the same way.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    core = getattr(sys.modules.get("torch._C"), "_distributed_c10d", None)
    core = core or sys.modules.get("torch._C._distributed_c10d")
    if c10d is None or core is None or not c10d.is_initialized():
        return None
    from voirkit_instruments.steps.record_collectives import flight_recorders

    groups: list[dict[str, Any]] = []
    for dump in flight_recorders(core):
        try:
            groups += collectives_in(pickle.loads(dump()))
        except (TypeError, KeyError):  # the dump has the format of an older torch
            continue
    return groups or None


def collectives_in(dumped: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the process groups in a dump of the flight recorder."""
    groups: dict[str, dict[str, Any]] = {}
    for key, status in (dumped.get("pg_status") or {}).items():
        row: dict[str, Any] = {"group": str(key), "name": ""}
        for moment in ("last_enqueued", "last_completed"):
            row[moment] = int(status[f"{moment}_collective"])
        groups[str(key)] = {**row, "pending": []}
    ranks_by_name = _ranks_by_name(dumped)
    for entry in dumped.get("entries") or []:
        group = groups.get(str(entry.get("pg_id")))
        if group is None:
            continue
        number, description = [*(entry.get("process_group") or []), "", ""][:2]
        group["name"] = description if description != "undefined" else f"group {number}"
        ranks = ranks_by_name.get(str(number))
        if ranks:
            group["ranks"] = ranks
        if _is_pending(entry) and len(group["pending"]) < _MOST_PENDING:
            group["pending"].append(_pending_collective(entry))
    return list(groups.values())


def _ranks_by_name(dumped: Mapping[str, Any]) -> dict[str, str]:
    """Return a dict from the name of each process group to its ranks."""
    ranks = {}
    for config in (dumped.get("pg_config") or {}).values():
        if isinstance(config, dict):
            ranks[str(config.get("name"))] = str(config.get("ranks", ""))
    return ranks


def _is_pending(entry: Mapping[str, Any]) -> bool:
    return not entry.get("retired") and entry.get("state") != "completed"


def _pending_collective(entry: Mapping[str, Any]) -> dict[str, Any]:
    _, _, name = str(entry.get("profiling_name", "")).rpartition(":")
    return {
        "seq": entry.get("collective_seq_id"),
        "name": name,
        "sizes": entry.get("input_sizes"),
        "dtypes": entry.get("input_dtypes"),
        "state": entry.get("state"),
        "created_time_ns": entry.get("time_created_ns"),
    }


def describe_threads(
    stacks: Iterable[tuple[int, str, int, Any]], main: int, shares: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Describe all Python threads: ``name``, ``main``, ``frames``, ``busy`` (share of a core) and
    the kernel's view."""
    process = f"/proc/{os.getpid()}"
    threads = []
    for tid, name, ident, frame in stacks:
        task = f"{process}/task/{tid}"
        state = system_state(task, process) if tid else {}
        threads.append(
            {
                "name": name,
                "tid": tid,
                "main": ident == main,
                "frames": frames_of(frame),
                "busy": shares.get(task),
                **state,
            }
        )
    return threads


def describe_workers(shares: Mapping[str, float]) -> list[dict[str, Any]]:
    """Describe the child processes of this process: ``pid``, ``name``, ``alive``, ``busy``,
    ``exit_code`` (of a dead child) and the kernel's view."""
    module = sys.modules.get("multiprocessing.process")
    children = {process.pid: process for process in list(getattr(module, "_children", ()))}
    pids = set(children_of(os.getpid()))
    pids.update(pid for pid in children if pid is not None)
    workers = []
    for pid in sorted(pids)[:_MOST_WORKERS]:
        child = children.get(pid)
        folder = f"/proc/{pid}"
        state = system_state(folder, folder)
        is_dead = state["state"] in ("Z", "X", None)
        if state["state"] is None and child is not None and child._popen is not None:
            name = child.name
            # ``waitpid`` is not called here, because only its first caller gets the exit code
            exit_code = child._popen.returncode
            busy = None
        elif children and child is None:
            continue  # another program that the script has started
        else:
            name = text_of(child.name if child is not None else file_text(f"{folder}/comm").strip())
            exit_code = _exit_code(folder) if is_dead else None
            busy = shares.get(folder)
        workers.append(
            {
                "pid": pid,
                "name": name,
                "alive": not is_dead,
                "exit_code": exit_code,
                "busy": busy,
                **state,
            }
        )
    return workers


def _exit_code(folder: str) -> int:
    """Return the exit code of a process that has not been waited for yet; if a signal ended it, the
    negative number of the signal."""
    fields = file_text(f"{folder}/stat").rpartition(")")[2].split()
    status = int(fields[49]) if len(fields) > 49 else 0
    signal = status & 0x7F
    return -signal if signal else status >> 8
