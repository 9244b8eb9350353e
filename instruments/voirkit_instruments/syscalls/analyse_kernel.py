"""Reads the pages of the kernel's tracing buffers: the same stream of events as of a log of strace. Checked with Linux 6.18.

A page has a head (the time of its first event, how much of it is used) and events one after the other: 5 bits of length, 27 bits of time
since the last one, the event itself. The kernel's numbers become names, and of arguments those only those are read that are needed.
"""

from __future__ import annotations

import errno
import heapq
import json
import os
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any

from voirkit_instruments.syscalls.analyse_calls import ACCESSES, FORKS, NAN, TRANSFERS, Call, CallEntry, Event, ThreadExit, ThreadName
from voirkit_instruments.syscalls.record_phases import message_of_mode

_HEAD = 16
_PADDING, _EXTEND, _STAMP = 29, 30, 31
_THREAD = 0x00010000  # CLONE_THREAD
_SLEEPS = 1  # TASK_INTERRUPTIBLE: until something comes; not for a disk (2), nor because another is to run (0)
_MOST_ERROR = 4095
_DESCRIPTORS = TRANSFERS | {"close"}
_ENDS = frozenset(["exit", "exit_group"])
_KERNEL_ERRORS = {512: "ERESTARTSYS", 513: "ERESTARTNOINTR", 514: "ERESTARTNOHAND", 516: "ERESTART_RESTARTBLOCK"}


class RingError(Exception):
    """What the kernel traced cannot be read."""


