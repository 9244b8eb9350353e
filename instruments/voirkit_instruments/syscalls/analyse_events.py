"""What every reader of a tracer's log yields: calls, their beginnings, ends and names of threads; and which calls do what.

All times are seconds on the tracer's clock, ``nan`` where the log has none.
"""

from __future__ import annotations

from typing import NamedTuple

NAN = float("nan")


class Call(NamedTuple):
    """A system call that has returned, or never will.

    Attributes:
        tid: The thread.
        began: When it was entered.
        name: Of the call.
        args: Its arguments as strace prints them, without the brackets; of the kernel's own events only those that are needed.
        result: What it returned; None if it did not (``?``).
        error: Name of the error, or "".
        seconds: How long it took, ``nan`` if the log does not have it.
        is_joined: Whether other threads' calls stand between its beginning and its end.
        waited: Seconds of it for which the thread slept until something came; 0 where that is not seen.
    """

    tid: int
    began: float
    name: str
    args: str
    result: int | None
    error: str
    seconds: float
    is_joined: bool
    waited: float = 0.0


class CallEntry(NamedTuple):
    """A call that has been entered and has not returned yet; its ``Call`` follows, if it does."""

    tid: int
    began: float
    name: str
    args: str


class ThreadExit(NamedTuple):
    """A thread has ended. ``how`` is ``exited with 0``, ``killed by SIGKILL``, ``superseded by execve in pid 7``."""

    tid: int
    time: float
    how: str


class Signal(NamedTuple):
    """A signal has come, or a thread was stopped by one."""

    tid: int
    time: float
    text: str


class ThreadName(NamedTuple):
    """A thread has a name, or has been created; only the kernel's own events have this apart from calls.

    Attributes:
        tid: The thread.
        name: Its name, or "".
        parent: The thread that has created it, or None.
        is_thread: Whether it is a thread of its parent's process.
    """

    tid: int
    name: str
    parent: int | None
    is_thread: bool


Event = Call | CallEntry | ThreadExit | Signal | ThreadName

# Their positive results are bytes.
READS = frozenset(["read", "pread64", "readv", "preadv", "preadv2", "recvfrom", "recvmsg"])
WRITES = frozenset(["write", "pwrite64", "writev", "pwritev", "pwritev2", "sendto", "sendmsg"])
COPIES = frozenset(["sendfile", "sendfile64", "copy_file_range", "splice", "tee", "vmsplice"])
TRANSFERS = READS | WRITES | COPIES
# They wait, for another thread or process, a time or a peer, and are summed separately from calls that work.
WAITS = frozenset([
    "futex", "futex_wait", "futex_waitv", "futex_time64", "poll", "ppoll", "ppoll_time64", "select", "_newselect", "pselect6",
    "pselect6_time64", "epoll_wait", "epoll_pwait", "epoll_pwait2", "accept", "accept4", "wait4", "waitid", "waitpid", "nanosleep",
    "clock_nanosleep", "clock_nanosleep_time64", "recvmsg", "pause", "rt_sigsuspend", "rt_sigtimedwait", "restart_syscall", "sigsuspend",
])  # fmt: skip
OPENS = frozenset(["open", "openat", "openat2", "creat"])
FORKS = frozenset(["clone", "clone2", "clone3", "fork", "vfork"])
ACCESSES = frozenset(["access", "faccessat", "faccessat2"])
URING = "io_uring_enter"  # what it does is hidden from every tracer of calls
