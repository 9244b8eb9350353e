"""``voirkit [options] --follow SHELL-SCRIPT [arguments]``: each Python process that a shell script
starts runs under voirkit.

The script gets one more environment variable, ``$VOIRKIT_FOLLOW``, which ``voirkit.follow_start``
reads in each Python process that has voirkit. The script's folder, arguments, files and signals are
as they would be without voirkit. Needs Linux.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import suppress

import psutil

from voirkit.errors import CommandLineError, VoirkitError, tell
from voirkit.follow_start import FOLDER, NOTE, OPTIONS, RUN_DIR, words_in, write_words
from voirkit.processes.subprocesses import HOOK
from voirkit.runner import voirfiles
from voirkit.runner.overseer import Overseer
from voirkit.runs import directory
from voirkit.trust import FLAG as TRUST

FLAG = "--follow"
_USAGE = "voirkit --follow SHELL-SCRIPT [arguments]"
# Signals that voirkit passes on to the script. A signal from the terminal needs no passing on: it
# reaches both, because voirkit and the script are in the same process group.
_FORWARDED = (
    "SIGINT",
    "SIGQUIT",
    "SIGTERM",
    "SIGHUP",
    "SIGUSR1",
    "SIGUSR2",
    "SIGALRM",
    "SIGWINCH",
    "SIGCONT",
    "SIGTSTP",
)
_BY_KERNEL = 128  # SI_KERNEL: the signal comes from the terminal
_PAUSES_S = (0.5, 1.0, 2.0)  # between checks for Python processes without voirkit; the last repeats


class StartedPython:
    """A Python process that started: its process id, how voirkit treats it (``run``, ``launcher``,
    ``plain``), and its command line."""

    def __init__(self, words: Sequence[str]) -> None:
        pid, ppid, self.how, rank, self.cwd, self.run_dir, self.kind, *command = words
        self.pid, self.ppid, self.rank, self.command = (
            int(pid),
            int(ppid),
            int(rank) if rank.isdigit() else 0,
            command,
        )

    def directory(self) -> str | None:
        """Return its run directory; None if it has none. That is the directory that it was told to
        use, or the one with its process id in the manifest or in the name of a stream. Ranks share
        the directory of the first rank."""
        if self.run_dir:
            return self.run_dir if os.path.isdir(self.run_dir) else None
        parent = os.path.join(self.cwd, directory.PARENT)
        for name in sorted(os.listdir(parent), reverse=True) if os.path.isdir(parent) else ():
            path = os.path.join(parent, name)
            manifest = None if os.path.islink(path) else directory.read_manifest(path)
            streams = os.path.join(path, "stream")
            is_rank = os.path.isdir(streams) and any(
                name.endswith(f"-{self.pid}.jsonl") for name in os.listdir(streams)
            )
            if manifest is not None and (manifest.get("pid") == self.pid or is_rank):
                return path
        return None


class _Reader(Overseer):
    """Reads a command line with the options of all instruments, and runs nothing."""

    parsed: Namespace
    own: list[str]  # voirkit's own words of the command line

    def _run(self, argv: Sequence[str]) -> None:
        with self.run_phase(self.phases.init):
            pass
        self._refuse()
        self.parsed = self.argparser.parse_command(argv)
        self.own = self.argparser.split(argv)[0]


def main(argv: Sequence[str]) -> int | None:
    """Run the shell script and return its exit code; None if ``--follow`` is not one of voirkit's
    options on this command line."""
    reader = _Reader()
    try:
        for instruments in voirfiles.plugins(reader.warn).values():
            reader.require(*instruments)
        reader(argv)
        options = reader.parsed
        if not options.follow:
            return None
        if options.SCRIPT is None:
            raise CommandLineError(
                "-m runs a module, and no shell script.", where=FLAG, next=_USAGE
            )
        if not any(os.path.exists(os.path.join(folder, HOOK)) for folder in sys.path):
            tell(
                f"there is no {HOOK} beside voirkit: {sys.executable} is not followed.\n  Install"
                " voirkit there: pip install voirkit"
            )
        words, run_dir = _words_for_each(reader.own, options.run_dir)
        status, pythons = follow(options.SCRIPT, options.ARGV, words, run_dir)
    except VoirkitError as exc:
        tell(str(exc))
        return exc.exit_code
    if not options.quiet:
        tell(_summary(options.SCRIPT, pythons))
    return _end_like(status)


def _words_for_each(own: Sequence[str], run_dir: str | None) -> tuple[list[str], str | None]:
    """Return voirkit's options for each run, and the directory of the first run. The paths are
    absolute, because the script may change its folder before it starts a Python process."""
    words: list[str] = []
    remaining = iter(own)
    for word in remaining:
        name, equals, value = word.partition("=")
        if word == FLAG:
            continue
        if name == "--run-dir":
            if not equals:
                next(remaining)
        elif name in ("--config", TRUST):
            words += [name, os.path.abspath(value if equals else next(remaining))]
        else:
            words.append(word)
    return words, None if run_dir is None else os.path.abspath(run_dir)


def _summary(script: str, pythons: Sequence[StartedPython]) -> str:
    """Describe the runs of a shell script that has ended, and where their records are."""
    runs = [start for start in pythons if start.how == "run"]
    if not runs:
        why = (
            "its pythons ran commands, tools, or voirkit itself"
            if pythons
            else "it started no python that has voirkit"
        )
        return f"{script}: nothing was followed: {why}."
    ranks_by_path: dict[str, list[StartedPython]] = {}
    for start in runs:
        ranks_by_path.setdefault(start.directory() or f"?{start.ppid}", []).append(start)
    lines = [f"{script}: {len(ranks_by_path)} run{'s' if len(ranks_by_path) > 1 else ''}"]
    for path, ranks in ranks_by_path.items():
        first = min(ranks, key=lambda start: start.rank)
        name = " ".join([*(["-m"] if first.kind == "module" else []), *first.command])
        listed = (
            "(no run directory)"
            if path.startswith("?")
            else path.removeprefix(os.getcwd() + os.sep)
        )
        lines.append(f"  {listed}   {name}" + (f" ({len(ranks)} ranks)" if len(ranks) > 1 else ""))
    return "\n".join(lines)


def follow(
    script: str, arguments: Sequence[str], options: Sequence[str], run_dir: str | None
) -> tuple[int, list[StartedPython]]:
    """Run a shell script to its end.

    Args:
        options: Voirkit's options for each run.
        run_dir: The directory of the first run; with None each run chooses its own.

    Returns:
        The status of the script, as ``os.waitpid`` returns it, and the Python processes that
        started, in the order in which they started.

    Raises:
        CommandLineError: There is no such script, or it cannot be run.
    """
    command = _command_of(script)
    folder = tempfile.mkdtemp(prefix="voirkit-follow-")
    try:
        write_words(os.path.join(folder, OPTIONS), options)
        if run_dir is not None:
            write_words(os.path.join(folder, RUN_DIR), [run_dir])
        status = _run([*command, *arguments], folder)
        return status, _started(folder)
    finally:
        # keep the folder while a background process may still start a Python process
        if not any(_has(process, folder) for process in psutil.process_iter()):
            shutil.rmtree(folder, ignore_errors=True)


def _command_of(script: str) -> list[str]:
    """Return the command that executes a script: the one that the kernel would execute, or
    ``/bin/sh`` for a script without ``#!``."""
    if os.path.isdir(script):
        raise CommandLineError(f"{script!r} is a folder.", where=FLAG, next=_USAGE)
    if not os.path.exists(script):
        hint = _USAGE
        if shutil.which(script):
            hint = f"{script} is a command: put it into a shell script."
        raise CommandLineError(f"there is no file {script!r}.", where=FLAG, next=hint)
    try:
        with open(script, "rb") as file:
            first_line = file.readline(4096)
    except OSError as exc:
        raise CommandLineError(f"{script!r} cannot be read: {exc.strerror}.", where=FLAG) from None
    if first_line.startswith(b"#!"):
        return [*_interpreter(script, first_line), script]
    is_binary = b"\0" in first_line
    if is_binary and os.access(script, os.X_OK):
        return [os.path.join(".", script) if "/" not in script else script]
    if is_binary or script.endswith(".py"):
        hint = f"Without a shell script: voirkit {script}" if script.endswith(".py") else ""
        raise CommandLineError(f"{script!r} is no shell script.", where=FLAG, next=hint)
    return ["/bin/sh", script]


