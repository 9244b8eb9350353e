"""Reader of the kernel's trace buffer pages, which yields the same events as the reader of strace
logs. Checked with Linux 6.18.

A page has a header (time of its first event, number of bytes used), followed by its events. Each
event has 5 bits of length, 27 bits of time since the previous event, and the data. The reader turns
the kernel's numbers into names, and reads only the arguments that are needed.
"""

from __future__ import annotations

import errno
import heapq
import json
import os
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any

from voirkit_instruments.syscalls.analyse_calls import (
    ACCESSES,
    FORKS,
    NAN,
    TRANSFERS,
    Call,
    CallEntry,
    Event,
    ThreadExit,
    ThreadName,
)
from voirkit_instruments.syscalls.record_phases import message_of_mode

_HEAD = 16
_PADDING, _EXTEND, _STAMP = 29, 30, 31
_THREAD = 0x00010000  # CLONE_THREAD
# TASK_INTERRUPTIBLE: the thread sleeps until an event. The state of a disk wait is 2, and that of a
# preempted thread 0.
_SLEEPS = 1
_MOST_ERROR = 4095
_WITH_ARGUMENTS = TRANSFERS | ACCESSES | {"close"}  # calls whose arguments are read
_ENDS = frozenset(["exit", "exit_group"])
_new: Callable[[Any, tuple[Any, ...]], Any] = (
    tuple.__new__
)  # creates a Call in half the time of Call(...)
_KERNEL_ERRORS = {
    512: "ERESTARTSYS",
    513: "ERESTARTNOINTR",
    514: "ERESTARTNOHAND",
    516: "ERESTART_RESTARTBLOCK",
}


class RingError(Exception):
    """A kernel trace cannot be read."""


class KernelLog:
    """The kernel's trace of a run. ``stem``: path of its files, without ``.ring.json``. Raises
    RingError: the files are missing, or their format or machine is unknown."""

    def __init__(self, stem: str) -> None:
        try:
            with open(f"{stem}.ring.json", encoding="utf-8") as file:
                self._layout: dict[str, Any] = json.load(file)
        except (OSError, ValueError) as exc:
            raise RingError(f"{stem}.ring.json cannot be read: {exc}") from None
        self._stem = stem
        self.lost = int(self._layout["lost"])  # events that the kernel dropped for lack of room
        self._names = call_names(self._layout["machine"])
        if not self._names or self._layout["byteorder"] != "little":
            raise RingError(f"the system calls of {self._layout['machine']} are not known")
        self._events = {int(number): event for number, event in self._layout["events"].items()}

    def events(self) -> Iterator[Event]:
        """Yield calls in the order of their returns, with events of threads and call entries in
        between."""
        rings = [_records(f"{self._stem}.{cpu}.ring") for cpu in self._layout["cpus"]]
        return self._calls(heapq.merge(*rings))

    def _fields(self, event: str, *fields: str) -> tuple[int, Callable[[bytes], tuple[Any, ...]]]:
        """Return the number of an event, and a function that reads some of its fields. Fields
        longer than eight bytes are returned as bytes, all others as numbers."""
        for number, description in self._events.items():
            if description["event"] == event:
                places = [description["fields"].get(field) for field in fields]
                if None in places or places != sorted(places):
                    raise RingError(
                        f"this kernel's {event} has other fields than {', '.join(fields)}, or in"
                        " another order"
                    )
                return number, _struct(places).unpack_from
        raise RingError(f"{event} was not traced")

    def _calls(self, records: Iterator[tuple[int, int, bytes]]) -> Iterator[Event]:
        enter, read_enter = self._fields("sys_enter", "common_pid", "id", "args")
        exit_, read_exit = self._fields("sys_exit", "common_pid", "id", "ret")
        create, read_create = self._fields("task_newtask", "common_pid", "pid", "clone_flags")
        rename, read_rename = self._fields("task_rename", "pid", "newcomm")
        end, read_end = self._fields("sched_process_exit", "common_pid")
        switch, read_switch = self._fields("sched_switch", "prev_pid", "prev_state", "next_pid")
        names = self._names
        calls = _OpenCalls(names)
        for now_ns, number, event in records:
            if number == enter:
                tid, call, args = read_enter(event)
                calls.enter(now_ns, tid, call, args)
                if names.get(call) in FORKS:
                    yield CallEntry(tid, now_ns * 1e-9, names[call], "")
            elif number == exit_:
                tid, call, result = read_exit(event)
                yield from calls.leave(now_ns, tid, call, result)
            elif number == switch:
                previous, state, following = read_switch(event)
                calls.switch(now_ns, previous, state, following)
            elif number == create:
                parent, tid, flags = read_create(event)
                yield ThreadName(tid, "", parent, bool(flags & _THREAD))
            elif number == rename:
                tid, name = read_rename(event)
                text = name.partition(b"\0")[0].decode("utf-8", "replace")
                yield ThreadName(tid, text, None, False)
            elif number == end:
                (tid,) = read_end(event)
                yield from calls.end(now_ns, tid)
                yield ThreadExit(tid, now_ns * 1e-9, "")
        yield from calls.never_returned()