class KernelLog:
    """What was traced of a run. ``stem``: the path of its files, without ``.ring.json``. Raises RingError: they are not there, or not as
    they are known."""

    def __init__(self, stem: str) -> None:
        try:
            with open(f"{stem}.ring.json", encoding="utf-8") as file:
                self._layout: dict[str, Any] = json.load(file)
        except (OSError, ValueError) as exc:
            raise RingError(f"{stem}.ring.json cannot be read: {exc}") from None
        self._stem = stem
        self.lost = int(self._layout["lost"])  # events for which the kernel had no room
        self._names = call_names(self._layout["machine"])
        if not self._names or self._layout["byteorder"] != "little":
            raise RingError(f"the system calls of {self._layout['machine']} are not known")
        self._events = {int(number): event for number, event in self._layout["events"].items()}

    def events(self) -> Iterator[Event]:
        """Calls in the order of their ends, and what goes with them."""
        return self._calls(heapq.merge(*(_records(f"{self._stem}.{cpu}.ring") for cpu in self._layout["cpus"])))

    def _fields(self, event: str, *fields: str) -> tuple[int, Callable[[bytes], tuple[Any, ...]]]:
        """The number of an event, and a function that reads some of its fields: numbers, or bytes of fields longer than eight."""
        for number, known in self._events.items():
            if known["event"] == event:
                places = [known["fields"].get(field) for field in fields]
                if None in places or places != sorted(places):
                    raise RingError(f"this kernel's {event} has other fields than {', '.join(fields)}, or in another order")
                form, end = "<", 0
                for place, size in places:
                    form += f"{place - end}x" if place > end else ""
                    form += {4: "i", 8: "q"}.get(size) or f"{size}s"
                    end = place + size
                return number, Struct(form).unpack_from
        raise RingError(f"{event} was not traced")

    def _calls(self, records: Iterator[tuple[int, int, bytes]]) -> Iterator[Event]:
        enter, read_enter = self._fields("sys_enter", "common_pid", "id", "args")
        exit_, read_exit = self._fields("sys_exit", "common_pid", "id", "ret")
        create, read_create = self._fields("task_newtask", "common_pid", "pid", "clone_flags")
        rename, read_rename = self._fields("task_rename", "pid", "newcomm")
        end, read_end = self._fields("sched_process_exit", "common_pid")
        switch, read_switch = self._fields("sched_switch", "prev_pid", "prev_state", "next_pid")
        asleep: dict[int, int] = {}  # threads that sleep in their call, since when
        slept: dict[int, int] = {}  # how long others have, or this one before
        open_: dict[int, tuple[int, int, Any]] = {}
        joined: set[int] = set()  # threads whose call has been yielded as entered
        names, make, nothing = self._names, tuple.__new__, (0, -1, b"")
        for now, number, event in records:
            if number == enter:
                tid, call, args = read_enter(event)
                open_[tid] = (now, call, args)
                asleep.pop(tid, None)
                slept.pop(tid, None)
                if names.get(call) in FORKS:
                    yield CallEntry(tid, now * 1e-9, names[call], "")
            elif number == exit_:
                tid, call, result = read_exit(event)
                if tid in asleep:  # that it runs again was not recorded, as happens while another tracing begins or ends
                    slept[tid] = slept.get(tid, 0) + now - asleep.pop(tid)
                began, entered, args = open_.pop(tid, nothing)
                if call < 0:
                    continue  # of a signal that came: the call itself has been yielded
                name = names.get(call) or f"syscall_{call}"
                seconds = (now - began) * 1e-9
                if entered != call:  # it was entered before tracing began
                    began, seconds, args = now, NAN, None
                error = ""
                if -_MOST_ERROR <= result < 0:
                    error, result = errno.errorcode.get(-result) or _KERNEL_ERRORS.get(-result, f"E{-result}"), -1
                text = ""
                if args is not None and (name in _DESCRIPTORS or name in ACCESSES):
                    text = _arguments(name, args)
                    if name in ACCESSES and text:
                        for other, (since, which, _) in open_.items():  # their calls go on while the phase changes
                            if other not in joined:
                                joined.add(other)
                                yield CallEntry(other, since * 1e-9, names.get(which, ""), "")
                is_joined = tid in joined
                joined.discard(tid)
                waited = min(slept.pop(tid, 0) * 1e-9, seconds) if tid in slept and seconds == seconds else 0.0
                yield make(Call, (tid, began * 1e-9, name, text, result, error, seconds, is_joined, waited))
            elif number == switch:
                previous, state, following = read_switch(event)
                asleep.pop(previous, None)
                if state & _SLEEPS and previous in open_:
                    asleep[previous] = now
                if following in asleep:
                    slept[following] = slept.get(following, 0) + now - asleep.pop(following)
            elif number == create:
                parent, tid, flags = read_create(event)
                yield ThreadName(tid, "", parent, bool(flags & _THREAD))
            elif number == rename:
                tid, name = read_rename(event)
                yield ThreadName(tid, name.partition(b"\0")[0].decode("utf-8", "replace"), None, False)
            elif number == end:
                (tid,) = read_end(event)
                asleep.pop(tid, None)
                slept.pop(tid, None)
                if tid in open_:  # it called exit, or was killed in a call
                    began, call, _ = open_.pop(tid)
                    name = names.get(call) or f"syscall_{call}"
                    seconds = NAN if name in _ENDS else (now - began) * 1e-9
                    yield make(Call, (tid, began * 1e-9, name, "", None, "", seconds, tid in joined, 0.0))
                    joined.discard(tid)
                yield ThreadExit(tid, now * 1e-9, "")
        for tid, (began, call, _) in open_.items():
            yield make(Call, (tid, began * 1e-9, names.get(call) or f"syscall_{call}", "", None, "", NAN, tid in joined, 0.0))


def _arguments(name: str, args: bytes) -> str:
    """As strace prints them, what is needed: a marker's text, a descriptor."""
    numbers = Struct("<6Q").unpack(args)
    if name in ACCESSES:
        message = message_of_mode(numbers[1 if name == "access" else 2])
        return "" if message is None else f'"/vk!{message}"'
    return str(numbers[0])


def _records(path: str) -> Iterator[tuple[int, int, bytes]]:
    """(time in nanoseconds, number of the event, the event) of one processor."""
    if not os.path.exists(path):
        return
    with open(path, "rb") as file:
        while len(head := file.read(_HEAD)) == _HEAD:
            time, commit = Struct("<QQ").unpack(head)
            yield from _page_records(file.read(commit & 0xFFFFF), time)


