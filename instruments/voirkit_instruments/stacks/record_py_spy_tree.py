"""Stand-alone program that runs py-spy on each process of a tree, in chunks of one file each, and
notes when the chunks began and which threads existed.

    python -I -S record_py_spy_tree.py PY-SPY PID STEM CHUNK_S MOST_BYTES OPTION...

py-spy keeps all samples in memory and writes them when it ends. Chunks bound that memory, and if
py-spy is killed, only one chunk is lost. Each process has a py-spy of its own, because with
``--subprocesses`` py-spy takes a thread of a forked process for one of the parent, and writes every
stack again: 43 MB in 11 s, for a training with two workers. py-spy's times count from its own
start, which this program notes.

Imports nothing of voirkit. Ends with the process, or when it is interrupted. Checked with py-spy
0.4.3; Linux only.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time

_LOOK_S = 0.1  # time between two searches for processes and threads
_FAILED = 3  # after this many failed chunks in a row, a process is given up


class Chunk:
    """One run of py-spy on one process.

    Args:
        command: The command line, without the file and the process.

    Attributes:
        ready_ns: When py-spy printed that it samples; 0 before.
        until_ns: When the process was last seen to execute the same program, if it now executes
            another. py-spy does not see the program that an exec puts in its place.
    """

    def __init__(self, command: list[str], file: str, pid: int) -> None:
        self.file = file
        self.pid = pid
        self.ready_ns = 0
        self.image = _image(pid)  # the identity of the program that the process executes
        self.began_ns = self._same_ns = time.perf_counter_ns()
        self.until_ns: int | None = None
        self.spy = subprocess.Popen(
            [*command, "--output", file, "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self.spy.stdout is not None
        self.output = b""
        self.out = self.spy.stdout.fileno()
        os.set_blocking(self.out, False)

    def check_image(self) -> None:
        """End the chunk if the process now executes another program."""
        now_ns = time.perf_counter_ns()
        image = _image(self.pid)
        if image == self.image:
            self._same_ns = now_ns
        elif image[0] and self.until_ns is None:
            self.until_ns = self._same_ns
            self.spy.send_signal(signal.SIGINT)

    def listen(self) -> None:
        """Read what py-spy has printed so far."""
        try:
            self.output += os.read(self.out, 1 << 16)
        except BlockingIOError:
            pass
        if not self.ready_ns and b"Sampling process" in self.output:
            self.ready_ns = time.perf_counter_ns()

    def lines(self) -> list[str]:
        """Return the lines that py-spy has printed."""
        lines = self.output.decode(errors="replace").splitlines()
        return [line.strip() for line in lines if line.strip()]


def _image(pid: int) -> tuple[bytes, bytes]:
    """Return the identity of the program that a process executes: its command line, and the start
    of its stack, which the kernel chooses anew for each program."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as words, open(f"/proc/{pid}/stat", "rb") as stat:
            return words.read(), stat.read().rpartition(b")")[2].split()[25]
    except (OSError, IndexError):
        return b"", b""


