"""Runs a shell script as a shell would, so that each python in it runs under voirkit: ``voirkit --follow run.sh``.

The script has one variable more in its environment, ``$VOIRKIT_FOLLOW``, which ``follow_start`` reads in each python that has voirkit;
its folder, its arguments, its files and its signals are those that it would have. Needs Linux.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence

from voirkit.errors import CommandLineError, tell
from voirkit.follow_start import FOLDER, NOTE, OPTIONS, RUN_DIR, words_in, write_words

# Sent to voirkit and meant for the script. What a terminal sends reaches both, since they are of one process group.
_FORWARDED = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGWINCH", "SIGCONT", "SIGTSTP")
_BY_KERNEL = 128  # SI_KERNEL: it comes from the terminal
_LOOKS_S = (0.5, 1.0, 2.0)  # pauses between looks at what runs; the last one goes on


class Noted:
    """A python that started: its process, what became of it (``run``, ``launcher``, ``plain``), and its command line."""

    def __init__(self, words: Sequence[str]) -> None:
        pid, ppid, self.how, rank, self.cwd, self.run_dir, self.kind, *command = words
        self.pid, self.ppid, self.rank, self.command = int(pid), int(ppid), int(rank) if rank.isdigit() else 0, command


def follow(script: str, arguments: Sequence[str], options: Sequence[str], run_dir: str | None) -> tuple[int, list[Noted]]:
    """Run a shell script to its end.

    Args:
        script: As the user typed it.
        arguments: Its own.
        options: Voirkit's, for each run.
        run_dir: Of the first run; None: each chooses its own.

    Returns:
        How it ended, as ``os.waitpid`` says it; the pythons that started, in their order.

    Raises:
        CommandLineError: There is no such script, or it can not be run.
    """
    command = command_of(script)
    folder = tempfile.mkdtemp(prefix="voirkit-follow-")
    try:
        write_words(os.path.join(folder, OPTIONS), options)
        if run_dir is not None:
            write_words(os.path.join(folder, RUN_DIR), [run_dir])
        status = _run([*command, *arguments], folder)
        return status, noted(folder)
    finally:
        if not any(_has(pid, folder) for pid in _processes()):  # else a python that the script put into the background may still begin
            shutil.rmtree(folder, ignore_errors=True)


def command_of(script: str) -> list[str]:
    """What the kernel, or else a shell, would execute for a script.

    Raises:
        CommandLineError: There is no such file, or it is none that a shell runs.
    """
    if os.path.isdir(script):
        raise CommandLineError(f"{script!r} is a folder.", where="--follow", next="voirkit --follow SHELL-SCRIPT [arguments]")
    if not os.path.exists(script):
        found = shutil.which(script)
        hint = f"{script} is a command: put it into a shell script." if found else "voirkit --follow SHELL-SCRIPT [arguments]"
        raise CommandLineError(f"there is no file {script!r}.", where="--follow", next=hint)
    try:
        with open(script, "rb") as file:
            first = file.readline(4096)
    except OSError as exc:
        raise CommandLineError(f"{script!r} can not be read: {exc.strerror}.", where="--follow") from None
    if first.startswith(b"#!"):
        # As the kernel reads it: the interpreter, and the rest of the line as one argument.
        words = os.fsdecode(first[2:].strip()).split(None, 1)
        if words and not os.path.exists(words[0]):
            raise CommandLineError(f"{script!r} is to be run by {words[0]}, which is not there.", where="--follow")
        return [*words, script] if words else ["/bin/sh", script]
    if b"\0" in first:
        if os.access(script, os.X_OK):
            return [os.path.join(".", script) if "/" not in script else script]
        raise CommandLineError(f"{script!r} is no shell script.", where="--follow")
    if script.endswith(".py"):
        raise CommandLineError(f"{script!r} is no shell script.", where="--follow", next=f"Without a shell script: voirkit {script}")
    return ["/bin/sh", script]


def _run(command: list[str], folder: str) -> int:
    if not hasattr(signal, "sigtimedwait"):
        raise CommandLineError("this needs Linux.", where="--follow", next="Put voirkit into the script: python -m voirkit main.py")
    forwarded = {getattr(signal, name) for name in _FORWARDED}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*forwarded, signal.SIGCHLD})
    try:
        restored = [signal.SIGPIPE, signal.SIGXFSZ]  # which python ignores, and a shell does not
        environment = {**os.environ, FOLDER: folder}
        pid = os.posix_spawn(command[0], command, environment, setsigmask=before, setsigdef=restored)
        return _wait(pid, folder, forwarded)
    except OSError as exc:
        raise CommandLineError(f"{command[0]} can not be run: {exc.strerror}.", where="--follow") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(pid: int, folder: str, forwarded: set[signal.Signals]) -> int:
    """Wait for the script's end; pass on what is sent to voirkit alone; tell of pythons without voirkit."""
    looks, suspects, told = list(_LOOKS_S), set[int](), set[str]()
    while True:
        received = signal.sigtimedwait({*forwarded, signal.SIGCHLD}, looks[0])
        if received is not None and received.si_signo in forwarded:
            if received.si_code != _BY_KERNEL:
                os.kill(pid, received.si_signo)
            if received.si_signo == signal.SIGTSTP:
                os.kill(os.getpid(), signal.SIGSTOP)
            continue
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if received is None:
            looks = looks[1:] or looks
            seen = set(_unknown(pid, folder))
            for other in seen & suspects:
                _tell_unknown(other, told)
            suspects = seen


def noted(folder: str) -> list[Noted]:
    """The pythons that have started, in their order."""
    paths = [entry.path for entry in os.scandir(folder) if entry.name.startswith(NOTE)]
    whole = [words for path in sorted(paths, key=lambda path: os.stat(path).st_mtime_ns) if len(words := words_in(path)) > 6]
    return [Noted(words) for words in whole]


def _has(pid: int, folder: str) -> bool:
    """Whether a process would have its pythons followed."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{FOLDER}={folder}".encode() in file.read().split(b"\0")
    except OSError:
        return False


# what runs without voirkit


def _unknown(root: int, folder: str) -> Iterator[int]:
    """Pythons below a process that have not been noted; what runs under voirkit, or is not to, is not looked into."""
    known = {one.pid: one.how for one in noted(folder)}
    children: dict[int, list[int]] = {}
    for pid in _processes():
        children.setdefault(_parent(pid), []).append(pid)
    left = [root]
    while left:
        pid = left.pop()
        if pid in known and known[pid] != "launcher":
            continue
        if pid not in known and os.path.basename(_executable(pid)).startswith("python"):
            yield pid
        left += children.get(pid, ())


def _tell_unknown(pid: int, told: set[str]) -> None:
    path = _executable(pid)
    if path and path not in told:
        told.add(path)
        tell(f"{path} has no voirkit: what it runs is not recorded.\n  Install it there: {path} -m pip install voirkit")


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _executable(pid: int) -> str:
    """The path of what a process runs; empty if that can not be known."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def end_like(status: int) -> int:
    """The exit code for how a script ended; where a signal ended it, this process ends by it too."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return 128 + number
    return os.waitstatus_to_exitcode(status)
