"""Program that runs as root beside a training run: it makes the kernel trace the run's system
calls, and copies the trace into files.

    python -I -S record_reader.py TRACEFS PID STEM MOST_BYTES

The program creates its own tracing instance, so that it affects no other tracing on the machine. It
removes the instance when it is told to end (SIGINT, SIGTERM), or when the traced process has ended
in any way. It prints ``ready`` once tracing is active. Each processor has a file ``STEM.<n>.ring``
with the kernel's pages, without their unused ends; ``STEM.ring.json`` describes their layout. If
this program is killed, the data copied so far stays readable. The instance is then removed by the
traced run, or by the next one on this machine.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EVENTS = (
    "raw_syscalls/sys_enter",
    "raw_syscalls/sys_exit",
    "task/task_newtask",
    "task/task_rename",
    "sched/sched_process_exit",
    "sched/sched_switch",
)
# KB of buffer for each processor, enough for 80,000 calls, and limit for all processors together
KB_EACH, KB_ALL = 8192, 131072
EVERY_S = 0.02
MUCH = 1 << 20  # if one round copies more bytes than this, the next round follows at once
PAGE_HEAD = 16


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def read(path: str) -> str:
    with open(path) as file:
        return file.read()


def name_of(pid: int) -> str | None:
    """Return the name of the tracing instance of a process; None if the process is gone. The name
    has the process id and the start time, since ids are reused."""
    try:
        fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return f"voirkit-{pid}-{fields[19]}"
    except (OSError, IndexError):
        return None


def remove_left(tracefs: str, mine: str | None = None) -> None:
    """Remove the voirkit instances whose reader was killed and whose process is gone, and the
    instance ``mine``. Instances of other programs are left alone."""
    folder = os.path.join(tracefs, "instances")
    for name in os.listdir(folder):
        match = re.fullmatch(r"voirkit-(\d+)-\d+", name)
        if match is None:
            continue
        if name == mine or name_of(int(match[1])) != name:
            Instance(os.path.join(folder, name)).remove()


class Instance:
    """The kernel's tracing of one process and all its children."""

    def __init__(self, path: str) -> None:
        self.path = path

    def file(self, *names: str) -> str:
        """Return the path of a file of the instance."""
        return os.path.join(self.path, *names)

    def start(self, pid: int) -> None:
        """Start to trace a process."""
        write(self.file("tracing_on"), "0")
        write(self.file("buffer_size_kb"), str(min(KB_EACH, KB_ALL // (os.cpu_count() or 1))))
        write(self.file("trace_clock"), "mono")  # same clock as the run's own records
        write(self.file("options", "overwrite"), "0")
        write(self.file("options", "event-fork"), "1")
        # not by ``write``, which would truncate the file: here each write adds one id
        file = os.open(self.file("set_event_pid"), os.O_WRONLY)
        tasks = f"/proc/{pid}/task"
        # the threads are listed twice, because one may create another while they are listed
        for number in dict.fromkeys([str(pid), *os.listdir(tasks), *os.listdir(tasks)]):
            os.write(file, f"{number}\n".encode())
        os.close(file)
        for event in EVENTS:
            write(self.file("events", event, "enable"), "1")
        write(self.file("tracing_on"), "1")

    def layout(self) -> dict[int, Any]:
        """Return a dict from the number of each event to its name and the offsets and sizes of its
        fields."""
        events = {}
        for event in EVENTS:
            text = read(self.file("events", event, "format"))
            number = int(re.findall(r"^ID: (\d+)", text, re.M)[0])
            fields = re.findall(
                r"field:[^;]*?(\w+)(?:\[\d+\])?;\s*offset:(\d+);\s*size:(\d+);", text
            )
            events[number] = {
                "event": event.partition("/")[2],
                "fields": {name: [int(offset), int(size)] for name, offset, size in fields},
            }
        return events

    def lost(self) -> int:
        """Return the number of events dropped for lack of room."""
        n = 0
        for cpu in os.listdir(self.file("per_cpu")):
            text = read(self.file("per_cpu", cpu, "stats"))
            for name, count in re.findall(r"^(.+): (\d+)$", text, re.M):
                if name in ("overrun", "commit overrun", "dropped events"):
                    n += int(count)
        return n

    def remove(self) -> None:
        """Stop the tracing and remove the instance."""
        try:
            write(self.file("tracing_on"), "0")
            for event in EVENTS:
                write(self.file("events", event, "enable"), "0")
        except FileNotFoundError:
            pass  # another run has removed the instance meanwhile
        for _ in range(100):
            try:
                os.rmdir(self.path)
                return
            except FileNotFoundError:
                return
            except OSError:  # one of its files is still open
                time.sleep(0.01)


class Copy:
    """Copier of one processor's trace buffer into a file."""

    def __init__(self, source: str, target: str, page: int) -> None:
        self.source = os.open(source, os.O_RDONLY | os.O_NONBLOCK)
        self.page = page
        # stays open as long as this object is in use
        self.target = open(target, "wb", buffering=1 << 18)  # noqa: SIM115

    def all(self) -> int:
        """Copy the available pages. Return the number of bytes."""
        copied = 0
        while True:
            try:
                page = os.read(self.source, self.page)
            except BlockingIOError:
                return copied
            if len(page) < PAGE_HEAD:
                return copied
            size = PAGE_HEAD + (int.from_bytes(page[8:12], sys.byteorder) & 0xFFFFF)
            copied += self.target.write(page[: min(size, len(page))])

    def close(self) -> None:
        """Close the buffer and the file."""
        os.close(self.source)
        self.target.close()


def trace(instance: Instance, stem: str, most: int, ended: select.epoll) -> None:
    """Copy the trace until the end of the process or program, or until it exceeds ``most``
    bytes."""
    page_sizes = instance.file("buffer_subbuf_size_kb")  # the kernel has this file since Linux 6.8
    if os.path.exists(page_sizes):
        page = int(read(page_sizes)) * 1024
    else:
        page = os.sysconf("SC_PAGE_SIZE")
    cpus = sorted(int(name[3:]) for name in os.listdir(instance.file("per_cpu")))
    copies = [
        Copy(instance.file("per_cpu", f"cpu{cpu}", "trace_pipe_raw"), f"{stem}.{cpu}.ring", page)
        for cpu in cpus
    ]
    layout = {
        "page": page,
        "cpus": cpus,
        "events": instance.layout(),
        "lost": 0,
        "full": False,
        "machine": os.uname().machine,
        "byteorder": sys.byteorder,
    }
    write_layout(stem, layout)
    print("ready", flush=True)
    copied = 0
    is_full = False
    try:
        new = 0
        while not ended.poll(0 if new > MUCH else EVERY_S) and not is_full:
            new = sum(copy.all() for copy in copies)
            copied += new
            is_full = copied > most
            for copy in copies:
                copy.target.flush()
    finally:
        write(instance.file("tracing_on"), "0")
        for copy in copies:
            copied += copy.all()
            copy.close()
    write_layout(stem, {**layout, "lost": instance.lost(), "full": is_full})
    if is_full:
        print(f"limit: {copied} bytes", flush=True)


def write_layout(stem: str, layout: dict[str, Any]) -> None:
    """Write the description of the trace files."""
    write(f"{stem}.ring.json.tmp", json.dumps(layout))
    os.replace(f"{stem}.ring.json.tmp", f"{stem}.ring.json")


def main(tracefs: str, pid: str, stem: str, most: str) -> None:
    """Trace a process until it ends, or until this program is told to end."""
    wakeup, wakeup_writer = os.pipe()
    os.set_blocking(wakeup_writer, False)
    signal.set_wakeup_fd(wakeup_writer)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    process = os.pidfd_open(int(pid))
    ended = select.epoll()
    ended.register(wakeup, select.EPOLLIN)
    ended.register(process, select.EPOLLIN)
    name = name_of(int(pid)) or ""
    remove_left(tracefs)
    instance = Instance(os.path.join(tracefs, "instances", name))
    os.mkdir(instance.path)
    try:
        instance.start(int(pid))
        trace(instance, stem, int(most), ended)
    finally:
        instance.remove()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as exc:
        print(f"{exc.strerror}: {exc.filename}", flush=True)
        sys.exit(1)
