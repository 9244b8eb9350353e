"""``voirkit export [RUN] --format FORMAT``: writes a run's trace in the format of another tool.

The run is never changed. An existing file is overwritten only with ``--force``.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from voirkit.errors import CommandLineError, VoirkitError, tell
from voirkit.export import Format, formats, load
from voirkit.options import ExtendedArgumentParser
from voirkit.report.output import STDOUT, STDOUT_NAMES, printable, remove_unfinished
from voirkit.runner.completion import describe_dropped
from voirkit.runs.directory import LATEST, check_manifest
from voirkit.runs.opened import Run, open_run
from voirkit.runs.selection import Selection, as_ranges, selection


def main(argv: Sequence[str]) -> int:
    options = main_parser().parse_args(argv)
    with _ends_by_signal(), open_run(LATEST if options.RUN is None else options.RUN) as run:
        for fault in check_manifest(run.path, run.where):
            tell(fault)
        if options.format is None:
            raise CommandLineError(
                "no format is given.", next=f"voirkit export [RUN] --format {'|'.join(formats())}"
            )
        format = load(options.format)
        part = selection(options.steps, options.ranks)
        target = _target(format, options.output, run)
        if part.ranks is not None:
            run.read_only(part.ranks)
        new_folder = _prepare(format, target, options.force)
        _write(format, run, part, target, new_folder)
        for warning in (*_missing(run, part), *run.warnings):
            tell(warning)
    return 0


@contextmanager
def _ends_by_signal() -> Iterator[None]:
    """On Ctrl-C or SIGTERM in the block, remove its unfinished files and end the process.

    The process ends by the signal itself, so that a shell sees which signal it was.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    previous = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            previous[number] = signal.signal(number, stop)
    try:
        yield
    except BaseException:  # DuckDB turns the KeyboardInterrupt into a RuntimeError
        if not received:
            raise
        remove_unfinished()
        signal.signal(received[0], signal.SIG_DFL)
        os.kill(os.getpid(), received[0])
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _missing(run: Run, part: Selection) -> list[str]:
    """Return warnings about data missing in the export.

    These are spans that could not be recorded, and ranks that recorded nothing.
    """
    dropped: Counter[str] = Counter()
    ranks = set()
    for process in run.processes():
        if part.ranks is None or process.rank in part.ranks:
            dropped.update(process.dropped)
            ranks.add(process.rank)
    lines = list(describe_dropped(dropped))
    world_size = run.manifest.get("world_size")
    if part.ranks is None and isinstance(world_size, int) and ranks:
        missing = sorted(set(range(world_size)) - ranks)
        if missing:
            lines.append(f"rank {as_ranges(missing)} of {world_size} has recorded nothing.")
    return lines


def _write(format: Format, run: Run, part: Selection, target: str, new_folder: str | None) -> None:
    """Write the files, and print their names.

    ``new_folder`` was created for the files. It is removed if the format raises a VoirkitError, for
    instance because there is nothing to write.
    """
    try:
        paths = format.write(run, part, target)
        target = STDOUT  # from here on, an OSError comes from stdout
        for path in paths:
            if path != STDOUT:
                print(printable(path))
        if sys.stdout is not None:
            sys.stdout.flush()
    except VoirkitError:
        if new_folder:
            with suppress(OSError):  # a folder that is not empty is kept
                os.rmdir(new_folder)
        raise
    except OSError as exc:
        if target == STDOUT:
            # Python flushes the rest of the buffer when it exits: let that go to devnull
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, sys.stdout.fileno())
            if isinstance(exc, BrokenPipeError):
                return  # no error: the reader has closed the pipe, as `head` does
        raise _not_written(target, exc) from None


def main_parser() -> ExtendedArgumentParser:
    by_name = formats()
    width = max(map(len, by_name))
    listed = "\n".join(f"  {name:<{width}}  {words}" for name, (_, words) in by_name.items())
    parser = ExtendedArgumentParser(
        "voirkit export",
        "voirkit export [RUN] --format FORMAT [-o FILE_OR_DIR] [--steps A:B] [--ranks LIST]"
        " [--force]",
        description="Write what a run recorded for other tools.",
        epilog=f"formats:\n{listed}\n",
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("RUN", nargs="?", help=f"a run directory; by default {LATEST}")
    option = parser.add_argument("--format", metavar="FORMAT", help="one of those below")
    vars(option)["completes"] = tuple(by_name)  # words that shell completion offers (command_lines)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE_OR_DIR",
        help="where to (default: the run's name, in the current folder); - is stdout",
    )
    parser.add_argument(
        "--steps", metavar="A:B", help="only steps A to B-1, and what happened meanwhile"
    )
    parser.add_argument("--ranks", metavar="LIST", help="only these ranks: 0,2-3")
    parser.add_argument("--force", action="store_true", help="overwrite files that are there")
    return parser


