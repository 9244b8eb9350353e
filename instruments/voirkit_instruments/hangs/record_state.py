"""What the threads of this process, its workers and its collectives do at a moment: what Python, torch and the kernel say of them."""

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

_BUSY = 0.2  # share of a core from which on a child computes
_MOST_THREADS, _MOST_FRAMES, _MOST_WORKERS, _MOST_PENDING = 64, 64, 64, 8

# what the system knows of threads and processes: Linux, elsewhere nothing

# Of x86_64 and aarch64.
_NUMBERS = {
    "x86_64": {
        "read": (0, 17, 19), "write": (1, 18, 20), "open": (2, 257), "poll": (7, 232, 271, 281), "select": (23, 270), "sleep": (35, 230),
        "connect": (42,), "accept": (43,), "receive": (45, 47), "send": (46,), "wait4": (61, 247), "fsync": (74,), "futex": (202,),
    },
    "aarch64": {
        "read": (63, 65, 67), "write": (64, 66, 68), "open": (56,), "poll": (22, 73), "select": (72,), "sleep": (101, 115),
        "connect": (203,), "accept": (202,), "receive": (207, 212), "send": (211,), "wait4": (95, 260), "fsync": (82,), "futex": (98,),
    },
}  # fmt: skip
_CALLS = {machine: {number: name for name, which in calls.items() for number in which} for machine, calls in _NUMBERS.items()}
_OF_FILES = ("read", "write", "fsync", "receive")


def system_state(task: str, process: str) -> dict[str, Any]:
    """What the kernel says of a thread: ``state`` (of ps), ``call`` that it is in, the ``file`` of it, ``wchan``; None where it does not.
    ``task``: its folder in ``/proc``; ``process``: that of its process."""
    stat = file_text(f"{task}/stat").rpartition(")")[2].split()
    words = file_text(f"{task}/syscall").split()
    table = _CALLS.get(os.uname().machine if hasattr(os, "uname") else "", {})
    call = table.get(int(words[0]), f"system call {words[0]}") if len(words) > 1 and words[0].isdigit() else None
    file = None
    if call in _OF_FILES:
        try:
            file = os.readlink(f"{process}/fd/{int(words[1], 16)}")
        except (OSError, ValueError):
            pass
    wchan = file_text(f"{task}/wchan").strip()
    return {"state": stat[0] if stat else None, "call": call, "file": file, "wchan": wchan if wchan not in ("", "0") else None}


def ran_ns(task: str) -> int:
    """How long a thread has been on a processor."""
    words = file_text(f"{task}/schedstat").split()
    return int(words[0]) if words and words[0].isdigit() else 0


def moved_bytes(task: str) -> int:
    """What a thread or process has read and written, in bytes of files and pipes."""
    lines = dict(line.split(": ") for line in file_text(f"{task}/io").splitlines() if ": " in line)
    return sum(int(lines.get(key, 0)) for key in ("rchar", "wchar"))


class Activity:
    """How much processor time each thread and child has used, and how much they have read and written, from one look to the next."""

    def __init__(self, pid: int) -> None:
        self._pid, self._at_ns = pid, 0
        self._before: dict[str, tuple[int, int]] = {}
        self.shares: dict[str, float] = {}

    def sample(self, tasks: Iterable[int]) -> bool:
        """Update ``shares`` of a core, by folder in ``/proc``; whether files were read or written, or children computed. ``tasks``: native
        ids of the threads of Python."""
        now_ns, is_busy = time.perf_counter_ns(), False
        found = {}
        children = [f"/proc/{child}" for child in children_of(self._pid)[:_MOST_WORKERS]]
        self.shares = {}
        for task in [*(f"/proc/{self._pid}/task/{tid}" for tid in tasks), *children]:
            now = found[task] = ran_ns(task), moved_bytes(task)
            before = self._before.get(task)
            if before is not None and now_ns > self._at_ns:
                self.shares[task] = (now[0] - before[0]) / (now_ns - self._at_ns)
                is_busy = is_busy or now[1] > before[1] or (task in children and self.shares[task] > _BUSY)
        self._before, self._at_ns = found, now_ns
        return is_busy


# what Python and torch know


def frames_of(frame: Any) -> list[dict[str, Any]]:
    """A stack, outermost first, without voirkit's own frames: ``function``, ``file``, ``line``, ``own`` (whether the script's own code)."""
    frames: list[dict[str, Any]] = []
    while frame is not None and len(frames) < _MOST_FRAMES:
        code = frame.f_code
        path = code.co_filename
        owner = file_owner(path)
        if owner is not Owner.VOIRKIT:
            name = text_of(getattr(code, "co_qualname", code.co_name))
            frames.append({"function": name, "file": text_of(path), "line": frame.f_lineno or 0, "own": owner is Owner.PROGRAM})
        frame = frame.f_back
    while frames and str(frames[-1]["file"]).startswith("<frozen "):
        frames.pop()  # of runpy
    return frames[::-1]