class Tree:
    """The chunks of a process and its descendants.

    Args:
        stem: The path of the files, without their suffixes.
        chunk_s: Seconds of one chunk.
        most_bytes: The largest total size of the files.
    """

    def __init__(
        self, program: str, pid: int, stem: str, chunk_s: str, most_bytes: int, options: list[str]
    ) -> None:
        self._command = [program, "record", *options, "--duration", chunk_s]
        self._pid = pid
        self._stem = stem
        self._most_bytes = most_bytes
        self._running: dict[int, Chunk] = {}
        self._failures: dict[int, int] = {}  # by process: number of failed chunks in a row
        # by process and thread: when the thread was last seen
        self._last_seen: dict[int, dict[int, int]] = {}
        self._number = 0
        self._bytes = 0
        self._over = False
        self._is_ready = False

    def interrupt(self, *_: object) -> None:
        """Handle a signal: write what has been seen, and end."""
        self._over = True

    def run(self) -> None:
        """Sample until the process ends or ``interrupt`` is called."""
        while not self._over and self._bytes <= self._most_bytes:
            pids = self._list_processes()
            most_failures = _FAILED if self._is_ready else 1
            if self._pid not in pids or self._failures.get(self._pid, 0) >= most_failures:
                break
            for pid in pids:
                if pid in self._running:
                    self._running[pid].check_image()
                elif self._failures.get(pid, 0) < _FAILED:
                    file = f"{self._stem}.{self._number}.spy"
                    self._running[pid] = Chunk(self._command, file, pid)
                    self._number += 1
            self._wait(_LOOK_S)
        if self._bytes > self._most_bytes:
            print("what it writes has reached --trace-limit", flush=True)
        for chunk in self._running.values():
            chunk.check_image()
            chunk.spy.send_signal(signal.SIGINT)
        while self._running:
            self._list_processes()
            self._wait(_LOOK_S)

    def _wait(self, within_s: float) -> None:
        chunks = {chunk.out: chunk for chunk in self._running.values()}
        readable, _, _ = select.select(list(chunks), [], [], within_s)
        for out in readable:
            chunk = chunks[out]
            chunk.listen()
            if chunk.ready_ns and not self._is_ready:
                self._is_ready = True
                print("ready", flush=True)
        for chunk in list(self._running.values()):
            if chunk.spy.poll() is not None:
                self._end(chunk)

    def _end(self, chunk: Chunk) -> None:
        chunk.listen()
        assert chunk.spy.stdout is not None
        chunk.spy.stdout.close()
        del self._running[chunk.pid]
        has_file = os.path.exists(chunk.file)
        if has_file:
            self._failures[chunk.pid] = 0
            self._bytes += os.path.getsize(chunk.file)
        else:
            self._failures[chunk.pid] = self._failures.get(chunk.pid, 0) + 1
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        self_usage = resource.getrusage(resource.RUSAGE_SELF)
        took_s = children.ru_utime + children.ru_stime + (self_usage.ru_utime + self_usage.ru_stime)
        note = {
            "pid": chunk.pid,
            "file": os.path.basename(chunk.file) if has_file else None,
            "status": chunk.spy.returncode,
            "began_ns": chunk.began_ns,
            "ready_ns": chunk.ready_ns,
            "until_ns": chunk.until_ns,
            "ended_ns": time.perf_counter_ns(),
            "seen": self._last_seen.pop(chunk.pid, {}),
            "said": chunk.lines()[-4:],
            "took_s": took_s,  # CPU time of this program and of all chunks so far
        }
        with open(f"{self._stem}.chunks", "a", encoding="utf-8") as notes:
            notes.write(json.dumps(note) + "\n")
        if not has_file and chunk.pid == self._pid:
            print("\n".join(chunk.lines()), flush=True)

    def _list_processes(self) -> list[int]:
        """Return the processes of the tree that are running, and note when each of their threads
        was last seen."""
        now_ns = time.perf_counter_ns()
        candidates = [self._pid]
        pids = []
        while candidates:
            pid = candidates.pop()
            try:
                # Raises OSError if the process has ended and has not been waited for.
                os.readlink(f"/proc/{pid}/exe")
                last_seen = self._last_seen.setdefault(pid, {})
                for tid in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{tid}/children", encoding="ascii") as file:
                        candidates += map(int, file.read().split())
                    last_seen[int(tid)] = now_ns
                pids.append(pid)
            except OSError:
                continue  # the process has ended
        return pids


def main(words: list[str]) -> None:
    """Run with the arguments of the command line."""
    program, pid, stem, chunk_s, most_bytes, *options = words
    tree = Tree(program, int(pid), stem, chunk_s, int(most_bytes), options)
    signal.signal(signal.SIGINT, tree.interrupt)
    tree.run()


if __name__ == "__main__":
    main(sys.argv[1:])