def _struct(places: list[tuple[int, int]]) -> Struct:
    """Return the struct that reads fields, given their (place, size) in ascending order."""
    form = "<"
    end = 0
    for place, size in places:
        if place > end:
            form += f"{place - end}x"
        form += {4: "i", 8: "q"}.get(size) or f"{size}s"
        end = place + size
    return Struct(form)


class _OpenCalls:
    """The open calls of all threads, and the threads that sleep in them. Arguments are nanoseconds
    of the tracer's clock; yielded events have seconds."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        # thread id -> (entry time, number, arguments) of the call that has not returned yet
        self._open: dict[int, tuple[int, int, Any]] = {}
        self._asleep: dict[int, int] = {}  # id of a sleeping thread -> time it fell asleep
        self._slept: dict[int, int] = {}  # thread id -> time it has slept in its open call so far
        self._joined: set[int] = set()  # threads whose open call has been yielded as a CallEntry

    def enter(self, now_ns: int, tid: int, call: int, args: bytes) -> None:
        """Record that a thread enters a call."""
        self._open[tid] = now_ns, call, args
        self._asleep.pop(tid, None)
        self._slept.pop(tid, None)

    def leave(self, now_ns: int, tid: int, call: int, result: int) -> Iterator[Event]:
        """Yield a call that returns."""
        # A thread that returns is awake. The event that woke it may be missing while another tracer
        # starts or stops.
        self._wake(now_ns, tid)
        start_ns, entered, args = self._open.pop(tid, (0, -1, b""))
        if call < 0:
            return  # return from a signal handler; the interrupted call was yielded earlier
        name = self._name(call)
        seconds = (now_ns - start_ns) * 1e-9
        if entered != call:  # the call was entered before tracing began
            start_ns, seconds, args = now_ns, NAN, None
        error = ""
        if -_MOST_ERROR <= result < 0:
            error = errno.errorcode.get(-result) or _KERNEL_ERRORS.get(-result, f"E{-result}")
            result = -1
        text = ""
        if args is not None and name in _WITH_ARGUMENTS:
            text = _arguments(name, args)
            if text and name in ACCESSES:
                # A marker: the phase changes here. So the entries of all open calls are yielded
                # first, because these calls continue in the new phase.
                yield from self._entries()
        is_joined = tid in self._joined
        self._joined.discard(tid)
        waited = 0.0
        if tid in self._slept and seconds == seconds:
            waited = min(self._slept.pop(tid) * 1e-9, seconds)
        yield _new(
            Call, (tid, start_ns * 1e-9, name, text, result, error, seconds, is_joined, waited)
        )

    def switch(self, now_ns: int, previous: int, state: int, following: int) -> None:
        """Record that a processor switches threads. ``state``: task state of the previous
        thread."""
        self._asleep.pop(previous, None)
        if state & _SLEEPS and previous in self._open:
            self._asleep[previous] = now_ns
        self._wake(now_ns, following)

    def end(self, now_ns: int, tid: int) -> Iterator[Event]:
        """Yield the open call of a thread that ends: exit, or a call in which it was killed."""
        self._asleep.pop(tid, None)
        self._slept.pop(tid, None)
        if tid in self._open:
            start_ns, call, _ = self._open.pop(tid)
            seconds = NAN if self._name(call) in _ENDS else (now_ns - start_ns) * 1e-9
            yield self._without_result(tid, start_ns, call, seconds)
            self._joined.discard(tid)

    def never_returned(self) -> Iterator[Event]:
        """Yield the calls that were still open when tracing ended."""
        for tid, (start_ns, call, _) in self._open.items():
            yield self._without_result(tid, start_ns, call, NAN)

    def _name(self, call: int) -> str:
        return self._names.get(call) or f"syscall_{call}"

    def _wake(self, now_ns: int, tid: int) -> None:
        since_ns = self._asleep.pop(tid, None)
        if since_ns is not None:
            self._slept[tid] = self._slept.get(tid, 0) + now_ns - since_ns

    def _entries(self) -> Iterator[Event]:
        """Yield the entry of each open call, once for each call."""
        for tid, (start_ns, call, _) in self._open.items():
            if tid not in self._joined:
                self._joined.add(tid)
                yield CallEntry(tid, start_ns * 1e-9, self._names.get(call, ""), "")

    def _without_result(self, tid: int, start_ns: int, call: int, seconds: float) -> Any:
        is_joined = tid in self._joined
        name = self._name(call)
        return _new(Call, (tid, start_ns * 1e-9, name, "", None, "", seconds, is_joined, 0.0))


def _arguments(name: str, args: bytes) -> str:
    """Return the needed arguments as strace would print them: the text of a marker, or a file
    descriptor."""
    numbers = Struct("<6Q").unpack(args)
    if name in ACCESSES:
        message = message_of_mode(numbers[1 if name == "access" else 2])
        return "" if message is None else f'"/vk!{message}"'
    return str(numbers[0])


def _records(path: str) -> Iterator[tuple[int, int, bytes]]:
    """Yield the records of one processor: time in nanoseconds, number of the event, its data."""
    if not os.path.exists(path):
        return
    with open(path, "rb") as file:
        while True:
            head = file.read(_HEAD)
            if len(head) < _HEAD:
                return
            time_ns, commit = Struct("<QQ").unpack(head)
            yield from _page_records(file.read(commit & 0xFFFFF), time_ns)


def _page_records(page: bytes, time_ns: int) -> Iterator[tuple[int, int, bytes]]:
    place, end = 0, len(page)
    to_int = int.from_bytes
    while place + 4 <= end:
        head = to_int(page[place : place + 4], "little")
        kind = head & 31
        since_ns = head >> 5
        place += 4
        if kind == _PADDING:
            if not since_ns:
                return
            place += to_int(page[place : place + 4], "little")
            time_ns += since_ns
        elif kind == _EXTEND:
            time_ns += since_ns + (to_int(page[place : place + 4], "little") << 27)
            place += 4
        elif kind == _STAMP:
            upper = to_int(page[place : place + 4], "little") << 27
            time_ns = (time_ns & ~((1 << 59) - 1)) | (since_ns + upper)
            place += 4
        else:
            time_ns += since_ns
            size = kind * 4  # length of the event's data
            if not size:
                size = to_int(page[place : place + 4], "little") - 4
                place += 4
            event = page[place : place + size]
            if len(event) < max(size, 8):
                return  # incomplete record
            yield time_ns, event[0] | event[1] << 8, event
            place += size


# System call numbers on x86-64 and arm64, from the headers of Linux 6.15. Names follow in numeric
# order; ``=424`` sets the number of the next name.
_COMMON = """
=424 pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen
fsconfig fsmount fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise
epoll_pwait2 mount_setattr quotactl_fd landlock_create_ruleset landlock_add_rule
landlock_restrict_self memfd_secret process_mrelease futex_waitv set_mempolicy_home_node cachestat
fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue statmount listmount lsm_get_self_attr
lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat listxattrat removexattrat
open_tree_attr
"""
_X86_64 = """
=0 read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction
rt_sigprocmask rt_sigreturn ioctl pread64 pwrite64 readv writev access pipe select sched_yield
mremap msync mincore madvise shmget shmat shmctl dup dup2 pause nanosleep getitimer alarm setitimer
getpid sendfile socket connect accept sendto recvfrom sendmsg recvmsg shutdown bind listen
getsockname getpeername socketpair setsockopt getsockopt clone fork vfork execve exit wait4 kill
uname semget semop semctl shmdt msgget msgsnd msgrcv msgctl fcntl flock fsync fdatasync truncate
ftruncate getdents getcwd chdir fchdir rename mkdir rmdir creat link unlink symlink readlink chmod
fchmod chown fchown lchown umask gettimeofday getrlimit getrusage sysinfo times ptrace getuid syslog
getgid setuid setgid geteuid getegid setpgid getppid getpgrp setsid setreuid setregid getgroups
setgroups setresuid getresuid setresgid getresgid getpgid setfsuid setfsgid getsid capget capset
rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend sigaltstack utime mknod uselib
personality ustat statfs fstatfs sysfs getpriority setpriority sched_setparam sched_getparam
sched_setscheduler sched_getscheduler sched_get_priority_max sched_get_priority_min
sched_rr_get_interval mlock munlock mlockall munlockall vhangup modify_ldt pivot_root _sysctl prctl
arch_prctl adjtimex setrlimit chroot sync acct settimeofday mount umount2 swapon swapoff reboot
sethostname setdomainname iopl ioperm create_module init_module delete_module get_kernel_syms
query_module quotactl nfsservctl getpmsg putpmsg afs_syscall tuxcall security gettid readahead
setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
removexattr lremovexattr fremovexattr tkill time futex sched_setaffinity sched_getaffinity
set_thread_area io_setup io_destroy io_getevents io_submit io_cancel get_thread_area lookup_dcookie
epoll_create epoll_ctl_old epoll_wait_old remap_file_pages getdents64 set_tid_address
restart_syscall semtimedop fadvise64 timer_create timer_settime timer_gettime timer_getoverrun
timer_delete clock_settime clock_gettime clock_getres clock_nanosleep exit_group epoll_wait
epoll_ctl tgkill utimes vserver mbind set_mempolicy get_mempolicy mq_open mq_unlink mq_timedsend
mq_timedreceive mq_notify mq_getsetattr kexec_load waitid add_key request_key keyctl ioprio_set
ioprio_get inotify_init inotify_add_watch inotify_rm_watch migrate_pages openat mkdirat mknodat
fchownat futimesat newfstatat unlinkat renameat linkat symlinkat readlinkat fchmodat faccessat
pselect6 ppoll unshare set_robust_list get_robust_list splice tee sync_file_range vmsplice
move_pages utimensat epoll_pwait signalfd timerfd_create eventfd fallocate timerfd_settime
timerfd_gettime accept4 signalfd4 eventfd2 epoll_create1 dup3 pipe2 inotify_init1 preadv pwritev
rt_tgsigqueueinfo perf_event_open recvmmsg fanotify_init fanotify_mark prlimit64 name_to_handle_at
open_by_handle_at clock_adjtime syncfs sendmmsg setns getcpu process_vm_readv process_vm_writev kcmp
finit_module sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create kexec_file_load
bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc
pkey_free statx io_pgetevents rseq
"""
_ARM64 = """
=0 io_setup io_destroy io_submit io_cancel io_getevents setxattr lsetxattr fsetxattr getxattr
lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr getcwd
lookup_dcookie eventfd2 epoll_create1 epoll_ctl epoll_pwait dup dup3 fcntl inotify_init1
inotify_add_watch inotify_rm_watch ioctl ioprio_set ioprio_get flock mknodat mkdirat unlinkat
symlinkat linkat renameat umount2 mount pivot_root nfsservctl statfs fstatfs truncate ftruncate
fallocate faccessat chdir fchdir chroot fchmod fchmodat fchownat fchown openat close vhangup pipe2
quotactl getdents64 lseek read write readv writev pread64 pwrite64 preadv pwritev sendfile pselect6
ppoll signalfd4 vmsplice splice tee readlinkat newfstatat fstat sync fsync fdatasync sync_file_range
timerfd_create timerfd_settime timerfd_gettime utimensat acct capget capset personality exit
exit_group waitid set_tid_address unshare futex set_robust_list get_robust_list nanosleep getitimer
setitimer kexec_load init_module delete_module timer_create timer_gettime timer_getoverrun
timer_settime timer_delete clock_settime clock_gettime clock_getres clock_nanosleep syslog ptrace
sched_setparam sched_setscheduler sched_getscheduler sched_getparam sched_setaffinity
sched_getaffinity sched_yield sched_get_priority_max sched_get_priority_min sched_rr_get_interval
restart_syscall kill tkill tgkill sigaltstack rt_sigsuspend rt_sigaction rt_sigprocmask
rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigreturn setpriority getpriority reboot setregid
setgid setreuid setuid setresuid getresuid setresgid getresgid setfsuid setfsgid times setpgid
getpgid getsid setsid getgroups setgroups uname sethostname setdomainname getrlimit setrlimit
getrusage umask prctl getcpu gettimeofday settimeofday adjtimex getpid getppid getuid geteuid getgid
getegid gettid sysinfo mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr msgget
msgctl msgrcv msgsnd semget semctl semtimedop semop shmget shmctl shmat shmdt socket socketpair bind
listen accept connect getsockname getpeername sendto recvfrom setsockopt getsockopt shutdown sendmsg
recvmsg readahead brk munmap mremap add_key request_key keyctl clone execve mmap fadvise64 swapon
swapoff mprotect msync mlock munlock mlockall munlockall mincore madvise remap_file_pages mbind
get_mempolicy set_mempolicy migrate_pages move_pages rt_tgsigqueueinfo perf_event_open accept4
recvmmsg =260 wait4 prlimit64 fanotify_init fanotify_mark name_to_handle_at open_by_handle_at
clock_adjtime syncfs setns sendmmsg process_vm_readv process_vm_writev kcmp finit_module
sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create bpf execveat userfaultfd
membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx
io_pgetevents rseq kexec_file_load
"""
_MACHINES = {"x86_64": _X86_64, "aarch64": _ARM64}


def call_names(machine: str) -> dict[int, str]:
    """Return the names of a machine's system calls by number; empty for an unknown machine."""
    if machine not in _MACHINES:
        return {}
    names = {}
    number = 0
    for word in (_MACHINES[machine] + _COMMON).split():
        if word.startswith("="):
            number = int(word[1:])
        else:
            names[number] = word
            number += 1
    return names