def all_stacks(main: int, without: int) -> list[tuple[int, str, int, Any]]:
    """(native id, name, identity, frame) of Python's threads, the main one first."""
    threading = sys.modules.get("threading")
    known = getattr(threading, "_active", {})
    found = []
    for ident, frame in sys._current_frames().items():
        if ident != without:
            thread = known.get(ident)
            tid = getattr(thread, "native_id", None) or (os.getpid() if ident == main else 0)
            found.append((tid, text_of(getattr(thread, "name", "MainThread" if ident == main else f"thread {ident}")), ident, frame))
    return sorted(found, key=lambda one: (one[2] != main, one[0]))[:_MOST_THREADS]


def signature(stacks: Iterable[tuple[int, str, int, Any]]) -> int:
    """A hash of the functions that all threads are in, whatever their lines."""
    codes = []
    for _, _, ident, frame in stacks:
        codes.append(ident)
        while frame is not None:
            codes.append(id(frame.f_code))
            frame = frame.f_back
    return hash(tuple(codes))


def collectives() -> list[dict[str, Any]] | None:
    """Each group's last enqueued and completed collective, and those that are not complete, out of torch's flight recorder. None where it
    has none. Checked with torch 2.15 and gloo; NCCL's recorders are asked the same way."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    core = getattr(sys.modules.get("torch._C"), "_distributed_c10d", None) or sys.modules.get("torch._C._distributed_c10d")
    if c10d is None or core is None or not c10d.is_initialized():
        return None
    from voirkit_instruments.steps.record_collectives import flight_recorders

    found: list[dict[str, Any]] = []
    for dump in flight_recorders(core):
        try:
            found += collectives_in(pickle.loads(dump()))
        except (TypeError, KeyError):  # those of an older torch
            continue
    return found or None


def collectives_in(dumped: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The groups of a dump of the flight recorder."""
    groups: dict[str, dict[str, Any]] = {}
    for key, status in (dumped.get("pg_status") or {}).items():
        groups[str(key)] = {
            "group": str(key), "name": "", "last_enqueued": int(status["last_enqueued_collective"]),
            "last_completed": int(status["last_completed_collective"]), "pending": [],
        }  # fmt: skip
    configured = {str(one.get("name")): one for one in (dumped.get("pg_config") or {}).values() if isinstance(one, dict)}
    for entry in dumped.get("entries") or []:
        group = groups.get(str(entry.get("pg_id")))
        if group is None:
            continue
        number, described = [*(entry.get("process_group") or []), "", ""][:2]
        group["name"] = described if described != "undefined" else f"group {number}"
        ranks = str((configured.get(str(number)) or {}).get("ranks", ""))
        if ranks:
            group["ranks"] = ranks
        if not entry.get("retired") and entry.get("state") != "completed" and len(group["pending"]) < _MOST_PENDING:
            group["pending"].append(
                {
                    "seq": entry.get("collective_seq_id"), "name": str(entry.get("profiling_name", "")).rpartition(":")[2],
                    "sizes": entry.get("input_sizes"), "dtypes": entry.get("input_dtypes"), "state": entry.get("state"),
                    "created_time_ns": entry.get("time_created_ns"),
                }
            )  # fmt: skip
    return list(groups.values())


def describe_threads(stacks: Iterable[tuple[int, str, int, Any]], main: int, shares: Mapping[str, float]) -> list[dict[str, Any]]:
    """All threads of Python: ``name``, ``main``, ``frames``, ``busy`` (share of a core) and what the system knows."""
    process = f"/proc/{os.getpid()}"
    found = []
    for tid, name, ident, frame in stacks:
        task = f"{process}/task/{tid}"
        state = system_state(task, process) if tid else {}
        found.append({"name": name, "tid": tid, "main": ident == main, "frames": frames_of(frame), "busy": shares.get(task), **state})
    return found


def describe_workers(shares: Mapping[str, float]) -> list[dict[str, Any]]:
    """The processes below this one: ``pid``, ``name``, ``alive``, ``busy``, ``exit_code`` of a dead one, and what the system knows."""
    modules = sys.modules.get("multiprocessing.process")
    known = {process.pid: process for process in list(getattr(modules, "_children", ()))}
    found = []
    for pid in sorted({*children_of(os.getpid()), *(pid for pid in known if pid is not None)})[:_MOST_WORKERS]:
        folder = f"/proc/{pid}"
        state = system_state(folder, folder)
        if state["state"] is None and pid in known and known[pid]._popen is not None:
            code = known[pid]._popen.returncode  # not asked of the system: whoever asks first gets it
            found.append({"pid": pid, "name": known[pid].name, "alive": False, "exit_code": code, "busy": None, **state})
            continue
        is_dead = state["state"] in ("Z", "X", None)
        code = None
        if is_dead:
            fields = file_text(f"{folder}/stat").rpartition(")")[2].split()
            status = int(fields[49]) if len(fields) > 49 else 0
            code = -(status & 0x7F) if status & 0x7F else status >> 8
        if known and pid not in known:
            continue  # another program that the script has started
        name = known[pid].name if pid in known else file_text(f"{folder}/comm").strip()
        found.append({"pid": pid, "name": text_of(name), "alive": not is_dead, "exit_code": code, "busy": shares.get(folder), **state})
    return found