def _interpreter(script: str, first_line: bytes) -> list[str]:
    """Return the words of a ``#!`` line as the kernel splits it: the interpreter, and the rest of
    the line as one argument."""
    words = os.fsdecode(first_line[2:].strip()).split(None, 1)
    if not words:
        return ["/bin/sh"]
    if not os.path.exists(words[0]):
        raise CommandLineError(
            f"{script!r} is to be run by {words[0]}, which is not there.", where=FLAG
        )
    return words


def _run(command: list[str], folder: str) -> int:
    if not hasattr(signal, "sigtimedwait"):
        raise CommandLineError(
            "this needs Linux.",
            where=FLAG,
            next="Put voirkit into the script: python -m voirkit main.py",
        )
    forwarded = {getattr(signal, name) for name in _FORWARDED}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*forwarded, signal.SIGCHLD})
    try:
        restored = [signal.SIGPIPE, signal.SIGXFSZ]  # Python ignores them, a shell does not
        pid = os.posix_spawn(
            command[0],
            command,
            {**os.environ, FOLDER: folder},
            setsigmask=before,
            setsigdef=restored,
        )
        return _wait(pid, folder, forwarded)
    except OSError as exc:
        raise CommandLineError(f"{command[0]} cannot be run: {exc.strerror}.", where=FLAG) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(pid: int, folder: str, forwarded: set[signal.Signals]) -> int:
    """Wait for the script's end and return its status. Meanwhile pass on signals that were sent to
    voirkit alone, and report Python processes without voirkit."""
    pauses, suspects, reported = list(_PAUSES_S), set[int](), set[str]()
    while True:
        received = signal.sigtimedwait({*forwarded, signal.SIGCHLD}, pauses[0])
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
            pauses = pauses[1:] or pauses
            unknown = dict(_unknown(pid, folder))
            for path in {path for other, path in unknown.items() if other in suspects} - reported:
                reported.add(path)
                tell(
                    f"{path} has no voirkit: what it runs is not recorded.\n  Install it there:"
                    f" {path} -m pip install voirkit"
                )
            suspects = set(unknown)