def _target(format: Format, output: str | None, run: Run) -> str:
    if output is None:
        return f"{run.name}{format.SUFFIX}" if format.SUFFIX else f"{run.name}-{format.NAME}"
    if "://" in output:
        raise CommandLineError("this is an address; exports are files.", where=f"-o {output}")
    if output in STDOUT_NAMES:
        return STDOUT
    if format.SUFFIX and (os.path.isdir(output) or output.endswith(os.sep)):
        return os.path.join(output, f"{run.name}{format.SUFFIX}")
    return output


def _prepare(format: Format, target: str, force: bool) -> str | None:
    """Check the target of the export, and create the folder to write into.

    Returns:
        The folder if it was created, None if it existed.

    Raises:
        CommandLineError: A file of that name exists, or the folder already has files of that
            format: a reader would take the old and new files for one trace.
        VoirkitError: The folder cannot be created.
    """
    if target == STDOUT:
        _check_stdout(format)
        return None
    if not target:
        raise CommandLineError("the name of the file is empty.", where="-o")
    # a format that writes a folder writes a single file if the name has the format's suffix
    is_file = bool(format.SUFFIX) or target.endswith((f".{format.NAME}", f".{format.NAME}.gz"))
    folder = os.path.dirname(target) if is_file else target
    if is_file and os.path.isdir(target):
        raise CommandLineError("this is a folder; one file is to be written.", where=target)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise CommandLineError(
            "this is a file, not a folder.", where=folder, next="Give another name with -o."
        )
    if not is_file:
        existing = _existing_files(format, folder)
    else:
        existing = [target] if os.path.lexists(target) else []
    _check_existing(existing, force)
    if not folder or os.path.isdir(folder):
        return None
    try:
        os.makedirs(folder)
    except OSError as exc:
        raise _not_written(folder, exc) from None
    return folder


def _check_existing(paths: Sequence[str], force: bool) -> None:
    """Raise CommandLineError if existing files may not be overwritten."""
    for path in paths:
        if os.path.islink(path) or not os.path.isfile(path):
            raise CommandLineError(
                "this is a link, a device or the like, and is left as it is.",
                where=path,
                next="Give another name with -o.",
            )
    if paths and not force:
        raise CommandLineError(
            "it is there already.",
            where=paths[0],
            next="Give another name with -o, or overwrite it with --force.",
        )


def _existing_files(format: Format, folder: str) -> list[str]:
    """Return the files of this format in a folder."""
    prefix = getattr(format, "PREFIX", None)
    paths = []
    if prefix is not None:  # this format's files lie in subfolders, and have no suffix
        for parent, _, names in os.walk(folder):
            paths += [os.path.join(parent, name) for name in names if name.startswith(prefix)]
    elif os.path.isdir(folder):
        suffixes = (f".{format.NAME}", f".{format.NAME}.gz")
        names = os.listdir(folder)
        paths += [os.path.join(folder, name) for name in names if name.endswith(suffixes)]
    return sorted(paths)


def _check_stdout(format: Format) -> None:
    if sys.stdout is None:
        raise VoirkitError("it is closed.", where="stdout")
    if not format.IS_TEXT and sys.stdout.isatty():
        hint = (
            "Give a file's name with -o, or let a program read it: voirkit export --format"
            f" {format.NAME} -o - | PROGRAM"
        )
        raise CommandLineError(
            f"{format.NAME} is not text, and this is a terminal.", where="stdout", next=hint
        )


def _not_written(target: str, exc: OSError) -> VoirkitError:
    why: object = exc.strerror
    if not why:  # an OSError that a library raises may have only a number
        why = os.strerror(exc.errno) if exc.errno else exc
    where = "stdout" if target == STDOUT else target
    return VoirkitError(f"it cannot be written: {why}.", where=where)
