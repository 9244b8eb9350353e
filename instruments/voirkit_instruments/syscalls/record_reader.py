"""A program that runs beside a training run as root: has the kernel trace the run's system calls,
and copies what it traces into files.

    python -I -S record_reader.py TRACEFS PID STEM MOST_BYTES

It makes a tracing instance of its own, so that no other tracing on the machine is touched, and
removes it when it is told to end (SIGINT, SIGTERM) or when the process has ended, however that was.
It says ``ready`` when it traces. For each processor there is a file ``STEM.<n>.ring`` with the
kernel's pages without what is empty in them, and ``STEM.ring.json`` with their layout. If this
program is killed, what it has copied can be read, and the instance is removed by the run that it
was for, or by the next one on this machine.
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
# of buffer for a processor, 80,000 calls, and for all of them at most
KB_EACH, KB_ALL = 8192, 131072
EVERY_S = 0.02
MUCH = 1 << 20  # bytes that were there at once: more is coming
PAGE_HEAD = 16


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def read(path: str) -> str:
    with open(path) as file:
        return file.read()


def name_of(pid: int) -> str | None:
    """The name of the instance of a process: by its number and when it began, since numbers are
    given again; None if it is gone."""
    try:
        fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return f"voirkit-{pid}-{fields[19]}"
    except (OSError, IndexError):
        return None


def remove_left(tracefs: str, mine: str | None = None) -> None:
    """Remove the instances of voirkit's whose readers were killed and whose processes are gone, and
    ``mine``. Nobody else's."""
    folder = os.path.join(tracefs, "instances")
    for name in os.listdir(folder):
        match = re.fullmatch(r"voirkit-(\d+)-\d+", name)
        if match is None:
            continue
        if name == mine or name_of(int(match[1])) != name:
            Instance(os.path.join(folder, name)).remove()


class Instance:
    """The kernel's tracing of one process and all that it starts."""

    def __init__(self, path: str) -> None:
        self.path = path

    def file(self, *names: str) -> str:
        """The path of a file of it."""
        return os.path.join(self.path, *names)

    def start(self, pid: int) -> None:
        """Trace a process."""
        write(self.file("tracing_on"), "0")
        write(self.file("buffer_size_kb"), str(min(KB_EACH, KB_ALL // (os.cpu_count() or 1))))
        write(self.file("trace_clock"), "mono")  # the clock of the run's own records
        write(self.file("options", "overwrite"), "0")
        write(self.file("options", "event-fork"), "1")
        # not truncated: each write adds one
        file = os.open(self.file("set_event_pid"), os.O_WRONLY)
        tasks = f"/proc/{pid}/task"
        # twice: one may have begun another meanwhile
        for number in dict.fromkeys([str(pid), *os.listdir(tasks), *os.listdir(tasks)]):
            os.write(file, f"{number}\n".encode())
        os.close(file)
        for event in EVENTS:
            write(self.file("events", event, "enable"), "1")
        write(self.file("tracing_on"), "1")

    def layout(self) -> dict[int, Any]:
        """The name of each event by its number, and where its fields are and how long."""
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
        """Events for which there was no room."""
        n = 0
        for cpu in os.listdir(self.file("per_cpu")):
            text = read(self.file("per_cpu", cpu, "stats"))
            for name, count in re.findall(r"^(.+): (\d+)$", text, re.M):
                if name in ("overrun", "commit overrun", "dropped events"):
                    n += int(count)
        return n

    def remove(self) -> None:
        """Leave nothing behind."""
        try:
            write(self.file("tracing_on"), "0")
            for event in EVENTS:
                write(self.file("events", event, "enable"), "0")
        except FileNotFoundError:
            pass  # another run has removed it meanwhile
        for _ in range(100):
            try:
                os.rmdir(self.path)
                return
            except FileNotFoundError:
                return
            except OSError:  # a file of it is open still
                time.sleep(0.01)


class Copy:
    """A copy of one processor's buffer in a file."""

    def __init__(self, source: str, target: str, page: int) -> None:
        self.source = os.open(source, os.O_RDONLY | os.O_NONBLOCK)
        self.page = page
        # open for as long as this is
        self.target = open(target, "wb", buffering=1 << 18)  # noqa: SIM115

    def all(self) -> int:
        """Copy what is there; how many bytes."""
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
        """No more is copied."""
        os.close(self.source)
        self.target.close()


def trace(instance: Instance, stem: str, most: int, ended: select.epoll) -> None:
    """Copy what is traced until the end, or until it is too much."""
    page_sizes = instance.file("buffer_subbuf_size_kb")  # since Linux 6.8
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
    """Write down what is known of the files."""
    write(f"{stem}.ring.json.tmp", json.dumps(layout))
    os.replace(f"{stem}.ring.json.tmp", f"{stem}.ring.json")


def main(tracefs: str, pid: str, stem: str, most: str) -> None:
    """Trace a process until it ends, or this is told to."""
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