def _started(folder: str) -> list[StartedPython]:
    """Return the Python processes that have started, in the order in which they started."""
    paths = [entry.path for entry in os.scandir(folder) if entry.name.startswith(NOTE)]
    notes = map(words_in, sorted(paths, key=lambda path: os.stat(path).st_mtime_ns))
    # a note with fewer words is still being written
    return [StartedPython(words) for words in notes if len(words) > 6]


def _has(process: psutil.Process, folder: str) -> bool:
    """True if the Python processes that a process starts would be followed, because its environment
    names the folder."""
    try:
        return process.environ().get(FOLDER) == folder
    except psutil.Error:
        return False


def _unknown(root: int, folder: str) -> Iterator[tuple[int, str]]:
    """Yield the process id and path of each Python process below a process that has not started
    voirkit. Processes that run under voirkit, or that voirkit leaves alone, are skipped with their
    children."""
    how = {start.pid: start.how for start in _started(folder)}
    waiting = [psutil.Process(root)]
    while waiting:
        process = waiting.pop()
        if how.get(process.pid, "launcher") == "launcher":
            with suppress(psutil.Error):
                path = process.exe()
                if process.pid not in how and os.path.basename(path).startswith("python"):
                    yield process.pid, path
                waiting += process.children()


def _end_like(status: int) -> int:
    """Return the exit code for the status of a script. If a signal ended the script, end this
    process by the same signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return 128 + number
    return os.waitstatus_to_exitcode(status)