def _page_records(page: bytes, time: int) -> Iterator[tuple[int, int, bytes]]:
    place, end = 0, len(page)
    number = int.from_bytes
    while place + 4 <= end:
        head = number(page[place : place + 4], "little")
        length, since = head & 31, head >> 5
        place += 4
        if length == _PADDING:
            if not since:
                return
            place += number(page[place : place + 4], "little")
            time += since
        elif length == _EXTEND:
            time += since + (number(page[place : place + 4], "little") << 27)
            place += 4
        elif length == _STAMP:
            time = (time & ~((1 << 59) - 1)) | (since + (number(page[place : place + 4], "little") << 27))
            place += 4
        else:
            time += since
            size = length * 4
            if not length:
                size = number(page[place : place + 4], "little") - 4
                place += 4
            event = page[place : place + size]
            if len(event) < max(size, 8):
                return  # torn
            yield time, event[0] | event[1] << 8, event
            place += size


# The numbers of system calls on x86-64 and arm64, as in Linux 6.15's headers.
# Names that follow one another; ``=424`` says which number the next one has.
_COMMON = """
=424 pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig fsmount fspick pidfd_open
clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2 mount_setattr quotactl_fd landlock_create_ruleset
landlock_add_rule landlock_restrict_self memfd_secret process_mrelease futex_waitv set_mempolicy_home_node cachestat fchmodat2
map_shadow_stack futex_wake futex_wait futex_requeue statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal
setxattrat getxattrat listxattrat removexattrat open_tree_attr
"""
_X86_64 = """
=0 read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn ioctl pread64
pwrite64 readv writev access pipe select sched_yield mremap msync mincore madvise shmget shmat shmctl dup dup2 pause nanosleep getitimer
alarm setitimer getpid sendfile socket connect accept sendto recvfrom sendmsg recvmsg shutdown bind listen getsockname getpeername
socketpair setsockopt getsockopt clone fork vfork execve exit wait4 kill uname semget semop semctl shmdt msgget msgsnd msgrcv msgctl fcntl
flock fsync fdatasync truncate ftruncate getdents getcwd chdir fchdir rename mkdir rmdir creat link unlink symlink readlink chmod fchmod
chown fchown lchown umask gettimeofday getrlimit getrusage sysinfo times ptrace getuid syslog getgid setuid setgid geteuid getegid setpgid
getppid getpgrp setsid setreuid setregid getgroups setgroups setresuid getresuid setresgid getresgid getpgid setfsuid setfsgid getsid
capget capset rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend sigaltstack utime mknod uselib personality ustat statfs fstatfs
sysfs getpriority setpriority sched_setparam sched_getparam sched_setscheduler sched_getscheduler sched_get_priority_max
sched_get_priority_min sched_rr_get_interval mlock munlock mlockall munlockall vhangup modify_ldt pivot_root _sysctl prctl arch_prctl
adjtimex setrlimit chroot sync acct settimeofday mount umount2 swapon swapoff reboot sethostname setdomainname iopl ioperm create_module
init_module delete_module get_kernel_syms query_module quotactl nfsservctl getpmsg putpmsg afs_syscall tuxcall security gettid readahead
setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr tkill time
futex sched_setaffinity sched_getaffinity set_thread_area io_setup io_destroy io_getevents io_submit io_cancel get_thread_area
lookup_dcookie epoll_create epoll_ctl_old epoll_wait_old remap_file_pages getdents64 set_tid_address restart_syscall semtimedop fadvise64
timer_create timer_settime timer_gettime timer_getoverrun timer_delete clock_settime clock_gettime clock_getres clock_nanosleep exit_group
epoll_wait epoll_ctl tgkill utimes vserver mbind set_mempolicy get_mempolicy mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify
mq_getsetattr kexec_load waitid add_key request_key keyctl ioprio_set ioprio_get inotify_init inotify_add_watch inotify_rm_watch
migrate_pages openat mkdirat mknodat fchownat futimesat newfstatat unlinkat renameat linkat symlinkat readlinkat fchmodat faccessat
pselect6 ppoll unshare set_robust_list get_robust_list splice tee sync_file_range vmsplice move_pages utimensat epoll_pwait signalfd
timerfd_create eventfd fallocate timerfd_settime timerfd_gettime accept4 signalfd4 eventfd2 epoll_create1 dup3 pipe2 inotify_init1 preadv
pwritev rt_tgsigqueueinfo perf_event_open recvmmsg fanotify_init fanotify_mark prlimit64 name_to_handle_at open_by_handle_at clock_adjtime
syncfs sendmmsg setns getcpu process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2 seccomp getrandom
memfd_create kexec_file_load bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc
pkey_free statx io_pgetevents rseq
"""
_ARM64 = """
=0 io_setup io_destroy io_submit io_cancel io_getevents setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr
flistxattr removexattr lremovexattr fremovexattr getcwd lookup_dcookie eventfd2 epoll_create1 epoll_ctl epoll_pwait dup dup3 fcntl
inotify_init1 inotify_add_watch inotify_rm_watch ioctl ioprio_set ioprio_get flock mknodat mkdirat unlinkat symlinkat linkat renameat
umount2 mount pivot_root nfsservctl statfs fstatfs truncate ftruncate fallocate faccessat chdir fchdir chroot fchmod fchmodat fchownat
fchown openat close vhangup pipe2 quotactl getdents64 lseek read write readv writev pread64 pwrite64 preadv pwritev sendfile pselect6
ppoll signalfd4 vmsplice splice tee readlinkat newfstatat fstat sync fsync fdatasync sync_file_range timerfd_create timerfd_settime
timerfd_gettime utimensat acct capget capset personality exit exit_group waitid set_tid_address unshare futex set_robust_list
get_robust_list nanosleep getitimer setitimer kexec_load init_module delete_module timer_create timer_gettime timer_getoverrun
timer_settime timer_delete clock_settime clock_gettime clock_getres clock_nanosleep syslog ptrace sched_setparam sched_setscheduler
sched_getscheduler sched_getparam sched_setaffinity sched_getaffinity sched_yield sched_get_priority_max sched_get_priority_min
sched_rr_get_interval restart_syscall kill tkill tgkill sigaltstack rt_sigsuspend rt_sigaction rt_sigprocmask rt_sigpending
rt_sigtimedwait rt_sigqueueinfo rt_sigreturn setpriority getpriority reboot setregid setgid setreuid setuid setresuid getresuid setresgid
getresgid setfsuid setfsgid times setpgid getpgid getsid setsid getgroups setgroups uname sethostname setdomainname getrlimit setrlimit
getrusage umask prctl getcpu gettimeofday settimeofday adjtimex getpid getppid getuid geteuid getgid getegid gettid sysinfo mq_open
mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr msgget msgctl msgrcv msgsnd semget semctl semtimedop semop shmget shmctl
shmat shmdt socket socketpair bind listen accept connect getsockname getpeername sendto recvfrom setsockopt getsockopt shutdown sendmsg
recvmsg readahead brk munmap mremap add_key request_key keyctl clone execve mmap fadvise64 swapon swapoff mprotect msync mlock munlock
mlockall munlockall mincore madvise remap_file_pages mbind get_mempolicy set_mempolicy migrate_pages move_pages rt_tgsigqueueinfo
perf_event_open accept4 recvmmsg =260 wait4 prlimit64 fanotify_init fanotify_mark name_to_handle_at open_by_handle_at clock_adjtime syncfs
setns sendmmsg process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create
bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx io_pgetevents rseq
kexec_file_load
"""
_MACHINES = {"x86_64": _X86_64, "aarch64": _ARM64}


def call_names(machine: str) -> dict[int, str]:
    """By number the names of a machine's calls; empty of one that is not known."""
    if machine not in _MACHINES:
        return {}
    names, number = {}, 0
    for word in (_MACHINES[machine] + _COMMON).split():
        if word.startswith("="):
            number = int(word[1:])
        else:
            names[number] = word
            number += 1
    return names
